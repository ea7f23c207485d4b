//! The arbiter's guarantees, on a model of a GPU (`gpu/mod.rs`), with the driver's equal division as the negative control.

mod gpu;

use cantle_arbiter::{Arbiter, Observation, Parameters, SliceShare};
use gpu::{Load, MS, Tenant, US, run, tenant};
use proptest::prelude::*;

const MIXES: [&[u32]; 4] = [&[500, 500], &[250, 750], &[100, 900], &[125, 125, 250, 500]];

fn tenants(weights: &[u32], kernel_ns: u64) -> Vec<Tenant> {
    weights.iter().map(|weight| tenant(*weight, kernel_ns)).collect()
}

#[test]
fn shares_hold_with_full_queues() {
    for weights in MIXES {
        for kernel_ns in [20 * US, 200 * US, 2 * MS, 5 * MS] {
            let tenants = tenants(weights, kernel_ns);
            let outcome = run(&tenants, 6, true);
            let (error, busy) = (outcome.worst_error(&tenants), outcome.least_busy());
            println!("{weights:?} {kernel_ns}: error {error:.2}, busy {busy:.3}");
            assert!(error <= 3.0, "{weights:?}, kernels of {kernel_ns} ns: {error:.2} points");
            assert!(busy >= 0.97, "{weights:?}, kernels of {kernel_ns} ns: {busy:.3} busy");
        }
    }
}

/// The negative control: without gates the driver divides by contexts, regardless of weights.
#[test]
fn without_gates_shares_do_not_hold() {
    for weights in &MIXES[1..] {
        let tenants = tenants(weights, 200 * US);
        let error = run(&tenants, 4, false).worst_error(&tenants);
        assert!(error > 20.0, "{weights:?}: {error:.2} points");
    }
}

#[test]
fn more_processes_get_no_more() {
    let mut tenants = tenants(&[500, 500], 200 * US);
    tenants[1].processes = 4;
    let error = run(&tenants, 4, true).worst_error(&tenants);
    assert!(error <= 3.0, "{error:.2} points");
    let control = run(&tenants, 4, false).worst_error(&tenants);
    assert!(control > 25.0, "the driver divides by contexts, but it missed by {control:.2} points only");
}

#[test]
fn different_kernels_share_evenly() {
    for (one, other) in [(20 * US, 5 * MS), (200 * US, 2 * MS), (20 * US, 200 * US)] {
        let tenants = vec![tenant(500, one), tenant(500, other)];
        let error = run(&tenants, 6, true).worst_error(&tenants);
        assert!(error <= 3.0, "{one} and {other} ns: {error:.2} points");
    }
}

#[test]
fn long_kernels_are_paid_back() {
    let tenants = vec![tenant(100, 40 * MS), tenant(900, 40 * MS)];
    let outcome = run(&tenants, 11, true);
    for five in outcome.seconds.chunks_exact(5) {
        let sum = |index: usize| five.iter().map(|second| second[index]).sum::<u64>() as f64;
        let had = sum(0) / (sum(0) + sum(1));
        assert!((had - 0.1).abs() <= 0.03, "{had:.3} instead of 0.1");
    }
}

#[test]
fn a_lone_slice_has_the_whole_gpu() {
    let idle = Tenant { load: Load::Bursts { work_ns: 0, every_ns: 1000 * MS }, ..tenant(900, MS) };
    let outcome = run(&[tenant(100, 200 * US), idle], 4, true);
    assert!(outcome.least_busy() >= 0.99, "{:.3}", outcome.least_busy());
}

#[test]
fn strict_alone_gets_its_limit() {
    for kernel_ns in [20 * US, 200 * US, 2 * MS, 5 * MS] {
        let share = SliceShare { weight_milli: 300, limit_milli: Some(300) };
        let strict = Tenant { share, ..tenant(300, kernel_ns) };
        for second in run(&[strict], 6, true).seconds {
            let had = second[0] as f64 / (1000 * MS) as f64;
            assert!((had - 0.3).abs() <= 0.02, "kernels of {kernel_ns} ns: {had:.3}");
        }
    }
}

#[test]
fn a_burst_after_idle_starts_soon() {
    let burst = Load::Bursts { work_ns: MS, every_ns: 37 * MS };
    let bursty = Tenant { load: burst, ..tenant(500, 200 * US) };
    let outcome = run(&[tenant(500, 200 * US), bursty], 8, true);
    let mut waits = outcome.waits_ns[1].clone();
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    assert!(waits.len() > 100 && p99 <= 2_500 * US, "{} waits, p99 {p99} ns", waits.len());
}

#[test]
fn a_sync_loop_gets_its_part_of_granted_time() {
    let tenants =
        vec![Tenant { load: Load::Sync { gap_ns: 50 * US }, ..tenant(500, 200 * US) }, tenant(500, 200 * US)];
    let gated = run(&tenants, 5, true).worst_error(&tenants);
    let plain = run(&tenants, 5, false).worst_error(&tenants);
    assert!(gated <= 12.0 && plain > 25.0, "gated {gated:.2}, plain {plain:.2} points");
}

#[test]
fn nobody_waits_for_a_dead_slice() {
    let dead = Tenant { dies_ns: Some(1_503 * MS), ..tenant(500, 5 * MS) };
    let outcome = run(&[tenant(500, 200 * US), dead, tenant(500, 200 * US)], 4, true);
    for index in [0, 2] {
        let wait_ns = outcome.longest_wait_ns[index];
        assert!(wait_ns <= 20 * MS, "slice {index} waited for {wait_ns} ns");
    }
}

#[test]
fn a_persistent_kernel_stops_nobody() {
    let persistent = Tenant { load: Load::Persistent, ..tenant(500, MS) };
    let outcome = run(&[persistent, tenant(500, 200 * US)], 5, true);
    assert!(outcome.ever_unweightable, "it should be named");
    let had = outcome.seconds.last().map_or(0.0, |second| second[1] as f64 / (1000 * MS) as f64);
    assert!(had > 0.4, "the neighbor should have the driver's equal part, not {had:.3}");
}

/// How much of four seconds the gate of an honest slice is open, whose neighbor forges work in flight from its turn on until the honest
/// slice has one.
fn open_beside_a_forger(progress_ns: u64, longest_ns: u64) -> f64 {
    const POLL_NS: u64 = 100 * US;
    let mut arbiter = Arbiter::new(Parameters::default());
    let share = |weight_milli| SliceShare { weight_milli, limit_milli: None };
    let (mut honest, mut open_ns, mut forges) =
        (Observation { waiting: true, ..Observation::default() }, 0, false);
    for poll in 1..40_000 {
        let confirmed_ns = poll * progress_ns;
        let forged = Observation {
            waiting: true,
            attended: forges,
            submitted_ns: confirmed_ns + if forges { 50 * MS } else { 0 },
            confirmed_ns,
            longest_ns,
        };
        let decided = arbiter.poll(poll * POLL_NS, &[(0, share(250), forged), (1, share(500), honest)]);
        honest.confirmed_ns = honest.submitted_ns;
        let is_open = |slice| decided.iter().any(|(id, decision)| *id == slice && decision.open);
        forges = is_open(0) || forges && !is_open(1);
        if is_open(1) {
            open_ns += POLL_NS;
            honest.submitted_ns += POLL_NS;
        }
    }
    open_ns as f64 / (40_000 * POLL_NS) as f64
}

#[test]
fn forged_progress_starves_nobody() {
    for longest_ns in [0, 20 * US, u64::MAX] {
        for progress_ns in [1, 20, 20 * US] {
            let open = open_beside_a_forger(progress_ns, longest_ns);
            println!("progress of {progress_ns} ns a poll, longest {longest_ns}: open {open:.3}");
            assert!(open > 0.6, "two thirds are its share, and its gate was open for {open:.3} of the time");
        }
    }
}

proptest! {
    /// With any observations: the arbiter neither panics nor stops, and without an unweightable slice at most one gate is
    /// open.
    #[test]
    fn any_observation_is_survived(
        steps in prop::collection::vec(
            (0_u64..5_000_000, prop::collection::vec(any::<(u16, bool, bool, u64, u64, u64)>(), 0..4)),
            1..200,
        )
    ) {
        let mut arbiter = Arbiter::new(Parameters::default());
        let mut now = 0_u64;
        for (elapsed, slices) in steps {
            now += elapsed;
            let observed: Vec<_> = slices
                .iter()
                .enumerate()
                .map(|(index, &(weight, waiting, attended, submitted_ns, confirmed_ns, longest_ns))| {
                    let limit_milli = (weight % 3 == 0).then_some(u32::from(weight) % 1001);
                    let share = SliceShare { weight_milli: u32::from(weight), limit_milli };
                    let seen =
                        Observation { waiting, attended, submitted_ns, confirmed_ns, longest_ns };
                    (index as u64, share, seen)
                })
                .collect();
            let decisions = arbiter.poll(now, &observed);
            prop_assert_eq!(decisions.len(), observed.len());
            if !decisions.iter().any(|(_, decision)| decision.unweightable) {
                prop_assert!(decisions.iter().filter(|(_, decision)| decision.open).count() <= 1);
            }
        }
    }

    /// The gate of a waiting slice opens within a bounded time, for any reports of its neighbor.
    #[test]
    fn whoever_waits_gets_a_turn(weight in 1_u32..1000, out_ns in 0_u64..1_000_000_000_000, attended: bool) {
        let mut arbiter = Arbiter::new(Parameters::default());
        let share = |weight_milli| SliceShare { weight_milli, limit_milli: None };
        let hog = Observation {
            waiting: true, attended, submitted_ns: out_ns, confirmed_ns: 0, longest_ns: out_ns,
        };
        let waiter = Observation { waiting: true, ..Observation::default() };
        let opened = (1..40_000_u64).any(|poll| {
            let observed = [(0, share(1000), hog), (1, share(weight), waiter)];
            arbiter.poll(poll * 100_000, &observed).iter().any(|(id, decision)| *id == 1 && decision.open)
        });
        prop_assert!(opened);
    }
}
