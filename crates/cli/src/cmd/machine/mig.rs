//! `cantle mig profiles | plan | status`: the profiles of the GPUs in MIG mode, their instances, and what a request
//! would get.

use std::process::ExitCode;

use cantle_driver::Installation;
use cantle_mig::{Action, Decision, GpuGeometry, Granted, Planner, grant};
use cantle_model::{Bytes, GpuRequest};
use cantle_node::{MigGpu, MigPlacement, PlacementState, mig_gpus};
use clap::Subcommand;
use serde::Serialize;

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::{Column, Format};
use crate::shared_args::GpuAmount;

/// Width of the drawing of a GPU, in characters.
const DRAWING_WIDTH: usize = 64;

/// `cantle mig …`
#[derive(Subcommand, Debug)]
pub(crate) enum MigCommand {
    /// List the MIG profiles of the GPUs, as reported by their driver
    Profiles,
    /// Show the placement of an instance for a request, the instances that would be destroyed for it, and those that would stay
    Plan(GpuAmount),
    /// List the MIG instances, their owners and their placements
    Status,
}

/// Fails if no GPU is in MIG mode.
pub(crate) fn mig(context: &Context, command: &MigCommand) -> CommandResult {
    let gpus = mig_gpus(&Installation::of_this_machine())?;
    if gpus.is_empty() {
        return Err(CliError::new(ErrorKind::Unavailable, "no GPU here is in MIG mode")
            .with_hint("nvidia-smi -i INDEX -mig 1 or cantle daemon --mig INDEX=dynamic turns it on"));
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

/// A profile of a GPU.
#[derive(Serialize)]
struct ProfileRow {
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
    /// Placements that are free now.
    free_starts: Vec<u32>,
}

const PROFILE_COLUMNS: [Column<ProfileRow>; 8] = [
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
    let mut rows = Vec::new();
    for MigGpu { gpu, geometry, .. } in gpus {
        for (at, profile) in geometry.table.profiles.iter().enumerate() {
            let starts = profile.starts.iter().copied();
            rows.push(ProfileRow {
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
    context.printer.items(&rows, |row| row.profile.clone(), &PROFILE_COLUMNS);
}

fn numbers(starts: &[u32]) -> String {
    let words: Vec<String> = starts.iter().map(u32::to_string).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

/// An instance, and the GPU that it is on.
#[derive(Serialize)]
struct InstanceRow {
    gpu: u32,
    gpu_uuid: String,
    #[serde(flatten)]
    place: MigPlacement,
}

const PLACE_COLUMNS: [Column<InstanceRow>; 7] = [
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
    let placed: Vec<InstanceRow> = gpus.iter().flat_map(placed).collect();
    context.printer.items(&placed, |p| p.place.uuid.clone().unwrap_or_default(), &PLACE_COLUMNS);
}

fn placed(of: &MigGpu) -> impl Iterator<Item = InstanceRow> + '_ {
    let (gpu, gpu_uuid) = (of.gpu.index, &of.gpu.uuid.0);
    of.places.iter().map(move |place| InstanceRow { gpu, gpu_uuid: gpu_uuid.clone(), place: place.clone() })
}

fn owner(place: &MigPlacement) -> &str {
    place.task.as_deref().unwrap_or_else(|| state(place.state))
}

const fn state(state: PlacementState) -> &'static str {
    match state {
        PlacementState::Held => "held",
        PlacementState::Coming => "coming",
        PlacementState::Free => "free",
        PlacementState::Foreign => "foreign",
    }
}

/// `4-7`
fn units(start: u32, size: u32) -> String {
    if size == 1 { start.to_string() } else { format!("{start}-{}", start + size - 1) }
}

/// `|1g.5gb  |               |3g.20gb …|`: each placement to scale, in order of first units.
fn drawing(units: u32, places: &[(u32, u32, &str)]) -> String {
    let unit_width = DRAWING_WIDTH / units.max(1) as usize;
    let cell = |size: u32, text: &str| {
        let width = (size as usize * unit_width).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        format!("{text:<width$}|")
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

/// The instance that a request would get, and the effect on its GPU.
#[derive(Serialize)]
struct Planned {
    gpu: u32,
    profile: String,
    start: u32,
    size: u32,
    /// Whether the instance exists already.
    reused: bool,
    /// Free instances that would be destroyed.
    destroyed: Vec<MigPlacement>,
    /// Instances that would not be touched.
    stays: Vec<MigPlacement>,
}

fn plan(context: &Context, gpus: &[MigGpu], request: &GpuRequest) -> CommandResult {
    let granted: Vec<Result<Granted, _>> = gpus.iter().map(|g| grant(&g.geometry.table, request)).collect();
    let Some(known) = granted.iter().flatten().next() else {
        let refused = granted.into_iter().find_map(Result::err).map(as_kind(ErrorKind::Usage));
        return Err(refused.unwrap_or_else(|| CliError::new(ErrorKind::Usage, "no MIG GPU")));
    };
    let geometries: Vec<GpuGeometry> = gpus.iter().map(|gpu| gpu.geometry.clone()).collect();
    let names = granted.iter().flatten().map(|granted| granted.name.as_str());
    let Some(decision) = names.into_iter().find_map(|name| Planner::default().decide(&geometries, name))
    else {
        let text = format!("{known}: no place for it without touching an instance in use");
        return Err(CliError::new(ErrorKind::NoCapacity, text));
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
    let touched = |place: &&MigPlacement| place.gi.is_some_and(|gi| gone.contains(&gi));
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
    let profiles = |places: &[MigPlacement]| -> Vec<(u32, u32, String)> {
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
}
