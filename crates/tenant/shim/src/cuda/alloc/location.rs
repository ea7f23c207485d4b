//! Where memory is: the values of CUDA's enums that decide what is charged.
//!
//! A driver that is newer than this code may have other values. Their meaning is unknown, so an allocation that names
//! one is refused. The test below compares all decisions with `data/cuda-values.txt`, which lists every value of CUDA
//! 11.8 to 13.5.

use core::ffi::c_int;

use crate::cuda::Device;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_int,
    /// A union: an ordinal, a node of the host, or the bytes of a device and of a locality domain.
    id: c_int,
}

/// The meaning of a [`Location`] for the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocationKind {
    /// Memory of a GPU: charged there.
    Gpu(Device),
    /// Memory of the host, which is no part of a slice.
    Host,
    /// The location was not set.
    Nowhere,
    /// Not known: its use of memory is unknown.
    Unknown,
}

/// `CU_MEM_LOCATION_TYPE_…`.
const INVALID: c_int = 0;
const DEVICE: c_int = 1;
const HOST: c_int = 2;
const HOST_NUMA: c_int = 3;
const HOST_NUMA_CURRENT: c_int = 4;
const DEVICE_LOCALITY_DOMAIN: c_int = 6;

impl Location {
    pub(crate) const fn place(self) -> LocationKind {
        match self.kind {
            INVALID => LocationKind::Nowhere,
            DEVICE => LocationKind::Gpu(self.id),
            HOST | HOST_NUMA | HOST_NUMA_CURRENT => LocationKind::Host,
            // A part of a GPU's memory (CUDA 13.4). The device is the first byte of the union.
            DEVICE_LOCALITY_DOMAIN => {
                let [device, ..] = self.id.to_ne_bytes();
                LocationKind::Gpu(device as Device)
            }
            _ => LocationKind::Unknown,
        }
    }

    /// Where memory of this allocation type (`CUmemAllocationType`) is that comes from a pool or a node of a graph. Managed memory moves between the
    /// host and GPUs, wherever it begins, so it is accounted for in neither.
    pub(crate) const fn place_of(self, allocation: c_int) -> LocationKind {
        if allocation == PINNED { self.place() } else { LocationKind::Unknown }
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: where it was allocated it stays.
const PINNED: c_int = 1;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::string::{String, ToString as _};
    use std::vec::Vec;

    use super::*;
    use crate::cuda::alloc::array;
    use crate::cuda::graph;
    use crate::cuda::graph::memory::Role;

    const VALUES: &str = include_str!("../../../data/cuda-values.txt");

    /// The values of an enum: name, value, class.
    fn rows() -> BTreeMap<String, Vec<(String, u32, String)>> {
        let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut of = "";
        for line in VALUES.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            if let Some(name) = line.strip_prefix("= ") {
                of = name;
                continue;
            }
            let [class, name, value, _since] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let row = (name.to_string(), value.parse().unwrap(), class.to_string());
            rows.entry(of.to_string()).or_default().push(row);
        }
        rows
    }

    fn class_of(of: &str, value: u32) -> &'static str {
        let at = value as c_int;
        match of {
            // The device's byte is set, and the domain's.
            "CUmemLocationType" => match (Location { kind: at, id: 0x0203 }.place()) {
                LocationKind::Gpu(0x0203) => "gpu",
                LocationKind::Gpu(3) => "gpu-of-byte",
                LocationKind::Gpu(_) => "wrong",
                LocationKind::Host => "host",
                LocationKind::Nowhere | LocationKind::Unknown => "refused",
            },
            "CUmemAllocationType" => match (Location { kind: DEVICE, id: 0 }.place_of(at)) {
                LocationKind::Gpu(0) => "gpu",
                _ => "refused",
            },
            "CUgraphNodeType" => match Role::of(at) {
                Role::Allocates => "allocates",
                Role::Frees => "frees",
                Role::Nests => "nests",
                Role::Other => "alike",
            },
            "CUDA_ARRAY3D" => match (array::is_mapped_by_program(value), array::counts_layers(value)) {
                (true, _) => "mapped",
                (false, true) => "layers",
                (false, false) => "alike",
            },
            "CUgraphInstantiate_flags" => {
                match (graph::uploads(value.into()), graph::frees_first(value.into())) {
                    (true, _) => "takes",
                    (false, true) => "frees",
                    (false, false) => "alike",
                }
            }
            // Nothing looks at these.
            "CUmemAllocationHandleType"
            | "CUmemAttach_flags"
            | "CU_MEM_CREATE_USAGE"
            | "CU_MEM_POOL_CREATE_USAGE" => "alike",
            other => panic!("{other} is not known"),
        }
    }

    #[test]
    fn every_value_that_decides_what_is_charged_is_classified() {
        let rows = rows();
        assert_eq!(rows.len(), 9);
        for (of, values) in &rows {
            for (name, value, class) in values {
                assert_eq!(class_of(of, *value), class, "{of}: {name}");
            }
        }
    }

    /// The negative control: what a future driver may bring is in no class that takes memory.
    #[test]
    fn an_unknown_value_is_refused() {
        for kind in (7..1000).chain([5, -1, c_int::MAX, c_int::MIN]) {
            assert_eq!(Location { kind, id: 0 }.place(), LocationKind::Unknown, "{kind}");
        }
        for allocation in (2..1000).chain([0, -1, c_int::MAX]) {
            assert_eq!(
                Location { kind: DEVICE, id: 0 }.place_of(allocation),
                LocationKind::Unknown,
                "{allocation}"
            );
        }
    }
}
