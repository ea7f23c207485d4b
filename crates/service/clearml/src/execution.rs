//! How a task is executed: the part that agents on machines and pods have in common.

use crate::{TaskRequest, TaskRequestError, tasks};

/// Runs the code of ClearML's SDK.
pub const CLEARML_AGENT: &str = "clearml-agent";

/// Why a task cannot be run anywhere. Its text is the end of a sentence about the task.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrunnable {
    /// Its parameters are malformed.
    #[error(transparent)]
    Request(#[from] TaskRequestError),
    /// There is nothing to run.
    #[error("it has neither a command (parameter cantle/command) nor a script")]
    NothingToRun,
    /// Its container's arguments are no words of a shell.
    #[error("its container arguments are not closed properly: {0}")]
    ContainerArguments(String),
}

/// The request of a task, if cantle can enforce it and the task has a command.
///
/// # Errors
/// What is wrong with the task.
pub fn runnable(task: &tasks::Task) -> Result<TaskRequest, Unrunnable> {
    let request = TaskRequest::from_hyperparams(&task.hyperparams)?.unwrap_or_default();
    let script = &task.script;
    let has_script =
        !script.repository.is_empty() || !script.diff.is_empty() || !script.entry_point.is_empty();
    if request.command.is_empty() && !has_script {
        return Err(Unrunnable::NothingToRun);
    }
    Ok(request)
}

/// The command line with which ClearML's own agent sets up and runs a task's code; `options` are further options for it.
pub fn sdk_command<'a>(task: &'a str, options: &'a [String]) -> impl Iterator<Item = &'a str> {
    let options = options.iter().map(String::as_str);
    [CLEARML_AGENT, "execute", "--disable-monitoring"].into_iter().chain(options).chain(["--id", task])
}

impl tasks::Container {
    /// Its image, if it names one, and its options: those behind the image, where users write them on ClearML's web page,
    /// and then its arguments.
    ///
    /// # Errors
    /// If a quote in the arguments is not closed.
    pub fn image_and_options(&self) -> Result<(Option<String>, Vec<String>), Unrunnable> {
        let mut words = self.image.split_whitespace().map(str::to_owned);
        let image = words.next();
        let options = shlex::split(&self.arguments)
            .ok_or_else(|| Unrunnable::ContainerArguments(self.arguments.clone()))?;
        Ok((image, words.chain(options).collect()))
    }

    /// The command of the container: the command itself, or a shell that first runs the task's set-up script and
    /// installs ClearML's agent where `is_sdk` code needs it.
    #[must_use]
    pub fn started<Word: From<String>>(&self, argv: Vec<Word>, is_sdk: bool) -> Vec<Word> {
        let setup = self.setup_shell_script.trim();
        // As ClearML's agent does in its containers: images rarely contain it.
        let install =
            "command -v clearml-agent >/dev/null || python3 -m pip install -q clearml-agent || exit 127";
        let lines = [setup, if is_sdk { install } else { "" }];
        let mut script: String =
            lines.iter().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
        if script.is_empty() {
            return argv;
        }
        script.push_str("exec \"$@\"");
        let shell = ["sh", "-c", &script, "sh"].map(|word| Word::from(word.to_owned()));
        shell.into_iter().chain(argv).collect()
    }
}
