use std::collections::BTreeMap;

use cantle_agent::TaskUserPolicy;
use clap::Args;

use crate::error::{CliError, ErrorKind};

/// Whose processes tasks are.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TaskUserArgs {
    /// Unix user that tasks run as: submitter (the user with the name of the task's owner on the server), agent (the agent's own), or
    /// the name of a user
    #[arg(long, alias = "task_user", value_name = "USER", default_value = "agent")]
    task_user: String,
    /// For --task-user submitter: Unix users of owners whose names differ
    #[arg(long, value_name = "SERVER-USER=USER", num_args = 1..)]
    task_users: Vec<String>,
}

impl TaskUserArgs {
    pub(crate) fn policy(&self) -> Result<TaskUserPolicy, CliError> {
        let usage = |why: String| CliError::new(ErrorKind::Usage, why);
        let pair = |text: &String| match text.split_once('=') {
            Some((server, unix)) if !server.is_empty() && !unix.is_empty() => {
                Ok((server.to_owned(), unix.to_owned()))
            }
            _ => Err(usage(format!("--task-users {text}: write SERVER-USER=USER, for example alice=asmith"))),
        };
        let table: BTreeMap<_, _> = self.task_users.iter().map(pair).collect::<Result<_, _>>()?;
        if table.len() < self.task_users.len() {
            let text =
                format!("--task-users {}: a user of the server is there twice", self.task_users.join(" "));
            return Err(usage(text));
        }
        match self.task_user.as_str() {
            "submitter" => Ok(TaskUserPolicy::Submitter(table)),
            user if !table.is_empty() => {
                let text = format!("--task-users has no effect with --task-user {user}");
                Err(usage(text).with_hint("give --task-user submitter, or omit the table"))
            }
            "" => {
                Err(usage("--task-user is empty".to_owned())
                    .with_hint("give submitter, agent, or a user's name"))
            }
            "agent" => Ok(TaskUserPolicy::Agent),
            name => Ok(TaskUserPolicy::Named(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(task_user: &str, task_users: &[&str]) -> Result<TaskUserPolicy, String> {
        let task_users = task_users.iter().map(|text| (*text).to_owned()).collect();
        let args = TaskUserArgs { task_user: task_user.to_owned(), task_users };
        args.policy().map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_is_for_submitters() {
        assert_eq!(policy("agent", &[]), Ok(TaskUserPolicy::Agent));
        assert_eq!(policy("cantle-task", &[]), Ok(TaskUserPolicy::Named("cantle-task".to_owned())));
        let table = BTreeMap::from([("a.b@c".to_owned(), "ab".to_owned())]);
        assert_eq!(policy("submitter", &["a.b@c=ab"]), Ok(TaskUserPolicy::Submitter(table)));
        assert!(policy("agent", &["a=b"]).unwrap_err().contains("no effect with --task-user agent"));
        for wrong in ["a", "=b", "a="] {
            assert!(policy("submitter", &[wrong]).unwrap_err().contains("write SERVER-USER=USER"), "{wrong}");
        }
        assert!(policy("submitter", &["a=b", "a=c"]).unwrap_err().contains("twice"));
        assert!(policy("", &[]).is_err());
    }
}
