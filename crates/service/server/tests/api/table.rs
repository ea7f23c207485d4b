//! The table of ClearML's endpoints (docs/reference/clearml-endpoints.md) says what the server does. `UPDATE=1` writes it again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::common::TestServer;

/// Name and API version of each endpoint of ClearML's server.
const THEIRS: &str = include_str!("clearml-endpoints.txt");

const HEAD: &str = "\
# ClearML's endpoints

Use this page to see which calls of ClearML's API a cantle server answers. You need it if you call the API yourself, or if a client
reports `Unsupported endpoint`. The table lists every endpoint of ClearML's open-source server 2.3.0 (API 2.34), from the API schema that
ClearML publishes. A test compares it with the server (`crates/service/server/tests/api/table.rs`).

An endpoint that is not here answers 400 with its reason. ClearML's clients (SDK, agent, `clearml-task`, `clearml-data`, `clearml-session`,
pipelines, hyperparameter optimization, triggers) call none of them.

## Differences

* A request for a list with a parameter that cantle does not know answers 400. ClearML ignores the parameter.
* `tasks.delete` deletes files only with `delete_external_artifacts`, and models only with `delete_output_models`. ClearML's default for both is
  true. The SDK then deletes each file itself. A `DELETE` of a file that is already gone answers 200, if the file was the caller's to delete or its
  task is gone too.
* `models.delete` deletes the entry, not the file. The answer contains the address of the file.
* `organization.get_entities_count` counts without filters. A filter answers 400.
* `events.clear_task_log` has no `include_metrics` and no `exclude_metrics`. They answer 400.
* The server closes a connection of ClearML's SDK after each answer. The SDK shares connections that are kept with the processes that it is forked into,
  and their requests then arrive mixed at any server.
* `queues.get_next_task` has the field `wait_ms`: the server waits that long for a task.
* A body may have 16 MiB, and a batch of events 64 MiB. A name or a status message may have 64 KiB.
* `tasks.started`, `completed`, `stopped` and `failed`, `queues.add_task` and `cantle.report_task` have the field `run`. A call that names an older run of the
  task than the present one is refused.
* The id of a model that a client chooses has 32 hex digits in lower case, and must be new. The parent of a task must be a task that the caller may see.
* A project's name has one spelling, as on ClearML's server: `vision//x /` is `vision/x`. A name with a part `.` or `..` is refused.
* There is one company.

";

fn theirs() -> BTreeMap<&'static str, &'static str> {
    THEIRS.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once(' ').unwrap()).collect()
}

/// Why the server does not answer, in its own words.
async fn refusal(server: &TestServer, endpoint: &str) -> String {
    let (status, _, envelope) = server.raw(endpoint, "{}").await;
    let said = envelope["meta"]["result_msg"].as_str().unwrap().to_owned();
    assert_eq!(status, 400, "{endpoint}: {said}");
    let reason = said
        .strip_prefix(&format!("Unsupported endpoint: {endpoint} ("))
        .and_then(|rest| rest.strip_suffix(')'));
    reason
        .unwrap_or_else(|| panic!("{endpoint}: neither answered nor refused with a reason: {said}"))
        .to_owned()
}

#[tokio::test]
async fn the_table_says_what_the_server_does() {
    let server = TestServer::start().await;
    let (_, _, envelope) = server.raw("server.endpoints", "{}").await;
    let names: Vec<Value> = envelope["data"]["endpoints"].as_array().unwrap().clone();
    let ours: BTreeSet<&str> = names.iter().filter_map(Value::as_str).collect();
    let theirs = theirs();
    let mut table = format!(
        "{HEAD}## Endpoints of ClearML's open-source server\n\n| endpoint | since API | here |\n|---|---|---|\n"
    );
    let mut answered = 0;
    for (name, since) in &theirs {
        let here = if ours.contains(name) {
            answered += 1;
            "yes".to_owned()
        } else {
            format!("no: {}", refusal(&server, name).await)
        };
        table.push_str(&format!("| `{name}` | {since} | {here} |\n"));
    }
    assert!(answered >= 150, "{answered} of {}", theirs.len());
    table.push_str("\n## Other endpoints\n\nThese are cantle's own (`cantle.*`), or those that ClearML's clients know from its other servers:\n\n");
    for name in ours.iter().filter(|name| !theirs.contains_key(*name)) {
        table.push_str(&format!("* `{name}`\n"));
    }
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/clearml-endpoints.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, &table).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    assert_eq!(written, table, "UPDATE=1 cargo test --workspace --test api table");
}

/// The parameters may be wrong, but the endpoint exists: it answers 200, or says what it lacks.
#[tokio::test]
async fn an_endpoint_that_is_there_never_fails_on_an_empty_request() {
    let server = TestServer::start().await;
    for name in theirs().keys() {
        let (status, _, envelope) = server.raw(name, "{}").await;
        assert!(status == 200 || (400..500).contains(&status), "{name}: {status} {}", envelope["meta"]);
    }
}

#[tokio::test]
async fn what_clearml_does_not_know_either_has_no_reason() {
    let server = TestServer::start().await;
    let (status, _, envelope) = server.raw("tasks.juggle", "{}").await;
    assert_eq!(
        (status, envelope["meta"]["result_msg"].as_str()),
        (400, Some("Unsupported endpoint: tasks.juggle"))
    );
}
