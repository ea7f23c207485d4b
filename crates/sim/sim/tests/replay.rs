//! Replays traces that are small enough to compute by hand, and checks properties that hold for every policy.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;

use cantle_sim::openb::{self, Trace};
use cantle_sim::{ComeAndGo, Fill, ReplayPolicy, Waits};

const POLICIES: [&str; 6] = ["worth", "binpack", "spread", "fgd", "bestfit", "random"];
const HEAD: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n";

/// The number of GPUs of each node, and tasks: GPUs, thousandths of each, when they come and when they would end.
fn trace(nodes: &[u32], tasks: &[(u32, u32, u32, u32)]) -> Trace {
    let (mut node_list, mut pods) = ("sn,cpu_milli,memory_mib,gpu,model\n".to_owned(), HEAD.to_owned());
    for (at, gpus) in nodes.iter().enumerate() {
        writeln!(node_list, "n{at},64000,65536,{gpus},T4").unwrap();
    }
    for (at, (gpus, milli, comes, ends)) in tasks.iter().enumerate() {
        writeln!(pods, "p{at},1000,1024,{gpus},{milli},{comes},{ends}").unwrap();
    }
    openb::load(&node_list, &pods).unwrap()
}

fn policy(name: &str) -> ReplayPolicy {
    name.parse().unwrap()
}

fn waits(trace: &Trace, name: &str) -> Waits {
    ComeAndGo::new(trace, policy(name), 1, usize::MAX, 1).unwrap().run()
}

#[test]
fn no_policy_exceeds_the_bound() {
    // 0.81 pairs with nothing, 0.6 with 0.4, whole ones fill up: some 7 % cannot be used by anybody.
    let sizes = [(1, 810), (1, 600), (1, 400), (1, 470), (2, 1000), (1, 1000)];
    let tasks: Vec<_> =
        (0..300).map(|at| sizes[at % sizes.len()]).map(|(gpus, milli)| (gpus, milli, 0, 1)).collect();
    let trace = trace(&[4; 32], &tasks);
    for seed in 0..10 {
        let bound = Fill::new(&trace, policy("worth"), seed, 1.3).bound_at_100();
        assert!((85.0..98.0).contains(&bound), "seed {seed}: {bound}");
        for name in POLICIES {
            let filled = Fill::new(&trace, policy(name), seed, 1.3).run();
            let at_99 = filled.curve.iter().rfind(|(arrived, _)| *arrived <= 99.0).unwrap().1;
            assert!(at_99 <= bound && at_99 > 70.0, "{name}, seed {seed}: {at_99} of {bound}");
        }
    }
}

#[test]
fn waiting_in_line_for_one_gpu() {
    let trace = trace(&[1], &[(1, 1000, 0, 100), (1, 1000, 10, 110), (1, 1000, 20, 120)]);
    for name in POLICIES {
        let got = waits(&trace, name);
        assert_eq!(got.waits_s, [0, 90, 180], "{name}");
        assert_eq!((got.mean_wait_s, got.p99_wait_s), (90.0, 180));
        assert_eq!((got.gpu_hours_asked, got.gpu_hours_used), (300.0 / 3600.0, 300.0 / 3600.0));
    }
}

#[test]
fn those_behind_may_pass_and_gpus_count() {
    // A task of two GPUs waits for the first one; a half passes it, and a task that fits nowhere is left out.
    let trace = trace(&[2], &[(1, 1000, 0, 100), (2, 1000, 10, 20), (1, 500, 20, 40), (4, 1000, 0, 1)]);
    let got = waits(&trace, "worth");
    assert_eq!((got.tasks, got.waits_s), (3, vec![0, 0, 90]));
    assert_eq!(got.mean_wait_s, 30.0);
    assert_eq!(got.mean_wait_by_gpus_s, 90.0 * 2.0 / 3.5);
    assert_eq!(got.gpu_hours_used, (100.0 + 2.0 * 10.0 + 20.0) / 3600.0);
}

#[test]
fn without_times_nothing_comes_and_goes() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn,1000,1024,1,T4\n";
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n";
    let trace = openb::load(nodes, pods).unwrap();
    assert!(ComeAndGo::new(&trace, policy("worth"), 1, usize::MAX, 1).is_none());
}
