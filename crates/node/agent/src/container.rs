//! Tasks in containers: chooses the image, the options and the command.

use cantle_clearml::{TaskRequest, Unrunnable, tasks};
use cantle_driver::{ContainerParts, Driver};
use cantle_model::{HostLimit, TaskId};
use cantle_node::{Command, Docker, NodeError};
use cantle_runtime::{ContainerSpec, TaskSpec};

use crate::command::is_sdk;

/// ClearML's own default.
const DEFAULT_IMAGE: &str = "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu20.04";

/// The workers that a container belongs to. ClearML's agent writes the same labels, for people who search with docker's own
/// client.
#[derive(Clone, Debug)]
pub(crate) struct Workers {
    /// The worker that the task is.
    pub(crate) task: String,
    /// The agent.
    pub(crate) agent: String,
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
/// If the task's own options cannot be read, or the driver cannot list the files that a container needs.
pub(crate) fn container_spec(
    driver: &dyn Driver,
    docker: &Docker,
    task: &tasks::Task,
    workers: &Workers,
    spec: &mut TaskSpec,
) -> Result<ContainerSpec, NodeError> {
    // Without a GPU it needs nothing of the driver, not even the nodes that all GPUs share.
    let parts = if spec.slices.is_empty() {
        ContainerParts::default()
    } else {
        driver.container_parts(&spec.slices)?
    };
    let (image, mut options) = image_and_options(docker, task)
        .map_err(|why| NodeError::Task { name: task.name.clone(), why: why.to_string() })?;
    // Last, so that a task cannot be another's, and has no more than its part of the node.
    options.extend(workers.labels());
    options.extend(spec.host.iter().flat_map(part_of_node));
    let is_sdk = is_sdk(&spec.argv);
    spec.argv = task.container.started(std::mem::take(&mut spec.argv), is_sdk);
    let task = TaskId(task.id.clone());
    Ok(ContainerSpec { task, image, options, devices: parts.devices, driver_files: parts.files })
}

/// The options that limit a container to its part of the node.
fn part_of_node(part: &HostLimit) -> [String; 2] {
    let HostLimit { cpu_milli, memory_bytes } = part;
    [format!("--cpus={}.{:03}", cpu_milli / 1000, cpu_milli % 1000), format!("--memory={memory_bytes}")]
}

/// The image to write into a task of the SDK that names none, as ClearML's agent does: the task can then be run again the
/// same way. `None` for a plain command, which then could no longer run on an agent without containers.
pub(crate) fn written_back(
    docker: Option<&Docker>,
    task: &tasks::Task,
    command: &Command,
) -> Option<tasks::Container> {
    let docker = docker.filter(|_| is_sdk(&command.argv) && task.container.image.is_empty())?;
    let options = docker.options.iter().map(String::as_str);
    Some(tasks::Container {
        image: docker.image.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
        // A word with a NUL in it cannot have come from a command line.
        arguments: shlex::try_join(options).unwrap_or_default(),
        setup_shell_script: task.container.setup_shell_script.clone(),
    })
}

/// A task that names an image brings its own options; any other gets the daemon's. The main memory that it asks for is its
/// container's limit, unless its own options name another one: of two, engines take the last.
fn image_and_options(docker: &Docker, task: &tasks::Task) -> Result<(String, Vec<String>), Unrunnable> {
    let extra = docker.extra_options.iter().cloned();
    // A request that cannot be read has been refused with the task's command.
    let request = TaskRequest::from_hyperparams(&task.hyperparams).ok().flatten();
    let memory = request.filter(|request| request.memory_bytes > 0);
    let memory = memory.map(|request| format!("--memory={}", request.memory_bytes));
    if task.container.image.is_empty() {
        let image = docker.image.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        return Ok((image, extra.chain(docker.options.iter().cloned()).chain(memory).collect()));
    }
    let (image, options) = task.container.image_and_options()?;
    Ok((image.unwrap_or_default(), extra.chain(memory).chain(options).collect()))
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
        let mut task = tasks::Task::default();
        let words = ["--init", "--ipc=host"].map(str::to_owned).to_vec();
        assert_eq!(image_and_options(&docker, &task), Ok(("base:1".into(), words)));
        task.container.image = "own:2 -e A=1".into();
        task.container.arguments = "-e 'B=two words'".into();
        let words = ["--init", "-e", "A=1", "-e", "B=two words"].map(str::to_owned).to_vec();
        assert_eq!(image_and_options(&docker, &task), Ok(("own:2".into(), words)));
        task.container.arguments = "-e 'B".into();
        assert!(image_and_options(&docker, &task).unwrap_err().to_string().contains("not closed"));
        assert_eq!(image_and_options(&Docker::default(), &tasks::Task::default()).unwrap().0, DEFAULT_IMAGE);
    }

    #[test]
    fn the_main_memory_that_a_task_asks_for_is_its_containers_limit() {
        let docker = Docker { options: vec!["--memory=8g".into()], ..Docker::default() };
        let request = TaskRequest { memory_bytes: 1 << 30, ..TaskRequest::default() };
        let mut task = tasks::Task { hyperparams: request.to_hyperparams(), ..tasks::Task::default() };
        let words = |task: &tasks::Task| image_and_options(&docker, task).unwrap().1;
        assert_eq!(words(&task), ["--memory=8g", "--memory=1073741824"]);
        task.container.image = "own:2".into();
        assert_eq!(words(&task), ["--memory=1073741824"]);
        task.container.arguments = "--memory=2g".into();
        assert_eq!(words(&task), ["--memory=1073741824", "--memory=2g"]);
    }

    #[test]
    fn the_part_of_a_node_is_options_of_the_container() {
        let part = HostLimit { cpu_milli: 1_050, memory_bytes: 1 << 30 };
        assert_eq!(part_of_node(&part), ["--cpus=1.050", "--memory=1073741824"]);
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
