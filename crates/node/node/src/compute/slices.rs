//! The slices of a node that have a share of compute time, by GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cantle_arbiter::{Arbiter, GateDecision, Observation, Parameters, SliceShare};
use cantle_ledger::GRANT_FILE;
use cantle_ledger::Uuid;
use cantle_ledger::compute::{GrantTerms, LaunchWatch, read_grant};
use cantle_model::LeaseId;

use crate::launch::grant_terms;
use crate::store::NodeStore;

/// Interval of the search for new and removed slices.
const SCAN_NS: u64 = 50_000_000;
/// Interval at which the leases of known slices are read, and all others are searched: a task may be suspended, move, or get another size.
const FOLLOW_NS: u64 = 500_000_000;
/// A slice without pages gets none after this time: they are made with it.
const MADE_NS: u64 = 5_000_000_000;
/// Interval of the search for dead processes: until then their neighbors may wait for what they had in flight.
const REAP_NS: u64 = 5_000_000;
/// Over which time shares are shown.
const RECENT_NS: u64 = 1_000_000_000;
/// A slice that did something in this time may do something again at once.
const LINGER_NS: u64 = 5_000_000;

/// The activity, which determines the time of the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// There are no slices.
    None,
    /// No gate has to be opened or closed soon.
    Quiet,
    /// Slices compete, or one is at its limit.
    Busy,
}

struct Watched {
    number: u64,
    watch: LaunchWatch,
    share: SliceShare,
    active_ns: u64,
    granted_ns: u64,
    shown_ns: u64,
    unweightable: bool,
}

struct Board {
    arbiter: Arbiter,
    shown_ns: u64,
}

pub(super) struct Slices {
    node: NodeStore,
    next: u64,
    scanned_ns: Option<u64>,
    followed_ns: u64,
    reaped_ns: u64,
    slices: BTreeMap<(Uuid, OsString), Watched>,
    /// When the directory of the slices had changed last, when they were listed.
    listed: Option<(i64, i64)>,
    /// Slices without pages, and when they were first seen. Most have none.
    bare: BTreeMap<OsString, u64>,
    boards: BTreeMap<Uuid, Board>,
}

impl Slices {
    pub(super) const fn new(node: NodeStore) -> Self {
        Self {
            node,
            next: 0,
            scanned_ns: None,
            followed_ns: 0,
            reaped_ns: 0,
            slices: BTreeMap::new(),
            listed: None,
            bare: BTreeMap::new(),
            boards: BTreeMap::new(),
        }
    }

    /// Observes all slices, and returns the states of their gates.
    pub(super) fn poll(&mut self, now_ns: u64) -> Activity {
        if self.scanned_ns.is_none_or(|scanned_ns| now_ns.saturating_sub(scanned_ns) >= SCAN_NS) {
            self.scanned_ns = Some(now_ns);
            let follows = now_ns.saturating_sub(self.followed_ns) >= FOLLOW_NS;
            if follows {
                self.followed_ns = now_ns;
                self.forget_changed();
            }
            self.scan(now_ns, follows);
        }
        if now_ns.saturating_sub(self.reaped_ns) >= REAP_NS {
            self.reaped_ns = now_ns;
            self.slices.values_mut().for_each(|slice| slice.watch.reap());
        }
        let mut activity = Activity::None;
        for (gpu, board) in &mut self.boards {
            let mut slices: Vec<&mut Watched> =
                self.slices.iter_mut().filter(|((uuid, _), _)| uuid == gpu).map(|(_, slice)| slice).collect();
            activity = activity.max(board.poll(now_ns, &mut slices));
        }
        activity
    }

    /// Forgets slices whose leases say something else by now. Those that still have a GPU are found again, with their new terms.
    fn forget_changed(&mut self) {
        let is_changed = |((uuid, name), slice): (&(Uuid, OsString), &Watched)| {
            let now = self.terms(name).map(|terms| (terms.uuid, terms.request_milli, terms.limit_milli));
            let known = (*uuid, slice.share.weight_milli, slice.share.limit_milli);
            (now != Some(known)).then(|| (*uuid, name.clone()))
        };
        let changed: Vec<_> = self.slices.iter().filter_map(is_changed).collect();
        for key in changed {
            self.slices.remove(&key);
        }
    }

    /// Finds slices that are new, and forgets those that are gone. `all`: also searches those that have had no pages for a while.
    fn scan(&mut self, now_ns: u64, all: bool) {
        let dir = self.node.dir().join("slices");
        let is_young = |since_ns: &u64| now_ns.saturating_sub(*since_ns) < MADE_NS;
        let stamp = changed(&dir);
        if !all && stamp == self.listed && !self.bare.values().any(is_young) {
            return;
        }
        self.listed = stamp;
        // Where it cannot be read now, what is known stays until its lease is gone.
        let Ok(entries) = fs::read_dir(&dir) else { return };
        let names: BTreeSet<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        self.slices.retain(|(_, name), _| names.contains(name));
        self.bare.retain(|name, _| names.contains(name));
        for name in names {
            if self.slices.keys().any(|(_, known)| *known == name) {
                continue;
            }
            let path = dir.join(&name);
            let since_ns = *self.bare.entry(name.clone()).or_insert(now_ns);
            let is_searched = all || is_young(&since_ns);
            // One that is being made has no lease yet.
            if !is_searched || !path.join(GRANT_FILE).exists() {
                continue;
            }
            let Some(terms) = self.terms(&name) else { continue };
            let Ok(watch) = LaunchWatch::open(&path, terms) else { continue };
            let share = SliceShare { weight_milli: terms.request_milli, limit_milli: terms.limit_milli };
            let number = self.next;
            self.next += 1;
            let fresh = Watched {
                number,
                watch,
                share,
                active_ns: 0,
                granted_ns: 0,
                shown_ns: 0,
                unweightable: false,
            };
            self.bare.remove(&name);
            self.slices.insert((terms.uuid, name), fresh);
        }
        self.boards.retain(|gpu, _| self.slices.keys().any(|(uuid, _)| uuid == gpu));
        for (gpu, _) in self.slices.keys() {
            let fresh = || Board { arbiter: Arbiter::new(Parameters::default()), shown_ns: 0 };
            self.boards.entry(*gpu).or_insert_with(fresh);
        }
    }

    /// As the lease says; if that cannot be read, as the page says.
    fn terms(&self, slice: &OsStr) -> Option<GrantTerms> {
        let id = LeaseId(slice.to_str()?.to_owned());
        match self.node.lease(&id) {
            Ok(lease) => grant_terms(&lease?),
            Err(_) => Some(read_grant(&self.node.slice_dir(&id))?.0),
        }
    }
}

/// When a directory changed last, in seconds and nanoseconds.
fn changed(dir: &Path) -> Option<(i64, i64)> {
    let found = fs::metadata(dir).ok()?;
    Some((found.ctime(), found.ctime_nsec()))
}

impl Board {
    fn poll(&mut self, now_ns: u64, slices: &mut [&mut Watched]) -> Activity {
        let observed: Vec<_> =
            slices.iter_mut().map(|slice| (slice.number, slice.share, slice.observe(now_ns))).collect();
        let decisions = self.arbiter.poll(now_ns, &observed);
        for slice in slices.iter_mut() {
            let decided = decisions.iter().find(|(number, _)| *number == slice.number);
            if let Some((_, decision)) = decided {
                slice.announce(now_ns, decision);
            }
        }
        if now_ns.saturating_sub(self.shown_ns) >= RECENT_NS {
            self.shown_ns = now_ns;
            show(slices);
        }
        let lingering = |slice: &&&mut Watched| now_ns.saturating_sub(slice.active_ns) < LINGER_NS;
        let active = slices.iter().filter(lingering).count();
        let is_capped = slices.iter().filter(lingering).any(|slice| slice.share.limit_milli.is_some());
        if active > 1 || is_capped { Activity::Busy } else { Activity::Quiet }
    }
}

impl Watched {
    fn observe(&mut self, now_ns: u64) -> Observation {
        let sums = self.watch.observe(now_ns);
        let seen = Observation {
            waiting: sums.waiting,
            attended: sums.attended,
            submitted_ns: sums.submitted_ns,
            confirmed_ns: sums.confirmed_ns,
            longest_ns: sums.longest_ns,
        };
        if seen.waiting || seen.submitted_ns != seen.confirmed_ns {
            self.active_ns = now_ns;
        }
        seen
    }

    fn announce(&mut self, now_ns: u64, decision: &GateDecision) {
        let &GateDecision { open, window_ns, granted_ns, unweightable } = decision;
        self.watch.announce(now_ns, open, window_ns, granted_ns, unweightable);
        self.granted_ns = granted_ns;
        if unweightable && !self.unweightable {
            tracing::warn!(
                "a slice's work makes no progress: it cannot be weighted, and the driver divides the time of its GPU"
            );
        }
        self.unweightable = unweightable;
    }
}

/// Publishes what each slice of a GPU had since the last time.
fn show(slices: &mut [&mut Watched]) {
    let had_us = |slice: &Watched| {
        u32::try_from(slice.granted_ns.saturating_sub(slice.shown_ns) / 1000).unwrap_or(u32::MAX)
    };
    let all_us = slices.iter().map(|slice| had_us(slice)).fold(0, u32::saturating_add);
    for slice in slices {
        slice.watch.publish_recent(all_us, had_us(slice));
        slice.shown_ns = slice.granted_ns;
    }
}
