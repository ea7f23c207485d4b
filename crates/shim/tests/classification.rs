//! Every function of the driver is classified, once: hooked, or passed for a reason.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cantle_shim::hooks::{self, Hook};

/// The driver's functions, from the repository's one inventory: drivers 535 and 550, headers of CUDA 11.8 to 13.5.
fn inventory(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simgpu/data").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let function = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        // Data has no kind `T`; NVML's list has functions only.
        words.next().is_none_or(|kind| kind == "T").then(|| name.to_owned())
    };
    lines.filter_map(function).collect()
}

/// Passed functions and their reasons.
fn passed(text: &str) -> BTreeMap<String, String> {
    let mut passed = BTreeMap::new();
    let mut reason = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(heading) = line.strip_prefix("= ") {
            reason = Some(heading.to_owned());
            continue;
        }
        for name in line.split_whitespace() {
            let known = passed.insert(name.to_owned(), reason.clone().unwrap());
            assert!(known.is_none(), "{name} passes for two reasons");
        }
    }
    passed
}

fn check(functions: &BTreeSet<String>, hooks: &[Hook], passes: &str) {
    let hooked: BTreeSet<String> = hooks.iter().map(|hook| hook.name.to_str().unwrap().to_owned()).collect();
    assert_eq!(hooked.len(), hooks.len(), "a name is hooked twice");
    let passed: BTreeSet<String> = passed(passes).into_keys().collect();
    let both: Vec<_> = hooked.intersection(&passed).collect();
    assert!(both.is_empty(), "hooked and passed: {both:?}");
    let classified: BTreeSet<String> = hooked.union(&passed).cloned().collect();
    let new: Vec<_> = functions.difference(&classified).collect();
    assert!(new.is_empty(), "in no class: {new:?}");
    let gone: Vec<_> = classified.difference(functions).collect();
    assert!(gone.is_empty(), "classified, but no driver has it: {gone:?}");
}

#[test]
fn every_function_of_the_driver_api_is_classified() {
    check(&inventory("cuda-symbols.txt"), hooks::CUDA, include_str!("../data/cuda-passes.txt"));
}

#[test]
fn every_function_of_nvml_is_classified() {
    check(&inventory("nvml-symbols.txt"), hooks::NVML, include_str!("../data/nvml-passes.txt"));
}

/// A second pair of eyes: names that look like allocations must be hooked, or be among those that only look so.
#[test]
fn what_looks_like_an_allocation_is_hooked() {
    const ONLY_LOOKS_SO: [&str; 8] = [
        "Host",
        "cuGraphAdd",
        "NodeGetParams",
        "Granularity",
        "cuMemGetAllocation",
        "RetainUserObject",
        "SetAllocationClass",
        "cuArray3DGet",
    ];
    let hooked: BTreeSet<&str> = hooks::CUDA.iter().map(|hook| hook.name.to_str().unwrap()).collect();
    let unhooked: Vec<String> = inventory("cuda-symbols.txt")
        .into_iter()
        .filter(|name| {
            name.contains("Alloc") || name.starts_with("cuMemCreate") || name.contains("ArrayCreate")
        })
        .filter(|name| {
            !ONLY_LOOKS_SO.iter().any(|part| name.contains(part)) && !hooked.contains(name.as_str())
        })
        .collect();
    assert!(unhooked.is_empty(), "{unhooked:?}");
}
