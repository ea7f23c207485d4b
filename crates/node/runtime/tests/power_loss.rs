//! A task's files must survive a loss of power. The test does not cut the power: a trace of the system calls shows
//! whether the process waited for the disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

mod common;

use std::path::Path;
use std::process::Command;

use cantle_runtime::TaskSpec;
use common::{Bench, read, start_program};

/// The calls that decide what is on disk, made by the supervisor of a task that ends at once. File descriptors carry the
/// paths that they were opened under.
fn traced(bench: &Bench, task: &Path) -> Vec<String> {
    let spec = TaskSpec { slices: Vec::new(), ..bench.shell("echo out") };
    let spec_file = bench.path("spec.json");
    std::fs::write(&spec_file, serde_json::to_vec(&spec).unwrap()).unwrap();
    let log = bench.path("calls");
    let calls = "openat,openat2,rename,renameat,renameat2,fsync,fdatasync,fchmod";
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "256", "-e", &format!("trace={calls}"), "-o"]).arg(&log);
    strace.arg(start_program()).arg("detached").args([&spec_file, task]);
    let traced = strace.output().expect("strace, which tests/setup.sh installs");
    assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
    let of_task = task.display().to_string();
    // Another process called something before this call returned.
    let whole = |call: &str| call.replace(" <unfinished ...>", ")");
    read(&log).lines().filter(|call| call.contains(&of_task)).map(whole).collect()
}

/// The position of the first call, from `start` on, that contains all words of `what`.
fn position(calls: &[String], start: usize, what: &[&str]) -> usize {
    let is_it = |call: &String| what.iter().all(|word| call.contains(word));
    let found = calls.iter().skip(start).position(is_it);
    start + found.unwrap_or_else(|| panic!("no {what:?} after call {start}:\n{}", calls.join("\n")))
}

#[test]
fn how_a_task_ended_survives_a_loss_of_power() {
    let bench = Bench::new();
    let task = bench.path("task");
    let calls = traced(&bench, &task);
    let file = |name: &str| task.join(name).display().to_string();
    let (state, fresh, exit) = (file("state.json"), file("exit.new"), file("exit.json"));

    // Without its processes an ended task is not found again.
    let state_synced = position(&calls, 0, &["sync(", &format!("<{state}>")]);
    let created = position(&calls, state_synced, &["openat(", &fresh, "O_CREAT", "0600"]);
    let file_synced = position(&calls, created, &["sync(", &format!("<{fresh}>")]);
    let renamed = position(&calls, file_synced, &["rename", &fresh, &exit]);
    position(&calls, renamed, &["sync(", &format!("<{}>)", task.display())]);
}

/// It carries the task's variables, keys of the server among them.
#[test]
fn what_is_to_be_started_is_for_the_owner_only() {
    let bench = Bench::new();
    let task = bench.path("task");
    let calls = traced(&bench, &task);
    let (fresh, spec) = (task.join("task.new"), task.join("task.json"));
    let created = position(&calls, 0, &["openat(", fresh.to_str().unwrap(), "O_CREAT", "0600"]);
    let renamed = position(&calls, created, &["rename", spec.to_str().unwrap()]);
    let synced = calls[..renamed].iter().any(|call| call.contains("sync("));
    assert!(!synced, "the start of a task does not wait for the disk:\n{}", calls.join("\n"));
}
