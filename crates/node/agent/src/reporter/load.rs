//! The load of the machine, for the graphs of ClearML's web page.

use std::fs;
use std::path::Path;

use cantle_clearml::workers::MachineStats;
use cantle_driver::Driver;
use cantle_model::Gpu;
use tokio::time::Instant;

const MIB: f64 = 1024.0 * 1024.0;
const KIB_PER_MIB: f64 = 1024.0;
/// The unit of the kernel's counts, independent of the disk's own sectors.
const SECTOR_BYTES: u64 = 512;

/// Processor time since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

/// Bytes since boot: received, sent, read, written; with ClearML's names for their rates.
type Traffic = [(&'static str, u64); 4];

/// Measures between its calls.
#[derive(Debug, Default)]
pub(crate) struct Load {
    last: Ticks,
    last_traffic: Option<(Instant, Traffic)>,
}

impl Load {
    /// Load since the last call. Unreadable values are omitted: a gap, not a zero.
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
        for load in gpus.iter().filter_map(|gpu| driver.load(&gpu.uuid).ok()) {
            stats.gpu_usage.push(load.busy_percent.into());
            stats.gpu_temperature.push(load.celsius.into());
        }
        self.add_traffic(&mut stats);
        stats
    }

    fn add_traffic(&mut self, stats: &mut MachineStats) {
        let (received, sent) = network_bytes(&fs::read_to_string("/proc/net/dev").unwrap_or_default());
        let (read, written) = disk_bytes(Path::new("/sys/block"));
        let now =
            [("network_rx", received), ("network_tx", sent), ("disk_read", read), ("disk_write", written)];
        if let Some((since, before)) = self.last_traffic.replace((Instant::now(), now)) {
            let seconds = since.elapsed().as_secs_f64().max(1e-3);
            for ((name, now), (_, before)) in now.into_iter().zip(before) {
                let rate = mebibytes(now.saturating_sub(before)) / seconds;
                stats.more.insert(name.to_owned(), rate.into());
            }
        }
    }
}

/// Received and sent by all interfaces but the loopback.
fn network_bytes(text: &str) -> (u64, u64) {
    let of_line = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        (name.trim() != "lo").then_some((*counts.first()?, *counts.get(8)?))
    };
    text.lines().filter_map(of_line).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
}

/// Read from and written to real disks: others only pass on to them.
fn disk_bytes(block: &Path) -> (u64, u64) {
    let disks = fs::read_dir(block).into_iter().flatten().filter_map(Result::ok);
    let of_disk = |disk: fs::DirEntry| {
        let is_real = disk.path().join("device").exists();
        let text = fs::read_to_string(disk.path().join("stat")).ok().filter(|_| is_real)?;
        let counts: Vec<u64> = text.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        Some((counts.get(2)? * SECTOR_BYTES, counts.get(6)? * SECTOR_BYTES))
    };
    disks.filter_map(of_disk).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
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
pub(crate) fn mebibytes(bytes: u64) -> f64 {
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
    fn traffic_of_the_machine() {
        let line = |name: &str| format!("{name}: 100 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n");
        let text = format!("Inter-| Receive | Transmit\n face |bytes\n{}{}", line("    lo"), line("  eth0"));
        assert_eq!(network_bytes(&format!("{text}{}", line("eth1"))), (200, 14));
        let block = tempfile::tempdir().unwrap();
        for (disk, is_real) in [("sda", true), ("loop0", false)] {
            let dir = block.path().join(disk);
            fs::create_dir_all(if is_real { dir.join("device") } else { dir.clone() }).unwrap();
            fs::write(dir.join("stat"), " 1 0 10 3 4 0 20 5 6 7 8\n").unwrap();
        }
        assert_eq!(disk_bytes(block.path()), (5120, 10_240));
    }

    #[test]
    fn main_memory() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n";
        assert_eq!(kibibytes(text, "MemTotal"), Some(16384.0));
        assert_eq!(kibibytes(text, "MemAvailable"), Some(4096.0));
        assert_eq!(kibibytes(text, "Swap"), None);
    }
}
