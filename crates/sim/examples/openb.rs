//! Packing on the openb trace beside the published figures: `openb FOLDER [SEEDS] [POLICY…]`, FOLDER holding the CSV
//! files of the Alibaba GPU trace 2023.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and measures with the wall clock"
)]

use std::time::Instant;

use cantle_sim::{Fill, ReplayPolicy, openb};

/// Published allocation in percent at 100 % arrived demand, mean of 10 seeds: trace, Random, BestFit, FGD (authors'
/// results with hkust-adsl/kubernetes-scheduler-simulator).
const PUBLISHED: [(&str, f64, f64, f64); 8] = [
    ("default", 86.30, 92.86, 95.23),
    ("gpushare40", 84.86, 91.44, 93.96),
    ("gpushare100", 78.90, 84.62, 86.64),
    ("multigpu20", 86.92, 93.73, 95.53),
    ("multigpu50", 81.28, 95.62, 97.09),
    ("gpuspec10", 86.26, 93.10, 94.66),
    ("gpuspec25", 85.42, 85.67, 93.91),
    ("cpu100", 87.44, 93.26, 95.21),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: openb FOLDER [SEEDS] [POLICY…]")?;
    let seeds: u64 = words.next().map_or(Ok(10), |word| word.parse())?;
    let mut policies = words.map(|word| word.parse()).collect::<Result<Vec<ReplayPolicy>, String>>()?;
    if policies.is_empty() {
        policies = vec![ReplayPolicy::Random, ReplayPolicy::BestFit, ReplayPolicy::Fgd, ReplayPolicy::Worth];
    }
    let nodes = std::fs::read_to_string(format!("{folder}/openb_node_list_gpu_node.csv"))?;
    println!("trace        policy    at 100 %  published  margin to FGD  at 130 %  decisions/s");
    for (name, random, best_fit, fgd) in PUBLISHED {
        let pods = std::fs::read_to_string(format!("{folder}/openb_pod_list_{name}.csv"))?;
        let trace = openb::load(&nodes, &pods)?;
        for &policy in &policies {
            let (mut at_100, mut at_130, mut speed) = (0.0, 0.0, 0.0);
            for seed in 42..42 + seeds {
                let replay = Fill::new(&trace, policy, seed, 1.3);
                let start = Instant::now();
                let figures = replay.run().timed(start.elapsed().as_secs_f64());
                at_100 += figures.allocation_percent_at_100 / seeds as f64;
                at_130 += figures.allocation_percent_at_130 / seeds as f64;
                speed += figures.decisions_per_second.unwrap_or(0.0) / seeds as f64;
            }
            let published = match policy {
                ReplayPolicy::Random => format!("{random:.2}"),
                ReplayPolicy::BestFit => format!("{best_fit:.2}"),
                ReplayPolicy::Fgd => format!("{fgd:.2}"),
                _ => "-".to_owned(),
            };
            let margin = at_100 - fgd;
            let policy = format!("{policy:?}").to_lowercase();
            println!(
                "{name:12} {policy:9} {at_100:8.2} {published:>10} {margin:+14.2} {at_130:9.2} {speed:12.0}"
            );
        }
    }
    Ok(())
}
