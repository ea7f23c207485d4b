//! `cantle gpus`, `why` and `projects` for a cluster without a cantle server: read from the cluster itself.

use std::path::PathBuf;
use std::process::ExitCode;

use cantle_kube::ClusterReport;
use cantle_kube::report::{GpuReport, NamespaceReport, NodeReport};
use cantle_model::{Bytes, Milli};
use clap::Args;

use crate::connect::address;
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format};

/// Set in every pod.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// The source of the answer.
#[derive(Args, Debug)]
pub(crate) struct ClusterArg {
    /// Ask the Kubernetes cluster of this kubeconfig, not a server of cantle's [default in a pod: its cluster, if no server is
    /// named]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterArg {
    /// The cluster, if it is to be asked and not a server.
    pub(crate) fn read(&self, context: &Context) -> Result<Option<ClusterReport>, CliError> {
        let in_cluster = || std::env::var_os(IN_CLUSTER).is_some() && address(context).is_err();
        if self.kubeconfig.is_none() && !in_cluster() {
            return Ok(None);
        }
        let report = runtime()?.block_on(async {
            let client = cantle_kube::connect(self.kubeconfig.as_deref()).await?;
            ClusterReport::read(&client).await
        })?;
        Ok(Some(report))
    }
}

const GPU_COLUMNS: [Column<GpuReport>; 8] = [
    Column { head: "NODE", wide: false, cell: |g| g.node.clone() },
    Column { head: "GPU", wide: false, cell: |g| g.index.to_string() },
    Column { head: "NAME", wide: false, cell: |g| g.model.clone() },
    Column { head: "STATE", wide: false, cell: |g| g.state.clone() },
    Column { head: "ALLOCATED", wide: false, cell: |g| Milli(g.given_milli).to_string() },
    Column { head: "LIMITS / TOTAL", wide: false, cell: limits },
    Column { head: "PODS", wide: false, cell: |g| g.pods.join(" ") },
    Column { head: "UUID", wide: true, cell: |g| g.uuid.clone() },
];

fn limits(gpu: &GpuReport) -> String {
    format!("{} / {}", Bytes(gpu.given_bytes), Bytes(gpu.memory_bytes))
}

const NAMESPACE_COLUMNS: [Column<NamespaceReport>; 6] = [
    Column { head: "NAMESPACE", wide: false, cell: |n| n.namespace.clone() },
    Column { head: "ALLOCATED", wide: false, cell: |n| Milli(n.given_milli).to_string() },
    Column { head: "QUOTA", wide: false, cell: |n| n.quota_gpus.clone().unwrap_or_else(|| "-".to_owned()) },
    Column { head: "MEMORY", wide: false, cell: |n| Bytes(n.given_bytes).to_string() },
    Column { head: "RUNNING", wide: false, cell: |n| n.running.to_string() },
    Column { head: "WAITING", wide: false, cell: |n| n.waiting.to_string() },
];

/// GPUs of the cluster, with their pods.
pub(crate) fn gpus(context: &Context, report: &ClusterReport) -> CommandResult {
    context.printer.items(&report.gpus(), |g| g.uuid.clone(), &GPU_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// Namespaces with what their pods have: a cluster has no other projects.
pub(crate) fn projects(context: &Context, report: &ClusterReport) -> CommandResult {
    context.printer.items(&report.namespaces(), |n| n.namespace.clone(), &NAMESPACE_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// Why a pod waits, or what it has.
pub(crate) fn why(context: &Context, report: &ClusterReport, name: &str) -> CommandResult {
    let found = report.pod(name).ok_or_else(|| {
        CliError::new(ErrorKind::NotFound, format!("no pod {name} in the cluster"))
            .with_hint("name it NAMESPACE/POD if it is not in the kubeconfig's namespace")
    })?;
    let printer = &context.printer;
    if printer.format == Format::Json {
        printer.json(&serde_json::json!({"version": 1, "items": [found]}));
        return Ok(ExitCode::SUCCESS);
    }
    let request = found.request.map(|request| format!(", asks for {request}")).unwrap_or_default();
    printer.data(&printer.bold(&format!("{} is {}{request}", found.pod, found.state)));
    printer.data(&format!("  {}", found.reason));
    for line in by_reason(&found.nodes) {
        printer.data(&format!("  {line}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each reason. A large cluster has hundreds of nodes and few reasons.
fn by_reason(nodes: &[NodeReport]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for node in nodes {
        match groups.iter_mut().find(|(reason, _)| *reason == node.reason) {
            Some((_, names)) => names.push(&node.node),
            None => groups.push((&node.reason, vec![&node.node])),
        }
    }
    let line = |(reason, names): (&str, Vec<&str>)| match names.as_slice() {
        [one] => format!("node {one}: {reason}"),
        [first, second] => format!("nodes {first} and {second}: {reason}"),
        [first, second, more @ ..] => {
            format!("nodes {first}, {second} and {} more: {reason}", more.len())
        }
        [] => reason.to_owned(),
    };
    groups.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_one_line() {
        let node = |at: usize, reason: &str| NodeReport { node: format!("n{at}"), reason: reason.to_owned() };
        let mut nodes: Vec<NodeReport> =
            (0..199).map(|at| node(at, "the pod's nodeSelector excludes it")).collect();
        nodes.push(node(199, "needs 0.5 GPU"));
        let lines = by_reason(&nodes);
        assert_eq!(
            lines,
            ["nodes n0, n1 and 197 more: the pod's nodeSelector excludes it", "node n199: needs 0.5 GPU"]
        );
        assert_eq!(by_reason(&nodes[198..]).len(), 2);
    }
}
