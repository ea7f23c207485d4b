//! Load of the machine, as ClearML's web page draws it.

use std::fs;

use cantle_clearml::workers::MachineStats;
use cantle_driver::Driver;
use cantle_model::Gpu;

const MIB: f64 = 1024.0 * 1024.0;
const KIB_PER_MIB: f64 = 1024.0;

/// Processor time since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

/// Measures between its calls.
#[derive(Debug, Default)]
pub(crate) struct Load {
    last: Ticks,
}

impl Load {
    /// Load since the last call. What can't be read is left out: a gap, not a zero.
    pub(crate) fn stats(&mut self, driver: &dyn Driver, gpus: &[Gpu]) -> MachineStats {
        let mut stats = MachineStats::default();
        if let Some(now) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(ticks) {
            stats.cpu_usage.push(percent(self.last, now));
            self.last = now;
        }
        if let Ok(text) = fs::read_to_string("/proc/meminfo") {
            let (total, available) = (kibibytes(&text, "MemTotal"), kibibytes(&text, "MemAvailable"));
            stats.memory_free = available.map(|kib| kib / KIB_PER_MIB);
            stats.memory_used =
                total.zip(available).map(|(total, available)| (total - available) / KIB_PER_MIB);
        }
        for memory in gpus.iter().filter_map(|gpu| driver.memory(&gpu.uuid).ok()) {
            stats.gpu_memory_used.push(mebibytes(memory.used_bytes));
            stats.gpu_memory_free.push(mebibytes(memory.free_bytes));
        }
        stats
    }
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, …
fn ticks(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let all: u64 = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some(Ticks { busy: all - idle, all })
}

#[expect(clippy::cast_precision_loss, reason = "a percentage for a graph")]
fn percent(from: Ticks, to: Ticks) -> f64 {
    let (busy, all) = (to.busy.saturating_sub(from.busy), to.all.saturating_sub(from.all));
    100.0 * busy as f64 / all.max(1) as f64
}

fn kibibytes(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "GPU memory is far below 2^53 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time() {
        let from = ticks("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3").unwrap();
        assert_eq!(from, Ticks { busy: 200, all: 1000 });
        let to = ticks("cpu  150 0 150 750 150 0 0 0 0 0\n").unwrap();
        assert!((percent(from, to) - 50.0).abs() < 1e-9);
        assert!(percent(to, to).abs() < 1e-9);
        assert_eq!(ticks("intr 1"), None);
    }

    #[test]
    fn main_memory() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n";
        assert_eq!(kibibytes(text, "MemTotal"), Some(16384.0));
        assert_eq!(kibibytes(text, "MemAvailable"), Some(4096.0));
        assert_eq!(kibibytes(text, "Swap"), None);
    }
}
