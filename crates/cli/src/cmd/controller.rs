//! `cantle controller …`: what runs in the pods of a Kubernetes cluster.

mod node;
mod queues;
mod webhook;

use std::path::PathBuf;

use cantle_kube::KubeError;
use clap::{Args, Subcommand};

use super::Context;
use crate::error::{CliError, Outcome};

/// `cantle controller …`
#[derive(Args, Debug)]
pub(crate) struct ControllerArgs {
    /// The cluster, as for kubectl; default: the one whose pod this is, or $KUBECONFIG
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    #[command(subcommand)]
    command: ControllerCommand,
}

/// Which part.
#[derive(Subcommand, Debug)]
enum ControllerCommand {
    /// The DRA driver of a node: publishes its GPUs and makes the slices that the cluster's scheduler gives to pods
    Node(node::NodeArgs),
    /// Tasks in ClearML's queues become pods, as many at a time as each queue may have
    Queues(queues::QueuesArgs),
    /// The injector: pods that ask for a share of a GPU in ClearML's or Run:ai's words get a claim for it
    Webhook(webhook::WebhookArgs),
}

pub(crate) fn controller(context: &Context, args: ControllerArgs) -> Outcome {
    match args.command {
        ControllerCommand::Node(node) => node::node(context, args.kubeconfig.as_deref(), node),
        ControllerCommand::Queues(queues) => queues::queues(context, args.kubeconfig.as_deref(), queues),
        ControllerCommand::Webhook(webhook) => webhook::webhook(args.kubeconfig.as_deref(), webhook),
    }
}

fn from_kube(error: KubeError) -> CliError {
    CliError::with_code(error.exit_code(), error.to_string())
}
