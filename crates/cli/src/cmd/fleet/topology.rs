//! `cantle gpus --topology`: how the GPUs of each node are connected.

use std::process::ExitCode;

use cantle_clearml::cantle::NodeView;
use cantle_model::{GpuLink, GpuUuid, Topology};
use serde::Serialize;

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format};

/// Two GPUs of a node.
#[derive(Serialize)]
struct Pair {
    node: String,
    /// Indices on the node, the lower one first.
    gpus: [u32; 2],
    /// As in the matrix.
    link: String,
    /// Active NVLinks between them, or of each of them to the switches.
    nvlinks: u32,
    /// The way over PCIe; null if the driver does not report it.
    path: Option<&'static str>,
}

const COLUMNS: [Column<Pair>; 5] = [
    Column { head: "NODE", wide: false, cell: |p| p.node.clone() },
    Column { head: "GPU", wide: false, cell: |p| p.gpus[0].to_string() },
    Column { head: "OTHER", wide: false, cell: |p| p.gpus[1].to_string() },
    Column { head: "LINK", wide: false, cell: |p| p.link.clone() },
    Column { head: "PATH", wide: false, cell: |p| p.path.unwrap_or("?").to_owned() },
];

const LEGEND: &str = "NV#: that many NVLinks; PIX: one PCIe switch; PXB: several; PHB: a host bridge; NODE: host bridges of one NUMA \
                      node; SYS: between NUMA nodes; ?: not reported";

/// A matrix for each node with several GPUs; other formats have a row for each two GPUs.
pub(crate) fn print(context: &Context, nodes: &[NodeView]) -> CommandResult {
    let printer = &context.printer;
    if printer.format == Format::Name {
        return Err(CliError::new(
            ErrorKind::Usage,
            "--topology has no names; formats are table, json and csv",
        ));
    }
    if !matches!(printer.format, Format::Table | Format::Wide) {
        let pairs: Vec<Pair> = nodes.iter().flat_map(pairs).collect();
        printer.items(&pairs, |pair| pair.link.clone(), &COLUMNS);
        return Ok(ExitCode::SUCCESS);
    }
    for node in nodes {
        match node.gpus.len() {
            0 | 1 => printer.say(&format!("node {}: no two GPUs", node.node)),
            _ if node.links.is_empty() => {
                printer.say(&format!("node {}: the driver reports no connections", node.node));
            }
            _ => {
                printer.data(&printer.bold(&format!("node {}", node.node)));
                let (head, rows) = matrix(node);
                printer.rows(&head, &rows);
            }
        }
    }
    if nodes.iter().any(|node| !node.links.is_empty()) {
        printer.say(LEGEND);
    }
    Ok(ExitCode::SUCCESS)
}

fn topology(node: &NodeView) -> (Vec<GpuUuid>, Topology) {
    let uuids: Vec<GpuUuid> = node.gpus.iter().map(|gpu| GpuUuid(gpu.uuid.clone())).collect();
    (uuids.clone(), Topology::from_report(uuids, node.links.clone()))
}

fn pairs(node: &NodeView) -> Vec<Pair> {
    let (uuids, topology) = topology(node);
    let pair = |one: usize, other: usize| {
        let link = topology.link(&uuids[one], &uuids[other]);
        Pair {
            node: node.node.clone(),
            gpus: [node.gpus[one].index, node.gpus[other].index],
            link: link.to_string(),
            nvlinks: link.nvlinks,
            path: link.path.map(cantle_model::PciePath::word),
        }
    };
    let count = uuids.len();
    (0..count)
        .flat_map(|one| (one + 1..count).map(move |other| (one, other)))
        .map(|(a, b)| pair(a, b))
        .collect()
}

fn matrix(node: &NodeView) -> (Vec<String>, Vec<Vec<String>>) {
    let (uuids, topology) = topology(node);
    let names: Vec<String> = node.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)).collect();
    let cell = |one: usize, other: usize| match topology.link(&uuids[one], &uuids[other]) {
        _ if one == other => "X".to_owned(),
        link => GpuLink::to_string(&link),
    };
    let row = |(at, name): (usize, &String)| {
        std::iter::once(name.clone()).chain((0..uuids.len()).map(|other| cell(at, other))).collect()
    };
    let rows = names.iter().enumerate().map(row).collect();
    (std::iter::once(String::new()).chain(names.iter().cloned()).collect(), rows)
}

#[cfg(test)]
mod tests {
    use cantle_clearml::cantle::GpuView;
    use cantle_model::{GpuMode, PciePath};

    use super::*;

    fn node(links: Vec<GpuLink>) -> NodeView {
        let gpu = |index: u32| GpuView {
            index,
            uuid: format!("GPU-{index}"),
            model: "A40".into(),
            memory_bytes: 48 << 30,
            mode: GpuMode::Idle,
            allocated_milli: 0,
            slices: Vec::new(),
            foreign: Vec::new(),
            fault: None,
        };
        NodeView {
            node: "box".into(),
            worker: String::new(),
            last_seen: String::new(),
            alive: true,
            queues: Vec::new(),
            gpus: [0, 1, 3].map(gpu).to_vec(),
            links,
            suspended: Vec::new(),
        }
    }

    #[test]
    fn the_matrix_names_gpus_by_index() {
        let link = |nvlinks, path| GpuLink { nvlinks, path: Some(path) };
        let box3 = node(vec![link(4, PciePath::Pix), link(0, PciePath::Sys), link(0, PciePath::Node)]);
        let (head, rows) = matrix(&box3);
        assert_eq!(head, ["", "GPU0", "GPU1", "GPU3"]);
        let expected =
            [["GPU0", "X", "NV4", "SYS"], ["GPU1", "NV4", "X", "NODE"], ["GPU3", "SYS", "NODE", "X"]];
        assert_eq!(rows, expected);
        let pairs = pairs(&box3);
        assert_eq!((pairs[0].gpus, pairs[0].nvlinks, pairs[0].path), ([0, 1], 4, Some("PIX")));
        assert_eq!((pairs[2].gpus, pairs[2].link.as_str()), ([1, 3], "NODE"));
    }

    #[test]
    fn a_report_of_other_gpus_is_unknown() {
        let (_, rows) = matrix(&node(vec![GpuLink { nvlinks: 4, path: None }]));
        assert_eq!(rows[0], ["GPU0", "X", "?", "?"]);
    }
}
