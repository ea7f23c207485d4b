//! The topologies that a scenario can name.

use cantle_decide::Offer;
use cantle_model::{GpuLink, PciePath, Topology};

/// NVLinks between eight V100 in a hybrid cube mesh, as `nvidia-smi topo -m` prints them on a DGX-1.
const MESH: [[u32; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// The topology `name` of these GPUs: two at each PCIe switch, half of them (at least four) at each socket, and NVLinks by name.
pub(crate) fn named(name: &str, gpus: &[Offer]) -> Result<Topology, String> {
    let nvlinks: fn(usize, usize) -> u32 = match name {
        "pcie" => |_, _| 0,
        "nvlink-bridge" => |one, other| if one / 2 == other / 2 { 4 } else { 0 },
        "cube-mesh" => |one, other| if one / 8 == other / 8 { MESH[one % 8][other % 8] } else { 0 },
        "nvswitch" => |_, _| 18,
        _ => {
            return Err(format!("\"{name}\" is not a topology: pcie, nvlink-bridge, cube-mesh, nvswitch"));
        }
    };
    let socket = gpus.len().div_ceil(2).max(4);
    let path = |one: usize, other: usize| match (one / 2 == other / 2, one / socket == other / socket) {
        (true, _) => PciePath::Pix,
        (_, true) => PciePath::Node,
        _ => PciePath::Sys,
    };
    let link =
        |one: usize, other: usize| GpuLink { nvlinks: nvlinks(one, other), path: Some(path(one, other)) };
    Ok(Topology::new(gpus.iter().map(|offer| offer.gpu.uuid.clone()).collect(), link))
}
