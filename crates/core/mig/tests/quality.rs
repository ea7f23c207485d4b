//! The quality of placements: 100,000 arrivals on 8 GPUs of each family, nothing busy touched, nothing feasible
//! refused; and the part of offered work that is accepted, compared with simpler rules.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod tables;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_mig::{Action, Decision, GpuGeometry, Instance, Planner, Table};
use tables::{table, tables};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

/// Arrivals of a run.
const ARRIVALS: u32 = 100_000;

/// A rule that places.
type Rule<'a> = &'a dyn Fn(&[GpuGeometry], &str) -> Option<Decision>;

/// The first GPU with room, at the lowest or the highest start; for comparison.
fn first_gpu(gpus: &[GpuGeometry], name: &str, highest: bool) -> Option<Decision> {
    gpus.iter().enumerate().find_map(|(at, gpu)| {
        let profile = gpu.table.position(name)?;
        let wanted = &gpu.table.profiles[profile];
        let mut starts: Vec<u32> =
            wanted.starts.iter().copied().filter(|&start| is_free(gpu, profile, start)).collect();
        starts.sort_unstable();
        let start = if highest { starts.pop()? } else { *starts.first()? };
        let end = |i: &Instance| i.start + gpu.table.profiles[i.profile].size;
        let idle = gpu
            .instances
            .iter()
            .filter(|i| !i.busy && (i.profile == profile || i.start < start + wanted.size && start < end(i)));
        let action = Action::Create { destroy: idle.map(|i| i.id).collect() };
        Some(Decision { gpu: at, profile, start, action })
    })
}

fn is_free(gpu: &GpuGeometry, profile: usize, start: u32) -> bool {
    let end = |i: &Instance| i.start + gpu.table.profiles[i.profile].size;
    let size = gpu.table.profiles[profile].size;
    let busy = || gpu.instances.iter().filter(|instance| instance.busy);
    let of_it = busy().filter(|instance| instance.profile == profile).count();
    of_it < gpu.table.profiles[profile].max_instances as usize
        && busy().all(|instance| end(instance) <= start || start + size <= instance.start)
}

/// Carries a decision out and checks what the driver would: only free ones destroyed, no overlap.
fn carry_out(gpus: &mut [GpuGeometry], decision: &Decision, next_id: u32) -> u32 {
    let gpu = &mut gpus[decision.gpu];
    match &decision.action {
        Action::Reuse { id } => {
            let instance = gpu.instances.iter_mut().find(|instance| instance.id == *id).unwrap();
            assert!(
                !instance.busy && instance.profile == decision.profile && instance.start == decision.start
            );
            instance.busy = true;
            *id
        }
        Action::Create { destroy } => {
            for id in destroy {
                let at = gpu.instances.iter().position(|instance| instance.id == *id).unwrap();
                assert!(!gpu.instances.remove(at).busy, "only free instances are destroyed");
            }
            let profile = &gpu.table.profiles[decision.profile];
            assert!(profile.starts.contains(&decision.start));
            let of_it = gpu.instances.iter().filter(|instance| instance.profile == decision.profile).count();
            assert!(of_it < profile.max_instances as usize, "the driver would refuse one more");
            for instance in &gpu.instances {
                let end = instance.start + gpu.table.profiles[instance.profile].size;
                let apart = end <= decision.start || decision.start + profile.size <= instance.start;
                assert!(apart, "places never overlap");
            }
            let (profile, start) = (decision.profile, decision.start);
            gpu.instances.push(Instance { id: next_id, profile, start, busy: true });
            next_id
        }
    }
}

/// Accepted part of the offered work (compute slices times time) of a loss system: Poisson arrivals, exponential
/// service, `load` of all compute slices.
fn accepted(
    table: &Table,
    gpus: usize,
    mix: &[(&str, f64)],
    load: f64,
    arrivals: u32,
    seed: u64,
    rule: Rule<'_>,
) -> f64 {
    let mut random = Random(seed);
    let mut node = vec![GpuGeometry { table: Arc::new(table.clone()), instances: Vec::new() }; gpus];
    let slices = |at: usize| f64::from(table.profiles[at].compute_slices);
    let size = |name: &str| slices(table.position(name).unwrap());
    let whole = (0..table.profiles.len()).map(slices).fold(0.0, f64::max);
    let total: f64 = mix.iter().map(|(_, weight)| weight).sum();
    let mean: f64 = mix.iter().map(|(name, weight)| size(name) * weight / total).sum();
    let between = mean / (load * whole * gpus as f64);
    let (mut now, mut offered, mut taken) = (0.0, 0.0, 0.0);
    let mut ends: Vec<(f64, usize, u32)> = Vec::new();
    for id in 0..arrivals {
        now += random.exponential(between);
        ends.retain(|&(end, gpu, id)| {
            if end <= now {
                node[gpu].instances.iter_mut().find(|instance| instance.id == id).unwrap().busy = false;
            }
            end > now
        });
        let mut draw = random.unit() * total;
        let drawn = mix.iter().find(|(_, weight)| {
            draw -= weight;
            draw <= 0.0
        });
        let name = drawn.unwrap_or(&mix[0]).0;
        let service = random.exponential(1.0);
        offered += size(name);
        if let Some(decision) = rule(&node, name) {
            taken += size(name);
            let id = carry_out(&mut node, &decision, id);
            ends.push((now + service, decision.gpu, id));
        } else {
            let profile = table.position(name).unwrap();
            let feasible =
                |gpu: &GpuGeometry| table.profiles[profile].starts.iter().any(|&s| is_free(gpu, profile, s));
            assert!(!node.iter().any(feasible), "{name} was refused although it fits");
        }
    }
    taken / offered
}

const SMALL: [(&str, f64); 5] =
    [("1g.5gb", 50.0), ("2g.10gb", 25.0), ("3g.20gb", 15.0), ("4g.20gb", 5.0), ("7g.40gb", 5.0)];
const MIXED: [(&str, f64); 4] = [("1g.5gb", 30.0), ("2g.10gb", 30.0), ("3g.20gb", 20.0), ("4g.20gb", 20.0)];
const UNIFORM: [(&str, f64); 5] =
    [("1g.5gb", 1.0), ("2g.10gb", 1.0), ("3g.20gb", 1.0), ("4g.20gb", 1.0), ("7g.40gb", 1.0)];

fn planner(mix: &[(&str, f64)], table: &Table) -> Planner {
    Planner::new(&mix.iter().copied().collect(), [&Arc::new(table.clone())])
}

/// Mean of three seeds, and how long each decision took, the shortest first.
fn eight_gpus(table: &Table, mix: &[(&str, f64)], rule: Rule<'_>) -> (f64, Vec<Duration>) {
    let times = RefCell::new(Vec::new());
    #[expect(clippy::disallowed_methods, reason = "measures how long a decision takes")]
    let timed = |gpus: &[GpuGeometry], name: &str| {
        let start = Instant::now();
        let decision = rule(gpus, name);
        times.borrow_mut().push(start.elapsed());
        decision
    };
    let part = |seed| accepted(table, 8, mix, 0.8, ARRIVALS / 5, seed, &timed);
    let mean = (1..=3).map(part).sum::<f64>() / 3.0;
    let mut times = times.into_inner();
    times.sort_unstable();
    (mean, times)
}

#[test]
fn eight_gpus_accept_more_than_simpler_rules_do() {
    let table = table("A100-40GB");
    println!("accepted work on 8 A100-40GB at load 0.8, {} arrivals, seeds 1 to 3", ARRIVALS / 5);
    println!("1g/2g/3g/4g/7g  first-fit  highest start  planner  decision: p50     p99");
    for (name, mix, least) in
        [("50/25/15/5/5", &SMALL[..], 0.868), ("30/30/20/20/0", &MIXED, 0.879), ("uniform", &UNIFORM, 0.827)]
    {
        let planner = planner(mix, &table);
        let (ours, times) = eight_gpus(&table, mix, &|gpus, name| planner.decide(gpus, name));
        let (lowest, _) = eight_gpus(&table, mix, &|gpus, name| first_gpu(gpus, name, false));
        let (highest, _) = eight_gpus(&table, mix, &|gpus, name| first_gpu(gpus, name, true));
        let (median, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{name:15} {lowest:9.4} {highest:14.4} {ours:8.4} {:11.0} us {:4.0} us",
            us(median),
            us(p99)
        );
        assert!(ours >= least && ours > lowest && ours > highest, "{name}: {ours:.4}");
        assert!(median <= Duration::from_micros(100), "{name}: {median:?} for a decision");
    }
}

#[test]
fn many_arrivals_on_every_family() {
    for (gpu, table) in tables() {
        let mix: Vec<(&str, f64)> =
            table.profiles.iter().map(|profile| (profile.name.as_str(), 1.0)).collect();
        let planner = planner(&mix, &table);
        let ours = |gpus: &[GpuGeometry], name: &str| planner.decide(gpus, name);
        let part = accepted(&table, 8, &mix, 1.2, ARRIVALS, 7, &ours);
        assert!((0.3..1.0).contains(&part), "{gpu}: {part}");
    }
}

#[test]
fn lazily_kept_instances_are_reused_or_make_way() {
    let table = table("A100-40GB");
    let position = |name: &str| table.position(name).unwrap();
    let kept = |name: &str, id, start| Instance { id, profile: position(name), start, busy: false };
    let gpu = GpuGeometry {
        table: Arc::new(table.clone()),
        instances: vec![kept("2g.10gb", 1, 4), kept("1g.5gb", 2, 6)],
    };
    let decide = |name: &str| planner(&UNIFORM, &table).decide(std::slice::from_ref(&gpu), name).unwrap();
    assert_eq!(decide("2g.10gb").action, Action::Reuse { id: 1 });
    assert_eq!(decide("1g.5gb").action, Action::Reuse { id: 2 });
    assert_eq!(decide("7g.40gb").action, Action::Create { destroy: vec![1, 2] });
    assert_eq!(
        decide("4g.20gb").action,
        Action::Create { destroy: Vec::new() },
        "what is not in the way stays"
    );
}

#[test]
fn the_quickstart_case_leaves_one_way() {
    // Three 2g at 0, 2 and 4: a 3g fits nowhere; with the one at 4 gone it fits at 4 and the others stay.
    let table = table("A100-40GB");
    let profile = table.position("2g.10gb").unwrap();
    let busy = |id, start| Instance { id, profile, start, busy: true };
    let gpu = |instances| vec![GpuGeometry { table: Arc::new(table.clone()), instances }];
    let planner = planner(&[], &table);
    assert_eq!(planner.decide(&gpu(vec![busy(1, 0), busy(2, 2), busy(3, 4)]), "3g.20gb"), None);
    for gone in [1, 2] {
        let left = [busy(1, 0), busy(2, 2), busy(3, 4)].into_iter().filter(|i| i.id != gone).collect();
        assert_eq!(planner.decide(&gpu(left), "3g.20gb"), None, "without {gone}");
    }
    let decision = planner.decide(&gpu(vec![busy(1, 0), busy(2, 2)]), "3g.20gb").unwrap();
    assert_eq!((decision.start, decision.action), (4, Action::Create { destroy: Vec::new() }));
}
