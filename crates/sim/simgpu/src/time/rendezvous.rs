//! Kernels that spin until others run, also on other engines, which advance independently. The process that detects that
//! enough of a group run at the same time notifies all of them.

use super::advance::Rings as _;
use super::engine::Engine;
use super::rings::{Ring, RingsOf};
use super::shared::{engines_in_use, view};
use super::{Op, now_ns};
use crate::state::Sim;

/// If enough kernels of the group of the kernel at `seq` run now, they have met. Whether they have.
fn meet(sim: &'static Sim, ring: usize, seq: u64) -> bool {
    let Some(item) = RingsOf(sim).item(ring, seq) else { return false };
    let Op::Spin { ranks, group } = item.op else { return false };
    let mut met: Vec<(Ring, u64)> = Vec::new();
    for id in engines_in_use(sim) {
        let spinning = view(sim, id).spinning(&RingsOf(sim));
        let of_group = spinning.into_iter().filter(|s| (s.2, s.3) == (ranks, group));
        met.extend(of_group.map(|(ring, seq, ..)| (Ring::at(sim, ring), seq)));
    }
    if met.len() < ranks as usize {
        return false;
    }
    met.truncate(ranks as usize);
    // This process's own last: its program may end as soon as its kernel has, and no other process would inform the
    // others.
    met.sort_by_key(|(of, _)| of.index == ring);
    let now = now_ns();
    for (ring, seq) in met {
        if ring.set_at_ns(seq, now) {
            ring.wake();
        }
    }
    true
}

/// If a channel has a kernel that spins on the engine now, checks whether it has met the others of its group. Whether it
/// has.
pub(crate) fn meet_if_spinning(sim: &'static Sim, engine: &Engine, channel: u64) -> bool {
    let Some(ring) = engine.channel(channel).map(|c| c.ring) else { return false };
    let mut spinning = engine.spinning(&RingsOf(sim)).into_iter().filter(|s| s.0 == ring);
    spinning.next().is_some_and(|(ring, seq, ..)| meet(sim, ring, seq))
}

/// See [`Engine::forecast`].
pub(crate) fn forecast(sim: &'static Sim, engine: Engine, channel: u64, seq: u64) -> Option<u64> {
    engine.forecast(&RingsOf(sim), channel, seq)
}
