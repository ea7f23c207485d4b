//! `cantle submit`: puts a command as a task into a queue.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cantle_clearml::cantle::{GetQueues, SubmitTask};
use cantle_clearml::tasks::{Container, Create};
use cantle_clearml::users::{GetCurrentUser, Role};
use cantle_clearml::{Listing, TaskRequest, projects, shell_words, subcode};
use cantle_model::{After, AfterList, ArraySpec, Bytes, GpuRequest, IdleTime, Isolation, TimeLimit};
use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::{Map, Value, json};

use super::one;
use crate::complete;
use crate::connect::Connection;
use crate::containers::ImageArgs;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::shared_args::values::TaskCpu;
use crate::shared_args::{ComputeArgs, GpuAmount, MemoryLimitArgs, values};

/// The project of those who may submit anywhere.
const DEFAULT: &str = "default";

/// `cantle submit`
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Queue of the task
    #[arg(long, value_name = "Q", default_value = "default", add = ArgValueCompleter::new(complete::queues))]
    queue: String,
    #[command(flatten)]
    amount: GpuAmount,
    #[command(flatten)]
    memory_limit: MemoryLimitArgs,
    /// What isolates the slice: any, mig or shared
    #[arg(long, value_name = "KIND", value_parser = values::isolation, default_value = "any")]
    isolation: Isolation,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    image: ImageArgs,
    /// Name of the task [default: the command]
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Project whose quota the task counts against [default: the one in which you may submit; default, if you may anywhere]
    #[arg(long, value_name = "P", env = "CANTLE_PROJECT")]
    project: Option<String>,
    /// Tags of the task, several with commas; one like team:nlp is a label, by which cantle usage can add up
    #[arg(long, value_name = "TAG,…", value_delimiter = ',', value_parser = tag)]
    tag: Vec<String>,
    /// CPU cores that the task counts against the quota with (counted, not enforced), or auto: its slice's part of the processors and
    /// main memory of its node, as limits
    #[arg(long, value_name = "CORES|auto", value_parser = values::task_cpu)]
    cpu: Option<TaskCpu>,
    /// Main memory of the task, e.g. 16Gi: counted against the quota, the limit of its container and with --cpu auto of its processes,
    /// the request of its pod
    #[arg(long, value_name = "M", value_parser = values::main_memory)]
    memory: Option<Bytes>,
    /// Priority within the project; tasks of higher priority go first and can preempt those of lower
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Never preempt the task; it must then fit its project's quota
    #[arg(long)]
    non_preemptible: bool,
    /// The longest time that the task may run (30m, 2h, 1d12h); then it is stopped and has failed [default: the queue's]
    #[arg(long, value_name = "TIME")]
    time: Option<TimeLimit>,
    /// End the task after it was idle for this time (30m, 2h, at least 1m): no work on its GPU, CPU or terminal [default: the queue's]
    #[arg(long, value_name = "TIME")]
    idle: Option<IdleTime>,
    /// Start after other tasks: ok:TASK after it completed, fail:TASK after it failed or was stopped, any:TASK after either; several
    /// with commas
    #[arg(long, value_name = "HOW:TASK,…", value_delimiter = ',')]
    after: Vec<After>,
    /// Make one task for each index, e.g. 0-99, 0-90:10 or 1,4,7; with %8 at most 8 run at once. A task has its index in
    /// CANTLE_ARRAY_INDEX
    #[arg(long, value_name = "A-B[:STEP][%N]")]
    array: Option<ArraySpec>,
    /// Send notices of the task to these receivers of yours, which cantle notify sets; several with commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    notify: Vec<String>,
    /// Put these secrets of yours, which cantle secrets sets, into the task's environment; several with commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    secret: Vec<String>,
    /// Wait until the task ends; exit with its exit code
    #[arg(long, conflicts_with = "follow")]
    wait: bool,
    /// Print the task's output until it ends; exit with its exit code
    #[arg(long, conflicts_with = "array")]
    follow: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

fn tag(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a tag is not empty".to_owned()),
        tag => Ok(tag.to_owned()),
    }
}

/// Prints the task's id, alone, on stdout.
pub(crate) fn submit(context: &Context, args: SubmitArgs) -> CommandResult {
    let gpu = args.amount.request()?;
    let gpu_memory_limit = args.memory_limit.limit(gpu.as_ref(), args.isolation)?;
    let compute = args.compute.request();
    // The slice of a task that leaves it to its queue is not known yet.
    compute.check(gpu.as_ref().unwrap_or(&GpuRequest::Gpus(1))).map_err(as_kind(ErrorKind::Usage))?;
    let server = Connection::open(context)?;
    let queue = queue_id(&server, &args.queue)?;
    // The directories of this machine mean nothing in a container.
    let cwd = match args.image.image {
        Some(_) => None,
        None => Some(std::env::current_dir().map_err(as_kind(ErrorKind::Failed))?),
    };
    let request = TaskRequest {
        gpu,
        gpu_memory_limit,
        compute,
        isolation: args.isolation,
        cwd: cwd.map(|cwd| cwd.display().to_string()),
        cpu_milli: match args.cpu {
            Some(TaskCpu::Cores(cores)) => cores.0.into(),
            Some(TaskCpu::Auto) | None => 0,
        },
        cpu_auto: args.cpu == Some(TaskCpu::Auto),
        memory_bytes: args.memory.map_or(0, |bytes| bytes.0),
        priority: args.priority,
        non_preemptible: args.non_preemptible,
        time: args.time,
        idle: args.idle,
        after: AfterList(named(&server, args.after)?),
        array: args.array,
        element: None,
        notify: args.notify,
        secrets: args.secret,
        command: args.command,
        notebook: None,
    };
    let container = Container {
        arguments: shell_words(&args.image.options()),
        image: args.image.image.unwrap_or_default(),
        ..Container::default()
    };
    let id = send(&server, queue, args.project, (args.name, args.tag), &request, &container)?;
    context.printer.data(&id);
    if args.wait || args.follow {
        return one::wait(&server, &context.printer, &id, args.follow);
    }
    Ok(ExitCode::SUCCESS)
}

/// Submits what is asked for; returns the id of the task.
pub(crate) fn send(
    server: &Connection,
    queue: String,
    project: Option<String>,
    (name, tags): (Option<String>, Vec<String>),
    request: &TaskRequest,
    container: &Container,
) -> Result<String, CliError> {
    let project = match project {
        Some(project) => project,
        None => own_project(server)?,
    };
    let line = request.shell_command();
    let fields = json!({
        "container": container,
        "project": project_id(server, &project)?,
        "hyperparams": request.to_hyperparams(),
        "tags": tags,
        "script": {"entry_point": line, "working_dir": request.cwd},
    });
    let create = Create { name: name.unwrap_or(line), kind: "custom".to_owned(), fields: object(fields) };
    let id = uuid::Uuid::new_v4().simple().to_string();
    Ok(server.call(&SubmitTask { queue, id, task: create })?.id)
}

/// The tasks that the task waits for, with ids in place of names.
fn named(server: &Connection, after: Vec<After>) -> Result<Vec<After>, CliError> {
    let named = |After { ending, task }| Ok(After { ending, task: server.find_task(&task)? });
    after.into_iter().map(named).collect()
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

pub(crate) fn queue_id(server: &Connection, wanted: &str) -> Result<String, CliError> {
    let queues = server.call(&GetQueues {})?.queues;
    let found = queues.iter().find(|q| q.name == wanted || q.id == wanted);
    found.map(|q| q.id.clone()).ok_or_else(|| {
        let names: Vec<&str> = queues.iter().map(|q| q.name.as_str()).collect();
        CliError::new(ErrorKind::NotFound, format!("there is no queue {wanted}"))
            .with_hint(format!("there are: {}", names.join(", ")))
    })
}

/// The project of a user who names none.
fn own_project(server: &Connection) -> Result<String, CliError> {
    const MAY_SUBMIT: [Role; 3] = [Role::Admin, Role::Manager, Role::Member];
    let roles = server.call(&GetCurrentUser {})?.user.cantle_roles;
    let may = roles.into_iter().filter(|own| MAY_SUBMIT.iter().any(|role| role.name() == own.role));
    let projects: BTreeSet<String> = may.map(|own| own.project).collect();
    let is_anywhere = projects.is_empty() || projects.contains("") || projects.contains(DEFAULT);
    match (is_anywhere, projects.first()) {
        (false, Some(one)) if projects.len() == 1 => Ok(one.clone()),
        (false, Some(_)) => {
            let names: Vec<&str> = projects.iter().map(String::as_str).collect();
            let text = format!("--project: you may submit in {}; name one", names.join(", "));
            Err(CliError::new(ErrorKind::Usage, text)
                .with_hint("or once for all: export CANTLE_PROJECT=NAME"))
        }
        _ => Ok(DEFAULT.to_owned()),
    }
}

/// The project of that name, created if it does not exist.
fn project_id(server: &Connection, name: &str) -> Result<String, CliError> {
    // The name is a regular expression on the wire; compare again.
    let pattern: String =
        name.chars().flat_map(|c| if c.is_alphanumeric() { vec![c] } else { vec!['\\', c] }).collect();
    let find = || -> Result<Option<String>, CliError> {
        let found = server.call(&projects::GetAll { list: Listing::named(&format!("^{pattern}$")) })?;
        Ok(found.projects.into_iter().find(|project| project.name == name).map(|project| project.id))
    };
    if let Some(id) = find()? {
        return Ok(id);
    }
    match server.answer(&projects::Create { name: name.to_owned(), ..Default::default() }) {
        Ok(created) => Ok(created.id),
        // Another submit created it in the same moment.
        Err(error) if error.is_subcode(subcode::NAME_TAKEN) => find()?.ok_or_else(|| error.into()),
        Err(error) => Err(error.into()),
    }
}
