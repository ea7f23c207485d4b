//! The caller of one call.

use cantle_store::Scope;

use super::role::{Right, Role};
use crate::app::USER;

/// How a caller showed who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A key pair.
    Key,
    /// A token that a login gave.
    Session,
    /// The server itself, or anybody on an open server.
    Server,
}

impl Via {
    /// As the audit names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Session => "session",
            Self::Server => "open server",
        }
    }
}

/// Who calls, and what they may do. Each call has one.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    /// Id of the user; `tasks.owner` of what it makes.
    pub(crate) user: String,
    /// Name of the user.
    pub(crate) name: String,
    pub(crate) via: Via,
    /// The public half of the key that it used, or with which it logged in.
    pub(crate) access_key: Option<String>,
    /// The node that a service account acts for.
    pub(crate) node: Option<String>,
    /// Its roles, each with the name of the project at the top of its tree; empty: all projects.
    pub(crate) roles: Vec<(String, Role)>,
}

impl Principal {
    /// The server itself, and everybody on an open one.
    pub(crate) fn server() -> Self {
        let everything = vec![(String::new(), Role::Admin)];
        let name = USER.to_owned();
        Self { user: name.clone(), name, via: Via::Server, access_key: None, node: None, roles: everything }
    }

    /// Whether it has the right in this project, by name; `None`: outside of any project, or for the whole server.
    pub(crate) fn may(&self, right: Right, project: Option<&str>) -> bool {
        self.roles.iter().any(|(tree, role)| role.has(right) && is_in(project, tree))
    }

    /// Whether it has the right for the whole server.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.may(right, None)
    }

    /// Whether it has the right in any project at all.
    pub(crate) fn may_somewhere(&self, right: Right) -> bool {
        self.roles.iter().any(|(_, role)| role.has(right))
    }

    /// Restricts a query to that for which it has the right; `None`: it has it for everything.
    pub(crate) fn scope(&self, right: Right) -> Option<Scope> {
        if self.may_everywhere(right) {
            return None;
        }
        let trees = self.roles.iter().filter(|(_, role)| role.has(right)).map(|(tree, _)| tree.clone());
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
