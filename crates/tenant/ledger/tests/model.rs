//! The protocol under a model checker: every interleaving (up to the bound below) of owners, settlers and deaths at every
//! shared access. The condition at the end: the word's sum is what the living slots hold.
//!
//! The checker itself is checked: two mutations of the protocol must make it find a fault.
//!
//! `LOOM_MAX_PREEMPTIONS` widens the search; the default bound of each test is what fits in a test run.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::cell::Cell as StdCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cantle_ledger::protocol::{self, Cell, GpuCells, Record};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const LIMIT: u32 = 4;
const SLOTS: usize = 2;
/// No operation or settling makes more shared accesses than this without interference.
const LONGEST: u32 = 16;

thread_local! {
    /// Shared accesses that the running thread may still make before it dies.
    static LIFE: StdCell<Option<u32>> = const { StdCell::new(None) };
    /// The mutation: a swap in two steps, which others may come between.
    static SWAPS_IN_TWO_STEPS: StdCell<bool> = const { StdCell::new(false) };
}

struct Killed;

/// Runs `work` until its `accesses`-th access to shared memory, at which it dies. True if it got through.
fn mortal(accesses: u32, work: impl FnOnce()) -> bool {
    let result = catch_unwind(AssertUnwindSafe(|| {
        LIFE.set(Some(accesses));
        work();
    }));
    LIFE.set(None);
    result
        .map_err(|cause| {
            if !cause.is::<Killed>() {
                resume_unwind(cause)
            }
        })
        .is_ok()
}

struct ModelCell(AtomicU64);

impl ModelCell {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Also keeps the other threads' lives apart: loom runs all of them on one.
    fn access<T>(&self, access: impl FnOnce(&AtomicU64) -> T) -> T {
        let life = LIFE.take();
        if life == Some(0) {
            resume_unwind(Box::new(Killed));
        }
        let value = access(&self.0);
        LIFE.set(life.map(|accesses| accesses - 1));
        value
    }
}

impl Cell for ModelCell {
    fn load(&self) -> u64 {
        self.access(|cell| cell.load(Ordering::Acquire))
    }

    fn store(&self, value: u64) {
        self.access(|cell| cell.store(value, Ordering::Release));
    }

    fn swap_if(&self, current: u64, new: u64) -> bool {
        if SWAPS_IN_TWO_STEPS.get() {
            let is_current = self.load() == current;
            if is_current {
                self.store(new);
            }
            return is_current;
        }
        self.access(|cell| cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok())
    }
}

struct Model {
    word: ModelCell,
    records: [Record<ModelCell>; SLOTS],
    /// Generation of slot 0: 0 is the owner that dies, 1 is free, 2 is the next owner.
    generation: ModelCell,
    /// The granules that the driver has allocated: the outside witness.
    driver: AtomicU64,
}

impl GpuCells for Model {
    type Cell = ModelCell;

    fn word(&self) -> &ModelCell {
        &self.word
    }

    fn record(&self, slot: u32) -> Option<&Record<ModelCell>> {
        self.records.get(slot as usize)
    }
}

impl Model {
    fn new() -> Arc<Self> {
        let record =
            || Record { intent: ModelCell::new(0), held: ModelCell::new(0), acked: ModelCell::new(0) };
        Arc::new(Self {
            word: ModelCell::new(protocol::empty_word()),
            records: [record(), record()],
            generation: ModelCell::new(0),
            driver: AtomicU64::new(0),
        })
    }

    fn settle_and_free(&self) {
        protocol::settle(self, 0, || self.generation.load() == 0);
        self.generation.swap_if(0, 1);
    }

    fn used(&self) -> u32 {
        let used = protocol::used(self.word.load());
        assert!(used <= LIMIT, "{used} over the limit");
        used
    }

    fn driver_allocates(&self, granules: u32) {
        let given = self.driver.fetch_add(granules.into(), Ordering::SeqCst) + u64::from(granules);
        assert!(given <= LIMIT.into(), "the driver gave {given} of {LIMIT}");
    }

    fn driver_frees(&self, granules: u32) {
        self.driver.fetch_sub(granules.into(), Ordering::SeqCst);
    }

    fn assert_exact(&self) {
        let held: u32 = (0..SLOTS as u32).map(|slot| protocol::held(self, slot)).sum();
        assert_eq!(self.used(), held, "the sum is not what the slots hold");
    }
}

/// The work of the owner that dies: takes 2, gives 1 back, takes 1.
fn owner_works(model: &Model) {
    protocol::reserve(model, 0, 2, LIMIT).unwrap();
    protocol::release(model, 0, 1);
    let _ = protocol::reserve(model, 0, 1, LIMIT);
}

/// The work of a process that lives: ends with 1 if there was room.
fn neighbor_works(model: &Model) {
    if protocol::reserve(model, 1, 2, LIMIT).is_ok() {
        protocol::release(model, 1, 1);
    }
}

fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(scenario);
}

#[test]
fn an_owner_may_die_at_any_access_beside_a_living_neighbor() {
    for accesses in 0..3 * LONGEST {
        check(2, move || {
            let model = Model::new();
            let neighbor = thread::spawn({
                let model = model.clone();
                move || neighbor_works(&model)
            });
            mortal(accesses, || owner_works(&model));
            // The owner is dead from here on; the neighbor need not have started.
            model.settle_and_free();
            assert_eq!(protocol::held(&*model, 0), 0);
            neighbor.join().unwrap();
            model.assert_exact();
        });
    }
}

#[test]
fn settlers_may_meet_and_die_at_any_access() {
    for accesses in 0..2 * LONGEST {
        for settler_accesses in 0..LONGEST {
            check(1, move || {
                let model = Model::new();
                protocol::reserve(&*model, 1, 1, LIMIT).unwrap();
                mortal(accesses, || owner_works(&model));
                let settler = thread::spawn({
                    let model = model.clone();
                    move || {
                        mortal(settler_accesses, || model.settle_and_free());
                    }
                });
                model.settle_and_free();
                settler.join().unwrap();
                assert_eq!(protocol::held(&*model, 0), 0);
                assert_eq!(model.used(), 1);
            });
        }
    }
}

#[test]
fn a_late_settler_does_no_harm_to_the_slots_next_owner() {
    for accesses in 0..2 * LONGEST {
        check(2, move || {
            let model = Model::new();
            mortal(accesses, || owner_works(&model));
            let late = thread::spawn({
                let model = model.clone();
                move || model.settle_and_free()
            });
            model.settle_and_free();
            if model.generation.swap_if(1, 2) {
                protocol::reserve(&*model, 0, 1, LIMIT).unwrap();
                neighbor_works(&model);
                protocol::reserve(&*model, 0, 1, LIMIT).unwrap();
                assert_eq!(protocol::held(&*model, 0), 2, "the next owner lost what it holds");
            }
            late.join().unwrap();
            model.assert_exact();
        });
    }
}

#[test]
fn two_settlers_beside_a_neighbor() {
    for accesses in [4, 9, 11] {
        check(2, move || {
            let model = Model::new();
            mortal(accesses, || owner_works(&model));
            let settler = thread::spawn({
                let model = model.clone();
                move || model.settle_and_free()
            });
            let neighbor = thread::spawn({
                let model = model.clone();
                move || neighbor_works(&model)
            });
            model.settle_and_free();
            settler.join().unwrap();
            neighbor.join().unwrap();
            assert_eq!(protocol::held(&*model, 0), 0);
            model.assert_exact();
        });
    }
}

/// The shim's sequence for an allocation.
fn charge_then_allocate(model: &Model, slot: u32, granules: u32) -> bool {
    let granted = protocol::reserve(model, slot, granules, LIMIT).is_ok();
    if granted {
        model.driver_allocates(granules);
    }
    granted
}

/// The mutation: the limit is checked after the driver has allocated.
fn allocate_then_charge(model: &Model, slot: u32, granules: u32) -> bool {
    model.driver_allocates(granules);
    let granted = protocol::reserve(model, slot, granules, LIMIT).is_ok();
    if !granted {
        model.driver_frees(granules);
    }
    granted
}

/// Room for one of two.
fn two_race(take: fn(&Model, u32, u32) -> bool) {
    let model = Model::new();
    let other = thread::spawn({
        let model = model.clone();
        move || take(&model, 1, 3)
    });
    let one = take(&model, 0, 3);
    let other = other.join().unwrap();
    assert!(one != other, "both or none got it: {one}, {other}");
    model.assert_exact();
}

#[test]
fn one_of_two_gets_the_last_room() {
    check(3, || two_race(charge_then_allocate));
}

#[test]
#[should_panic(expected = "the driver gave 6 of 4")]
fn charging_after_the_driver_allocated_is_caught() {
    check(3, || two_race(allocate_then_charge));
}

#[test]
#[should_panic(expected = "the driver gave 6 of 4")]
fn a_swap_in_two_steps_is_caught() {
    SWAPS_IN_TWO_STEPS.set(true);
    check(3, || two_race(charge_then_allocate));
}
