//! The rules of an engine, without clocks and processes.

use std::collections::BTreeMap;

use super::advance::Rings;
use super::engine::Engine;
use super::item::{Item, Op};
use super::{PERIOD_NS, SLICE_NS, SWITCH_DRAINED_NS, SWITCH_PREEMPTED_NS};

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// Items by ring.
#[derive(Default)]
struct Queued(BTreeMap<usize, Vec<Item>>);

impl Rings for Queued {
    fn item(&self, ring: usize, seq: u64) -> Option<Item> {
        self.0.get(&ring)?.get(seq as usize).copied()
    }
}

impl Queued {
    fn push(&mut self, ring: usize, ready_ns: u64, op: Op) {
        self.0.entry(ring).or_default().push(Item { op, ready_ns, met_ns: None });
    }

    fn busy(&mut self, ring: usize, count: usize, ns: u64) {
        (0..count).for_each(|_| self.push(ring, 0, Op::Busy { ns }));
    }
}

/// An engine with a channel for each of these contexts: slot and context, channel 1 with ring 0 and so on.
fn engine(contexts: &[(usize, u32)]) -> Engine {
    let mut engine = Engine::default();
    for (ring, (slot, context)) in contexts.iter().enumerate() {
        engine.open(*slot, *context, ring, 0);
    }
    engine
}

fn gpu_ns(engine: &Engine) -> Vec<u64> {
    engine.processes.iter().map(|p| p.gpu_ns).collect()
}

fn head(engine: &Engine, channel: u64) -> u64 {
    engine.head(channel).unwrap_or(u64::MAX)
}

#[test]
fn one_context_has_the_engine_to_itself() {
    let (mut e, mut queued) = (engine(&[(0, 1)]), Queued::default());
    queued.busy(0, 100, 50 * US);
    e.advance(&queued, 5 * MS);
    assert_eq!((head(&e, 1), e.busy_ns, gpu_ns(&e)), (100, 5 * MS, vec![5 * MS]));
    e.advance(&queued, 100 * MS);
    assert_eq!((e.now_ns, e.busy_ns), (100 * MS, 5 * MS));
}

#[test]
fn it_makes_no_difference_how_often_somebody_looks() {
    let mut queued = Queued::default();
    queued.busy(0, 400, 300 * US);
    queued.busy(1, 7, 20 * MS);
    queued.push(0, 30 * MS, Op::Busy { ns: 5 * MS });
    let (mut rarely, mut often) = (engine(&[(0, 1), (1, 1)]), engine(&[(0, 1), (1, 1)]));
    rarely.advance(&queued, 90 * MS);
    (1..=900).for_each(|step| often.advance(&queued, step * 100 * US));
    rarely.passed.clear();
    assert_eq!(rarely, often);
}

#[test]
fn busy_contexts_have_equal_turns_and_changing_costs() {
    let (mut e, mut queued) = (engine(&[(0, 1), (1, 1), (1, 2), (1, 3), (1, 4)]), Queued::default());
    (0..5).for_each(|ring| queued.busy(ring, 1, 1000 * MS));
    e.advance(&queued, 215 * MS);
    let turns = 215 * MS / (SLICE_NS + SWITCH_PREEMPTED_NS);
    assert_eq!(e.busy_ns, turns * SLICE_NS);
    assert_eq!(gpu_ns(&e), [turns / 5 * SLICE_NS, turns * 4 / 5 * SLICE_NS]);
}

#[test]
fn who_has_nothing_to_do_gives_its_turn_up() {
    let (mut e, mut queued) = (engine(&[(0, 1), (1, 1)]), Queued::default());
    queued.busy(0, 1, 500 * US);
    queued.busy(1, 1, 10 * MS);
    e.advance(&queued, 10_500 * US + SWITCH_DRAINED_NS);
    assert_eq!(gpu_ns(&e), [500 * US, 10 * MS]);
    assert_eq!([head(&e, 1), head(&e, 2)], [1, 1]);
}

#[test]
fn streams_of_a_context_share_while_both_are_busy() {
    let (mut e, mut queued) = (engine(&[(0, 1), (0, 1)]), Queued::default());
    queued.busy(0, 1, 3 * MS);
    queued.busy(1, 1, MS);
    e.advance(&queued, 2 * MS);
    assert_eq!([head(&e, 1), head(&e, 2)], [0, 1]);
    e.advance(&queued, 4 * MS);
    assert_eq!([head(&e, 1), head(&e, 2), e.busy_ns], [1, 1, 4 * MS]);
}

#[test]
fn marks_have_the_time_at_which_they_were_passed() {
    let (mut e, mut queued) = (engine(&[(0, 1)]), Queued::default());
    queued.push(0, 0, Op::Mark);
    queued.busy(0, 1, 3 * MS);
    queued.push(0, 0, Op::Mark);
    queued.push(0, 7 * MS, Op::Mark);
    e.advance(&queued, 20 * MS);
    assert_eq!(e.passed.iter().map(|p| p.at_ns).collect::<Vec<_>>(), [0, 3 * MS, 7 * MS]);
}

#[test]
fn a_thousand_marks_at_once_are_passed_in_parts() {
    let (mut e, mut queued) = (engine(&[(0, 1)]), Queued::default());
    (0..1000).for_each(|_| queued.push(0, 0, Op::Mark));
    let mut seen = 0;
    while head(&e, 1) < 1000 {
        e.advance(&queued, MS);
        seen += e.passed.len();
    }
    assert_eq!((seen, e.now_ns), (1000, MS));
}

#[test]
fn waiting_for_another_channel_takes_no_engine_time() {
    let (mut e, mut queued) = (engine(&[(0, 1), (0, 1)]), Queued::default());
    queued.push(0, 0, Op::Wait { channel: 2, seq: 0 });
    queued.busy(0, 1, MS);
    queued.push(1, 5 * MS, Op::Busy { ns: MS });
    e.advance(&queued, 6 * MS);
    assert_eq!([head(&e, 1), head(&e, 2), e.busy_ns], [1, 1, MS]);
    e.advance(&queued, 7 * MS);
    assert_eq!(head(&e, 1), 2);
}

#[test]
fn copies_need_no_turn_and_share_the_link() {
    let (mut e, mut queued) = (engine(&[(0, 1), (1, 1)]), Queued::default());
    queued.busy(0, 1, 100 * MS);
    queued.push(1, 0, Op::Copy { ns: 3 * MS });
    e.advance(&queued, 3 * MS);
    assert_eq!((head(&e, 2), gpu_ns(&e)), (1, vec![3 * MS, 0]));
    let mut e = engine(&[(0, 1), (1, 1)]);
    let mut queued = Queued::default();
    (0..2).for_each(|ring| queued.push(ring, 0, Op::Copy { ns: 3 * MS }));
    e.advance(&queued, 6 * MS - 1);
    assert_eq!([head(&e, 1), head(&e, 2)], [0, 0]);
    // Each reading loses parts of nanoseconds.
    e.advance(&queued, 6 * MS + 2);
    assert_eq!([head(&e, 1), head(&e, 2), e.busy_ns], [1, 1, 0]);
}

#[test]
fn the_dead_leave_at_once_whoever_has_the_turn() {
    for dead in 0..3 {
        let (mut e, mut queued) = (engine(&[(0, 1), (1, 1), (2, 1)]), Queued::default());
        (0..3).for_each(|ring| queued.busy(ring, 1, 1000 * MS));
        e.advance(&queued, 50 * MS);
        e.bury(|slot| slot != dead);
        assert_eq!((e.processes.len(), e.contexts.len(), e.channels.len()), (2, 2, 2));
        let before = gpu_ns(&e);
        e.advance(&queued, 93 * MS);
        let had: Vec<u64> = gpu_ns(&e).iter().zip(before).map(|(now, before)| now - before).collect();
        assert!(had.iter().all(|ns| (18 * MS..23 * MS).contains(ns)), "{dead}: {had:?}");
        e.bury(|_| false);
        e.advance(&queued, 100 * MS);
        assert_eq!((e.now_ns, e.contexts.len()), (100 * MS, 0));
    }
}

#[test]
fn spinning_kernels_of_two_groups_do_not_stay_in_step() {
    let spin = |group| Op::Spin { ranks: 2, group };
    for offset_ns in [0, 1, 17 * US, SLICE_NS] {
        // On one engine the first group has the first turn, on the other the second group.
        let mut engines = [(engine(&[(0, 1), (1, 1)]), [1, 2]), (engine(&[(2, 1), (3, 1)]), [2, 1])].map(
            |(engine, groups)| {
                let mut queued = Queued::default();
                (0..2).for_each(|ring| queued.push(ring, offset_ns, spin(groups[ring])));
                (engine, queued)
            },
        );
        let mut met = [false; 2];
        for step in 1..=20_000 {
            let running = engines.each_mut().map(|(engine, queued)| {
                engine.advance(queued, offset_ns + step * 10 * US);
                engine.spinning(queued).first().map(|s| s.3)
            });
            if let [Some(one), Some(other)] = running
                && one == other
            {
                met[one as usize - 1] = true;
            }
        }
        assert_eq!(met, [true; 2], "offset {offset_ns}");
    }
}

#[test]
fn utilization_is_that_of_the_last_whole_period() {
    let (mut e, mut queued) = (engine(&[(0, 1)]), Queued::default());
    queued.push(0, PERIOD_NS, Op::Busy { ns: PERIOD_NS / 4 });
    e.advance(&queued, 2 * PERIOD_NS + 1);
    assert_eq!((e.utilization_percent(), e.processes[0].utilization_percent()), (25, 25));
    e.advance(&queued, 90 * PERIOD_NS);
    assert_eq!(e.utilization_percent(), 0);
}

#[test]
fn a_forecast_is_what_will_be_if_nothing_changes() {
    let mut queued = Queued::default();
    queued.busy(0, 30, 700 * US);
    queued.busy(1, 10, 5 * MS);
    let e = engine(&[(0, 1), (1, 1)]);
    let forecast = e.clone().forecast(&queued, 1, 29).expect("a forecast");
    let mut later = e.clone();
    later.advance(&queued, forecast - 1);
    assert_eq!(head(&later, 1), 29);
    later.advance(&queued, forecast);
    assert_eq!(head(&later, 1), 30);
    assert_eq!(e.alone(1).forecast(&queued, 1, 29), Some(21 * MS));
    assert_eq!(e.forecast(&queued, 1, 30), None, "there is no such item");
}

#[test]
fn words_are_the_same_engine() {
    let (mut e, mut queued) = (engine(&[(0, 1), (3, 2), (3, 2)]), Queued::default());
    queued.busy(0, 3, 700 * US);
    queued.push(1, 0, Op::Mark);
    queued.push(2, 0, Op::Copy { ns: 50 * MS });
    e.advance(&queued, 3 * MS);
    let words = e.encode();
    assert_eq!((words.len(), Engine::decode(&words)), (e.words(), Some(e)));
    assert_eq!(Engine::decode(&[]), Some(Engine::default()));
    assert_eq!(Engine::decode(&words[..words.len() - 1]), None);
    assert_eq!(Engine::decode(&[u64::MAX; 40]), None);
}
