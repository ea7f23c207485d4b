//! `cantle doctor`: what this machine has, what it lacks, what to do.

use std::path::PathBuf;

use cantle_clearml::workers;
use cantle_driver::{Driver, DriverError, Installation};
use cantle_model::Bytes;
use cantle_runtime::{Engine, EngineError, EngineInfo};
use clap::Args;

use super::finding::{Finding, Verdict, good, not, report};
use super::{Context, bundle, runtime};
use crate::connect::{Server, local};
use crate::containers::SocketArgs;
use crate::error::{CliError, Outcome};
use crate::place::is_root;

/// `cantle doctor`
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Write what a maintainer needs to a file: versions, layouts, symbols, logs; it says what, and leaves secrets out
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "cantle-bundle.txt")]
    bundle: Option<PathBuf>,
}

const LIBRARIES: [&str; 6] = [
    "shim/libcuda.so.1",
    "shim/libnvidia-ml.so.1",
    "shim/libcantle-preload.so",
    "shim/libcantle-image.so",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
];

/// CAP_SYS_ADMIN, by its number in capabilities(7).
const CAP_SYS_ADMIN: u32 = 21;

/// Exit code 0 if a task could be started here with its limits in force, else 7.
pub(crate) fn doctor(context: &Context, args: &DoctorArgs) -> Outcome {
    let mut findings = vec![libraries(context)];
    findings.extend(gpus());
    findings.push(enforcement());
    findings.extend(engine(args.socket.resolve()?)?);
    findings.push(server(context));
    if let Some(file) = &args.bundle {
        return bundle::write(context, file, &findings);
    }
    Ok(report(context.printer, &findings))
}

fn libraries(context: &Context) -> Finding {
    let lib = &context.places.lib;
    let missing: Vec<&str> = LIBRARIES.into_iter().filter(|name| !lib.join(name).is_file()).collect();
    if missing.is_empty() {
        return good("libraries", lib.display().to_string());
    }
    let found = format!("{} lacks {}", lib.display(), missing.join(", "));
    not(
        Verdict::Bad,
        "libraries",
        found,
        "run make build, or set CANTLE_LIB_DIR to the lib/cantle folder of an installation",
    )
}

fn gpus() -> Vec<Finding> {
    let opened = cantle_driver::open(&Installation::of_this_machine());
    match opened.and_then(|driver| list(driver.as_ref())) {
        Ok(findings) => findings,
        Err(why) => {
            vec![not(
                Verdict::Bad,
                "GPUs",
                why.to_string(),
                "install NVIDIA's driver, or try --sim-gpus 3xA100-40GB",
            )]
        }
    }
}

fn list(driver: &dyn Driver) -> Result<Vec<Finding>, DriverError> {
    let versions = driver.versions();
    let mut findings = vec![good("driver", format!("{}, CUDA {}", versions.driver, versions.cuda))];
    for gpu in driver.gpus()? {
        let memory = driver.memory(&gpu.uuid)?;
        let found = format!(
            "{} {}, {} of {} in use",
            gpu.index,
            gpu.model,
            Bytes(memory.used_bytes),
            Bytes(memory.total_bytes)
        );
        let mode = if gpu.mig { ", MIG mode" } else { "" };
        findings.push(good("GPU", format!("{found}{mode}")));
    }
    Ok(findings)
}

fn enforcement() -> Finding {
    if is_root() && has_capability(CAP_SYS_ADMIN) {
        return good(
            "enforcement",
            "mount namespace: every way of loading the driver's libraries gets the filter",
        );
    }
    not(
        Verdict::Warning,
        "enforcement",
        "preload: a program that clears its environment escapes",
        "run the agent as root, so that tasks get a mount namespace (docs/security.md)",
    )
}

/// Reads the effective capabilities of this process from the kernel.
fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(hex.trim(), 16).is_ok_and(|set| set >> number & 1 == 1)
}

/// The container engine, which only tasks with an image need.
fn engine(socket: Option<PathBuf>) -> Result<Vec<Finding>, CliError> {
    let named = socket.is_some();
    let asked = runtime()?.block_on(async { Engine::connect(socket.as_deref()).await?.info().await });
    Ok(match asked {
        Ok(info) => of_engine(&info),
        Err(EngineError::NotThere(_)) if !named => {
            vec![good("engine", "none (only tasks with an image need one)")]
        }
        Err(error) => vec![not(
            Verdict::Warning,
            "engine",
            error.to_string(),
            "start it (systemctl start docker), let this user open its socket, or name another with --docker-socket",
        )],
    })
}

fn of_engine(info: &EngineInfo) -> Vec<Finding> {
    let cgroup = match info.cgroup.as_str() {
        "1" | "2" => good("engine cgroups", format!("version {}", info.cgroup)),
        _ => not(
            Verdict::Warning,
            "engine cgroups",
            "none: --memory, --cpus and --pids-limit of tasks do nothing",
            "run the engine as root, or delegate cgroup controllers to it",
        ),
    };
    // cantle gives the driver and its device nodes by itself: no task needs NVIDIA's runtime.
    let has_nvidia = info.runtimes.iter().any(|runtime| runtime.contains("nvidia"));
    vec![
        good("engine", format!("version {} at {}", info.version, info.socket.display())),
        cgroup,
        Finding {
            hint: (!has_nvidia).then(|| {
                "plain docker run --gpus needs it, also with images that have a limit of their own: install \
                 nvidia-container-toolkit and run nvidia-ctk runtime configure"
                    .to_owned()
            }),
            ..good(
                "NVIDIA runtime",
                if has_nvidia { info.runtimes.join(", ") } else { "none; tasks need none".to_owned() },
            )
        },
        match info.cdi_dirs.last() {
            Some(dir) => good("engine CDI", format!("tasks get their slice as a device, by a spec in {dir}")),
            None => good("engine CDI", "none; tasks get their slice by mounts"),
        },
    ]
}

fn server(context: &Context) -> Finding {
    if context.global.server.is_none() && local(&context.places.state).is_ok_and(|found| found.is_none()) {
        return good("server", "none (cantle run needs none)");
    }
    let asked = Server::find(context).and_then(|server| server.call(&workers::GetAll::default()));
    match asked {
        Ok(answer) => good("server", format!("answers; {} workers", answer.workers.len())),
        Err(error) => not(
            Verdict::Warning,
            "server",
            error.text(),
            "start it with cantle up, or give its address with --server",
        ),
    }
}
