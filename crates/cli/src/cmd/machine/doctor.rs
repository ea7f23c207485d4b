//! `cantle doctor`: reports what this machine has, what it lacks, and what to do about it.

mod others;

use std::path::PathBuf;
use std::sync::Arc;

use cantle_clearml::workers;
use cantle_driver::{Driver, DriverError, Installation};
use cantle_model::{Bytes, Gpu, LimitBackend};
use cantle_node::{GpuClaim, driver_limits};
use cantle_runtime::{Engine, EngineError, EngineInfo, check_filters};
use clap::Args;

use super::bundle;
use super::checkup::{Checkup, Severity, good, not, report};
use crate::connect::{Connection, local};
use crate::containers::SocketArgs;
use crate::context::{CommandResult, Context, runtime};
use crate::error::CliError;
use crate::host::is_root;

/// `cantle doctor`
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Write what a maintainer needs to a file: versions, layouts, symbols, logs; lists the contents and omits secrets
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
pub(crate) fn doctor(context: &Context, args: &DoctorArgs) -> CommandResult {
    let mut checkups = vec![libraries(context)];
    let driver = cantle_driver::open(&Installation::of_this_machine());
    let has_filter = driver.as_ref().map_or(true, |driver| driver.has_filter());
    checkups.extend(gpus(driver));
    checkups.push(if has_filter { enforcement() } else { direct_enforcement() });
    checkups.extend(task_users());
    checkups.extend(engine(args.socket.resolve()?)?);
    checkups.push(server(context));
    if let Some(file) = &args.bundle {
        return bundle::write(context, file, &checkups);
    }
    Ok(report(context.printer, &checkups))
}

fn libraries(context: &Context) -> Checkup {
    let lib = &context.dirs.lib;
    let missing: Vec<&str> = LIBRARIES.into_iter().filter(|name| !lib.join(name).is_file()).collect();
    if missing.is_empty() {
        return match check_filters(&lib.join("shim"), true) {
            Ok(()) => good("libraries", lib.display().to_string()),
            Err(other) => {
                not(Severity::Bad, "libraries", other.to_string(), other.hint().unwrap_or_default())
            }
        };
    }
    let found = format!("{} lacks {}", lib.display(), missing.join(", "));
    not(
        Severity::Bad,
        "libraries",
        found,
        "run make build, or set CANTLE_LIB_DIR to the lib/cantle directory of an installation",
    )
}

fn gpus(opened: Result<Arc<dyn Driver>, DriverError>) -> Vec<Checkup> {
    match opened.and_then(|driver| list(driver.as_ref())) {
        Ok(checkups) => checkups,
        Err(why) => {
            vec![not(
                Severity::Bad,
                "GPUs",
                why.to_string(),
                "install NVIDIA's driver, or try --sim-gpus 3xA100-40GB",
            )]
        }
    }
}

fn list(driver: &dyn Driver) -> Result<Vec<Checkup>, DriverError> {
    let versions = driver.versions();
    let cuda = if versions.cuda.is_empty() { String::new() } else { format!(", CUDA {}", versions.cuda) };
    let mut checkups = vec![good("driver", format!("{}{cuda}", versions.driver))];
    let gpus = driver.gpus()?;
    for gpu in &gpus {
        let memory = match driver.memory(&gpu.uuid) {
            Ok(memory) => format!("{} of {} in use", Bytes(memory.used_bytes), Bytes(memory.total_bytes)),
            // A container may not ask the parent of its MIG devices.
            Err(refused) if refused.is_no_permission() => {
                "the driver does not tell its memory here".to_owned()
            }
            Err(error) => return Err(error),
        };
        let found = format!("{} {}, {memory}", gpu.index, gpu.model);
        let mode = if gpu.mig { ", MIG mode" } else { "" };
        checkups.push(good("GPU", format!("{found}{mode}")));
    }
    checkups.extend(gpus.iter().filter(|gpu| !gpu.mig).map(|gpu| process_figures(driver, gpu)));
    checkups.extend(driver_limit(driver, &gpus));
    checkups.extend(others::limits_of_others(driver));
    checkups.extend(driver.lost_gpus().into_iter().map(|lost| {
        let found = format!("{} is lost to the driver: {}", lost.index, lost.why);
        not(
            Severity::Bad,
            "GPU",
            found,
            "see dmesg for its Xid; it may need a reset (nvidia-smi --gpu-reset) or a restart",
        )
    }));
    Ok(checkups)
}

/// Whether the driver enforces the limits of tasks, in addition to the filter. The engine says whether those in containers have them. On a machine of MIG instances the hardware does.
fn driver_limit(driver: &dyn Driver, gpus: &[Gpu]) -> Option<Checkup> {
    if gpus.iter().all(|gpu| gpu.mig) {
        return None;
    }
    let found = match driver_limits(driver, gpus) {
        Ok(LimitBackend::Dmem) => "in force for tasks, by the kernel (dmem)".to_owned(),
        Ok(_) => "in force for tasks, by the driver (NVML)".to_owned(),
        Err(why) if !driver.has_filter() => {
            return Some(not(
                Severity::Bad,
                "driver limit",
                format!("none, and these GPUs have no filter, so no task starts: {why}"),
                "use Linux 6.14 or newer with CONFIG_CGROUP_DMEM, as root (docs/amd.md)",
            ));
        }
        Err(why) => format!("none, so the filter enforces alone: {why}"),
    };
    Some(good("driver limit", found))
}

/// Does the driver report the memory of processes, without which the watchdog detects nothing? On a GPU without a process, a probe is
/// one for a second.
fn process_figures(driver: &dyn Driver, gpu: &Gpu) -> Checkup {
    let index = gpu.index;
    let listed = driver.processes(&gpu.uuid);
    if let Err(refused) = &listed
        && refused.is_not_supported()
    {
        return not(
            Severity::Bad,
            "watchdog",
            format!("GPU {index}: the driver does not list its processes, so it takes no task: {refused}"),
            "name the other GPUs with --gpus; nvidia-smi shows what this driver supports",
        );
    }
    let has_figures = listed.and_then(|processes| match processes.is_empty() {
        true => Ok(!driver.context_memory(&gpu.uuid, &gpu.uuid.0)?.without_figure),
        false => Ok(processes.iter().all(|process| process.used_bytes.is_some())),
    });
    match has_figures {
        Ok(true) => good("watchdog", format!("GPU {index}: the driver reports the memory of each process")),
        Ok(false) => not(
            Severity::Warning,
            "watchdog",
            format!("GPU {index}: the driver does not report the memory of each process"),
            "the filter enforces limits, and memory taken past it is reported without a name (cantle explain no-process-figures)",
        ),
        Err(error) => not(
            Severity::Warning,
            "watchdog",
            format!("GPU {index}: whether the driver reports the memory of each process is unknown: {error}"),
            "run cantle doctor again while the GPU has free memory",
        ),
    }
}

fn enforcement() -> Checkup {
    if is_root() && has_capability(CAP_SYS_ADMIN) {
        return good(
            "enforcement",
            "mount namespace: every way of loading the driver's libraries gets the filter",
        );
    }
    not(
        Severity::Warning,
        "enforcement",
        "preload: a program that clears its environment escapes",
        "run the agent as root, so that tasks get a mount namespace (docs/security.md)",
    )
}

/// Of GPUs without a filter.
fn direct_enforcement() -> Checkup {
    if is_root() && has_capability(CAP_SYS_ADMIN) {
        return good(
            "enforcement",
            "the driver's limit, and a mount namespace with the task's own device nodes",
        );
    }
    not(
        Severity::Bad,
        "enforcement",
        "none: these GPUs have no filter, and only root may set the driver's limit",
        "run the agent as root (docs/amd.md)",
    )
}

/// Whose processes the tasks of this machine's agents are.
fn task_users() -> Vec<Checkup> {
    let agents = match cantle_node::agents(&Installation::of_this_machine()) {
        Ok(agents) => agents,
        Err(error) => {
            let found = format!("the claims of this machine's agents cannot be read: {error}");
            return vec![not(
                Severity::Warning,
                "task user",
                found,
                "run cantle doctor as the user of the agent",
            )];
        }
    };
    let checkup = |agent: GpuClaim| {
        let GpuClaim { worker, task_user, .. } = agent;
        let found = format!("tasks of {worker} run as {task_user}");
        if task_user.ends_with("(--privileged-task)") {
            let hint =
                "omit --privileged-task: such a task can stop its agent (cantle explain privileged-task)";
            return not(Severity::Warning, "task user", found, hint);
        }
        if !task_user.starts_with("root,") {
            return good("task user", found);
        }
        let hint =
            "give --task-user submitter or a user's name, so that tasks are not root's (docs/security.md)";
        not(Severity::Warning, "task user", found, hint)
    };
    agents.into_iter().filter(|agent| !agent.task_user.is_empty()).map(checkup).collect()
}

/// Reads the effective capabilities of this process from the kernel.
fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(hex.trim(), 16).is_ok_and(|set| set >> number & 1 == 1)
}

/// The container engine, which only tasks with an image need.
fn engine(socket: Option<PathBuf>) -> Result<Vec<Checkup>, CliError> {
    let named = socket.is_some();
    let asked = runtime()?.block_on(async { Engine::connect(socket.as_deref()).await?.info().await });
    Ok(match asked {
        Ok(info) => of_engine(&info),
        Err(EngineError::NotThere(_)) if !named => {
            vec![good("engine", "none (only tasks with an image need one)")]
        }
        Err(error) => vec![not(
            Severity::Warning,
            "engine",
            error.to_string(),
            "start it (systemctl start docker), let this user open its socket, or name another with --docker-socket",
        )],
    })
}

fn of_engine(info: &EngineInfo) -> Vec<Checkup> {
    let cgroup = match info.cgroup.as_str() {
        "1" | "2" => good("engine cgroups", format!("version {}", info.cgroup)),
        _ => not(
            Severity::Warning,
            "engine cgroups",
            "none: --memory, --cpus and --pids-limit of tasks do nothing",
            "run the engine as root, or delegate cgroup controllers to it",
        ),
    };
    // cantle provides the driver and its device nodes itself: no task needs NVIDIA's runtime.
    let has_nvidia = info.runtimes.iter().any(|runtime| runtime.contains("nvidia"));
    vec![
        good("engine", format!("version {} at {}", info.version, info.socket.display())),
        cgroup,
        match info.takes_groups() {
            Ok(()) => {
                good("engine groups", "cantle can make them, so a driver's own limit holds in containers")
            }
            Err(why) => {
                good("engine groups", format!("a driver's own limit does not hold in containers: {why}"))
            }
        },
        Checkup {
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

fn server(context: &Context) -> Checkup {
    if context.global.server.is_none() && local(&context.dirs.state).is_ok_and(|found| found.is_none()) {
        return good("server", "none (cantle run needs none)");
    }
    let asked = Connection::open(context).and_then(|server| server.call(&workers::GetAll::default()));
    match asked {
        Ok(answer) => good("server", format!("answers; {} workers", answer.workers.len())),
        Err(error) => not(
            Severity::Warning,
            "server",
            error.to_string(),
            "start it with cantle up, or give its address with --server",
        ),
    }
}
