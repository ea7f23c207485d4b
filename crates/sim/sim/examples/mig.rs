//! Measures the time of a MIG decision on a node of 8 GPUs, which arriving and ending tasks keep busy: for the place alone,
//! and for the whole plan of one arriving task (request, place, reasons; the scheduler's view of the node is built again
//! each time).
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and measures with the wall clock"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_mig::{GpuGeometry, Planner, Table};
use cantle_model::{Gpu, GpuRequest, GpuUuid, LeaseId, QueueSpec, QueueWant, TaskId};
use cantle_sched::{GpuState, Node, Policy, Queue, Running, Snapshot, Waiting, plan};

/// Tasks that arrive.
const ARRIVALS: usize = 5_000;
/// Decisions are measured in blocks, and the median block counts: what else the machine does hits some of them.
const BLOCK: usize = 200;
const GPUS: u32 = 8;
/// 99 of 100 places are found, and half of the plans made, in at most so long.
const PROMISED: Duration = Duration::from_micros(100);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let file: serde_json::Value = serde_json::from_str(include_str!("../../../core/mig/data/profiles.json"))?;
    let tables: BTreeMap<String, Table> = serde_json::from_value(file["gpus"].clone())?;
    println!("a MIG decision on {GPUS} busy GPUs, {ARRIVALS} arrivals of all profiles alike");
    println!("{:36} place: p50      p99   whole plan: p50      p99", "");
    let mut slowest = Duration::ZERO;
    for (model, table) in tables {
        let mut node = Busy::new(table);
        for arrival in 0..ARRIVALS {
            node.arrival(arrival);
        }
        let (place, whole) = (Percentiles::of(node.place_times), Percentiles::of(node.plan_times));
        println!("{model:36} {place}      {whole}");
        slowest = slowest.max(place.p99).max(whole.p50);
    }
    let kept = slowest <= PROMISED;
    println!(
        "promised: p99 of the place and p50 of the plan at most {PROMISED:?}: {}",
        if kept { "kept" } else { "BROKEN" }
    );
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Percentiles {
    p50: Duration,
    p99: Duration,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.chunks_mut(BLOCK).for_each(<[_]>::sort_unstable);
        let of_blocks = |percent: usize| {
            let blocks = times.chunks_exact(BLOCK);
            let mut of_blocks: Vec<Duration> = blocks.map(|block| block[BLOCK * percent / 100]).collect();
            of_blocks.sort_unstable();
            of_blocks[of_blocks.len() / 2]
        };
        Self { p50: of_blocks(50), p99: of_blocks(99) }
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        write!(f, "{:9.1} us {:5.1} us", us(self.p50), us(self.p99))
    }
}

/// The same numbers each time (Steele, Lea, Flood 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from(z >> 33).unwrap_or(0) % end
    }
}

/// The node, and how long was thought about it.
struct Busy {
    table: Arc<Table>,
    planner: Planner,
    state: Snapshot,
    random: SplitMix64,
    place_times: Vec<Duration>,
    plan_times: Vec<Duration>,
}

impl Busy {
    fn new(table: Table) -> Self {
        let table = Arc::new(table);
        let memory_bytes = table.profiles.iter().map(|profile| profile.memory_bytes).max().unwrap_or(0);
        let gpu = |index: u32| {
            let uuid = GpuUuid(format!("GPU-{index}"));
            let mut gpu = GpuState::new(Gpu { uuid, index, model: "GPU".into(), memory_bytes, mig: true });
            gpu.mig = Some(GpuGeometry { table: Arc::clone(&table), instances: Vec::new() });
            gpu
        };
        let node = Node::new("node", (0..GPUS).map(gpu).collect());
        let queue = Queue::new(QueueSpec { name: "q".into(), want: QueueWant::Task }, Vec::new());
        let state = Snapshot::new(vec![node], Vec::new(), vec![queue]);
        let planner = Planner::new(&BTreeMap::new(), [&table]);
        Self { table, planner, state, random: SplitMix64(1), place_times: Vec::new(), plan_times: Vec::new() }
    }

    /// A task comes. While there is no room for it, others end.
    fn arrival(&mut self, number: usize) {
        let profile = self.random.below(self.table.profiles.len());
        let name = self.table.profiles[profile].name.clone();
        self.time_the_place(&name);
        let task = Waiting::new(TaskId(number.to_string()), 0).wanting(GpuRequest::MigProfile(name));
        self.state.queues[0].waiting = vec![task.clone()];
        loop {
            let began = Instant::now();
            let decided = plan(&self.state, &Policy::default(), 0);
            self.plan_times.push(began.elapsed());
            if let Some(start) = decided.starts.first() {
                self.state.running.push(Running::of_start(start, &task, LeaseId(number.to_string()), 0));
                return;
            }
            let ends = self.random.below(self.state.running.len());
            self.state.running.swap_remove(ends);
        }
    }

    fn time_the_place(&mut self, name: &str) {
        let gpus = self.geometries();
        let began = Instant::now();
        let decision = self.planner.decide(&gpus, name);
        self.place_times.push(began.elapsed());
        drop(decision);
    }

    /// The GPUs with what runs on them.
    fn geometries(&self) -> Vec<GpuGeometry> {
        let of_gpu = |gpu: &GpuState| {
            let mut geometry = GpuGeometry { table: Arc::clone(&self.table), instances: Vec::new() };
            let slices = self.state.running.iter().flat_map(|task| &task.slices);
            let here =
                slices.filter(|slice| slice.gpu == gpu.gpu.uuid).filter_map(|slice| slice.mig.as_ref());
            for mig in here {
                if let Some(profile) = self.table.position(&mig.profile) {
                    geometry.occupy(profile, mig.start);
                }
            }
            geometry
        };
        self.state.nodes[0].gpus.iter().map(of_gpu).collect()
    }
}
