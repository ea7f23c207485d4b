//! The caller of one call.

use cantle_store::{Owned, Scope};

use super::role::{Right, Role};
use crate::app::USER;

/// How a caller proved its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A key pair.
    Key,
    /// A token that a login gave.
    Session,
    /// A token of Kubernetes.
    Kubernetes,
    /// The token of a running task.
    Task,
    /// The server itself, or any caller of an open server.
    Server,
}

impl Via {
    /// As the audit names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Session => "session",
            Self::Kubernetes => "Kubernetes token",
            Self::Task => "task",
            Self::Server => "open server",
        }
    }
}

/// The run of a task that calls for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnRun {
    pub(crate) task: String,
    /// The lease that holds the task for this run.
    pub(crate) lease: String,
}

/// A caller and its rights. Each call has one.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    /// Id of the user; `tasks.owner` of what it makes.
    pub(crate) user: String,
    /// Name of the user.
    pub(crate) name: String,
    pub(crate) via: Via,
    /// The public half of the key that it used, or with which it logged in.
    pub(crate) access_key: Option<String>,
    /// The login of a person that its token belongs to.
    pub(crate) session: Option<String>,
    /// The node that a service account acts for.
    pub(crate) node: Option<String>,
    /// It is not the user itself, but a task of the user that runs.
    pub(crate) run: Option<OwnRun>,
    /// Its roles, each with the name of the project at the top of its tree; empty: all projects.
    pub(crate) roles: Vec<(String, Role)>,
}

impl Principal {
    /// The server itself, and every caller of an open one.
    pub(crate) fn server() -> Self {
        let everything = vec![(String::new(), Role::Admin)];
        let name = USER.to_owned();
        let via = Via::Server;
        Self {
            user: name.clone(),
            name,
            via,
            access_key: None,
            session: None,
            node: None,
            run: None,
            roles: everything,
        }
    }

    /// A run of this user's task: it is no agent, even if its owner is one.
    pub(super) fn run_by(self, run: OwnRun) -> Self {
        Self { via: Via::Task, access_key: None, session: None, node: None, run: Some(run), ..self }
    }

    /// The task whose run calls.
    pub(crate) fn task(&self) -> Option<&str> {
        self.run.as_ref().map(|run| run.task.as_str())
    }

    /// The name, and the task if it is not the user itself.
    pub(crate) fn label(&self) -> String {
        self.task().map_or_else(|| self.name.clone(), |task| format!("{} (task {task})", self.name))
    }

    /// Whether a role gives the right to this caller. A run has of its owner's rights those that other people's things are
    /// seen with, and that of making tasks.
    fn has(&self, role: Role, right: Right) -> bool {
        right.is_in(role) && (self.run.is_none() || matches!(right, Right::See | Right::Read | Right::Submit))
    }

    /// Whether it may change a task or a model at all: a run changes its own task and what was made in it.
    pub(super) fn may_touch(&self, what: &Owned) -> bool {
        self.task().is_none_or(|own| what.id == own || what.made_by.as_deref() == Some(own))
    }

    /// Whether it has the right in this project, by name; `None`: outside of any project, or for the whole server.
    pub(crate) fn may(&self, right: Right, project: Option<&str>) -> bool {
        self.roles.iter().any(|(tree, role)| self.has(*role, right) && is_in(project, tree))
    }

    /// Whether it has the right for the whole server.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.may(right, None)
    }

    /// Whether it has the right in any project at all.
    pub(crate) fn may_somewhere(&self, right: Right) -> bool {
        self.roles.iter().any(|(_, role)| self.has(*role, right))
    }

    /// Restricts a query to that for which it has the right; `None`: it has it for everything.
    pub(super) fn scope(&self, right: Right) -> Option<Scope> {
        if self.may_everywhere(right) {
            return None;
        }
        let trees =
            self.roles.iter().filter(|(_, role)| self.has(*role, right)).map(|(tree, _)| tree.clone());
        let node = self.node.clone().filter(|_| self.may_everywhere(Right::Serve));
        Some(Scope { owner: self.user.clone(), trees: trees.collect(), node })
    }

    /// ClearML's word for the most that it may do.
    pub(crate) fn clearml_role(&self) -> &'static str {
        if self.may_everywhere(Right::Administer) {
            "admin"
        } else if self.may_somewhere(Right::Submit) {
            "user"
        } else {
            "guest"
        }
    }
}

/// Whether a project is in the tree below `top`, which an empty name makes the tree of all.
pub(super) fn is_in(project: Option<&str>, top: &str) -> bool {
    let Some(project) = project.filter(|_| !top.is_empty()) else { return top.is_empty() };
    project.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_holds_in_its_tree_and_nowhere_else() {
        let mut who = Principal::server();
        who.roles = vec![("a/b".into(), Role::Member), ("c".into(), Role::Viewer)];
        for (project, submit, read) in [
            (Some("a/b"), true, false),
            (Some("a/b/x"), true, false),
            (Some("a/bc"), false, false),
            (Some("a"), false, false),
            (Some("c/d"), false, true),
            (None, false, false),
        ] {
            assert_eq!(who.may(Right::Submit, project), submit, "{project:?}");
            assert_eq!(who.may(Right::Read, project), read, "{project:?}");
        }
        assert_eq!(who.scope(Right::See).unwrap().trees, ["a/b", "c"]);
        assert!(Principal::server().scope(Right::See).is_none());
    }
}
