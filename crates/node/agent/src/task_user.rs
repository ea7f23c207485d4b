//! Whose process a task is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cantle_node::NodeError;
use cantle_runtime::{TaskUser, own_user};
use tokio::task::spawn_blocking;

use crate::environment::Environment;
use crate::{AgentError, SdkDirectories};

/// Where distributions write down from which number on users are people.
const LOGIN_DEFS: &str = "/etc/login.defs";
/// Their default.
const UID_MIN: u32 = 1000;

/// The Unix user that tasks run as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TaskUserPolicy {
    /// The agent's own.
    #[default]
    Agent,
    /// This one.
    Named(String),
    /// The one that the table names for the server's user whose task it is, or the one of the same name.
    Submitter(BTreeMap<String, String>),
}

impl TaskUserPolicy {
    /// As the command line and files name it.
    fn text(&self) -> &str {
        match self {
            Self::Agent => "agent",
            Self::Named(name) => name,
            Self::Submitter(_) => "submitter",
        }
    }

    /// The policy, for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Agent => format!("{}, the agent's user (--task-user agent)", own_user()),
            Self::Named(name) => format!("user {name} (--task-user {name})"),
            Self::Submitter(_) => "their submitters (--task-user submitter)".to_owned(),
        }
    }

    /// Refuses what cannot work with any task.
    pub(crate) fn check(&self, is_root: bool) -> Result<(), AgentError> {
        let refused = |why: String| AgentError::TaskUser { value: self.text().to_owned(), why };
        let own = own_user();
        match self {
            Self::Agent => Ok(()),
            Self::Named(name) if *name == own => Ok(()),
            _ if !is_root => Err(refused(format!(
                "only an agent of root starts tasks as another user, and this one runs as {own}"
            ))),
            Self::Named(name) => named(name).map(drop).map_err(refused),
            Self::Submitter(_) => Ok(()),
        }
    }

    /// The user of a task that this user of the server submitted; `None` for the agent's own. Asks the machine's name service.
    fn of(&self, submitter: &str) -> Result<Option<TaskUser>, String> {
        let user = match self {
            Self::Agent => return Ok(None),
            Self::Named(name) => named(name)?,
            Self::Submitter(table) => of_submitter(table, submitter)?,
        };
        Ok(Some(user).filter(|user| !user.is_own()))
    }
}

fn named(name: &str) -> Result<TaskUser, String> {
    match TaskUser::named(name) {
        Ok(Some(user)) => Ok(user),
        Ok(None) => Err(format!("this machine has no user \"{name}\"")),
        Err(why) => Err(format!("user \"{name}\" cannot be looked up: {why}")),
    }
}

fn of_submitter(table: &BTreeMap<String, String>, submitter: &str) -> Result<TaskUser, String> {
    if submitter.is_empty() {
        return Err("its server does not report who submitted it, as --task-user submitter needs".to_owned());
    }
    let mapped = table.get(submitter);
    let name = mapped.map_or(submitter, String::as_str);
    let user = named(name).map_err(|why| {
        format!("{why}, as which tasks of {submitter} run; create it, or name another one in [task_users]")
    })?;
    let least = uid_min(Path::new(LOGIN_DEFS));
    if mapped.is_none() && user.uid() < least {
        return Err(format!(
            "user \"{name}\" of this machine is a system account (uid {}, below {least}), which tasks of {submitter} do not get \
             by its name; name the user in [task_users]",
            user.uid()
        ));
    }
    Ok(user)
}

/// The smallest number of a person.
fn uid_min(path: &Path) -> u32 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = |line: &str| line.trim().strip_prefix("UID_MIN")?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(UID_MIN)
}

impl Environment {
    /// The user of a task that this user of the server submitted; `None` for the agent's own.
    pub(crate) async fn task_user(
        &self,
        name: &str,
        submitter: String,
    ) -> Result<Option<TaskUser>, NodeError> {
        let policy = self.config.task_user.clone();
        // A directory service may be slow.
        let found = spawn_blocking(move || policy.of(&submitter)).await;
        let found = found.unwrap_or_else(|panic| Err(panic.to_string()));
        found.map_err(|why| NodeError::Task { name: name.to_owned(), why })
    }
}

/// Calls `f` as the user, or as the agent's.
pub(crate) fn acting_as<T: Send>(
    user: Option<&TaskUser>,
    f: impl FnOnce() -> T + Send,
) -> std::io::Result<T> {
    match user {
        Some(user) => user.act(f),
        None => Ok(f()),
    }
}

impl SdkDirectories {
    /// The same directories of another user: what is in the agent's home is in that user's.
    pub(crate) fn of_user(&self, user: Option<&TaskUser>) -> Self {
        let moved = |path: &Option<PathBuf>| {
            let (path, user, home) = (path.as_ref()?, user?, self.home.as_ref()?);
            Some(user.home().join(path.strip_prefix(home).ok()?))
        };
        Self {
            venvs: moved(&self.venvs).or_else(|| self.venvs.clone()),
            venvs_cache: moved(&self.venvs_cache).or_else(|| self.venvs_cache.clone()),
            are_of_pip: self.are_of_pip,
            home: self.home.clone(),
        }
    }
}

/// Removes a task's working directory with the rights of the task's user.
pub(crate) fn remove_workspace(user: Option<&TaskUser>, workspace: &Path) {
    if let Err(why) = acting_as(user, || crate::sdk::remove(workspace)) {
        tracing::warn!(directory = %workspace.display(), "the working directory of an ended task stays: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitter(table: &[(&str, &str)]) -> TaskUserPolicy {
        let table = table.iter().map(|(server, unix)| ((*server).to_owned(), (*unix).to_owned()));
        TaskUserPolicy::Submitter(table.collect())
    }

    #[test]
    fn a_submitter_is_a_user_of_the_table_or_of_the_same_name() {
        let uid = |policy: &TaskUserPolicy, who: &str| {
            let found = policy.of(who);
            found.map(|user| user.map_or_else(own_user, |user| user.name().to_owned()))
        };
        let policy = submitter(&[("alice", "nobody"), ("chief", "root")]);
        assert_eq!(uid(&policy, "alice"), Ok("nobody".to_owned()));
        assert_eq!(uid(&policy, "nobody"), Ok("nobody".to_owned()));
        assert_eq!(uid(&policy, "chief"), Ok("root".to_owned()), "by the table");
        let why = uid(&policy, "mallory").unwrap_err();
        assert!(why.contains("no user \"mallory\"") && why.contains("[task_users]"), "{why}");
        for system in ["root", "daemon"] {
            let why = uid(&policy, system).unwrap_err();
            assert!(why.contains("system account") && why.contains(system), "{why}");
        }
        assert!(uid(&policy, "").unwrap_err().contains("does not report"));
    }

    #[test]
    fn an_agent_starts_only_with_a_user_that_it_can_become() {
        let check =
            |policy: TaskUserPolicy, is_root| policy.check(is_root).map_err(|error| error.to_string());
        let refused = |policy, is_root| check(policy, is_root).unwrap_err();
        assert_eq!(check(TaskUserPolicy::Agent, false), Ok(()));
        assert_eq!(check(TaskUserPolicy::Named(own_user()), false), Ok(()));
        assert_eq!(check(submitter(&[]), true), Ok(()));
        assert_eq!(check(TaskUserPolicy::Named("nobody".to_owned()), true), Ok(()));
        let why = refused(TaskUserPolicy::Named("no-such".to_owned()), true);
        assert_eq!(why, "--task-user no-such: this machine has no user \"no-such\"");
        assert!(refused(submitter(&[]), false).contains("only an agent of root"));
    }

    #[test]
    fn people_begin_where_the_distribution_says() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(uid_min(file.path()), UID_MIN);
        fs::write(file.path(), "# UID_MIN 7\nUMASK 022\nUID_MIN\t\t  500\n").unwrap();
        assert_eq!(uid_min(file.path()), 500);
    }

    #[test]
    fn directories_in_a_home_are_those_of_the_users_home() {
        let nobody = TaskUser::named("nobody").unwrap().unwrap();
        let path = |text: &str| Some(PathBuf::from(text));
        let own = SdkDirectories {
            venvs: path("/root/.clearml/v"),
            venvs_cache: path("/data/c"),
            are_of_pip: true,
            home: path("/root"),
        };
        let theirs = own.of_user(Some(&nobody));
        assert_eq!(theirs.venvs, Some(nobody.home().join(".clearml/v")));
        assert_eq!(theirs.venvs_cache, path("/data/c"));
        assert_eq!(own.of_user(None), own);
    }
}
