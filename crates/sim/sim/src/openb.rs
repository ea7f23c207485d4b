//! The Alibaba GPU trace "openb" (cluster-trace-gpu-v2023): reads it, and generates the workload of the FGD experiment.
//!
//! Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
//! USENIX ATC 2023: tasks arrive one by one in random order until 130 % of the cluster's GPUs are requested; no task
//! ends, and none is tried twice.

use cantle_model::{ComputeMode, GRANULE_BYTES, Gpu, GpuRequest, GpuUuid, Isolation, Milli};
use cantle_sched::{Demand, GpuDemand, GpuState, Host, Mix, Node};

use crate::random::Random;

/// Memory that a GPU of the trace is given, because the trace does not contain it: so much that every thousandth is a
/// granule.
const GPU_BYTES: u64 = 1000 * GRANULE_BYTES;

/// GPUs of one node at most.
const GPUS_MAX: u32 = 1024;

/// Nodes and tasks of a trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Nodes with GPUs.
    pub nodes: Vec<Node>,
    /// Tasks, in the order of the file.
    pub tasks: Vec<TraceTask>,
}

/// A task of the trace.
#[derive(Clone, Debug)]
pub struct TraceTask {
    /// Its demand.
    pub demand: Demand,
    /// GPUs that it needs, in thousandths.
    pub gpu_milli: u64,
    /// Its arrival and its run time, in seconds, where the trace has them.
    pub times: Option<(u64, u64)>,
}

/// Why a trace cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A column is missing.
    #[error("{file}: no column \"{column}\"; its first line must name the columns as openb does")]
    NoColumn {
        /// Which of the two files.
        file: &'static str,
        /// The column.
        column: &'static str,
    },
    /// Nothing to place anything on.
    #[error(
        "nodes: no GPU in it; a node list has one line per node and the number of its GPUs in column \"gpu\""
    )]
    NoGpus,
    /// A field that is not a number, or too large a one.
    #[error("{file}, line {line}: \"{field}\" in column \"{column}\" is not a whole number up to {most}")]
    NotANumber {
        /// Which of the two files.
        file: &'static str,
        /// Line number, from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// The value in the file.
        field: String,
        /// The largest number that makes sense there.
        most: u32,
    },
}

/// Reads the text of a node list and a pod list.
///
/// # Errors
/// Names the file, the line and the column that cannot be read.
pub fn load(nodes_csv: &str, pods_csv: &str) -> Result<Trace, TraceError> {
    let nodes = Table::new("nodes", nodes_csv);
    let pods = Table::new("pods", pods_csv);
    let trace = Trace {
        nodes: nodes.rows().map(|row| node(&nodes, &row)).collect::<Result<_, _>>()?,
        tasks: pods.rows().map(|row| task(&pods, &row)).collect::<Result<_, _>>()?,
    };
    if trace.gpu_milli() == 0 { Err(TraceError::NoGpus) } else { Ok(trace) }
}

impl Trace {
    /// GPUs of all nodes, in thousandths.
    #[must_use]
    pub fn gpu_milli(&self) -> u64 {
        self.nodes.iter().map(|node| 1000 * node.gpus.len() as u64).sum()
    }

    /// The tasks in random order, tuned to `inflate` times the cluster's GPUs: random ones are repeated while there
    /// is too little, random ones are left out while there is too much.
    #[must_use]
    pub fn workload(&self, seed: u64, inflate: f64) -> Vec<&TraceTask> {
        let mut random = Random(seed);
        let mut tasks: Vec<&TraceTask> = self.tasks.iter().collect();
        random.shuffle(&mut tasks);
        let target = self.gpu_milli() as f64 * inflate;
        let mut total: u64 = tasks.iter().map(|task| task.gpu_milli).sum();
        while total as f64 > target && !tasks.is_empty() {
            total -= tasks.remove(random.below(tasks.len())).gpu_milli;
        }
        while self.tasks.iter().any(|task| task.gpu_milli > 0) {
            let task = &self.tasks[random.below(self.tasks.len())];
            if (total + u64::from(task.per_gpu_milli())) as f64 > target {
                break;
            }
            total += task.gpu_milli;
            tasks.push(task);
        }
        tasks
    }

    /// The tasks in the order of the file, as many as request `inflate` times the cluster's GPUs.
    #[must_use]
    pub fn in_order(&self, inflate: f64) -> Vec<&TraceTask> {
        let target = self.gpu_milli() as f64 * inflate;
        let mut total = 0;
        let wanted = self.tasks.iter().take_while(|task| {
            let wanted = (total as f64) < target;
            total += task.gpu_milli;
            wanted
        });
        wanted.collect()
    }

    /// Nodes in random order, as many as are needed for `gpus` GPUs.
    #[must_use]
    pub fn some_nodes(&self, seed: u64, gpus: usize) -> Vec<Node> {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        Random(seed).shuffle(&mut nodes);
        let mut have = 0;
        let wanted = nodes.into_iter().take_while(|node| {
            let wanted = have < gpus;
            have += node.gpus.len();
            wanted
        });
        wanted.cloned().collect()
    }
}

/// How often each demand comes.
#[must_use]
pub fn mix<'a>(tasks: impl IntoIterator<Item = &'a TraceTask>) -> Mix {
    let mut mix: Mix = Vec::new();
    for task in tasks {
        match mix.iter_mut().find(|(demand, _)| *demand == task.demand) {
            Some((_, count)) => *count += 1,
            None => mix.push((task.demand.clone(), 1)),
        }
    }
    mix
}

impl TraceTask {
    /// Its part of each of its GPUs, in thousandths.
    pub(crate) fn per_gpu_milli(&self) -> u32 {
        let milli = self.gpu_milli / u64::from(self.demand.gpus.devices().0.max(1));
        u32::try_from(milli).unwrap_or(Milli::ONE.0)
    }
}

fn node(table: &Table<'_>, row: &Row<'_>) -> Result<Node, TraceError> {
    let name = table.text(row, "sn")?;
    let gpu = |index: u32| {
        GpuState::new(Gpu {
            uuid: GpuUuid(format!("GPU-{name}-{index}")),
            index,
            model: table.text(row, "model").unwrap_or_default().to_owned(),
            memory_bytes: GPU_BYTES,
            mig: false,
        })
    };
    table.text(row, "model")?;
    let mut node = Node::new(name, (0..table.number(row, "gpu", GPUS_MAX)?).map(gpu).collect());
    node.host = Some(host(table, row)?);
    Ok(node)
}

fn host(table: &Table<'_>, row: &Row<'_>) -> Result<Host, TraceError> {
    let number = |column| Ok(u64::from(table.number(row, column, u32::MAX)?));
    Ok(Host { cpu_milli: number("cpu_milli")?, memory_bytes: number("memory_mib")? << 20 })
}

fn task(table: &Table<'_>, row: &Row<'_>) -> Result<TraceTask, TraceError> {
    let gpus = table.number(row, "num_gpu", GPUS_MAX)?;
    let milli = table.number(row, "gpu_milli", Milli::ONE.0)?;
    let ask = match (gpus, milli) {
        (0, _) => GpuDemand::Nothing,
        (gpus, 1000) => GpuDemand::Whole { min: gpus, max: gpus },
        (devices, milli) => {
            GpuDemand::Part { request: GpuRequest::Fraction(Milli(milli).into()), devices, compute: None }
        }
    };
    let spec = table.text(row, "gpu_spec").unwrap_or_default();
    let models = if gpus == 0 { Vec::new() } else { spec.split('|').filter(|m| !m.is_empty()).collect() };
    let time = |column| table.number(row, column, u32::MAX).ok().map(u64::from);
    let times = time("creation_time").zip(time("deletion_time"));
    Ok(TraceTask {
        demand: Demand {
            isolation: Isolation::Any,
            compute: ComputeMode::Even,
            gpus: ask,
            pools: Vec::new(),
            used_up: Vec::new(),
            models: models.into_iter().map(str::to_owned).collect(),
            host: host(table, row)?,
        },
        gpu_milli: u64::from(gpus) * u64::from(milli),
        times: times.map(|(created, deleted)| (created, deleted.saturating_sub(created))),
    })
}

/// A CSV file without quotes, its first line naming the columns.
struct Table<'a> {
    file: &'static str,
    columns: Vec<&'a str>,
    text: &'a str,
}

/// Line number and fields.
type Row<'a> = (usize, Vec<&'a str>);

impl<'a> Table<'a> {
    fn new(file: &'static str, text: &'a str) -> Self {
        Self { file, columns: text.lines().next().unwrap_or("").split(',').map(str::trim).collect(), text }
    }

    fn rows(&self) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let lines = self.text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(at, line)| (at + 1, line.split(',').map(str::trim).collect()))
    }

    fn text<'r>(&self, row: &'r Row<'a>, column: &'static str) -> Result<&'r str, TraceError> {
        let at = self.columns.iter().position(|known| *known == column);
        let field = at.and_then(|at| row.1.get(at));
        field.copied().ok_or(TraceError::NoColumn { file: self.file, column })
    }

    fn number(&self, row: &Row<'a>, column: &'static str, most: u32) -> Result<u32, TraceError> {
        let field = self.text(row, column)?;
        let number = field.parse().ok().filter(|number| *number <= most);
        number.ok_or_else(|| TraceError::NotANumber {
            file: self.file,
            line: row.0,
            column,
            field: field.to_owned(),
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,T4\n";

    #[test]
    fn a_trace_is_read() {
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,1000,512,1,250,T4|A10\np1,1,1,2,1000,\n";
        let trace = load(NODES, pods).unwrap();
        assert_eq!((trace.nodes[0].gpus.len(), trace.gpu_milli()), (2, 2000));
        assert_eq!(trace.tasks[0].demand.models, ["T4", "A10"]);
        assert_eq!(trace.tasks[0].demand.gpus.to_string(), "0.25 GPU");
        assert_eq!((trace.tasks[1].gpu_milli, trace.tasks[1].per_gpu_milli()), (2000, 1000));
    }

    #[test]
    fn refusals_name_file_line_and_column() {
        let says = |pods: &str| load(NODES, pods).unwrap_err().to_string();
        assert_eq!(
            says("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1001"),
            "pods, line 2: \"1001\" in column \"gpu_milli\" is not a whole number up to 1000"
        );
        assert_eq!(
            says("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,x,0"),
            "pods, line 2: \"x\" in column \"num_gpu\" is not a whole number up to 1024"
        );
        assert_eq!(
            says("name,cpu_milli,memory_mib,num_gpu\np,1,1,1"),
            "pods: no column \"gpu_milli\"; its first line must name the columns as openb does"
        );
    }

    #[test]
    fn in_order_the_tasks_come_as_in_the_file() {
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,500\np1,1,1,2,1000\np2,1,1,1,250\n";
        let trace = load(NODES, pods).unwrap();
        let sizes = |inflate| trace.in_order(inflate).iter().map(|task| task.gpu_milli).collect::<Vec<_>>();
        assert_eq!((sizes(1.0), sizes(1.3)), (vec![500, 2000], vec![500, 2000, 250]));
    }

    #[test]
    fn the_workload_is_tuned_to_the_target() {
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,500\np1,1,1,1,250\n";
        let trace = load(NODES, pods).unwrap();
        for seed in 0..50 {
            for (inflate, most) in [(1.3, 2600), (0.2, 400)] {
                let total: u64 = trace.workload(seed, inflate).iter().map(|task| task.gpu_milli).sum();
                assert!(total <= most && total + 500 > most, "seed {seed}: {total} of {most}");
            }
        }
    }
}
