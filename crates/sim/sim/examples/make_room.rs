//! Work that is lost when tasks make room for urgent ones, by the way in which they do, on the openb trace: `make_room DIR [SEEDS]`, where DIR has the
//! CSV files of the Alibaba GPU trace 2023. Fails if a task that can be suspended loses work.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::process::ExitCode;

use cantle_model::Preempt;
use cantle_sim::{make_room, openb};

const FIRST_SEED: u64 = 42;
const GPUS: usize = 80;
const COPIES: usize = 2;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: make_room FOLDER [SEEDS]")?;
    let seeds: u64 = words.next().map_or(Ok(1), |word| word.parse())?;
    let nodes = std::fs::read_to_string(format!("{folder}/openb_node_list_gpu_node.csv"))?;
    let pods = std::fs::read_to_string(format!("{folder}/openb_pod_list_default.csv"))?;
    let trace = openb::load(&nodes, &pods)?;
    println!(
        "{GPUS} GPUs, the trace's tasks {COPIES} times over, one in ten urgent; memory is free after 4 s\n"
    );
    println!(
        "ways              seed   tasks  queued again  suspended  GPU-hours lost  urgent wait  others' delay"
    );
    let mut kept = true;
    for seed in FIRST_SEED..FIRST_SEED + seeds {
        let mut lost = Vec::new();
        for preempt in [Preempt::Requeue, Preempt::SuspendOrRequeue] {
            let found = make_room(&trace, preempt, seed, GPUS, COPIES)?.ok_or("the trace has no times")?;
            println!(
                "{:16} {:5} {:7} {:13} {:10} {:15.1} {:10.1} s {:12.1} s",
                preempt.to_string(),
                seed,
                found.tasks,
                found.requeued,
                found.suspended,
                found.gpu_hours_lost,
                found.urgent_wait_s,
                found.other_delay_s
            );
            lost.push(found);
        }
        kept &= lost[1].gpu_hours_lost < lost[0].gpu_hours_lost || lost[0].gpu_hours_lost == 0.0;
    }
    println!("\nsuspension loses less work: {}", if kept { "kept" } else { "BROKEN" });
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
