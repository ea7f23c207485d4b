//! Finds the profile for a request.

use std::fmt;

use cantle_model::{Bytes, GpuRequest, Milli};

use crate::Table;

/// The profile that a request gets, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Position of the profile in the table.
    pub profile: usize,
    /// The request, as text.
    pub asked: String,
    /// Name of the profile.
    pub name: String,
    /// Units of the GPU's grid that it takes.
    pub size: u32,
    /// Units of the whole GPU.
    pub units: u32,
}

impl Granted {
    /// Its count against quotas: the part of the GPU's memory slices that it holds, not what was asked.
    #[must_use]
    pub fn milli(&self) -> Milli {
        Milli((self.size * 1000).div_ceil(self.units.max(1)))
    }
}

/// `asked 0.375 GPU, got 3g.40gb, 4 of 8 memory slices`.
impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, name, size, units, .. } = self;
        write!(f, "asked {asked}, got {name}, {size} of {units} memory slices")
    }
}

/// Why no profile serves a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// No such profile.
    #[error("this GPU has no MIG profile {0}; it has {1}")]
    NoProfile(String, String),
    /// More than any profile has.
    #[error("no MIG profile of this GPU has {0} of memory; the largest has {1}")]
    TooMuchMemory(Bytes, Bytes),
    /// An instance is always a part of one GPU.
    #[error("{0} GPUs cannot be one MIG instance; ask for 1 GPU, a part of one or a profile")]
    SeveralGpus(u32),
    /// Fixed instances, and none that fits.
    #[error("no MIG instance given to this agent has {0} of {1} memory slices; it has {2}")]
    NoneSoLarge(u32, u32, String),
    /// Nothing to choose from.
    #[error("this GPU offers no MIG profiles")]
    NoProfiles,
}

/// The profile that `request` gets on a GPU with these profiles.
///
/// A fraction gets the smallest profile with at least that part of the memory slices (0.375 of 8 is 3, so the 4 of
/// `3g`), an amount of memory the smallest with at least that much, the fewer compute slices where two are equal; a
/// whole GPU gets the profile that takes all of it. Profiles with extra engines only by name. With fixed instances
/// ([`Table::fixed`]), one GPU means the largest of them.
///
/// # Errors
/// Says what was asked and what the GPU has.
pub fn grant(table: &Table, request: &GpuRequest) -> Result<Granted, MigError> {
    let profile = match request {
        GpuRequest::MigProfile(name) => {
            table.position(name).ok_or_else(|| MigError::NoProfile(name.clone(), table.names()))?
        }
        GpuRequest::Fraction(part) => by_size(table, part.of_units(table.units))?,
        GpuRequest::Gpus(1) => by_size(table, table.whole())?,
        GpuRequest::Gpus(count) => return Err(MigError::SeveralGpus(*count)),
        GpuRequest::Memory(bytes) => by_memory(table, *bytes)?,
    };
    let chosen = &table.profiles[profile];
    Ok(Granted {
        profile,
        asked: request.to_string(),
        name: chosen.name.clone(),
        size: chosen.size,
        units: table.units,
    })
}

fn by_size(table: &Table, size: u32) -> Result<usize, MigError> {
    let enough = table.plain().filter(|&at| table.profiles[at].size >= size);
    let smallest = enough.min_by_key(|&at| (table.profiles[at].size, table.profiles[at].compute_slices));
    smallest.ok_or_else(|| match table.profiles.as_slice() {
        [] => MigError::NoProfiles,
        _ => MigError::NoneSoLarge(size, table.units, table.names()),
    })
}

fn by_memory(table: &Table, bytes: Bytes) -> Result<usize, MigError> {
    let enough = table.plain().filter(|&at| table.profiles[at].memory_bytes >= bytes.0);
    let key = |&at: &usize| {
        let profile = &table.profiles[at];
        (profile.memory_bytes, profile.compute_slices, profile.size)
    };
    enough.min_by_key(key).ok_or_else(|| {
        let largest = table.plain().map(|at| table.profiles[at].memory_bytes).max();
        largest.map_or(MigError::NoProfiles, |largest| MigError::TooMuchMemory(bytes, Bytes(largest)))
    })
}
