//! Tasks in containers: which image, with which options, running what.

use std::path::PathBuf;

use cantle_clearml::tasks;
use cantle_driver::{ContainerParts, Driver};
use cantle_model::TaskId;
use cantle_runtime::{ContainerSpec, TaskSpec};

use super::Agent;
use super::command::is_sdk;
use super::entry::Entry;
use crate::AgentError;
use crate::launch::Command;

/// ClearML's own default.
const DEFAULT_IMAGE: &str = "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu20.04";

/// `--docker [IMAGE ARGS…]`, `--podman [IMAGE ARGS…]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Docker {
    /// For tasks that name none.
    pub image: Option<String>,
    /// `docker run` options for tasks that name no image.
    pub options: Vec<String>,
    /// `docker run` options for all, before those.
    pub extra_options: Vec<String>,
    /// The engine's socket; the first of the usual ones that is there if none is given.
    pub socket: Option<PathBuf>,
}

/// Whose a container is, for people who look for it with docker's own client, as ClearML's agent labels it.
#[derive(Clone, Debug)]
pub(super) struct Workers {
    /// The worker that the task is.
    pub(super) task: String,
    /// The agent.
    pub(super) agent: String,
}

impl Workers {
    fn labels(&self) -> [String; 2] {
        let Self { task, agent } = self;
        [format!("--label=clearml-worker-id={task}"), format!("--label=clearml-parent-worker-id={agent}")]
    }
}

/// The container of a task, whose command in `spec` is changed where the container needs a set-up first.
///
/// # Errors
/// If the task's own options can't be read, or the driver can't say what a container needs of it.
pub(super) fn container_spec(
    driver: &dyn Driver,
    docker: &Docker,
    task: &tasks::Task,
    workers: &Workers,
    spec: &mut TaskSpec,
) -> Result<ContainerSpec, AgentError> {
    // Without a GPU it needs nothing of the driver, not even the nodes that all GPUs share.
    let parts = if spec.slices.is_empty() {
        ContainerParts::default()
    } else {
        driver.container_parts(&spec.slices)?
    };
    let (image, mut options) = image_and_options(docker, &task.container)
        .map_err(|why| AgentError::Task { name: task.name.clone(), why })?;
    // Last, so that a task can't be another's.
    options.extend(workers.labels());
    let is_sdk = is_sdk(&spec.argv);
    spec.argv = task.container.started(std::mem::take(&mut spec.argv), is_sdk);
    let task = TaskId(task.id.clone());
    Ok(ContainerSpec { task, image, options, devices: parts.devices, driver_files: parts.files })
}

/// What to write into a task that names no image: the one that it gets, as ClearML's agent does, so that it can be run again
/// the same way. Not into a plain command, which runs without an image on agents that have none, but with one only there.
pub(super) fn written_back(
    docker: Option<&Docker>,
    task: &tasks::Task,
    command: &Command,
) -> Option<tasks::Container> {
    let docker = docker.filter(|_| is_sdk(&command.argv) && task.container.image.is_empty())?;
    let options = docker.options.iter().map(String::as_str);
    Some(tasks::Container {
        image: docker.image.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
        // A word with a NUL in it can't have come from a command line.
        arguments: shlex::try_join(options).unwrap_or_default(),
        setup_shell_script: task.container.setup_shell_script.clone(),
    })
}

impl Agent {
    /// Tells the server what [`written_back`] says. Only people read it: the task starts all the same.
    pub(crate) async fn write_back(&self, task: &tasks::Task, command: &Command) {
        let Some(container) = written_back(self.config.docker.as_ref(), task, command) else { return };
        let fields = [("container".to_owned(), serde_json::json!(container))].into_iter().collect();
        let edit = tasks::Edit { task: task.id.clone(), force: true, fields };
        if let Err(error) = self.link.call(&edit).await {
            tracing::warn!(task = %task.id, %error, "its image is not written into the task");
        }
    }

    /// Removes containers of a former daemon that it made but did not live to write down: their tasks start anew.
    /// Containers of others on the same engine are none of our business.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub(crate) async fn remove_leftovers(&self) -> Result<(), AgentError> {
        let Some(engine) = &self.engine else { return Ok(()) };
        for leftover in engine.leftovers().await? {
            if self.entries.get(&leftover.lease).is_some_and(Entry::is_unsettled) {
                tracing::info!(lease = %leftover.lease, "removing a container that was made but not started by us");
                engine.remove(&leftover.id).await?;
            }
        }
        Ok(())
    }
}

/// A task that names an image brings its own options; any other gets the daemon's.
fn image_and_options(docker: &Docker, task: &tasks::Container) -> Result<(String, Vec<String>), String> {
    let extra = docker.extra_options.iter().cloned();
    if task.image.is_empty() {
        let image = docker.image.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        return Ok((image, extra.chain(docker.options.iter().cloned()).collect()));
    }
    let (image, options) = task.image_and_options()?;
    Ok((image.unwrap_or_default(), extra.chain(options).collect()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_tasks_own_image_brings_its_own_options() {
        let docker = Docker {
            image: Some("base:1".into()),
            options: vec!["--ipc=host".into()],
            extra_options: vec!["--init".into()],
            socket: None,
        };
        let mut task = tasks::Container::default();
        let words = ["--init", "--ipc=host"].map(str::to_owned).to_vec();
        assert_eq!(image_and_options(&docker, &task), Ok(("base:1".into(), words)));
        task.image = "own:2 -e A=1".into();
        task.arguments = "-e 'B=two words'".into();
        let words = ["--init", "-e", "A=1", "-e", "B=two words"].map(str::to_owned).to_vec();
        assert_eq!(image_and_options(&docker, &task), Ok(("own:2".into(), words)));
        task.arguments = "-e 'B".into();
        assert!(image_and_options(&docker, &task).unwrap_err().contains("not closed"));
        assert_eq!(
            image_and_options(&Docker::default(), &tasks::Container::default()).unwrap().0,
            DEFAULT_IMAGE
        );
    }

    #[test]
    fn the_image_of_the_daemon_is_written_into_tasks_of_the_sdk() {
        let options = ["-e", "A=two words"].map(str::to_owned).to_vec();
        let docker = Docker { image: Some("base:1".into()), options, ..Docker::default() };
        let running = |program: &str| Command { argv: vec![program.into()], ..Command::default() };
        let mut task = tasks::Task::default();
        task.container.setup_shell_script = "true".into();
        let written = written_back(Some(&docker), &task, &running("clearml-agent")).unwrap();
        assert_eq!((written.image.as_str(), written.arguments.as_str()), ("base:1", "-e 'A=two words'"));
        assert_eq!(written.setup_shell_script, "true");
        assert_eq!(written_back(Some(&docker), &task, &running("python3")), None);
        assert_eq!(written_back(None, &task, &running("clearml-agent")), None);
        task.container.image = "own:1".into();
        assert_eq!(written_back(Some(&docker), &task, &running("clearml-agent")), None);
    }

    #[test]
    fn a_plain_command_runs_as_it_is_and_after_its_set_up() {
        let argv = || vec![OsString::from("train"), "a b".into()];
        let mut container = tasks::Container::default();
        assert_eq!(container.started(argv(), false), argv());
        container.setup_shell_script = "export X=1".into();
        let words = container.started(argv(), false);
        assert_eq!(words[..2], ["sh", "-c"]);
        assert_eq!(words[2], "export X=1\nexec \"$@\"");
        assert_eq!(words[3..], ["sh", "train", "a b"]);
    }
}
