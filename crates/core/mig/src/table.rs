//! The profiles and placements that a GPU offers, as NVML reports them.

use serde::{Deserialize, Serialize};

/// A GPU instance profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Profile {
    /// Its name, e.g. `2g.10gb`.
    pub name: String,
    /// NVML's id of it on this GPU.
    pub id: u32,
    /// Compute slices it has.
    pub compute_slices: u32,
    /// Units of the GPU's placement grid it takes (memory slices, except where a GPU has a finer grid).
    pub size: u32,
    /// Units at which it may start.
    pub starts: Vec<u32>,
    /// Instances of it that a GPU can have at once.
    pub max_instances: u32,
    /// Memory of an instance in bytes.
    pub memory_bytes: u64,
    /// Media engines of an instance.
    #[serde(default, skip_serializing_if = "Engines::is_none")]
    pub engines: Engines,
}

/// Video decoders, video encoders, JPEG and optical flow engines. An instance has its own, and a GPU a fixed number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Engines(pub [u32; 4]);

impl Engines {
    const fn is_none(&self) -> bool {
        matches!(self.0, [0, 0, 0, 0])
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].saturating_add(other.0[kind])))
    }
}

impl Profile {
    /// Without media engines or graphics added or taken away; only such are chosen for a request by size.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.name.contains(['+', '-'])
    }
}

/// Few know the names of profiles, and one request makes it ten times as many.
const BY_NAME_ONLY: f64 = 0.1;

/// All profiles of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Table {
    /// Units of its placement grid: 8 on most GPUs, 4 on A30, 12 on RTX PRO 6000; at most 32.
    pub units: u32,
    /// Its profiles.
    pub profiles: Vec<Profile>,
    /// These instances are fixed, and no other is created: their profiles are all there is, their places all starts.
    #[serde(default)]
    pub fixed: bool,
}

impl Table {
    /// Position of the profile with this name.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.profiles.iter().position(|profile| profile.name == name)
    }

    /// How often the profile at this position is expected to be requested before anything is known, in requests: one, or a tenth for one that
    /// no request by size gets, because another one of its size has fewer compute slices.
    #[must_use]
    pub fn expected(&self, position: usize) -> f64 {
        let of = |at: usize| (self.profiles[at].size, self.profiles[at].compute_slices);
        let is_smaller = |at: usize| of(at).0 == of(position).0 && of(at) < of(position);
        if self.plain().any(is_smaller) { BY_NAME_ONLY } else { 1.0 }
    }

    /// The engines of the GPU, derived from its profiles: of each kind, the number in the profile with the most. If the largest
    /// number of plain instances has more than that, the limit of this kind is unknown.
    #[must_use]
    pub fn engines(&self) -> Engines {
        let limit = |kind: usize| {
            let of = |profile: &Profile| profile.engines.0[kind];
            let most = self.profiles.iter().map(of).max().unwrap_or(0);
            let plain = self.profiles.iter().filter(|profile| profile.is_plain());
            let is_all =
                plain.map(|profile| of(profile).saturating_mul(profile.max_instances)).all(|all| all <= most);
            if is_all { most } else { u32::MAX }
        };
        Engines(std::array::from_fn(limit))
    }

    /// Does the GPU have the engines for instances of these profiles, by position, side by side?
    #[must_use]
    pub fn has_engines_for(&self, profiles: impl IntoIterator<Item = usize>) -> bool {
        let of = |all: Engines, profile: usize| all.and(self.profiles[profile].engines);
        let needed = profiles.into_iter().fold(Engines::default(), of);
        needed.0.iter().zip(self.engines().0).all(|(needed, there)| *needed <= there)
    }

    /// The units that an instance of the profile at position `profile` takes at `start`, as a bit mask.
    #[must_use]
    pub fn units_at(&self, profile: usize, start: u32) -> u32 {
        mask(start, self.profiles[profile].size)
    }

    /// The table for fixed instances at these places (id of the profile, first unit).
    #[must_use]
    pub fn of_fixed(&self, places: &[(u32, u32)]) -> Self {
        let standing = |profile: &Profile| {
            let of_it = places.iter().filter(|(id, _)| *id == profile.id);
            let starts: Vec<u32> = of_it.map(|(_, start)| *start).collect();
            let max_instances = u32::try_from(starts.len()).unwrap_or(u32::MAX);
            (max_instances > 0).then(|| Profile { starts, max_instances, ..profile.clone() })
        };
        Self { units: self.units, profiles: self.profiles.iter().filter_map(standing).collect(), fixed: true }
    }

    /// Positions of the profiles that are chosen by size: the plain ones; of fixed instances, all.
    pub(crate) fn plain(&self) -> impl Iterator<Item = usize> + '_ {
        let chosen = |(_, profile): &(usize, &Profile)| self.fixed || profile.is_plain();
        self.profiles.iter().enumerate().filter(chosen).map(|(at, _)| at)
    }

    /// Units that one GPU means: all; of fixed instances, the largest one.
    pub(crate) fn whole(&self) -> u32 {
        let largest = || self.profiles.iter().map(|profile| profile.size).max().unwrap_or(self.units);
        if self.fixed { largest() } else { self.units }
    }

    /// Names of plain profiles, the smallest first.
    pub(crate) fn names(&self) -> String {
        let mut plain: Vec<&Profile> = self.plain().map(|at| &self.profiles[at]).collect();
        plain.sort_by_key(|profile| (profile.size, profile.compute_slices));
        let names: Vec<&str> = plain.into_iter().map(|profile| profile.name.as_str()).collect();
        names.join(", ")
    }
}

/// The units that an instance of `size` at `start` takes, as a bit mask.
const fn mask(start: u32, size: u32) -> u32 {
    (if size >= 32 { u32::MAX } else { (1 << size) - 1 }) << start
}
