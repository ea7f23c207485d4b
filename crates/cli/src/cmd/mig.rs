//! `cantle mig profiles | plan | status`: what the GPUs here offer in MIG mode, have, and would get.

use std::process::ExitCode;

use cantle_agent::{Adopt, MigGpu, MigPlace, PlaceState, WholeGpu, mig_gpus};
use cantle_driver::Installation;
use cantle_mig::{Action, Decision, GpuGeometry, Granted, Planner, grant};
use cantle_model::{Bytes, GpuList, GpuRequest};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::Context;
use super::run::from_agent;
use crate::args::Amount;
use crate::error::{CliError, Kind, Outcome};
use crate::out::{Column, Format};

/// Exit code: there is no room.
const NO_CAPACITY: u8 = 6;

/// Columns that a whole GPU is drawn in.
const DRAWING_WIDTH: usize = 64;

/// `cantle mig …`
#[derive(Subcommand, Debug)]
pub(crate) enum MigCommand {
    /// What the GPUs here offer, as their driver says
    Profiles,
    /// Where an instance for a request would go, what would be destroyed for it, and what stays
    Plan(Amount),
    /// Which instances there are, whose they are, and where
    Status,
}

/// `--mig-adopt`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigAdopt {
    /// Leave them alone
    Busy,
    /// Destroy those that nobody uses
    Destroy,
}

impl From<MigAdopt> for Adopt {
    fn from(adopt: MigAdopt) -> Self {
        match adopt {
            MigAdopt::Busy => Self::Busy,
            MigAdopt::Destroy => Self::Destroy,
        }
    }
}

/// `--mig-whole-gpu`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigWholeGpu {
    /// It gets an instance of all of a GPU, if none without MIG is free
    Instance,
    /// It waits for GPUs without MIG
    Wait,
}

impl From<MigWholeGpu> for WholeGpu {
    fn from(whole: MigWholeGpu) -> Self {
        match whole {
            MigWholeGpu::Instance => Self::Instance,
            MigWholeGpu::Wait => Self::Wait,
        }
    }
}

/// From `--mig LIST=dynamic`.
pub(crate) fn gpu_list(text: &str) -> Result<GpuList, String> {
    let list = text.strip_suffix("=dynamic");
    let list =
        list.ok_or_else(|| format!("--mig {text}: write LIST=dynamic, for example --mig 0,2=dynamic"))?;
    GpuList::parse(&[list.to_owned()]).map_err(|error| format!("--mig {text}: {error}"))
}

pub(crate) fn mig(context: &Context, command: &MigCommand) -> Outcome {
    let gpus = mig_gpus(&Installation::of_this_machine()).map_err(from_agent)?;
    if gpus.is_empty() {
        let text = "no GPU here is in MIG mode; nvidia-smi -i INDEX -mig 1 or cantle daemon --mig INDEX=dynamic turns it on";
        return Err(CliError::new(Kind::Unavailable, text));
    }
    match command {
        MigCommand::Profiles => profiles(context, &gpus),
        MigCommand::Status => status(context, &gpus),
        MigCommand::Plan(amount) => {
            return plan(context, &gpus, &amount.request()?.unwrap_or(GpuRequest::Gpus(1)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A profile on one GPU.
#[derive(Serialize)]
struct Offer {
    gpu: u32,
    model: String,
    profile: String,
    id: u32,
    memory_bytes: u64,
    compute_slices: u32,
    size: u32,
    units: u32,
    starts: Vec<u32>,
    max_instances: u32,
    /// Places where one could be made now.
    free_starts: Vec<u32>,
}

const OFFER_COLUMNS: [Column<Offer>; 8] = [
    Column { head: "GPU", wide: false, cell: |o| o.gpu.to_string() },
    Column { head: "MODEL", wide: true, cell: |o| o.model.clone() },
    Column { head: "PROFILE", wide: false, cell: |o| o.profile.clone() },
    Column { head: "MEMORY", wide: false, cell: |o| Bytes(o.memory_bytes).to_string() },
    Column { head: "MEMORY SLICES", wide: false, cell: |o| format!("{} of {}", o.size, o.units) },
    Column { head: "COMPUTE SLICES", wide: false, cell: |o| o.compute_slices.to_string() },
    Column { head: "PLACES", wide: false, cell: |o| numbers(&o.starts) },
    Column { head: "FREE PLACES", wide: false, cell: |o| numbers(&o.free_starts) },
];

fn profiles(context: &Context, gpus: &[MigGpu]) {
    let mut offers = Vec::new();
    for MigGpu { gpu, geometry, .. } in gpus {
        for (at, profile) in geometry.table.profiles.iter().enumerate() {
            let starts = profile.starts.iter().copied();
            offers.push(Offer {
                gpu: gpu.index,
                model: gpu.model.clone(),
                profile: profile.name.clone(),
                id: profile.id,
                memory_bytes: profile.memory_bytes,
                compute_slices: profile.compute_slices,
                size: profile.size,
                units: geometry.table.units,
                starts: profile.starts.clone(),
                max_instances: profile.max_instances,
                free_starts: starts.filter(|start| geometry.has_place(at, Some(*start))).collect(),
            });
        }
    }
    context.printer.items(&offers, |offer| offer.profile.clone(), &OFFER_COLUMNS);
}

fn numbers(starts: &[u32]) -> String {
    let words: Vec<String> = starts.iter().map(u32::to_string).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

/// A place with the GPU it is on.
#[derive(Serialize)]
struct Placed {
    gpu: u32,
    gpu_uuid: String,
    #[serde(flatten)]
    place: MigPlace,
}

const PLACE_COLUMNS: [Column<Placed>; 7] = [
    Column { head: "GPU", wide: false, cell: |p| p.gpu.to_string() },
    Column { head: "PROFILE", wide: false, cell: |p| p.place.profile.clone() },
    Column { head: "MEMORY SLICES", wide: false, cell: |p| units(p.place.start, p.place.size) },
    Column { head: "STATE", wide: false, cell: |p| state(p.place.state).to_owned() },
    Column { head: "TASK", wide: false, cell: |p| p.place.task.clone().unwrap_or_else(|| "-".to_owned()) },
    Column {
        head: "GI",
        wide: true,
        cell: |p| p.place.gi.map_or_else(|| "-".to_owned(), |gi| gi.to_string()),
    },
    Column { head: "UUID", wide: false, cell: |p| p.place.uuid.clone().unwrap_or_else(|| "-".to_owned()) },
];

fn status(context: &Context, gpus: &[MigGpu]) {
    if context.printer.format == Format::Table || context.printer.format == Format::Wide {
        for MigGpu { gpu, places, geometry } in gpus {
            context.printer.data(&format!("GPU {} {}", gpu.index, gpu.model));
            let units = geometry.table.units;
            let profiles: Vec<_> = places.iter().map(|p| (p.start, p.size, p.profile.as_str())).collect();
            let owners: Vec<_> = places.iter().map(|p| (p.start, p.size, owner(p))).collect();
            context.printer.data(&drawing(units, &profiles));
            context.printer.data(&drawing(units, &owners));
        }
        context.printer.data("");
    }
    let placed: Vec<Placed> = gpus.iter().flat_map(placed).collect();
    context.printer.items(&placed, |p| p.place.uuid.clone().unwrap_or_default(), &PLACE_COLUMNS);
}

fn placed(of: &MigGpu) -> impl Iterator<Item = Placed> + '_ {
    let (gpu, gpu_uuid) = (of.gpu.index, &of.gpu.uuid.0);
    of.places.iter().map(move |place| Placed { gpu, gpu_uuid: gpu_uuid.clone(), place: place.clone() })
}

fn owner(place: &MigPlace) -> &str {
    place.task.as_deref().unwrap_or_else(|| state(place.state))
}

const fn state(state: PlaceState) -> &'static str {
    match state {
        PlaceState::Held => "held",
        PlaceState::Coming => "coming",
        PlaceState::Free => "free",
        PlaceState::Foreign => "foreign",
    }
}

/// `4-7`
fn units(start: u32, size: u32) -> String {
    if size == 1 { start.to_string() } else { format!("{start}-{}", start + size - 1) }
}

/// `|1g.5gb  |               |3g.20gb …|`: each place as wide as it is large, in order of first units.
fn drawing(units: u32, places: &[(u32, u32, &str)]) -> String {
    let width = DRAWING_WIDTH / units.max(1) as usize;
    let cell = |size: u32, text: &str| {
        let room = (size as usize * width).saturating_sub(1);
        let text: String = text.chars().take(room).collect();
        format!("{text:<room$}|")
    };
    let (mut line, mut at) = ("|".to_owned(), 0);
    for (start, size, text) in places {
        if *start > at {
            line += &cell(start - at, "");
        }
        line += &cell(*size, text);
        at = start + size;
    }
    if at < units {
        line += &cell(units - at, "");
    }
    line
}

/// What a request would get, and what that does to its GPU.
#[derive(Serialize)]
struct Planned {
    gpu: u32,
    profile: String,
    start: u32,
    size: u32,
    /// It exists already and is free.
    reused: bool,
    /// Free instances that go.
    destroyed: Vec<MigPlace>,
    /// Instances that are not touched.
    stays: Vec<MigPlace>,
}

fn plan(context: &Context, gpus: &[MigGpu], request: &GpuRequest) -> Outcome {
    let refused = |error: &dyn std::fmt::Display| CliError::new(Kind::Usage, error.to_string());
    let granted: Vec<Result<Granted, _>> = gpus.iter().map(|g| grant(&g.geometry.table, request)).collect();
    let Some(known) = granted.iter().flatten().next() else {
        let error = granted.into_iter().find_map(Result::err);
        return Err(error.map_or_else(|| refused(&"no MIG GPU"), |error| refused(&error)));
    };
    let geometries: Vec<GpuGeometry> = gpus.iter().map(|gpu| gpu.geometry.clone()).collect();
    let names = granted.iter().flatten().map(|granted| granted.name.as_str());
    let Some(decision) = names.into_iter().find_map(|name| Planner::default().decide(&geometries, name))
    else {
        let text = format!("{known}: no place for it without touching an instance in use");
        return Err(CliError::with_code(NO_CAPACITY, text));
    };
    let of = &gpus[decision.gpu];
    let granted = granted.into_iter().nth(decision.gpu).and_then(Result::ok);
    let planned = planned(of, &decision);
    if context.printer.format == Format::Table || context.printer.format == Format::Wide {
        context.printer.data(&granted.map(|granted| granted.to_string()).unwrap_or_default());
        picture(context, of, &planned);
    } else {
        context.printer.items(&[planned], |p| p.profile.clone(), &[]);
    }
    Ok(ExitCode::SUCCESS)
}

fn planned(of: &MigGpu, decision: &Decision) -> Planned {
    let profile = &of.geometry.table.profiles[decision.profile];
    let (reused, gone) = match &decision.action {
        Action::Reuse { id } => (true, vec![*id]),
        Action::Create { destroy } => (false, destroy.clone()),
    };
    let touched = |place: &&MigPlace| place.gi.is_some_and(|gi| gone.contains(&gi));
    let (touched, stays): (Vec<_>, Vec<_>) = of.places.iter().partition(touched);
    Planned {
        gpu: of.gpu.index,
        profile: profile.name.clone(),
        start: decision.start,
        size: profile.size,
        reused,
        destroyed: if reused { Vec::new() } else { touched.into_iter().cloned().collect() },
        stays: stays.into_iter().cloned().collect(),
    }
}

fn picture(context: &Context, of: &MigGpu, planned: &Planned) {
    let units_of_gpu = of.geometry.table.units;
    let profiles = |places: &[MigPlace]| -> Vec<(u32, u32, String)> {
        places.iter().map(|p| (p.start, p.size, p.profile.clone())).collect()
    };
    let draw = |mut places: Vec<(u32, u32, String)>| {
        places.sort_unstable();
        let places: Vec<_> =
            places.iter().map(|(start, size, text)| (*start, *size, text.as_str())).collect();
        drawing(units_of_gpu, &places)
    };
    let mut after = profiles(&planned.stays);
    after.push((planned.start, planned.size, format!("*{}", planned.profile)));
    let say = |text: &str| context.printer.data(text);
    say(&format!("GPU {} {}", of.gpu.index, of.gpu.model));
    say(&format!("before {}", draw(profiles(&of.places))));
    say(&format!("after  {}", draw(after)));
    let how = if planned.reused { "takes the free" } else { "makes" };
    say(&format!("{how} {} at {}", planned.profile, units(planned.start, planned.size)));
    for place in &planned.destroyed {
        say(&format!(
            "destroys {} at {}, which is {}",
            place.profile,
            units(place.start, place.size),
            owner(place)
        ));
    }
    for place in &planned.stays {
        say(&format!("leaves {} at {} ({})", place.profile, units(place.start, place.size), owner(place)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_drawn_to_scale() {
        let line = drawing(8, &[(0, 2, "2g.10gb"), (4, 4, "3g.20gb")]);
        assert_eq!(line, "|2g.10gb        |               |3g.20gb                        |");
        assert_eq!(drawing(12, &[]).len(), 1 + 60);
        assert_eq!(drawing(8, &[(6, 1, "1g.5gb+me")]).matches('|').count(), 4, "long names are cut");
    }

    #[test]
    fn lists_of_gpus_say_what_is_wrong() {
        assert_eq!(gpu_list("0,2=dynamic"), Ok(GpuList::Indices(vec![0, 2])));
        assert!(gpu_list("0,2").unwrap_err().contains("0,2=dynamic"));
        assert!(gpu_list("x=dynamic").unwrap_err().starts_with("--mig x=dynamic: "));
    }
}
