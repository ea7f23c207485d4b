//! Measures placement and reclaim: decisions per second and their 99th percentile at 1,000, 10,000 and 100,000 GPUs,
//! one large reclaim, a long queue in a scenario, and the memory used.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and measures with the wall clock"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_model::{
    ComputeMode, Gpu, GpuLink, GpuRequest, GpuUuid, Isolation, LeaseId, Milli, PciePath, QueueSpec,
    QueueWant, TaskId, Topology,
};
use cantle_sched::{
    Cluster, Demand, Fabric, Gang, GpuDemand, GpuState, Host, Node, Order, Placement, Policy, Project, Queue,
    Running, Snapshot, Standard, Waiting, plan,
};

const GIB: u64 = 1 << 30;
/// Decisions measured at each size, in blocks; the median block counts, so that what else the machine does counts little.
const BLOCKS: usize = 200;
const BLOCK: usize = 100;
/// Decisions per second at 10,000 GPUs, at least.
const PROMISED: [(Placement, f64); 2] = [(Placement::Binpack, 50_000.0), (Placement::Worth, 20_000.0)];
const P99_MAX: Duration = Duration::from_millis(1);
const RECLAIM_MAX: Duration = Duration::from_millis(100);
const MEMORY_MAX_MIB: u64 = 200;
/// Tasks that wait for 4,000 GPUs, with and without preemption.
const WAITING: usize = 100_000;
const QUEUE_MAX: Duration = Duration::from_secs(5);
const QUEUE_MEMORY_MAX_MIB: u64 = 500;
/// Nodes of 8 GPUs.
const SIZES: [usize; 3] = [125, 1_250, 12_500];

fn main() -> ExitCode {
    let mut kept = true;
    println!("placement    GPUs  decisions/s       p99");
    for (placement, promised) in PROMISED {
        let mut before: Option<f64> = None;
        for nodes in SIZES {
            let (per_second, p99) = place(nodes, placement, None);
            println!("{placement:9?} {:7} {per_second:12.0} {:6.0} us", nodes * 8, p99.as_secs_f64() * 1e6);
            // Ten times the cluster must cost less than ten times as much.
            kept &= before.is_none_or(|before| per_second > before / 10.0) && p99 < P99_MAX;
            kept &= nodes != SIZES[1] || per_second >= promised;
            before = Some(per_second);
        }
        let (per_second, p99) = place(SIZES[1], placement, Some(fabric()));
        println!(
            "{placement:9?} {:7} {per_second:12.0} {:6.0} us  with the connections of a PCIe machine",
            SIZES[1] * 8,
            p99.as_secs_f64() * 1e6
        );
        kept &= per_second >= promised && p99 < P99_MAX;
    }
    let reclaim = (0..3).map(|_| reclaim()).min().unwrap_or(Duration::MAX);
    let (ms, memory) = (reclaim.as_secs_f64() * 1e3, peak_mib());
    println!(
        "reclaim, 1000 nodes of 8 GPUs full of single-GPU tasks, a gang of 100 x 8: {ms:.1} ms (best of 3)"
    );
    println!("peak memory: {memory} MiB");
    kept &= reclaim <= RECLAIM_MAX && memory <= MEMORY_MAX_MIB;
    for policy in ["backfill", "backfill reclaim"] {
        let took = queue(policy);
        println!("simulate, 4000 GPUs, {WAITING} waiting, {policy}: {:.2} s", took.as_secs_f64());
        kept &= took <= QUEUE_MAX;
    }
    println!("peak memory: {} MiB", peak_mib());
    kept &= peak_mib() <= QUEUE_MEMORY_MAX_MIB;
    println!(
        "promised at 10,000 GPUs: {PROMISED:?} decisions/s, p99 below {P99_MAX:?}; reclaim at most {RECLAIM_MAX:?}, \
         {MEMORY_MAX_MIB} MiB; a queue at most {QUEUE_MAX:?}, {QUEUE_MEMORY_MAX_MIB} MiB: {}",
        if kept { "kept" } else { "BROKEN" }
    );
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn node(at: usize) -> Node {
    let gpu = |index: u32| Gpu {
        uuid: GpuUuid(format!("GPU-{at}-{index}")),
        index,
        model: "A100".into(),
        memory_bytes: 80 * GIB,
        mig: false,
    };
    let mut node = Node::new(format!("node{at}"), (0..8).map(|index| GpuState::new(gpu(index))).collect());
    node.host = Some(Host { cpu_milli: 128_000, memory_bytes: 1024 * GIB });
    node
}

/// The connections of each node: two GPUs at each PCIe switch, four at each socket.
#[expect(clippy::expect_used, reason = "the connections differ")]
fn fabric() -> Arc<Fabric> {
    let link = |one: usize, other: usize| GpuLink {
        nvlinks: 0,
        path: Some(match (one / 2 == other / 2, one / 4 == other / 4) {
            (true, _) => PciePath::Pix,
            (_, true) => PciePath::Node,
            _ => PciePath::Sys,
        }),
    };
    let uuids: Vec<GpuUuid> = (0..8).map(|index| GpuUuid(format!("GPU-{index}"))).collect();
    let topology = Topology::new(uuids.clone(), link);
    Arc::new(Fabric::of(&topology, &uuids.iter().collect::<Vec<_>>()).expect("a fabric"))
}

/// Sizes in eighths and how often they come; 16 is two GPUs and 64 is eight.
const MIX: [(u32, u32); 8] = [(1, 10), (2, 20), (3, 5), (4, 20), (6, 10), (8, 25), (16, 7), (64, 3)];

fn demand(eighths: u32) -> Demand {
    let ask = match eighths {
        whole if whole.is_multiple_of(8) => GpuDemand::Whole { min: whole / 8, max: whole / 8 },
        part => GpuDemand::Part {
            request: GpuRequest::Fraction(Milli(part * 125).into()),
            devices: 1,
            compute: None,
        },
    };
    let host = Host { cpu_milli: u64::from(eighths) * 1_500, memory_bytes: u64::from(eighths) * 10 * GIB };
    Demand {
        gpus: ask,
        models: Vec::new(),
        pools: Vec::new(),
        used_up: Vec::new(),
        host,
        isolation: Isolation::Any,
        compute: ComputeMode::Even,
    }
}

/// Fills the cluster and then keeps it full: each decision that fails ends the oldest tasks until it succeeds.
fn place(nodes: usize, placement: Placement, fabric: Option<Arc<Fabric>>) -> (f64, Duration) {
    let with_fabric = |at: usize| {
        let mut node = node(at);
        node.fabric = fabric.clone();
        node
    };
    let nodes: Vec<Node> = (0..nodes).map(with_fabric).collect();
    let mut cluster = Cluster::empty(&nodes);
    let mix: Vec<(Demand, u32)> = MIX.iter().map(|&(eighths, count)| (demand(eighths), count)).collect();
    let mut picker = Standard::picker(placement, &mix, &cluster);
    let shapes: Vec<_> = mix.iter().map(|(demand, count)| (cluster.shape(demand), *count)).collect();
    let (mut running, mut times) = (std::collections::VecDeque::new(), Vec::with_capacity(BLOCKS * BLOCK));
    // Weyl's sequence: spread evenly, the same each time.
    let mut draw = 0u32;
    let total: u32 = MIX.iter().map(|(_, count)| count).sum();
    // Fill without the clock, up to 85 %, so that what is measured is a busy cluster.
    let mut free = 8_000 * nodes.len() as u64;
    while times.len() < BLOCKS * BLOCK {
        draw = draw.wrapping_add(2_654_435_769);
        let mut at = draw % total;
        let shape = shapes.iter().find(|(_, count)| at.checked_sub(*count).map(|rest| at = rest).is_none());
        let Some((shape, _)) = shape else { continue };
        let start = Instant::now();
        let place = picker.find(&cluster, shape);
        let took = start.elapsed();
        if free < 1_200 * nodes.len() as u64 {
            times.push(took);
            if let Some(oldest) = running.pop_front() {
                cluster.give_back(&oldest);
                free += oldest.amounts().0[0];
            }
        }
        if let Some(place) = place {
            cluster.take(&place);
            free -= place.amounts().0[0];
            running.push_back(place);
        }
    }
    let mut blocks: Vec<Duration> = times.chunks(BLOCK).map(|block| block.iter().sum()).collect();
    blocks.sort_unstable();
    times.sort_unstable();
    (BLOCK as f64 / blocks[BLOCKS / 2].as_secs_f64(), times[times.len() * 99 / 100])
}

/// Time of one plan in which a project takes 800 GPUs back from another.
fn reclaim() -> Duration {
    let nodes: Vec<Node> = (0..1_000).map(node).collect();
    let spec = QueueSpec { name: "default".into(), want: QueueWant::Task };
    let projects = vec![Project::new("a", 4_000_000), Project::new("b", 4_000_000)];
    let task = |id: String, project: &str, gpus: u32| {
        let mut task = Waiting::new(TaskId(id), 0).wanting(GpuRequest::Gpus(gpus));
        task.project = Some(project.to_owned());
        task
    };
    let singles = (0..8_000).map(|at| task(format!("s{at}"), "a", 1)).collect();
    let mut state = Snapshot::new(nodes, Vec::new(), vec![Queue::new(spec, singles)]);
    state.projects = projects;
    let policy = Policy { order: Order::Share, reclaim: true, ..Policy::default() };
    let first = plan(&state, &policy, 0);
    let waiting = std::mem::take(&mut state.queues[0].waiting);
    let running = first.starts.iter().zip(&waiting);
    state.running = running
        .map(|(start, task)| Running::of_start(start, task, LeaseId(start.task.0.clone()), 0))
        .collect();
    let member = |at: usize| {
        let mut member = task(format!("g{at}"), "b", 8);
        member.gang = Some(Gang { name: "g".into(), size: 100 });
        member
    };
    state.queues[0].waiting = (0..100).map(member).collect();
    let start = Instant::now();
    let second = plan(&state, &policy, 1);
    let took = start.elapsed();
    assert_eq!(second.evictions.len(), 800, "the gang gets its 100 nodes");
    took
}

/// Time of a scenario in which tasks of 20 projects and ten sizes come at once to 500 nodes of 8 GPUs, on which one project
/// holds all GPUs before.
fn queue(policy: &str) -> Duration {
    let mut text = format!("queue default=task\npolicy order=share {policy}\n");
    let mut line = |line: String| text += &(line + "\n");
    (0..500).for_each(|at| line(format!("node n{at} 8xA100-80GB")));
    (0..20).for_each(|at| line(format!("project p{at} quota={}", 100 + 10 * at)));
    line("at 0 submit held default gpus=1 project=p0 count=4000".to_owned());
    for at in 0..WAITING {
        let size = [
            "gpu=0.25", "gpu=0.5", "gpu=0.75", "gpus=1", "gpus=1", "gpus=1", "gpus=2", "gpus=2", "gpus=4",
            "gpus=8",
        ];
        let (size, project) = (size[at * 7 % 10], at % 20);
        line(format!("at 1 submit t{at} default {size} project=p{project} priority={}", at % 3));
    }
    let start = Instant::now();
    let output = cantle_sim::run_scenario(&text).unwrap_or_else(|error| error.to_string());
    let took = start.elapsed();
    assert!(output.lines().count() > WAITING, "each waits for a reason");
    took
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}
