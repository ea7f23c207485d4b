//! `cantle controller …`: what runs in the pods of a Kubernetes cluster.

mod extender;
mod node;
mod queues;
mod webhook;

use std::path::PathBuf;

use cantle_kube::KubeError;
use clap::{Args, Subcommand, ValueEnum};

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
    /// The part of a node: publishes its GPUs and makes the slices that the cluster's scheduler gives to pods
    Node(node::NodeArgs),
    /// Tasks in ClearML's queues become pods, as many at a time as each queue may have
    Queues(queues::QueuesArgs),
    /// What kube-scheduler asks on the classic path: which node, which GPU
    Extender(extender::ExtenderArgs),
    /// The injector: pods that ask for a share of a GPU in ClearML's or Run:ai's words get what it takes to have one
    Webhook(webhook::WebhookArgs),
}

/// How pods come to their slices.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum PathArg {
    /// Claims on devices (Kubernetes 1.34 and newer)
    Dra,
    /// A device plugin and a scheduler extender (1.30 and newer)
    Classic,
}

pub(crate) fn controller(context: &Context, args: ControllerArgs) -> Outcome {
    match args.command {
        ControllerCommand::Node(node) => node::node(context, args.kubeconfig.as_deref(), node),
        ControllerCommand::Queues(queues) => queues::queues(context, args.kubeconfig.as_deref(), queues),
        ControllerCommand::Extender(extender) => extender::extender(args.kubeconfig.as_deref(), &extender),
        ControllerCommand::Webhook(webhook) => webhook::webhook(args.kubeconfig.as_deref(), webhook),
    }
}

fn from_kube(error: KubeError) -> CliError {
    CliError::with_code(error.exit_code(), error.to_string())
}
