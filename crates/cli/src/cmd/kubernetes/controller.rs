//! `cantle controller …`: the programs that run in the pods of a Kubernetes cluster.

mod extender;
mod libraries;
mod node;
mod path;
mod queues;
mod webhook;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::context::{CommandResult, Context};

/// `cantle controller …`
#[derive(Args, Debug)]
pub(crate) struct ControllerArgs {
    /// Kubeconfig of the cluster, as for kubectl [default: the cluster of this pod, or $KUBECONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    #[command(subcommand)]
    command: ControllerCommand,
}

/// The programs.
#[derive(Subcommand, Debug)]
enum ControllerCommand {
    /// Run the node's part: publishes its GPUs and creates the slices that the cluster's scheduler allocates to pods
    Node(node::NodeArgs),
    /// Run tasks of ClearML's queues as pods, up to the limit of each queue
    Queues(queues::QueuesArgs),
    /// Run the scheduler extender of the classic path: chooses node and GPU for kube-scheduler
    Extender(extender::ExtenderArgs),
    /// Run the injector: translates the labels and annotations of ClearML and Run:ai with which pods request a share of a GPU
    Webhook(webhook::WebhookArgs),
    /// Copy cantle's libraries from the image to a directory where the node's container engine finds them
    Libraries(libraries::LibrariesArgs),
}

/// Runs one of them until a signal stops it.
pub(crate) fn controller(context: &Context, args: ControllerArgs) -> CommandResult {
    match args.command {
        ControllerCommand::Node(node) => node::node(context, args.kubeconfig.as_deref(), node),
        ControllerCommand::Queues(queues) => queues::queues(context, args.kubeconfig.as_deref(), queues),
        ControllerCommand::Extender(extender) => extender::extender(args.kubeconfig.as_deref(), &extender),
        ControllerCommand::Webhook(webhook) => webhook::webhook(args.kubeconfig.as_deref(), webhook),
        ControllerCommand::Libraries(to) => libraries::libraries(context, &to),
    }
}
