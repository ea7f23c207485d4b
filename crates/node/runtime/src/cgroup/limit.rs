//! Limits of the processor time and main memory of a task.
//!
//! In version 2, they are files of the task's group, once their controllers are on in each group above it. The kernel switches them on
//! only where no process is: not in a delegated group in which the agent itself runs. In version 1, each controller has a hierarchy of
//! its own, and the task enters a group in each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cantle_model::HostLimit;

use super::{Cgroup, Hierarchy, PARENT, make_below};

/// The kernel counts processor time in each period of this length.
const PERIOD_US: u64 = 100_000;
const CONTROL: &str = "cgroup.subtree_control";
const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const NO_GROUP: &str = "this process may make no control group: run the agent as root";

impl Cgroup {
    /// A new group called `name` with these limits. Its doors lead to the groups of version 1 that have some of them, too.
    ///
    /// # Errors
    /// Why there can be none.
    pub fn make_limited(name: &str, limit: &HostLimit) -> Result<Self, String> {
        let hierarchies =
            Hierarchy::all(&read(Path::new("/proc/self/mountinfo")), &read(Path::new("/proc/self/cgroup")));
        let mut last = NO_GROUP.to_owned();
        for parent in hierarchies.iter().flat_map(Hierarchy::parents) {
            let Some(group) = make_below(&parent, name) else { continue };
            match group.clone().limited(limit) {
                Ok(group) => return Ok(group),
                Err(why) => {
                    group.remove();
                    last = why;
                }
            }
        }
        Err(last)
    }

    /// The same with these limits of its processes together, and with the doors of the groups of version 1 that have some of them.
    ///
    /// # Errors
    /// Why they cannot be limited.
    fn limited(mut self, limit: &HostLimit) -> Result<Self, String> {
        let amounts = [(CPU, limit.cpu_milli), (MEMORY, limit.memory_bytes)];
        for (controller, amount) in amounts.into_iter().filter(|(_, amount)| *amount > 0) {
            let limited = match mount_of(controller) {
                Some(mount) => self.limit_in(&mount, controller, amount),
                None => self.limit_unified(controller, amount),
            };
            if let Err(why) = limited {
                self.remove_limits();
                return Err(why);
            }
        }
        Ok(self)
    }

    fn limit_in(&mut self, mount: &Path, controller: &str, amount: u64) -> Result<(), String> {
        let parent = mount.join(PARENT);
        let group = Self::at(&parent.join(self.name()));
        // Two controllers may share a hierarchy.
        if !group.dir.exists() {
            make_below(&parent, self.name()).ok_or(NO_GROUP)?;
        }
        let write = |file: &str, value: u64| write(&group.dir.join(file), &value.to_string());
        match controller {
            CPU => {
                write("cpu.cfs_period_us", PERIOD_US)?;
                write("cpu.cfs_quota_us", quota_us(amount))?;
            }
            _ => write("memory.limit_in_bytes", amount)?,
        }
        if !self.more_doors.contains(&group.door()) {
            self.more_doors.push(group.door());
        }
        Ok(())
    }

    fn limit_unified(&self, controller: &str, amount: u64) -> Result<(), String> {
        let mount = Self::unified_mount().filter(|mount| self.dir.starts_with(mount));
        let mount = mount.ok_or_else(|| format!("the controller {controller} is in no mounted hierarchy"))?;
        self.limit_below(&mount, controller, amount)
    }

    fn limit_below(&self, mount: &Path, controller: &str, amount: u64) -> Result<(), String> {
        let above = self.dir.ancestors().skip(1).take_while(|dir| dir.starts_with(mount));
        let off: Vec<&Path> = above.filter(|dir| !has_on(dir, controller)).collect();
        // Nothing is switched on where the rest would fail.
        let in_use = off.iter().find(|dir| **dir != mount && !read(&dir.join("cgroup.procs")).is_empty());
        if let Some(dir) = in_use {
            return Err(format!(
                "processes in {} keep the controller {controller} off below it",
                dir.display()
            ));
        }
        for dir in off.iter().rev() {
            write(&dir.join(CONTROL), &format!("+{controller}"))?;
        }
        match controller {
            CPU => write(&self.dir.join("cpu.max"), &format!("{} {PERIOD_US}", quota_us(amount))),
            _ => write(&self.dir.join("memory.max"), &amount.to_string()),
        }
    }

    /// Removes the groups of version 1 that have its limits.
    pub(super) fn remove_limits(&self) {
        for mount in [CPU, MEMORY].into_iter().filter_map(mount_of) {
            // Usually not there. Its processes have ended.
            let _ = fs::remove_dir(mount.join(PARENT).join(self.name()));
        }
    }

    fn name(&self) -> &str {
        self.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// The mounted hierarchy of version 1 of this controller.
fn mount_of(controller: &str) -> Option<PathBuf> {
    let found = Hierarchy::find(
        &read(Path::new("/proc/self/mountinfo")),
        &read(Path::new("/proc/self/cgroup")),
        ("cgroup", controller),
    );
    found.map(|hierarchy| hierarchy.mount)
}

/// Processor time in each period.
const fn quota_us(cpu_milli: u64) -> u64 {
    cpu_milli * PERIOD_US / 1000
}

/// Have the groups below this one the controller?
fn has_on(dir: &Path, controller: &str) -> bool {
    read(&dir.join(CONTROL)).split_whitespace().any(|word| word == controller)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn write(file: &Path, value: &str) -> Result<(), String> {
    // The kernel has made the file, if it knows the controller.
    let written = fs::OpenOptions::new().write(true).open(file).and_then(|mut file| {
        use io::Write as _;
        file.write_all(value.as_bytes())
    });
    written.map_err(|why| format!("cannot write {value} to {}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: HostLimit = HostLimit { cpu_milli: 1_500, memory_bytes: 64 << 20 };

    /// Plain files in place of the kernel's.
    #[test]
    fn controllers_of_version_2_are_switched_on_above_the_group_only() {
        let mount = tempfile::tempdir().unwrap();
        let group = Cgroup::at(&mount.path().join("cantle/task"));
        fs::create_dir_all(&group.dir).unwrap();
        let control = |dir: &str| mount.path().join(dir).join("cgroup.subtree_control");
        fs::write(control(""), "cpuset cpu memory\n").unwrap();
        fs::write(control("cantle"), "").unwrap();
        let agent = mount.path().join("cantle/cgroup.procs");
        fs::write(&agent, "17\n").unwrap();
        let refused = group.limit_below(mount.path(), CPU, LIMIT.cpu_milli).unwrap_err();
        assert!(refused.contains("cantle keep the controller cpu off below it"), "{refused}");
        fs::remove_file(agent).unwrap();
        let missing = group.limit_below(mount.path(), CPU, LIMIT.cpu_milli).unwrap_err();
        assert!(missing.starts_with("cannot write 150000 100000 to "), "{missing}");
        for file in ["cpu.max", "memory.max"] {
            fs::write(group.dir.join(file), "").unwrap();
        }
        fs::write(control("cantle"), "").unwrap();
        group.limit_below(mount.path(), CPU, LIMIT.cpu_milli).unwrap();
        assert_eq!(read(&control("cantle")), "+cpu");
        assert_eq!(read(&control("")), "cpuset cpu memory\n", "it was on");
        group.limit_below(mount.path(), MEMORY, LIMIT.memory_bytes).unwrap();
        let value = |file: &str| read(&group.dir.join(file));
        assert_eq!((value("cpu.max"), value("memory.max")), ("150000 100000".into(), "67108864".into()));
    }

    /// On each hierarchy that this machine has.
    #[test]
    fn a_process_in_the_groups_gets_no_more_and_they_are_removed() {
        let name = format!("test-limit-{}", std::process::id());
        let Ok(group) = Cgroup::make_limited(&name, &LIMIT) else { return };
        let all: Vec<PathBuf> = group.more_doors.iter().cloned().chain([group.door()]).collect();
        let doors: Vec<String> = all.iter().map(|door| format!("echo $$ >{};", door.display())).collect();
        // Twice the limit.
        let script =
            format!("{} exec head -c 134217728 /dev/zero | tail -c 134217728 >/dev/null", doors.concat());
        let done =
            |script: &str| std::process::Command::new("bash").args(["-o", "pipefail", "-c", script]).status();
        assert!(!done(&script).unwrap().success());
        assert!(
            done("head -c 134217728 /dev/zero | tail -c 134217728 >/dev/null").unwrap().success(),
            "control"
        );
        group.kill();
        group.remove();
        assert!(all.iter().all(|door| !door.exists()), "{all:?}");
    }
}
