//! Builds the command that a task executes.

use std::collections::BTreeMap;
use std::ffi::OsString;

use cantle_clearml::{ArrayElement, CLEARML_AGENT, runnable, sdk_command, tasks};
use cantle_node::{Command, NodeError};
use cantle_runtime::StartError;

use crate::AgentConfig;

/// A task with a plain command runs as it is. Code of ClearML's SDK is set up and run by ClearML's own agent, inside the
/// slice.
///
/// # Errors
/// If the task has neither, or its parameters are wrong.
pub(crate) fn of_task(
    task: &tasks::Task,
    config: &AgentConfig,
    worker: &str,
    token: &str,
) -> Result<Command, NodeError> {
    let unusable = |why: String| NodeError::Task { name: task.name.clone(), why };
    let request = runnable(task).map_err(|why| unusable(why.to_string()))?;
    let mut env = environment(task, config, worker, token);
    let element = request.element.iter().flat_map(ArrayElement::environment);
    env.extend(element.map(|(name, value)| (name.to_owned(), value.into())));
    if !request.command.is_empty() {
        // Code of ClearML's SDK often names an image that it does not need, and runs without one on ClearML's agents too.
        if config.docker.is_none() && !task.container.image.is_empty() {
            return Err(unusable(format!(
                "it asks for the container image {}, and this agent runs no containers; start it with --docker",
                task.container.image
            )));
        }
        let argv = request.command.into_iter().map(OsString::from).collect();
        return Ok(Command { argv, env, cwd: request.cwd.map(Into::into), ..Command::default() });
    }
    let argv = sdk_command(&task.id, &config.sdk_words).map(OsString::from).collect();
    Ok(Command { argv, env, ..Command::default() })
}

/// Is it run by ClearML's own agent?
pub(crate) fn is_sdk(argv: &[OsString]) -> bool {
    argv.first().is_some_and(|program| program == CLEARML_AGENT)
}

/// The variables that ClearML's SDK and agent read. ClearML's agent gives its tasks its own keys; here they get a token of this run.
/// A task needs no `clearml.conf`: it gets all addresses of its server.
fn environment(
    task: &tasks::Task,
    config: &AgentConfig,
    worker: &str,
    token: &str,
) -> BTreeMap<String, OsString> {
    [
        ("CLEARML_API_HOST", config.server.as_str()),
        ("CLEARML_AUTH_TOKEN", token),
        ("CLEARML_TASK_ID", &task.id),
        ("CLEARML_WORKER_ID", worker),
    ]
    .into_iter()
    .chain(config.hosts.web.as_deref().map(|url| ("CLEARML_WEB_HOST", url)))
    .chain(config.hosts.files.as_deref().map(|url| ("CLEARML_FILES_HOST", url)))
    .map(|(name, value)| (name.to_owned(), value.into()))
    .chain(config.task_env.clone())
    .collect()
}

/// Without ClearML's agent, "command not found" would leave people wondering which command.
pub(crate) fn explain(error: &NodeError) -> String {
    match error {
        NodeError::Start(StartError::NotFound(program)) if program == CLEARML_AGENT => {
            "its code is run by ClearML's agent, which is not installed here; pip install clearml-agent"
                .to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use cantle_clearml::{Credentials, TaskRequest};

    use super::*;

    fn config() -> AgentConfig {
        let keys = Credentials { access_key: "A".to_owned(), secret_key: "S".to_owned() };
        AgentConfig::new(
            "http://127.0.0.1:8008".to_owned(),
            keys,
            cantle_driver::Installation::of_this_machine(),
        )
    }

    fn task() -> tasks::Task {
        tasks::Task { id: "7".to_owned(), name: "train".to_owned(), ..tasks::Task::default() }
    }

    #[test]
    fn a_plain_command_needs_no_python() {
        let request = TaskRequest { command: vec!["echo".into(), "a b".into()], ..TaskRequest::default() };
        let task = tasks::Task { hyperparams: request.to_hyperparams(), ..task() };
        let command = of_task(&task, &config(), "w", "token").unwrap();
        assert_eq!(command.argv, ["echo", "a b"]);
        assert_eq!(command.env.get("CLEARML_TASK_ID"), Some(&"7".into()));
        assert_eq!(command.env.get("CLEARML_WORKER_ID"), Some(&"w".into()));
        assert_eq!(command.env.get("CLEARML_AUTH_TOKEN"), Some(&"token".into()));
        assert!(!command.env.keys().any(|name| name.contains("KEY")), "the agent's keys stay its own");
    }

    #[test]
    fn a_command_for_a_container_does_not_run_outside_of_one() {
        let request = TaskRequest { command: vec!["train".to_owned()], ..TaskRequest::default() };
        let container = tasks::Container { image: "img:1".to_owned(), ..tasks::Container::default() };
        let task = tasks::Task { hyperparams: request.to_hyperparams(), container, ..task() };
        let error = of_task(&task, &config(), "w", "token").unwrap_err().to_string();
        assert!(error.contains("image img:1") && error.contains("--docker"), "{error}");
        let in_containers = AgentConfig { docker: Some(cantle_node::Docker::default()), ..config() };
        assert!(of_task(&task, &in_containers, "w", "token").is_ok());
    }

    #[test]
    fn code_of_the_sdk_goes_to_clearmls_agent() {
        let script = tasks::Script { entry_point: "train.py".into(), ..tasks::Script::default() };
        let config = AgentConfig {
            sdk_words: vec!["-O".to_owned()],
            task_env: BTreeMap::from([("CLEARML_AGENT_GIT_USER".to_owned(), "me".into())]),
            ..config()
        };
        let command = of_task(&tasks::Task { script, ..task() }, &config, "w", "token").unwrap();
        assert_eq!(command.argv, ["clearml-agent", "execute", "--disable-monitoring", "-O", "--id", "7"]);
        assert_eq!(command.env.get("CLEARML_AGENT_GIT_USER"), Some(&"me".into()));
    }

    #[test]
    fn a_task_gets_every_address_of_its_server() {
        let request = TaskRequest { command: vec!["true".to_owned()], ..TaskRequest::default() };
        let task = tasks::Task { hyperparams: request.to_hyperparams(), ..task() };
        let env = |config: &AgentConfig| of_task(&task, config, "w", "token").unwrap().env;
        let names = ["CLEARML_WEB_HOST", "CLEARML_FILES_HOST"];
        assert!(names.iter().all(|name| !env(&config()).contains_key(*name)), "ClearML's server has its own");
        let mut config = config();
        config.hosts.files = Some("s3://bucket".to_owned());
        config.hosts.complete("http://127.0.0.1:8008/");
        let given = env(&config);
        assert_eq!(given.get("CLEARML_WEB_HOST"), Some(&"http://127.0.0.1:8008/ui".into()));
        assert_eq!(given.get("CLEARML_FILES_HOST"), Some(&"s3://bucket".into()), "what was set stays");
    }

    #[test]
    fn a_task_without_anything_to_run_says_so() {
        let error = of_task(&task(), &config(), "w", "token").unwrap_err().to_string();
        assert!(error.contains("neither a command") && error.contains("train"), "{error}");
    }
}
