//! Tasks in real containers of a real engine: `tests/docker/run.sh` starts one and runs this. Without it, a skip.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cantle_runtime::{ContainerSpec, Engine, EngineError, Exit, TaskSpec, adopt, alive};
use common::docker::{Docker, lease, output, spec};
use common::{Bench, eventually, read, stdout};

const CUDA_NAMES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.550",
    "/usr/lib64/libcuda.so.1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_name_of_the_driver_leads_to_the_shim() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let cats: Vec<String> = CUDA_NAMES.iter().map(|name| format!("cat {name}; echo")).collect();
    let script = format!(
        "cat /run/cantle/real/libcuda.so.1; echo; {}; cat /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; echo; \
         (echo x >/run/cantle/slice/limits) 2>/dev/null || echo refused; echo 1 >/run/cantle/slice/usage; \
         umount {} 2>/dev/null || echo stays; echo $GPU_MEMORY_LIMIT $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $A",
        cats.join("; "),
        CUDA_NAMES[0],
    );

    let text = docker.prints(&bench, &script, &["-e", "A=b c", "--rm", "-it"]).await;

    let expected = [
        "real cuda",
        "shim cuda",
        "shim cuda",
        "shim cuda",
        "shim cuda",
        "shim nvml",
        "refused",
        "stays",
        "21474836480 void GPU-a b c",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    assert_eq!(read(&bench.path("slice/limits")), "limits");
    assert_eq!(read(&bench.path("slice/usage")), "1");
    let log = read(&bench.path("task/output.log"));
    let command = log.lines().next().unwrap();
    assert!(command.starts_with("cantle: docker run --name=cantle-test"), "{command}");
    assert!(command.contains("'--env=A=b c'") && command.contains("limits,readonly"), "{command}");
    assert!(log.contains("cantle: --rm left out"), "{log}");
    assert!(!docker.is_left(&lease(&bench)).await, "the container is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_are_the_tasks_or_dockers() {
    let Some(docker) = Docker::new().await else { return };
    for (argv, code) in [(&["sh", "-c", "exit 7"][..], 7), (&["sh", "-c", "kill -9 $$"], 137)] {
        let bench = Bench::new();
        let output = bench.container_output();
        let started = docker.engine.start(&spec(&bench, argv), &docker.container(&[]), output).await;
        // The container's init cannot kill itself; it ends with 0 instead of by the signal.
        let expected = if code == 137 { 0 } else { code };
        assert_eq!(started.unwrap().wait().await.code(), expected, "{argv:?}");
    }
    for (argv, code) in
        [(&["no-such-program"][..], 127), (&["/no/such/program"], 127), (&["/etc/passwd"], 126)]
    {
        let bench = Bench::new();
        let output = bench.container_output();
        let error =
            docker.engine.start(&spec(&bench, argv), &docker.container(&[]), output).await.unwrap_err();
        assert_eq!(error.exit_code(), code, "{argv:?}: {error}");
        assert!(!docker.is_left(&lease(&bench)).await, "nothing is left of {argv:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_is_killed_at_its_memory_limit_names_it() {
    let Some(docker) = Docker::new().await else { return };
    let fill = ["python3", "-c", "x = b'x' * (1 << 28)"];
    let bench = Bench::new();
    let limited = docker.container(&["--memory=64m", "--memory-swap=64m"]);
    let started = docker.engine.start(&spec(&bench, &fill), &limited, bench.container_output()).await;
    let exit = started.unwrap().wait().await;
    assert_eq!(exit.code(), 137);
    assert!(exit.reason().is_some_and(|why| why.contains("limit of 64 MiB of main memory")), "{exit:?}");
    // The same program without a limit.
    let bench = Bench::new();
    let started =
        docker.engine.start(&spec(&bench, &fill), &docker.container(&[]), bench.container_output()).await;
    assert_eq!(started.unwrap().wait().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_not_started() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let error = docker.start(&bench, "true", &["--privileged"]).await.unwrap_err();
    assert!(error.to_string().starts_with("container option --privileged is refused"), "{error}");
    let shim = format!("{}:/x", bench.path("shim").display());
    let error = docker.start(&bench, "true", &["-v", &shim]).await.unwrap_err();
    assert!(error.to_string().contains("which is not the task's"), "{error}");
    let missing = ContainerSpec { image: "no-such-image".to_owned(), ..docker.container(&["--pull=never"]) };
    let output = bench.container_output();
    let error = docker.engine.start(&spec(&bench, &["true"]), &missing, output).await.unwrap_err();
    assert!(error.to_string().contains("--pull=never forbids"), "{error}");
    assert!(!docker.is_left(&lease(&bench)).await);
    let nobody = Engine::connect(Some(Path::new("/no/such/socket"))).await.unwrap_err();
    assert!(matches!(nobody, EngineError::NotThere(_)), "{nobody}");
}

/// An image whose links make a harmless-looking mount of the task land on cantle's files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_hides_its_slice_does_not_run() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let image = format!("cantle-test:{}", lease(&bench));
    let name = format!("links-{}", lease(&bench));
    let links = "mkdir -p /a/b/c/d/e && ln -s /run/cantle/slice /a/b/c/d/e/f";
    assert!(docker.client(&["run", "--name", &name, &docker.image, "sh", "-c", links]).status.success());
    assert!(docker.client(&["commit", &name, &image]).status.success());
    docker.client(&["rm", &name]);
    std::fs::create_dir(bench.path("evil")).unwrap();
    std::fs::write(bench.path("evil/limits"), "no limit").unwrap();
    let volume = format!("{}:/a/b/c/d/e/f/limits", bench.path("evil/limits").display());
    let container = ContainerSpec { image: image.clone(), ..docker.container(&["-v", &volume]) };
    let spec = spec(&bench, &["sleep", "60"]);

    let error = docker.engine.start(&spec, &container, bench.container_output()).await.unwrap_err();

    assert!(error.to_string().contains("hides limits of its slice"), "{error}");
    assert!(!docker.is_left(&spec.lease).await, "it was ended");
    docker.client(&["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_enters_the_container_meets_the_shim_and_belongs_to_the_task() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let mut task = docker.start(&bench, "sleep 300", &[]).await.unwrap();
    assert!(alive(&task.leader()));
    let name = format!("cantle-{}", lease(&bench));

    let seen = docker.client(&["exec", &name, "env", "-i", "/bin/cat", CUDA_NAMES[0]]);
    docker.client(&["exec", "-d", &name, "sleep", "301"]);

    assert_eq!(stdout(&seen), "shim cuda");
    eventually("the intruder is counted", || task.pids().len() >= 2);
    task.stopper().kill().await;
    assert_eq!(task.wait().await.code(), 137);
    assert!(task.pids().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_is_gentle_first_and_final() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let script = "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut task = docker.start(&bench, script, &[]).await.unwrap();
    eventually("it is ready", || output(&bench) == "ready");
    task.stopper().stop(Duration::from_secs(60)).await;
    assert_eq!(task.wait().await, Exit::Code(9));
    assert_eq!(output(&bench), "ready\nbye");

    let bench = Bench::new();
    let mut task = docker.start(&bench, "trap '' TERM; while :; do sleep 0.05; done", &[]).await.unwrap();
    task.stopper().stop(Duration::from_secs(1)).await;
    assert_eq!(task.wait().await, Exit::Code(137));
    assert!(!docker.is_left(&lease(&bench)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_is_adopted_and_its_output_is_not_doubled() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let script = "echo one; while [ ! -e /go/go ]; do sleep 0.05; done; echo two; exit 4";
    let spec = spec(&bench, &["sh", "-c", script]);
    std::fs::create_dir(bench.path("go")).unwrap();
    let volume = format!("{}:/go", bench.path("go").display());
    let container = docker.container(&["-v", &volume]);
    // An agent that dies: its runtime ends in the middle, after the first line, with all that it was doing.
    let agent = std::thread::spawn({
        let (engine_dir, output) = (docker.dir.clone(), bench.container_output());
        let log = bench.path("task/output.log");
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let engine = Engine::connect(Some(&engine_dir.join("docker.sock"))).await.unwrap();
                let _task = engine.start(&spec, &container, output).await.unwrap();
                let first = async {
                    // Lines of cantle's own are before it.
                    while !read(&log).ends_with("\none") && read(&log) != "one" {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(60), first).await.unwrap();
            });
        }
    });
    agent.join().unwrap();
    assert_eq!(output(&bench), "one");

    let mut task = adopt(&bench.task()).unwrap().unwrap();
    assert!(alive(&task.leader()));
    std::fs::write(bench.path("go/go"), "").unwrap();

    assert_eq!(task.wait().await, Exit::Code(4));
    assert_eq!(output(&bench), "one\ntwo");
    assert_eq!(adopt(&bench.task()).unwrap().unwrap().wait().await, Exit::Code(4), "adopted after its end");
    assert!(!docker.is_left(&lease(&bench)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_does_not_make_a_second_container() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let lease = lease(&bench);
    let label = format!("cantle.dev/lease={lease}");
    let name = format!("cantle-{lease}");
    let create = [
        "create",
        "--name",
        &name,
        "-l",
        &label,
        "-l",
        "cantle.dev/task=task-1",
        &docker.image,
        "echo",
        "found",
    ];
    assert!(docker.client(&create).status.success());
    let spec = TaskSpec { slices: Vec::new(), ..spec(&bench, &["echo", "second"]) };
    let output_dir = bench.container_output();

    let mut task = docker.engine.start(&spec, &docker.container(&[]), output_dir).await.unwrap();

    assert_eq!(task.wait().await, Exit::Code(0));
    assert_eq!(output(&bench), "found");
}

/// `cantle run --image`: the front end's own stdout and stderr, its signals, its exit code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_end_shows_the_container_as_if_it_were_its_own() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let script = "trap 'echo bye; exit 42' INT; echo out; echo err >&2; while :; do sleep 0.05; done";
    let spec_file = bench.path("spec.json");
    std::fs::write(&spec_file, serde_json::to_vec(&spec(&bench, &["sh", "-c", script])).unwrap()).unwrap();
    let (out, err) = (bench.path("out"), bench.path("err"));
    let mut front = Command::new(common::start_program());
    front.arg("container").args([&spec_file, &docker.dir.join("docker.sock")]).arg(&docker.image);
    front.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
    let mut front = front.spawn().unwrap();
    eventually("it writes", || read(&out) == "out" && read(&err).ends_with("err"));

    let pid = nix::unistd::Pid::from_raw(front.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();

    assert_eq!(front.wait().unwrap().code(), Some(42));
    assert_eq!(read(&out), "out\nbye");
    assert!(!docker.is_left(&lease(&bench)).await);
}

/// The test moves the clock itself, so that it need not wait for the limits.
#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("hangs.sock");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();

    let error = Engine::connect(Some(&socket)).await.unwrap_err();

    assert!(matches!(error, EngineError::Hangs { .. }), "{error}");
    assert_eq!(error.to_string(), "container engine: ping: no answer within 30 s");
}

/// The watchdog must not need the engine's help.
#[tokio::test]
async fn a_task_is_killed_even_if_the_engine_hangs() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let mut task = docker.start(&bench, "sleep 300", &[]).await.unwrap();
    let (leader, stopper) = (task.leader(), task.stopper());
    let engine: i32 = read(&docker.dir.join("docker.pid")).parse().unwrap();
    let engine = nix::unistd::Pid::from_raw(engine);
    nix::sys::signal::kill(engine, nix::sys::signal::Signal::SIGSTOP).unwrap();

    tokio::time::pause();
    stopper.kill().await;
    tokio::time::resume();
    let is_gone = !alive(&leader);
    nix::sys::signal::kill(engine, nix::sys::signal::Signal::SIGCONT).unwrap();

    assert!(is_gone, "the task lived on while its engine hung");
    assert_eq!(task.wait().await.code(), 137);
}

/// Takes the engine away from all tests: they are run one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_is_killed_and_comes_back() {
    let Some(docker) = Docker::new().await else { return };
    let bench = Bench::new();
    let script = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 3";
    let mut task = docker.start(&bench, script, &[]).await.unwrap();
    eventually("it writes", || output(&bench).lines().count() > 5);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/docker/engine.sh");
    let dir = docker.dir.clone();
    let restart =
        tokio::task::spawn_blocking(move || Command::new(script).arg("restart").arg(dir).status().unwrap());

    assert_eq!(task.wait().await, Exit::Code(3));
    assert!(restart.await.unwrap().success());
    let numbers: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    assert_eq!(output(&bench), numbers.join("\n"));
    assert!(!docker.is_left(&lease(&bench)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_start_at_once() {
    let Some(docker) = Docker::new().await else { return };
    let benches: Vec<Bench> = (0..20).map(|_| Bench::new()).collect();
    let began = tokio::time::Instant::now();
    let starts = benches.iter().map(|bench| docker.start(bench, "cat /run/cantle/slice/limits", &[]));
    let started = futures_util::future::join_all(starts).await;
    for (task, bench) in started.into_iter().zip(&benches) {
        assert_eq!(task.unwrap().wait().await, Exit::Code(0));
        assert_eq!(output(bench), "limits");
    }
    eprintln!("twenty containers in {:?}", began.elapsed());
}
