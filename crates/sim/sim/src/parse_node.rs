//! The statement `node` of a scenario.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_decide::Offer;
use cantle_mig::Table;
use cantle_model::{Bytes, Gpu, GpuUuid, Milli, Topology};
use cantle_sched::Host;
use serde::Deserialize;

use crate::{ScenarioNode, topology};

/// MIG profiles by GPU model.
#[derive(Deserialize)]
struct Tables {
    gpus: BTreeMap<String, Table>,
}

/// `node NAME 2xA100-40GB,1xT4-16GB [cpu=64] [memory=256Gi] [mig|mig=2x1g.5gb,1x3g.20gb] [topology=pcie]`, or `node NAME none` for a host without
/// GPUs. All GPUs of a node with `mig` are in MIG mode; instances that are named are fixed, and no others are created.
pub(crate) fn node(name: &str, gpus: &str, options: &[&str]) -> Result<ScenarioNode, String> {
    let mut offers = Vec::new();
    for part in gpus.split(',').filter(|part| *part != "none") {
        let (count, model) = part.split_once('x').unwrap_or(("1", part));
        let count: u32 = count.parse().map_err(|_| format!("\"{part}\": write COUNTxMODEL-<n>GB"))?;
        let memory = model.rsplit_once('-').and_then(|(_, memory)| memory.strip_suffix("GB"));
        let gib: u64 = memory
            .and_then(|memory| memory.parse().ok())
            .ok_or_else(|| format!("\"{model}\": a GPU model ends in its memory, for example A100-40GB"))?;
        for _ in 0..count {
            let index = u32::try_from(offers.len()).unwrap_or(u32::MAX);
            let uuid = GpuUuid(format!("GPU-{name}-{index}"));
            let (model, memory_bytes) = (model.to_owned(), gib << 30);
            offers.push(Offer::new(Gpu { uuid, index, model, memory_bytes, mig: false }));
        }
    }
    let mut node =
        ScenarioNode { name: name.to_owned(), gpus: offers, host: None, topology: Topology::default() };
    let mut host = Host::UNCOUNTED;
    for option in options {
        match option.split_once('=').unwrap_or((option, "")) {
            ("mig", instances) => {
                node.gpus =
                    node.gpus.into_iter().map(|gpu| in_mig_mode(gpu, instances)).collect::<Result<_, _>>()?;
            }
            ("topology", topology) => node.topology = topology::named(topology, &node.gpus)?,
            _ => {
                host_option(&mut host, option)?;
                node.host = Some(host);
            }
        }
    }
    Ok(node)
}

/// `cpu=CORES` or `memory=AMOUNT`.
pub(crate) fn host_option(host: &mut Host, option: &str) -> Result<(), String> {
    match option.split_once('=') {
        Some(("cpu", cores)) => {
            let milli: Milli = cores.parse().map_err(|_| format!("\"{option}\": write cpu=CORES"))?;
            host.cpu_milli = u64::from(milli.0);
        }
        Some(("memory", memory)) => {
            host.memory_bytes = memory.parse::<Bytes>().map_err(|error| error.to_string())?.0;
        }
        _ => {
            return Err(format!(
                "\"{option}\" is not an option here: cpu=CORES, memory=AMOUNT, of a node also mig and topology=NAME"
            ));
        }
    }
    Ok(())
}

fn in_mig_mode(offer: Offer, instances: &str) -> Result<Offer, String> {
    let model = offer.gpu.model.clone();
    let mut table = mig_table(&model)?;
    if !instances.is_empty() {
        table = table.of_fixed(&places(&table, &model, instances)?);
    }
    let mut offer = offer.in_mode(true);
    offer.table = Some(Arc::new(table));
    Ok(offer)
}

/// By the first known name that begins with `model`.
fn mig_table(model: &str) -> Result<Table, String> {
    let known: Tables = serde_json::from_str(include_str!("../../../core/mig/data/profiles.json"))
        .map_err(|error| error.to_string())?;
    let names: Vec<&str> = known.gpus.keys().map(String::as_str).collect();
    let of_model =
        known.gpus.iter().find(|(name, _)| name.starts_with(model)).map(|(_, table)| table.clone());
    of_model.ok_or_else(|| {
        format!("\"{model}\": no MIG profiles of it are known; known are {}", names.join(", "))
    })
}

/// Id and start of each instance in `2x1g.5gb,1x3g.20gb`, at the lowest free place, the largest first.
fn places(table: &Table, model: &str, instances: &str) -> Result<Vec<(u32, u32)>, String> {
    let mut wanted = Vec::new();
    for part in instances.split(',') {
        let (count, name) = part.split_once('x').unwrap_or(("1", part));
        let count: usize = count.parse().map_err(|_| format!("\"{part}\": write COUNTxPROFILE"))?;
        let profile =
            table.position(name).ok_or_else(|| format!("\"{name}\": {model} has no such MIG profile"))?;
        wanted.extend(std::iter::repeat_n(profile, count));
    }
    wanted.sort_by_key(|profile| std::cmp::Reverse(table.profiles[*profile].size));
    let (mut used, mut found) = (0, Vec::new());
    for profile in wanted {
        let known = &table.profiles[profile];
        let free = |start: &&u32| table.units_at(profile, **start) & used == 0;
        let start = known.starts.iter().find(free);
        let start = *start.ok_or_else(|| format!("\"{instances}\" has no place on one {model}"))?;
        used |= table.units_at(profile, start);
        found.push((known.id, start));
    }
    Ok(found)
}
