//! The worker id of a task on a node where several tasks run at a time: such a task is a separate worker on the server,
//! as with ClearML's agent.

use std::collections::BTreeSet;

use cantle_driver::Driver;
use cantle_model::{Gpu, MigInstance, Milli, Slice, TaskId};

use crate::AllocationMode;
use crate::environment::Environment;

/// The worker id of a task with these slices; `None` if the task reports as the agent itself, which has one task at a
/// time.
pub(crate) fn child_worker(
    env: &Environment,
    slices: &[Slice],
    task: &TaskId,
    taken: &BTreeSet<String>,
) -> Option<String> {
    match env.config.allocation_mode {
        AllocationMode::AllGpus | AllocationMode::NoGpu => None,
        AllocationMode::Slices if !slices.is_empty() => {
            Some(child_id(env.driver.as_ref(), &env.config.name, &env.gpus, slices, taken))
        }
        AllocationMode::Slices | AllocationMode::Services { .. } => {
            Some(format!("{}:service:{task}", env.worker))
        }
    }
}

/// As ClearML's agent names it: whole GPUs `node1:gpu0,1`; a fraction `node1:gpu2.25a`, with the first letter that is free;
/// a MIG instance `node1:gpu0.1`.
fn child_id(
    driver: &dyn Driver,
    name: &str,
    gpus: &[Gpu],
    slices: &[Slice],
    taken: &BTreeSet<String>,
) -> String {
    let index = |slice: &Slice| gpus.iter().find(|gpu| gpu.uuid == slice.gpu).map_or(0, |gpu| gpu.index);
    let mut is_cut = false;
    let mut text = |slice: &Slice| {
        let index = index(slice);
        match &slice.mig {
            Some(mig) => format!("{index}.{}", unit(driver, slice, mig)),
            None if slice.milli == Milli::ONE => index.to_string(),
            None => {
                is_cut = true;
                format!("{index}.{}", slice.milli.to_string().trim_start_matches("0."))
            }
        }
    };
    let texts = slices.iter().map(&mut text).collect::<Vec<_>>().join(",");
    let id = format!("{name}:gpu{texts}");
    if !is_cut {
        return id;
    }
    let lettered = (0..).map(|n| format!("{id}{}", letters(n)));
    lettered.into_iter().find(|id| !taken.contains(id)).unwrap_or(id)
}

/// a to z, then aa, ab…
fn letters(n: u32) -> String {
    let letter = char::from(b'a' + u8::try_from(n % 26).unwrap_or(0));
    let before = if n < 26 { String::new() } else { letters(n / 26 - 1) };
    format!("{before}{letter}")
}

/// The number of the instance on its GPU where an administrator has made it; else where it starts.
fn unit(driver: &dyn Driver, slice: &Slice, mig: &MigInstance) -> u32 {
    let given = driver.fixed_devices(&slice.gpu).is_some();
    let devices = if given { driver.mig_devices(&slice.gpu).unwrap_or_default() } else { Vec::new() };
    devices.into_iter().find(|(_, device)| *device == mig.uuid).map_or(mig.start, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(gpu: u32, milli: u32) -> Slice {
        let gpu = format!("GPU-{gpu}").as_str().into();
        Slice { gpu, milli: Milli(milli), memory_limit_bytes: 1 << 30, mig: None }
    }

    #[test]
    fn children_are_named_as_clearmls_agent_names_them() {
        let gpu = |n: u32| {
            let (uuid, model) = (format!("GPU-{n}").as_str().into(), String::new());
            Gpu { uuid, index: n, model, memory_bytes: 40 << 30, mig: false }
        };
        let gpus = [gpu(0), gpu(1), gpu(2)];
        let driver = cantle_driver::no_gpus();
        let id = |slices: &[Slice], taken: &[&str]| {
            child_id(
                driver.as_ref(),
                "node1",
                &gpus,
                slices,
                &taken.iter().map(|&id| id.to_owned()).collect(),
            )
        };
        assert_eq!(id(&[slice(0, 1000), slice(1, 1000)], &[]), "node1:gpu0,1");
        assert_eq!(id(&[slice(2, 250)], &[]), "node1:gpu2.25a");
        assert_eq!(id(&[slice(2, 250)], &["node1:gpu2.25a", "node1:gpu2.25c"]), "node1:gpu2.25b");
        assert_eq!(id(&[slice(2, 500)], &["node1:gpu2.25a"]), "node1:gpu2.5a");
        assert_eq!(id(&[slice(1, 50)], &[]), "node1:gpu1.05a");
        assert_eq!(id(&[slice(0, 500), slice(1, 500)], &[]), "node1:gpu0.5,1.5a");
        let instance = MigInstance { profile: "3g.20gb".into(), start: 4, size: 4, uuid: "MIG-x".into() };
        assert_eq!(id(&[Slice { mig: Some(instance), ..slice(0, 500) }], &[]), "node1:gpu0.4");
    }

    #[test]
    fn there_are_letters_enough() {
        assert_eq!([0, 25, 26, 27, 702].map(letters), ["a", "z", "aa", "ab", "aaa"]);
    }
}
