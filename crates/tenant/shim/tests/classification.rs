//! Every function of the driver is classified, once: hooked, or passed for a reason.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cantle_shim::hooks::{self, Hook};

const CUDA_NAMES: &str = "cuda-symbols.txt";
const NVML_NAMES: &str = "nvml-symbols.txt";
const CUDA_PASSES: &str = include_str!("../data/cuda-passes.txt");
const NVML_PASSES: &str = include_str!("../data/nvml-passes.txt");

/// The driver's functions, from the repository's one inventory: drivers 535, 550, 580 and 595, headers of CUDA 11.8 to 13.5.
fn inventory(file: &str) -> BTreeSet<String> {
    functions(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sim/simgpu/data").join(file))
}

fn functions(path: &Path) -> BTreeSet<String> {
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

/// Functions that are in no class.
fn unclassified(functions: &BTreeSet<String>, hooks: &[Hook], passes: &str) -> Vec<String> {
    let passed = passed(passes);
    functions.iter().filter(|name| !passed.contains_key(*name) && !is_hooked(name, hooks)).cloned().collect()
}

fn is_hooked(name: &str, hooks: &[Hook]) -> bool {
    hooks.iter().any(|hook| hook.name.to_str() == Ok(name))
}

fn check(functions: &BTreeSet<String>, hooks: &[Hook], passes: &str) {
    let hooked: BTreeSet<String> = hooks.iter().map(|hook| hook.name.to_str().unwrap().to_owned()).collect();
    assert_eq!(hooked.len(), hooks.len(), "a name is hooked twice");
    let passed: BTreeSet<String> = passed(passes).into_keys().collect();
    let both: Vec<_> = hooked.intersection(&passed).collect();
    assert!(both.is_empty(), "hooked and passed: {both:?}");
    let new = unclassified(functions, hooks, passes);
    assert!(new.is_empty(), "in no class: {new:?}");
    let gone: Vec<_> = hooked.union(&passed).filter(|name| !functions.contains(*name)).collect();
    assert!(gone.is_empty(), "classified, but no driver has it: {gone:?}");
}

#[test]
fn every_function_of_the_driver_api_is_classified() {
    check(&inventory(CUDA_NAMES), hooks::CUDA, CUDA_PASSES);
}

#[test]
fn every_function_of_nvml_is_classified() {
    check(&inventory(NVML_NAMES), hooks::NVML, NVML_PASSES);
}

/// The lists that the inventory was made from, where they are at hand: nothing was lost on the way.
#[test]
fn every_release_of_the_driver_is_classified() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/symbols");
    let Ok(files) = std::fs::read_dir(&dir) else {
        eprintln!("skipped: there are no symbol lists in {}", dir.display());
        return;
    };
    for path in files.map(|file| file.unwrap().path()) {
        let is_cuda = path.file_name().unwrap().to_string_lossy().contains("cuda");
        let (hooks, passes) = if is_cuda { (hooks::CUDA, CUDA_PASSES) } else { (hooks::NVML, NVML_PASSES) };
        let functions = functions(&path);
        assert!(functions.len() > 200, "{} is no list of functions", path.display());
        assert_eq!(unclassified(&functions, hooks, passes), [""; 0], "{}", path.display());
    }
}

/// The negative control: what a future driver may bring is noticed.
#[test]
fn an_invented_function_is_caught() {
    for (names, hooks, passes, invented) in [
        (CUDA_NAMES, hooks::CUDA, CUDA_PASSES, "cuMemAllocElsewhere_v9"),
        (NVML_NAMES, hooks::NVML, NVML_PASSES, "nvmlDeviceGetComputeRunningProcesses_v9"),
    ] {
        let mut functions = inventory(names);
        functions.insert(invented.to_owned());
        assert_eq!(unclassified(&functions, hooks, passes), [invented]);
    }
    assert!(looks_like_an_allocation("cuMemAllocElsewhere_v9"));
}

fn looks_like_an_allocation(name: &str) -> bool {
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
    let is_array = name.contains("Array") && name.contains("Create");
    let looks_so = name.contains("Alloc") || name.starts_with("cuMemCreate") || is_array;
    looks_so && !ONLY_LOOKS_SO.iter().any(|part| name.contains(part))
}

/// A second pair of eyes: names that look like allocations must be hooked; to be passed is not enough.
#[test]
fn what_looks_like_an_allocation_is_hooked() {
    let names = inventory(CUDA_NAMES);
    let (hooked, unhooked): (Vec<_>, Vec<_>) = names
        .iter()
        .filter(|name| looks_like_an_allocation(name))
        .partition(|name| is_hooked(name, hooks::CUDA));
    assert!(unhooked.is_empty(), "{unhooked:?}");
    assert!(hooked.len() > 10, "the rule finds next to nothing: {hooked:?}");
}
