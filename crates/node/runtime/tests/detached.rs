//! A task with a supervisor: it outlives the program that started it, and is found again.

mod common;

use std::process::Command;
use std::time::Duration;

use cantle_runtime::{Exit, TaskDirectory, adopt, alive, holder_of, start_detached};
use common::{Bench, eventually, read, start_program, with_word};

#[tokio::test]
async fn output_and_end_are_on_disk() {
    let bench = Bench::new();
    let dir = bench.path("task");
    let spec = bench.shell("echo out; echo err >&2; exit 5");

    let mut task = start_detached(&spec, &bench.task(), &start_program()).await.unwrap();

    assert_eq!(task.wait().await, Exit::Code(5));
    assert_eq!(task.wait().await, Exit::Code(5), "asked again");
    assert_eq!(read(&dir.join("output.log")), "out\nerr");
    assert_eq!(adopt(&bench.task()).unwrap().unwrap().wait().await, Exit::Code(5), "adopted after its end");
}

/// What a service of root has: no home directory, and systemd's variables. A process of its own, because its environment is the test.
#[test]
fn a_task_of_a_service_has_a_home_and_nothing_of_systemd() {
    const INSIDE: &str = "CANTLE_TEST_INSIDE";
    let of_systemd = ["INVOCATION_ID", "JOURNAL_STREAM", "STATE_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC"];
    let of_logins = ["HOME", "USER", "LOGNAME", "SHELL"];
    if std::env::var_os(INSIDE).is_none() {
        let mut own = Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "a_task_of_a_service_has_a_home_and_nothing_of_systemd"]).env(INSIDE, "1");
        for name in of_systemd {
            own.env(name, "of the service");
        }
        for name in of_logins {
            own.env_remove(name);
        }
        own.env("SHELL", "/own/shell");
        assert!(own.status().unwrap().success());
        return;
    }
    let bench = Bench::new();
    let spec = bench.shell("env");
    let task = async { start_detached(&spec, &bench.task(), &start_program()).await.unwrap().wait().await };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(runtime.block_on(task), Exit::Code(0));
    let env = read(&bench.path("task/output.log"));
    let value = |name: &str| env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
    assert_eq!(value("HOME"), user.dir.to_str());
    assert_eq!((value("USER"), value("LOGNAME")), (Some(user.name.as_str()), Some(user.name.as_str())));
    assert_eq!(value("SHELL"), Some("/own/shell"), "what the agent has is not changed");
    assert_eq!(value(INSIDE), Some("1"), "the control: the rest of the environment is passed on");
    assert_eq!(of_systemd.map(value), [None; 5]);
}

#[tokio::test]
async fn what_does_not_start_says_why() {
    let bench = Bench::new();
    let start = async |argv: &[&str]| {
        start_detached(&bench.spec(argv), &bench.task(), &start_program()).await.unwrap_err()
    };
    let error = start(&["no-such-program"]).await;
    assert_eq!(error.to_string(), "no-such-program: command not found");
    assert_eq!(error.exit_code(), 127);
    let error = start(&["/etc/passwd"]).await;
    assert_eq!(error.to_string(), "/etc/passwd: cannot execute: Permission denied (os error 13)");
    assert_eq!(error.exit_code(), 126);
    assert!(adopt(&bench.task()).unwrap().is_none(), "nothing was started");
    assert!(adopt(&TaskDirectory::new(bench.path("nowhere"))).unwrap().is_none());
}

#[tokio::test]
async fn stop_is_gentle_first() {
    let bench = Bench::new();
    let ready = bench.path("ready");
    let script = format!("trap 'exit 9' TERM; echo x >{}; while :; do sleep 0.02; done", ready.display());
    let spec = bench.shell(&script);
    let mut task = start_detached(&spec, &bench.task(), &start_program()).await.unwrap();
    eventually("the task is ready", || !read(&ready).is_empty());

    task.stopper().stop(Duration::from_secs(60)).await;

    assert_eq!(task.wait().await, Exit::Code(9));
}

#[tokio::test]
async fn stop_is_final() {
    let bench = Bench::new();
    let note = bench.path("pids");
    // Both ignore SIGTERM, and the second has left the session.
    let script = format!(
        "trap '' TERM; setsid sh -c 'echo $$ >>{0}; while :; do sleep 0.02; done' & \
         echo $$ >>{0}; while :; do sleep 0.02; done",
        note.display()
    );
    let spec = bench.shell(&script);
    let mut task = start_detached(&spec, &bench.task(), &start_program()).await.unwrap();
    eventually("both are ready", || read(&note).lines().count() == 2);

    task.stopper().stop(Duration::from_millis(100)).await;

    assert_eq!(task.wait().await, Exit::Signal(9));
    assert!(with_word(&note).is_empty(), "they live on");
}

#[tokio::test]
async fn a_task_outlives_its_starter_and_is_adopted() {
    let bench = Bench::new();
    let (dir, go) = (bench.path("task"), bench.path("go"));
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done; exit 6", go.display());
    let spec_file = bench.path("spec.json");
    std::fs::write(&spec_file, serde_json::to_vec(&bench.shell(&script)).unwrap()).unwrap();
    let mut starter = Command::new(start_program());
    let mut starter = starter.arg("detached").args([&spec_file, &dir]).spawn().unwrap();
    // Before that, only its first process is recorded, which is cantle's own.
    eventually("the task has started", || {
        let state = serde_json::from_str(&read(&dir.join("state.json"))).unwrap_or(serde_json::Value::Null);
        state["scope"]["leader"] != state["scope"]["root"]
    });
    starter.kill().unwrap();
    starter.wait().unwrap();

    let mut task = adopt(&bench.task()).unwrap().unwrap();
    assert!(alive(&task.leader()));
    assert!(task.pids().contains(&task.leader().pid));
    let state = std::fs::read(dir.join("state.json")).unwrap();
    std::fs::write(dir.join("state.json"), "{\"of\": \"another version\"}").unwrap();
    let error = adopt(&bench.task()).unwrap_err();
    assert!(error.to_string().contains("state.json"), "a task that runs counts as never started: {error}");
    std::fs::write(dir.join("state.json"), state).unwrap();
    std::fs::write(&go, "").unwrap();

    assert_eq!(task.wait().await, Exit::Code(6));
    assert_eq!(read(&dir.join("output.log")), "done");
}

#[tokio::test]
async fn a_killed_supervisor_is_a_lost_task_and_leaves_nobody() {
    let bench = Bench::new();
    let spec = bench.shell("sleep 60 & sleep 60");
    let mut task = start_detached(&spec, &bench.task(), &start_program()).await.unwrap();
    eventually("both sleepers run", || task.pids().len() == 3);
    let pids = task.pids();
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(1).unwrap().to_owned()
    };
    // Between them is the task's first process.
    let supervisor = parent(&parent(&task.leader().pid.to_string()));

    let killed = Command::new("kill").args(["-9", &supervisor]).status().unwrap();

    assert!(killed.success());
    assert_eq!(task.wait().await, Exit::Lost);
    for pid in pids {
        // Their new parent reaps them in its own time; a zombie is as good as gone.
        eventually("the sleepers are gone", || holder_of(pid).is_none());
    }
    assert!(task.cgroup().is_none_or(|group| !group.exists()));
    assert!(bench.path("task/task.json").exists());
}
