//! What people write every day against a server: names instead of ids, no project where there is only one, and errors that name
//! commands. The server is the program itself; no GPU is needed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod served;

use std::process::Output;

use served::{Server, cantle};

fn code_and_errors(done: &Output) -> (Option<i32>, String) {
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn a_task_is_named_by_its_name_or_the_beginning_of_its_id() {
    let server = Server::start();
    server.queue("q");
    let submit = |name: &str| server.ok(&["submit", "--queue", "q", "--name", name, "--", "true"]);
    let (one, two) = (submit("train"), submit("evaluate"));
    for word in ["train", &one[..8], &one] {
        assert_eq!(server.ok(&["tasks", "-o", "name", word]), one, "{word}");
        assert!(server.ok(&["why", word]).starts_with(&format!("train ({one}) is queued")), "{word}");
        server.ok(&["logs", word]);
        assert!(!server.ok(&["events", "--task", word, "-o", "name"]).is_empty());
    }
    assert_eq!(server.ok(&["tasks", "-o", "name", "train", "evaluate"]).lines().count(), 2);
    for word in ["trai", &one[..3], "ffffffffffffffffffffffffffffffff"] {
        let (code, errors) = code_and_errors(&server.run(&["why", word]));
        assert_eq!(
            (code, errors.lines().next()),
            (Some(3), Some(&*format!("cantle: there is no task {word}")))
        );
    }
    // Several of one name: nothing is done to any of them.
    submit("train");
    let (code, errors) = code_and_errors(&server.run(&["stop", "train"]));
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.starts_with("cantle: \"train\" means 2 tasks\nhint: write more of the id\n"), "{errors}");
    assert!(errors.contains(&format!("hint: {one} is train (queued)")), "{errors}");
    server.ok(&["stop", "evaluate"]);
    let (code, errors) = code_and_errors(&server.run(&["stop", "evaluate"]));
    assert_eq!(code, Some(8), "{errors}");
    assert!(errors.contains(&format!("task {two} (evaluate) has ended: it is stopped")), "{errors}");
}

#[test]
fn a_member_of_one_project_needs_not_name_it() {
    let server = Server::start();
    server.queue("q");
    for project in ["vision", "speech"] {
        server.ok(&["submit", "--queue", "q", "--project", project, "--", "true"]);
    }
    let anna = server.user(&["anna", "--role", "member", "--project", "vision"]);
    let submit = ["submit", "--queue", "q", "--name", "annas", "--", "true"];
    let done = server.run_as(&anna, &submit);
    assert!(done.status.success(), "{:?}", code_and_errors(&done));
    let listed = server.ok(&["-o", "json", "tasks", "annas"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["items"][0]["project"], "vision");
    // Her own tasks are fewer than those that she sees.
    let lines =
        |words: &[&str]| String::from_utf8(server.run_as(&anna, words).stdout).unwrap().lines().count();
    assert_eq!((lines(&["tasks", "-o", "name"]), lines(&["tasks", "--mine", "-o", "name"])), (2, 1));
    // In two projects she has to say which, once.
    server.ok(&["users", "role", "anna", "--role", "member", "--project", "speech"]);
    let (code, errors) = code_and_errors(&server.run_as(&anna, &submit));
    assert_eq!(code, Some(2));
    assert_eq!(
        errors,
        "cantle: --project: you may submit in speech, vision; name one\nhint: or once for all: export CANTLE_PROJECT=NAME\n"
    );
    // A refusal names what she wrote, not the server's calls.
    for (words, called) in [
        (&["users", "list"][..], "cantle users list"),
        (&["audit"], "cantle audit"),
        (&["submit", "--queue", "q", "--project", "theirs", "--", "true"], "cantle submit"),
    ] {
        let (code, errors) = code_and_errors(&server.run_as(&anna, words));
        assert_eq!(code, Some(4), "{errors}");
        assert!(errors.starts_with(&format!("cantle: {called} needs the right ")), "{errors}");
    }
}

#[test]
fn tables_have_ages_and_the_help_has_groups() {
    let server = Server::start();
    server.queue("q");
    server.ok(&["submit", "--queue", "q", "--name", "train", "--", "true"]);
    let table = server.ok(&["tasks"]);
    let (head, row) = table.split_once('\n').unwrap();
    for column in ["ID", "NAME", "AGE", "TIME"] {
        assert!(head.split_whitespace().any(|word| word == column), "{head}");
    }
    assert!(
        row.split_whitespace()
            .any(|word| word.ends_with('s') && word[..word.len() - 1].parse::<u32>().is_ok()),
        "{row}"
    );
    let help = server.ok(&["--help"]);
    for group in ["Tasks:", "Machines:", "Administration:", "More:"] {
        assert!(help.lines().any(|line| line == group), "{help}");
    }
    // The short help of a command is short, and has its own options first.
    let short = cantle(server.dir.path()).args(["tasks", "-h"]).output().unwrap();
    let short = String::from_utf8(short.stdout).unwrap();
    assert!(short.find("--mine").unwrap() < short.find("--output").unwrap(), "{short}");
    assert!(!short.contains("--client-cert"), "{short}");
}
