//! The audit's own rule for the MIG instance that a request gets. The planner's rule is `cantle_mig::grant`. The two share
//! only the table of profiles, so that one mistake is not made in both.

use cantle_mig::{Profile, Table};
use cantle_model::{GpuRequest, MigInstance, Slice};

/// Is the instance of the profile that the request gets here, at a placement that the profile has, with the memory and
/// the thousandths of that profile?
pub(crate) fn is_as_requested(request: &GpuRequest, slice: &Slice, mig: &MigInstance, table: &Table) -> bool {
    let named = |profile: &&Profile| profile.name == mig.profile;
    let Some(profile) = table.profiles.iter().find(named) else { return false };
    let counts = (profile.size * 1000).div_ceil(table.units.max(1));
    mig.size == profile.size
        && profile.starts.contains(&mig.start)
        && slice.milli.0 == counts
        && slice.memory_limit_bytes == profile.memory_bytes
        && is_choice(request, profile, table)
}

/// By name exactly that profile; by size one that is enough, of which there is no smaller one.
fn is_choice(request: &GpuRequest, profile: &Profile, table: &Table) -> bool {
    if let GpuRequest::MigProfile(name) = request {
        return profile.name == *name;
    }
    let may_be_chosen = |profile: &Profile| table.fixed || profile.is_plain();
    let is_enough = |profile: &Profile| enough(request, profile, table);
    let is_smaller = |other: &Profile| size(request, other) < size(request, profile);
    may_be_chosen(profile)
        && is_enough(profile)
        && !table.profiles.iter().any(|other| may_be_chosen(other) && is_enough(other) && is_smaller(other))
}

fn enough(request: &GpuRequest, profile: &Profile, table: &Table) -> bool {
    match request {
        // Compared as products, so that nothing is rounded.
        GpuRequest::Fraction(part) => {
            u64::from(profile.size) * 10_000 >= u64::from(part.ten_thousandths()) * u64::from(table.units)
        }
        GpuRequest::Memory(bytes) => profile.memory_bytes >= bytes.0,
        // Among fixed instances, the largest one counts as the whole GPU.
        GpuRequest::Gpus(1) if table.fixed => table.profiles.iter().all(|other| other.size <= profile.size),
        GpuRequest::Gpus(count) => *count == 1 && profile.size >= table.units,
        GpuRequest::MigProfile(_) => false,
    }
}

/// The order of profiles by size: memory where memory was requested, else the memory slices; then the compute slices.
fn size(request: &GpuRequest, profile: &Profile) -> (u64, u32) {
    let by_memory = matches!(request, GpuRequest::Memory(_));
    let first = if by_memory { profile.memory_bytes } else { u64::from(profile.size) };
    (first, profile.compute_slices)
}
