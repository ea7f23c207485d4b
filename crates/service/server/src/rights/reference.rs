//! Generates `docs/reference/rights.md` from the table. `UPDATE=1` rewrites the file.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::role::{Right, Role};
use super::table::{Act, Need, TABLE};

const HEAD: &str = "# Rights

Use this page to see what a user of a cantle server may do, and which right a call needs. You need it if you give people keys, or if a
call answers 403. A test generates this page from the table that the server itself uses (`crates/service/server/src/rights/table.rs`).
Another test reads this page, and makes each call as each role, about objects of its own, of others and hidden ones
(`crates/service/server/tests/api/matrix`).

A *role* is a set of rights. A user has a role in all projects, or in one project and those below it. Roles add up. Roles of a group
(`group:NAME`) and of `everybody` count, too. `cantle users` gives roles.

";

const RIGHTS: &str = "
* **see**: tasks, models and projects are in lists, with their state, their parameters and their owner.
* **read**: the logs, metrics and artifacts of other people's tasks.
* **submit**: make tasks in the project and run them.
* **manage**: change, stop and delete other people's tasks, raise priorities, set the quotas of projects below. In all projects: change queues.
* **administer**: users, keys, roles and the audit.
* **serve**: what an agent does. A service account does it for its own node only.

The creator of a task or model may read, change, stop and delete it at any time. An agent may do that with waiting tasks, and with
those that its node runs. Lists, counts and filters contain only what the caller may see. The server answers about a hidden object as if it did not
exist. A refusal is status 403. It names the right and the people to ask. The CLI then ends with exit code 4.

Everybody with a key sees the names of queues, the number of waiting tasks, and how much of each GPU is taken. Everybody who may see a
project sees the names of users.

";

const DOORS: &str = "
## Other addresses

| address | needs |
|---|---|
| `/healthz`, `/ui`, `/ui/assets/…` | nothing |
| `/metrics` | see, in all projects |
| `GET /files/…` | read, for the task whose id is in the path; in all projects without one |
| `POST /files`, `DELETE /files/…` | manage, for the task whose id is in the path, or to be its creator; in all projects without one |
| `GET /cantle/exec/…` | the user who opened the command, or the agent of the task's node |
| `/ui/-/session` | a key pair |
| `/ui/-/call/ENDPOINT` | a session, and what the endpoint needs |
| `/ui/-/stream`, `/ui/-/history/…`, `/ui/-/files/…` | a session; the answer has only what its user may see |
";

fn need(need: &Need) -> String {
    let act = |act: &Act| match act {
        Act::See => "see",
        Act::Read => "read",
        Act::Change => "change (own, or manage)",
        Act::Run => "run (own with submit, or manage)",
        Act::Outbid => "manage",
        Act::Enter => "enter (own, or manage)",
    };
    match need {
        Need::Anyone => "a key".to_owned(),
        Need::Person => "not a running task".to_owned(),
        Need::Own => "a key; about the caller".to_owned(),
        Need::Filtered => "a key; the answer has what the caller may see".to_owned(),
        Need::Everywhere(rights) => {
            let names: Vec<&str> = rights.iter().map(|right| right.name()).collect();
            format!("{} in all projects", names.join(" or "))
        }
        Need::Task(what, path) => format!("{} the task `{path}`", act(what)),
        Need::Model(what, path) => format!("{} the model `{path}`", act(what)),
        Need::Project(right, path) => format!("{} in the project `{path}`, if it is named", right.name()),
        Need::Within(right, path) => {
            format!("{} in the project `{path}`, or in all projects without one", right.name())
        }
        Need::Above(right, path) => format!("{} in the project above `{path}`", right.name()),
        Need::Duplicate(task, project) => {
            format!("submit in the project `{project}`, or in that of the task `{task}`")
        }
        Need::Fair(_) => "manage for a priority above 0 or `non_preemptible`".to_owned(),
        Need::Node(path) => format!("an agent: its own node or worker in `{path}`"),
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let names: Vec<&str> = Right::ALL.iter().map(|right| right.name()).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(page, "| role | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for role in Role::ALL {
        let has: Vec<&str> =
            Right::ALL.iter().map(|right| if right.is_in(role) { "yes" } else { "" }).collect();
        let _ = writeln!(page, "| `{}` | {} |", role.name(), has.join(" | "));
    }
    page += RIGHTS;
    page += "## Endpoints\n\nA call of an audited endpoint is in `cantle audit`, with the caller, the caller's address, and the former values.\n\n";
    page += "| endpoint | needs | audited |\n|---|---|---|\n";
    for rule in TABLE {
        let needs: Vec<String> = rule.needs.iter().map(need).collect();
        let audited = if rule.audited { "yes" } else { "" };
        let _ = writeln!(page, "| `{}` | {} | {audited} |", rule.endpoint, needs.join("; "));
    }
    page += DOORS;
    page
}

#[test]
fn the_table_has_every_endpoint_in_order() {
    let mut served = crate::services::routes().names();
    served.extend(["auth.login", "events.add_batch"]);
    served.sort_unstable();
    let listed: Vec<&str> = TABLE.iter().map(|rule| rule.endpoint).collect();
    assert_eq!(
        listed, served,
        "each endpoint has a row, and each row an endpoint, in the order of the names"
    );
}

#[test]
fn the_reference_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/rights.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page(), "UPDATE=1 writes {} again", path.display());
}
