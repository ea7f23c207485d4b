//! The other programs that this test binary can be.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AgentConfig, AllocationMode, daemon};
use cantle_clearml::Credentials;
use cantle_driver::Installation;
use cantle_model::{ComputeRequest, EnforceMode, GpuList, GpuRequest, QueueSpec};
use cantle_node::{Command, RunRequest, run_here};
use cantle_runtime::{BackendChoice, Privileges};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// First argument: be `cantle run`.
pub(crate) const RUN: &str = "__test-run";
/// First argument: be `cantle daemon`.
pub(crate) const DAEMON: &str = "__test-daemon";

pub(crate) fn async_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn source(place: &Path) -> Installation {
    Installation::in_directory(place.join("sim"), place.join("lib"))
}

/// `PLACE GPU TIMEOUT_S SCRIPT`
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let [place, gpu, timeout_s, script] = args else { return ExitCode::from(2) };
    let place = Path::new(place);
    let timeout_s: u64 = timeout_s.to_str().unwrap().parse().unwrap();
    let request = RunRequest {
        gpus: GpuList::All,
        request: match gpu.to_str().unwrap() {
            memory if memory.ends_with('i') => GpuRequest::from_memory(memory).unwrap(),
            fraction => GpuRequest::from_fraction(fraction).unwrap(),
        },
        memory_limit: None,
        isolation: cantle_model::Isolation::Any,
        compute: ComputeRequest::default(),
        command: Command { argv: vec!["sh".into(), "-c".into(), script.clone()], ..Command::default() },
        time: None,
        module_reserve_bytes: 0,
        timeout: (timeout_s > 0).then(|| Duration::from_secs(timeout_s)),
        installation: source(place),
        lib_dir: place.join("lib"),
        backend: BackendChoice::Auto,
        enforce: EnforceMode::default(),
        privileges: Privileges::default(),
        image: None,
    };
    let ran = async_runtime().block_on(run_here(request, &|line| eprintln!("cantle: {line}")));
    match ran {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap()),
        Err(error) => {
            eprintln!("cantle: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// `PLACE URL ACCESS_KEY SECRET_KEY GPUS QUEUE=SPEC…`, until SIGTERM
pub(crate) fn serve(args: &[OsString]) -> ExitCode {
    let args: Vec<String> = args.iter().map(|arg| arg.to_str().unwrap().to_owned()).collect();
    let [place, url, access_key, secret_key, gpus, queues @ ..] = args.as_slice() else {
        return ExitCode::from(2);
    };
    let keys = Credentials { access_key: access_key.clone(), secret_key: secret_key.clone() };
    let place = Path::new(place);
    let mut config = AgentConfig::new(url.clone(), keys, source(place));
    config.gpus = GpuList::parse(std::slice::from_ref(gpus)).unwrap();
    config.gpus_text = Some(gpus.clone());
    config.queues = queues.iter().map(|queue| QueueSpec::parse(queue).unwrap()).collect();
    config.allocation_mode = AllocationMode::Slices;
    config.create_queues = true;
    config.lib_dir = place.join("lib");
    config.state_dir = place.join("agent");
    config.poll = Duration::from_millis(100);
    // Enough for a task that answers at once, on a busy machine too.
    config.stop_grace = Duration::from_secs(5);
    let served = async_runtime().block_on(async {
        let (stop, stopping) = watch::channel(false);
        let mut terminate = signal(SignalKind::terminate()).unwrap();
        tokio::spawn(async move {
            terminate.recv().await;
            stop.send_replace(true);
        });
        daemon(config, stopping, || ()).await
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cantle: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
