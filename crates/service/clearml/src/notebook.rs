//! A notebook in a task: how a task says that it is one, and the call that opens it in a browser.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::wire::endpoint;

/// The program of a notebook, in the parameter `cantle/notebook` of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotebookProgram {
    /// `JupyterLab`, below the path `/TASK/`.
    Jupyterlab,
    /// code-server: VS Code in a browser.
    CodeServer,
}

impl NotebookProgram {
    /// All words, for messages.
    pub const WORDS: &'static str = "jupyterlab or code-server";

    /// Its word in the parameter.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Jupyterlab => "jupyterlab",
            Self::CodeServer => "code-server",
        }
    }
}

impl fmt::Display for NotebookProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for NotebookProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Jupyterlab, Self::CodeServer]
            .into_iter()
            .find(|program| program.word() == text)
            .ok_or_else(|| format!("\"{text}\" is not a notebook: write {}", Self::WORDS))
    }
}

/// The line of a shell that sets `sock` to the Unix socket of the notebook of the task in whose environment it runs.
pub const NOTEBOOK_SOCKET: &str = r#"sock="${TMPDIR:-/tmp}/cantle-notebook-$CLEARML_TASK_ID.sock""#;

/// The path at the server that opens the notebook of a task in a browser.
#[must_use]
pub fn notebook_path(task: &str) -> String {
    format!("ui/-/notebook/{task}")
}

/// `cantle.open_notebook`: lets one browser into the notebook of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenNotebook {
    /// The task's id.
    pub task: String,
}
endpoint!("cantle.open_notebook", OpenNotebook => OpenedNotebook);

/// Answer of `cantle.open_notebook`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenedNotebook {
    /// For `/-/enter?ticket=…` at the address of notebooks: it is good once, for a minute.
    pub ticket: String,
}
