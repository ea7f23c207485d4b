//! `cantle submit`: a command becomes a task in a queue.

use std::process::ExitCode;

use cantle_clearml::cantle::GetQueues;
use cantle_clearml::tasks::{Container, Create, Enqueue};
use cantle_clearml::{Listing, TaskRequest, projects, shell_words};
use serde_json::{Map, Value, json};

use super::{Context, task};
use crate::args::SubmitArgs;
use crate::connect::Server;
use crate::error::{CliError, Kind, Outcome, as_kind};

/// Prints the task's id, alone, on stdout.
pub(crate) fn submit(context: &Context, args: SubmitArgs) -> Outcome {
    let server = Server::find(context)?;
    let queue = queue_id(&server, &args.queue)?;
    // The folders of this machine mean nothing in a container.
    let cwd = match args.image.image {
        Some(_) => None,
        None => Some(std::env::current_dir().map_err(as_kind(Kind::Failed))?),
    };
    let request = TaskRequest {
        gpu: args.amount.request()?,
        isolation: args.isolation,
        cwd: cwd.map(|cwd| cwd.display().to_string()),
        cpu_milli: args.cpu.0.into(),
        memory_bytes: args.memory.map_or(0, |bytes| bytes.0),
        priority: args.priority,
        non_preemptible: args.non_preemptible,
        command: args.command,
        ..TaskRequest::default()
    };
    let line = request.shell_command();
    let container = Container {
        arguments: shell_words(&args.image.options()),
        image: args.image.image.unwrap_or_default(),
        ..Container::default()
    };
    let fields = json!({
        "container": container,
        "project": project_id(&server, &args.project)?,
        "hyperparams": request.to_hyperparams(),
        "script": {"entry_point": line, "working_dir": request.cwd},
    });
    let name = args.name.unwrap_or_else(|| line.clone());
    let create = Create { name, kind: "custom".to_owned(), fields: object(fields) };
    let id = server.call(&create)?.id;
    server.call(&Enqueue { task: id.clone(), queue: Some(queue), ..Enqueue::default() })?;
    context.printer.data(&id);
    if args.wait || args.follow {
        return task::wait(&server, &context.printer, &id, args.follow);
    }
    Ok(ExitCode::SUCCESS)
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

fn queue_id(server: &Server, wanted: &str) -> Result<String, CliError> {
    let queues = server.call(&GetQueues {})?.queues;
    let found = queues.iter().find(|q| q.name == wanted || q.id == wanted);
    found.map(|q| q.id.clone()).ok_or_else(|| {
        let names: Vec<&str> = queues.iter().map(|q| q.name.as_str()).collect();
        CliError::new(Kind::NotFound, format!("there is no queue {wanted}; there are: {}", names.join(", ")))
    })
}

/// The project of that name, made if it is new.
fn project_id(server: &Server, name: &str) -> Result<String, CliError> {
    // The name is a regular expression on the wire; compare again.
    let pattern: String =
        name.chars().flat_map(|c| if c.is_alphanumeric() { vec![c] } else { vec!['\\', c] }).collect();
    let found = server.call(&projects::GetAll { list: Listing::named(&format!("^{pattern}$")) })?;
    if let Some(project) = found.projects.into_iter().find(|project| project.name == name) {
        return Ok(project.id);
    }
    Ok(server.call(&projects::Create { name: name.to_owned(), ..Default::default() })?.id)
}
