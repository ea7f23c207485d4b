//! Every option of `cantle submit` with every kind of queue: it has its effect, or it is refused. None is ignored.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod served;

use std::collections::BTreeSet;

use cantle_clearml::cantle::{NodeQueue, ReportNode};
use serde_json::Value;
use served::Server;

/// A queue of each kind, and what its agent gives.
const QUEUES: [(&str, &str); 5] =
    [("half", "0.5"), ("two", "2"), ("few", "1-3"), ("own", "task"), ("cpu", "none")];

/// The effect of an option.
#[derive(Clone, Copy)]
enum Fate {
    /// In the task, as this parameter of the section `cantle`, in these queues; the others refuse it with exit code 5.
    Asked(&'static str, &'static [&'static str]),
    /// In the task, at this place, whatever the queue gives.
    Kept(&'static str),
    /// About the command, not about the task.
    OfCommand,
}
use Fate::{Asked, Kept, OfCommand};

const ALL: &[&str] = &["half", "two", "few", "own", "cpu"];
const WITH_GPU: &[&str] = &["half", "two", "few", "own"];

/// Each option with its value.
const OPTIONS: [(&str, &[&str], Fate); 26] = [
    ("queue", &[], OfCommand),
    ("gpu", &["0.5"], Asked("gpu", &["half", "own"])),
    ("gpus", &["2"], Asked("gpus", &["two", "own"])),
    ("gpu-memory", &["4Gi"], Asked("gpu_memory", &["own"])),
    ("gpu-memory-limit", &["30Gi", "--gpu", "0.5"], Asked("gpu_memory_limit", &["half", "own"])),
    ("mig-profile", &["1g.5gb"], Asked("mig_profile", &["own"])),
    ("isolation", &["shared"], Asked("isolation", WITH_GPU)),
    ("compute", &["fair"], Asked("compute", WITH_GPU)),
    ("compute-request", &["0.2", "--compute", "fair"], Asked("compute_request", WITH_GPU)),
    (
        "compute-limit",
        &["0.9", "--compute", "fair", "--compute-request", "0.1"],
        Asked("compute_limit", WITH_GPU),
    ),
    ("image", &["debian:12"], Kept("/container/image")),
    ("name", &["called"], Kept("/name")),
    ("project", &["theirs"], Kept("/project")),
    ("tag", &["team:nlp,urgent"], Kept("/tags/0")),
    ("cpu", &["2"], Asked("cpu", ALL)),
    ("cpu", &["auto"], Asked("cpu", WITH_GPU)),
    ("memory", &["2Gi"], Asked("memory", ALL)),
    ("priority", &["7"], Asked("priority", ALL)),
    ("non-preemptible", &[], Asked("non_preemptible", ALL)),
    ("time", &["2h"], Asked("time", ALL)),
    ("idle", &["2h"], Asked("idle", ALL)),
    ("after", &["any:first"], Asked("after", ALL)),
    ("array", &["0-9%2"], Asked("array", ALL)),
    ("notify", &["lab"], Asked("notify", ALL)),
    ("secret", &["TOKEN"], Asked("secret", ALL)),
    ("wait", &[], OfCommand),
];
/// Like `wait`.
const ALSO_OF_COMMAND: [&str; 2] = ["follow", "help"];

#[test]
fn no_option_of_submit_is_ignored_by_any_queue() {
    let server = Server::start();
    let queues = QUEUES.map(|(name, spec)| NodeQueue { name: name.into(), spec: spec.into() });
    QUEUES.iter().for_each(|(name, _)| server.queue(name));
    let (node, worker) = ("n1".to_owned(), "n1:gpu".to_owned());
    let report =
        ReportNode { node, worker, queues: queues.to_vec(), interval_ms: 600_000, ..ReportNode::default() };
    server.call(&report);
    let lab = serde_json::json!({"name": "lab", "address": "https://example.org"});
    server.call_value("cantle.set_receiver", &lab);
    server.call_value("cantle.set_secret", &serde_json::json!({"name": "TOKEN", "value": "v"}));
    let first = serde_json::json!({"name": "first", "type": "custom"});
    server.call_value("tasks.create", &first);

    // All options are in the table. Those of every command are under another heading.
    let help = server.ok(&["submit", "--help"]);
    let own = help.split("\nOptions of every command:").next().unwrap();
    let lines = own.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    let words = words.map(|word| word.trim_end_matches(',').trim_start_matches("--").to_owned());
    let shown: BTreeSet<String> = words.collect();
    let known = OPTIONS.iter().map(|(name, ..)| *name).chain(ALSO_OF_COMMAND);
    assert_eq!(shown, known.map(str::to_owned).collect());

    let (mut taken, mut refused) = (0, 0);
    for (queue, spec) in QUEUES {
        for (name, values, fate) in OPTIONS {
            let option = format!("--{name}");
            let words: Vec<&str> = ["submit", "--queue", queue, &option]
                .iter()
                .chain(values)
                .chain(&["--", "true"])
                .copied()
                .collect();
            let is_taken = match fate {
                OfCommand => continue,
                Kept(_) => true,
                Asked(_, by) => by.contains(&queue),
            };
            let done = server.run(&words);
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            let expected = if is_taken { 0 } else { 5 };
            assert_eq!(done.status.code(), Some(expected), "{queue}={spec} {words:?}: {errors}");
            if !is_taken {
                refused += 1;
                assert!(errors.contains(&format!("queue {queue} gives ")), "{errors}");
                continue;
            }
            taken += 1;
            let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
            let task =
                server.call_value("tasks.get_by_id", &serde_json::json!({ "task": id }))["task"].clone();
            let kept = match fate {
                Asked(parameter, _) => task["hyperparams"]["cantle"][parameter]["value"].clone(),
                Kept(place) => task.pointer(place).cloned().unwrap_or_default(),
                OfCommand => Value::Null,
            };
            let is_there = kept.as_str().is_some_and(|text| !text.is_empty());
            assert!(is_there, "{queue}={spec} {words:?}: {kept} in {task}");
            if let ("image" | "name" | "priority" | "gpus", [value, ..]) = (name, values) {
                assert_eq!(kept, *value, "{words:?}");
            }
        }
    }
    assert_eq!((taken, refused), (98, 22), "of {} options and {} queues", OPTIONS.len(), QUEUES.len());
}
