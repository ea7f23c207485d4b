//! One GPU: the exact optimum, checked against closed forms, and how near to it rules come.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::{Action, GpuGeometry, Instance, Optimum, Planner, Profile, Table};
use tables::{table, tables};

fn planner(mix: &[(String, f64)], table: &Arc<Table>) -> Planner {
    Planner::new(&mix.iter().map(|(name, weight)| (name.as_str(), *weight)).collect(), [table])
}

fn demand(mix: &[(&str, f64)]) -> Vec<(String, f64)> {
    mix.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()
}

/// Starts at which an instance of the profile named `name` has room.
fn free_starts(gpu: &GpuGeometry, name: &str) -> impl Iterator<Item = u32> {
    let profile = gpu.table.position(name).unwrap();
    let starts = gpu.table.profiles[profile].starts.clone();
    starts.into_iter().filter(move |start| gpu.has_place(profile, Some(*start)))
}

/// Erlang's loss formula: the part that is lost of `load` (in servers) on this number of servers.
fn erlang_b(servers: u32, load: f64) -> f64 {
    (1..=servers).fold(1.0, |lost, n| load * lost / (f64::from(n) + load * lost))
}

#[test]
fn with_one_profile_it_is_erlangs_formula() {
    for (gpu, name, places) in
        [("A100-40GB", "1g.5gb", 7), ("A100-40GB", "3g.20gb", 2), ("A30-24GB", "4g.24gb", 1)]
    {
        let table = Arc::new(table(gpu));
        let slices = |at: usize| f64::from(table.profiles[at].compute_slices);
        let whole = (0..table.profiles.len()).map(slices).fold(0.0, f64::max);
        for load in [0.2, 0.8, 1.5] {
            let tasks = load * whole / slices(table.position(name).unwrap());
            let optimum = Optimum::new(&table, &demand(&[(name, 1.0)]), load).accepted();
            let formula = 1.0 - erlang_b(places, tasks);
            assert!((optimum - formula).abs() < 1e-6, "{gpu} {name} at {load}: {optimum}, not {formula}");
        }
    }
}

const MIXES: [(&str, &[(&str, f64)]); 5] = [
    (
        "50/25/15/5/5",
        &[("1g.5gb", 50.0), ("2g.10gb", 25.0), ("3g.20gb", 15.0), ("4g.20gb", 5.0), ("7g.40gb", 5.0)],
    ),
    ("30/30/20/20/0", &[("1g.5gb", 30.0), ("2g.10gb", 30.0), ("3g.20gb", 20.0), ("4g.20gb", 20.0)]),
    ("uniform", &[("1g.5gb", 1.0), ("2g.10gb", 1.0), ("3g.20gb", 1.0), ("4g.20gb", 1.0), ("7g.40gb", 1.0)]),
    ("1g+3g 60/40", &[("1g.5gb", 60.0), ("3g.20gb", 40.0)]),
    ("1g+4g 60/40", &[("1g.5gb", 60.0), ("4g.20gb", 40.0)]),
];

#[test]
fn rules_beside_the_optimum() {
    let table = Arc::new(table("A100-40GB"));
    println!("accepted work on one A100-40GB as a part of the optimum, at loads of 0.5 and 0.9");
    println!("1g/2g/3g/4g/7g  first-fit    highest      planner      optimum (absolute)");
    for (name, mix) in MIXES {
        let mut cells = vec![String::new(); 4];
        for load in [0.5, 0.9] {
            let optimum = Optimum::new(&table, &demand(mix), load);
            let planner = planner(&demand(mix), &table);
            let of_best = |part: f64| part / optimum.accepted();
            let parts = [
                of_best(optimum.accepted_by(|gpu, name| free_starts(gpu, name).min())),
                of_best(optimum.accepted_by(|gpu, name| free_starts(gpu, name).max())),
                of_best(optimum.accepted_by(|gpu, name| {
                    planner.decide(std::slice::from_ref(gpu), name).map(|d| d.start)
                })),
                optimum.accepted(),
            ];
            cells.iter_mut().zip(parts).for_each(|(cell, part)| *cell += &format!("{part:.4} "));
            assert!(parts[..3].iter().all(|part| *part < 1.0 + 1e-6), "nothing beats the optimum: {parts:?}");
            assert!(parts[2] > 0.995, "{name} at {load}: the planner reaches {:.4}", parts[2]);
            let own = of_best(optimum.accepted_by(|gpu, name| optimum.decide(gpu, name).map(|d| d.start)));
            assert!((own - 1.0).abs() < 1e-6, "the optimum's own decisions reach it: {own}");
        }
        println!("{name:15} {}", cells.join(""));
    }
}

/// Names of profiles, and how often each is requested.
type Mix = Vec<(String, f64)>;

/// Each model's plain profiles, two and three at a time, in these proportions; models with the same places once.
fn mixes() -> Vec<(Arc<Table>, Vec<Mix>)> {
    let mut all = BTreeMap::new();
    for table in tables().into_values() {
        let plain: Vec<_> = table.profiles.iter().filter(|profile| profile.is_plain()).collect();
        let places: Vec<_> = plain.iter().map(|p| (p.compute_slices, p.size, p.starts.clone())).collect();
        let named = |at: &[usize], weights: &[f64]| -> Mix {
            at.iter().zip(weights).map(|(at, weight)| (plain[*at].name.clone(), *weight)).collect()
        };
        let mut mixes = Vec::new();
        for one in 0..plain.len() {
            for two in 0..one {
                mixes
                    .extend([[1.0, 1.0], [2.0, 1.0], [1.0, 2.0]].map(|weights| named(&[one, two], &weights)));
                mixes.extend((0..two).map(|three| named(&[one, two, three], &[1.0; 3])));
            }
        }
        all.insert(places, (Arc::new(table), mixes));
    }
    all.into_values().collect()
}

#[test]
fn mixes_of_few_profiles_lose_little_to_the_optimum() {
    let (mut cells, mut least) = (0, 1.0_f64);
    for (table, mixes) in mixes() {
        for mix in mixes {
            let planner = planner(&mix, &table);
            for load in [0.5, 0.9] {
                let optimum = Optimum::new(&table, &mix, load);
                let by = |rule: &dyn Fn(&GpuGeometry, &str) -> Option<u32>| {
                    optimum.accepted_by(rule) / optimum.accepted()
                };
                let ours = by(&|gpu, name| planner.decide(std::slice::from_ref(gpu), name).map(|d| d.start));
                let lowest = by(&|gpu, name| free_starts(gpu, name).min());
                let highest = by(&|gpu, name| free_starts(gpu, name).max());
                assert!(ours > 0.995, "{mix:?} at {load}: {ours:.4} of the optimum");
                assert!(
                    ours > lowest.max(highest) - 1e-4,
                    "{mix:?} at {load}: {ours:.4}, {lowest:.4}, {highest:.4}"
                );
                (cells, least) = (cells + 1, least.min(ours));
            }
        }
    }
    println!("{cells} mixes and loads: at least {least:.4} of the optimum");
}

/// `nvidia-smi mig -cgi 14,14,9` makes all three, at 0, 2 and 4.
#[test]
fn a_3g_finds_its_place_beside_two_2g() {
    let table = Arc::new(table("A100-40GB"));
    let counts = |two: f64, three: f64| -> Vec<(String, f64)> {
        let count = |name: &str| match name {
            "2g.10gb" => two,
            "3g.20gb" => three,
            _ => 0.0,
        };
        let one = |(at, profile): (usize, &Profile)| {
            (profile.name.clone(), count(&profile.name) + table.expected(at))
        };
        table.profiles.iter().enumerate().map(one).collect()
    };
    // A new server that has seen the first request, and one that has seen 120.
    for (two, three) in [(1.0, 0.0), (80.0, 40.0)] {
        let planner = planner(&counts(two, three), &table);
        let mut gpu = GpuGeometry { table: table.clone(), instances: Vec::new() };
        for name in ["2g.10gb", "2g.10gb", "3g.20gb"] {
            let found = planner.decide(std::slice::from_ref(&gpu), name);
            let found = found.unwrap_or_else(|| panic!("no place for {name} next to {:?}", gpu.instances));
            gpu.occupy(found.profile, found.start);
        }
    }
}

/// The optimum counts places only; that this is all there is to plain profiles.
#[test]
fn plain_profiles_are_limited_by_their_places() {
    for (gpu, table) in tables() {
        for profile in table.profiles.iter().filter(|profile| profile.is_plain()) {
            assert_eq!(profile.max_instances as usize, profile.starts.len(), "{gpu} {}", profile.name);
        }
    }
}

#[test]
fn the_optimum_reuses_what_is_there_and_leaves_the_busy_alone() {
    let table: Arc<Table> = Arc::new(table("A100-40GB"));
    let optimum = Optimum::new(&table, &demand(MIXES[0].1), 0.8);
    let instance =
        |name: &str, id, start, busy| Instance { id, profile: table.position(name).unwrap(), start, busy };
    let gpu = |instances| GpuGeometry { table: table.clone(), instances };
    let idle = gpu(vec![instance("7g.40gb", 1, 0, false)]);
    assert_eq!(optimum.decide(&idle, "7g.40gb").unwrap().action, Action::Reuse { id: 1 });
    assert_eq!(optimum.decide(&idle, "1g.5gb").unwrap().action, Action::Create { destroy: vec![1] });
    let busy = gpu(vec![instance("1g.5gb", 1, 0, true), instance("3g.20gb", 2, 4, true)]);
    assert_eq!(optimum.decide(&busy, "4g.20gb"), None);
    assert_eq!(optimum.decide(&busy, "2g.10gb").unwrap().start, 2);
}

/// The planner may read the instance of a task that is just getting it: from the driver, and as the lease's place.
#[test]
fn an_instance_that_is_seen_twice_counts_once() {
    let table = Arc::new(table("A30-24GB"));
    let small = table.position("1g.6gb").unwrap();
    let seen = Instance { id: 7, profile: small, start: 0, busy: true };
    let mut gpu = GpuGeometry { table, instances: vec![seen] };
    (0..3).for_each(|start| gpu.occupy(small, start));
    assert_eq!(free_starts(&gpu, "1g.6gb").collect::<Vec<_>>(), [3]);
    gpu.occupy(small, 3);
    assert_eq!(free_starts(&gpu, "1g.6gb").count(), 0);
}
