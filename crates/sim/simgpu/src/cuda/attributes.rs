//! Answers `cuDeviceGetAttribute`.

use super::driver_api;
use super::session::session;
use super::visible::Visible;
use crate::ffi::Out;
use crate::identity::pci_bus;

/// Attributes that are the same for all models, in CUDA's numbering. Attributes named nowhere are 0: not there.
#[rustfmt::skip]
static CONSTANTS: &[(i32, i32)] = &[
    (1, 1024), (2, 1024), (3, 1024), (4, 64), // threads per block, block dimensions
    (5, i32::MAX), (6, 65535), (7, 65535), // grid dimensions
    (8, 49152), // shared memory per block
    (9, 65536), // constant memory
    (10, 32), // warp size
    (11, i32::MAX), // pitch
    (12, 65536), // registers per block
    (14, 512), (15, 1), // texture alignment, overlap
    (19, 1), // maps host memory
    (21, 131_072), (22, 131_072), (23, 65536), (24, 16384), (25, 16384), (26, 16384), (27, 32768), (28, 32768), (29, 2048), // textures
    (30, 512), (31, 1), (32, 1), // surface alignment, concurrent kernels, ECC
    (40, 3), (41, 1), // copy engines, unified addressing
    (51, 32), // texture pitch alignment
    (78, 1), (79, 1), (80, 1), // stream priorities, L1 caches
    (82, 65536), // registers per multiprocessor
    (83, 1), (89, 1), (90, 1), (91, 1), // managed memory, compute preemption, registered host pointers
    (95, 1), // cooperative launch
    (98, 1), (99, 1), // remote writes, host registration
    (102, 1), (103, 1), // virtual memory management, handles as file descriptors
    (106, 32), // blocks per multiprocessor
    (115, 1), (119, 1), // memory pools, shareable as file descriptors
    (122, 1), (123, 1), (125, 1), // stream memory operations, IPC events
];

fn of_model(device: &Visible, attribute: i32) -> i32 {
    let model = device.model;
    let kib = |(per_multiprocessor, per_block): (u32, u32), block: bool| {
        (if block { per_block } else { per_multiprocessor } as i32) << 10
    };
    match attribute {
        13 => model.clocks_mhz.0 as i32 * 1000,
        16 => device.multiprocessors as i32,
        33 => pci_bus(device.index()) as i32,
        36 => model.clocks_mhz.1 as i32 * 1000,
        37 => model.bus_width_bits as i32,
        38 => (model.l2_mib as i32) << 20,
        39 => model.threads_per_multiprocessor,
        75 => model.capability.0,
        76 => model.capability.1,
        81 => kib(model.shared_kib, false),
        97 => kib(model.shared_kib, true),
        // Pageable memory, from HMM on.
        88 => i32::from(device.hmm),
        // Clusters and tensor maps came with Hopper.
        120 | 127 => i32::from(model.capability.0 >= 9),
        _ => CONSTANTS.iter().find(|(number, _)| *number == attribute).map_or(0, |(_, value)| *value),
    }
}

driver_api! {
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        let session = session()?;
        let device = session.device(device)?;
        Ok(value.set(of_model(device, attribute))?)
    }
}
