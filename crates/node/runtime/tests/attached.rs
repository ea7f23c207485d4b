//! A task on this process's terminal: its confinement, its end, and the processes that it leaves behind.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cantle_runtime::{BackendChoice, holder_of};
use common::{Bench, eventually, no_root, pid_here, read, stderr, stdout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn every_name_of_the_driver_leads_to_the_shim() {
    if no_root() {
        return;
    }
    let bench = Bench::new();
    let names = ["real/libcuda.so.1", "real/libcuda.so.550", "compat/libcuda.so.1", "real/libnvidia-ml.so.1"];
    let names = names.map(|name| format!("{}; echo", bench.path(name).display()));
    let script = format!(
        "for f in /run/cantle/real/libcuda.so.1 /run/cantle/real/libnvidia-ml.so.1; do cat $f; echo; done; {}",
        names.map(|name| format!("cat {name}")).join("; ")
    );

    let output = bench.run(&bench.shell(&script));

    assert!(stderr(&output).contains("MountNamespace"), "{}", stderr(&output));
    let expected = ["real cuda", "real nvml", "shim cuda", "shim cuda", "shim cuda", "shim nvml"];
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected);
    assert_eq!(read(&bench.path("real/libcuda.so.1")), "real cuda", "outside nothing has changed");
    assert!(!Path::new("/run/cantle/slice/limits").exists(), "outside there is no slice");
}

#[test]
fn limits_are_not_the_tenants_to_write_and_usage_is() {
    if no_root() {
        return;
    }
    let bench = Bench::new();
    let script = "cd /run/cantle/slice; cat limits; echo; \
                  (echo x >limits) 2>/dev/null || echo refused; rm -f limits 2>/dev/null || echo stays; \
                  (echo x >new) 2>/dev/null || echo full; echo used >usage && echo counted; \
                  (echo x >../real/libcuda.so.1) 2>/dev/null || echo driver-safe";

    let output = bench.run(&bench.shell(script));

    assert_eq!(
        stdout(&output).lines().collect::<Vec<_>>(),
        ["limits", "refused", "stays", "full", "counted", "driver-safe"]
    );
    assert_eq!(read(&bench.path("slice/limits")), "limits");
    assert_eq!(read(&bench.path("slice/usage")), "used");
}

#[test]
fn a_task_of_root_cannot_undo_what_is_in_its_way() {
    if no_root() {
        return;
    }
    let bench = Bench::new();
    let library = bench.path("real/libcuda.so.1");
    // Each would show the real library, were it allowed: undoing the mount, looking through the eyes of a process
    // outside, entering its namespace.
    let script = format!(
        "umount {0} 2>/dev/null; cat {0}; echo; cat /proc/{1}/root{0} 2>/dev/null; \
         nsenter -t {1} -m cat {0} 2>/dev/null; unshare -m umount {0} 2>/dev/null; cat {0}",
        library.display(),
        std::process::id()
    );

    let output = bench.run(&bench.shell(&script));

    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), ["shim cuda", "shim cuda"]);
    let mut outside = Command::new("nsenter");
    outside.args(["-t", &std::process::id().to_string(), "-m", "cat"]).arg(&library);
    assert_eq!(stdout(&outside.output().unwrap()), "real cuda", "without cantle it is possible");
}

#[test]
fn preload_where_it_is_asked_for() {
    let bench = Bench::new();
    let mut spec = bench.shell("echo $LD_PRELOAD; echo $CANTLE_SLICE_DIR");
    spec.confinement.backend = BackendChoice::Preload;
    spec.env = BTreeMap::from([("LD_PRELOAD".into(), "".into())]);

    let output = bench.run(&spec);

    assert!(stderr(&output).contains("Preload"), "{}", stderr(&output));
    let expected = [bench.path("shim/libcantle-preload.so"), bench.path("slice")];
    assert_eq!(stdout(&output), expected.map(|path| path.display().to_string()).join("\n"));
}

#[test]
fn preload_where_mounts_are_impossible() {
    if no_root() {
        return;
    }
    let bench = Bench::new();
    let command = bench.attached(&bench.shell("echo $LD_PRELOAD"));
    std::fs::set_permissions(bench.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    let output = nobody.arg(command.get_program()).args(command.get_args()).output().unwrap();

    assert_eq!(stdout(&output), bench.path("shim/libcantle-preload.so").display().to_string());
    assert!(stderr(&output).contains("no mount namespace: "), "{}", stderr(&output));

    let mut spec = bench.shell("true");
    spec.confinement.backend = BackendChoice::MountNamespace;
    let command = bench.attached(&spec);
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    let output = nobody.arg(command.get_program()).args(command.get_args()).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "nothing weaker was allowed");
}

#[test]
fn the_environment_names_the_slice() {
    let bench = Bench::new();
    let script = "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPU_MEMORY_LIMIT \
                  $CANTLE_SLICE $LD_LIBRARY_PATH $OWN";
    let mut spec = bench.shell(script);
    spec.env = [("OWN", "yes"), ("CUDA_VISIBLE_DEVICES", "GPU-other"), ("LD_LIBRARY_PATH", "/mine")]
        .map(|(name, value)| (name.into(), value.into()))
        .into();

    let output = bench.run(&spec);

    let lease = bench.dir.path().file_name().unwrap().to_string_lossy();
    assert_eq!(stdout(&output), format!("GPU-a GPU-a PCI_BUS_ID 21474836480 {lease} /mine yes"));
}

#[test]
fn exit_codes_are_the_tasks_or_dockers() {
    let bench = Bench::new();
    let code = |argv: &[&str]| bench.run(&bench.spec(argv)).status.code();
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(code(&["/no/such/program"]), Some(127));
    assert_eq!(code(&["no-such-program"]), Some(127));
    assert_eq!(code(&["/etc/passwd"]), Some(126));
    assert_eq!(code(&[]), Some(125));
    let mut spec = bench.spec(&["true"]);
    spec.cwd = Some("/no/such/folder".into());
    let output = bench.run(&spec);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(stderr(&output), "working directory /no/such/folder does not exist");
}

#[test]
fn what_a_task_leaves_behind_is_ended() {
    let bench = Bench::new();
    let note = bench.path("orphan");
    // The orphan ignores SIGTERM and has left its session: only SIGKILL to what the subreaper sees gets it.
    let script = format!(
        "setsid sh -c 'trap \"\" TERM; echo $$ >{}; while :; do sleep 0.1; done' >/dev/null 2>&1 & \
         while [ ! -s {} ]; do sleep 0.01; done; exit 3",
        note.display(),
        note.display()
    );

    let output = bench.run(&bench.shell(&script));

    assert_eq!(output.status.code(), Some(3));
    assert_eq!(pid_here(&note), None, "the orphan lives on");
}

#[test]
fn sigterm_is_passed_on_and_the_task_may_answer() {
    let bench = Bench::new();
    let ready = bench.path("ready");
    let script = format!("trap 'exit 42' TERM; echo x >{}; while :; do sleep 0.05; done", ready.display());
    let mut child = bench.attached(&bench.shell(&script)).stderr(Stdio::null()).spawn().unwrap();
    eventually("the task is ready", || !read(&ready).is_empty());

    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(42));
}

#[test]
fn a_killed_front_end_leaves_the_task_confined() {
    if no_root() {
        return;
    }
    let bench = Bench::new();
    let note = bench.path("leader");
    let seen = bench.path("seen");
    let script = format!(
        "echo $$ >{}; while [ ! -e {} ]; do sleep 0.02; done; cat {} >{}",
        note.display(),
        bench.path("go").display(),
        bench.path("real/libcuda.so.1").display(),
        seen.display()
    );
    let mut child = bench.attached(&bench.shell(&script)).stderr(Stdio::null()).spawn().unwrap();
    eventually("the task is ready", || !read(&note).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();

    let leader = pid_here(&note).expect("the task goes on");
    std::fs::write(bench.path("go"), "").unwrap();
    eventually("the task ends", || holder_of(leader).is_none());
    assert_eq!(read(&seen), "shim cuda");
}

/// Ctrl-C and Ctrl-Z as a terminal sends them, to the whole foreground group: once to the task, not twice.
#[test]
fn a_terminal_reaches_the_task_once() {
    let bench = Bench::new();
    let (ready, interrupted) = (bench.path("ready"), bench.path("interrupted"));
    let script = format!(
        "trap 'echo x >>{}' INT; trap 'exit 42' QUIT; echo x >{}; while :; do sleep 0.02; done",
        interrupted.display(),
        ready.display()
    );
    let command = bench.attached(&bench.shell(&script));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>();
    // A shell that stays in between would die of the terminal's signals itself: dash does, bash gets out of the way.
    let line = format!("exec {}", words.join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    eventually("the task is ready", || !read(&ready).is_empty());

    keyboard.write_all(b"\x03").unwrap();
    eventually("the task was interrupted", || !read(&interrupted).is_empty());
    keyboard.write_all(b"\x1c").unwrap();

    assert_eq!(terminal.wait().unwrap().code(), Some(42));
    assert_eq!(read(&interrupted), "x");
}
