//! Tasks in containers: which image, with which options, running what.

use std::ffi::OsString;
use std::path::PathBuf;

use cantle_clearml::tasks;
use cantle_driver::Driver;
use cantle_model::TaskId;
use cantle_runtime::{ContainerSpec, TaskSpec};

use super::Agent;
use super::entry::Entry;
use crate::AgentError;

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

/// The container of a task, whose command in `spec` is changed where the container needs a set-up first.
///
/// # Errors
/// If the task's own options can't be read, or the driver can't say what a container needs of it.
pub(super) fn container_spec(
    driver: &dyn Driver,
    docker: &Docker,
    task: &tasks::Task,
    spec: &mut TaskSpec,
) -> Result<ContainerSpec, AgentError> {
    let parts = driver.container_parts(&spec.slices)?;
    let (image, options) = image_and_options(docker, &task.container)
        .map_err(|why| AgentError::Task { name: task.name.clone(), why })?;
    spec.argv = in_container(&task.container, std::mem::take(&mut spec.argv));
    let task = TaskId(task.id.clone());
    Ok(ContainerSpec { task, image, options, devices: parts.devices, driver_files: parts.files })
}

impl Agent {
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
    // ClearML's web page lets people write the options behind the image.
    let mut words = task.image.split_whitespace().map(str::to_owned);
    let image = words.next().unwrap_or_default();
    let options = shlex::split(&task.arguments)
        .ok_or_else(|| format!("its container arguments are not closed properly: {}", task.arguments))?;
    Ok((image, extra.chain(words).chain(options).collect()))
}

fn in_container(container: &tasks::Container, argv: Vec<OsString>) -> Vec<OsString> {
    let setup = container.setup_shell_script.trim();
    let is_sdk = argv.first().is_some_and(|program| program == super::command::CLEARML_AGENT);
    let mut script = String::new();
    if !setup.is_empty() {
        script.push_str(setup);
        script.push('\n');
    }
    if is_sdk {
        // What ClearML's agent does in its containers: images rarely bring it along.
        script.push_str(
            "command -v clearml-agent >/dev/null || python3 -m pip install -q clearml-agent || exit 127\n",
        );
    }
    if script.is_empty() {
        return argv;
    }
    script.push_str("exec \"$@\"");
    ["sh", "-c", &script, "sh"].into_iter().map(OsString::from).chain(argv).collect()
}

#[cfg(test)]
mod tests {
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
    fn a_plain_command_runs_as_it_is_and_after_its_set_up() {
        let argv = || vec![OsString::from("train"), "a b".into()];
        let mut container = tasks::Container::default();
        assert_eq!(in_container(&container, argv()), argv());
        container.setup_shell_script = "export X=1".into();
        let words = in_container(&container, argv());
        assert_eq!(words[..2], ["sh", "-c"]);
        assert_eq!(words[2], "export X=1\nexec \"$@\"");
        assert_eq!(words[3..], ["sh", "train", "a b"]);
    }
}
