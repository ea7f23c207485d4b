//! `cantle.*` about people: users, their keys and roles, and the audit.

use cantle_model::UserLimits;
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// A set of rights with a name. The server defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// All about tasks.
    Manager,
    /// Tasks of one's own.
    Member,
    /// To read.
    Viewer,
    /// The work of an agent.
    Agent,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Admin, Self::Manager, Self::Member, Self::Viewer, Self::Agent];

    /// As users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Manager => "manager",
            Self::Member => "member",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
        }
    }

    /// Its purpose, for people.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Admin => "Everything, including users and the audit",
            Self::Manager => "Everything with tasks, quotas and queues",
            Self::Member => "See tasks, models and projects, and run tasks of one's own",
            Self::Viewer => "See and read everything, change nothing",
            Self::Agent => "Only what the agent of one node needs",
        }
    }

    /// The role of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// `cantle.get_users`: all users, for administrators.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetUsers {}
endpoint!("cantle.get_users", GetUsers => UserViews);

/// Answer of `cantle.get_users`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UserViews {
    /// All users who were not removed, by name.
    pub users: Vec<UserView>,
    /// The roles of groups and of everybody.
    #[serde(default)]
    pub shared: Vec<RoleView>,
}

/// A user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UserView {
    /// Its name.
    pub name: String,
    /// Its id; tasks name it.
    pub id: String,
    /// The node of a service account.
    pub node: Option<String>,
    /// It logs in at an identity provider.
    pub external: bool,
    /// Its groups.
    pub groups: Vec<String>,
    /// Its own roles.
    pub roles: Vec<RoleView>,
    /// Its limits.
    #[serde(default, skip_serializing_if = "UserLimits::is_empty")]
    pub limits: UserLimits,
    /// Its keys that were not revoked.
    pub keys: u64,
    /// When one of them was used last, RFC 3339.
    pub last_used: Option<String>,
    /// RFC 3339.
    pub created: String,
}

/// A role in a tree of projects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleView {
    /// Whose: name of a user, `group:NAME` or `everybody`.
    pub who: String,
    /// `admin`, `manager`, `member`, `viewer` or `agent`.
    pub role: String,
    /// The project at the top of the tree; absent: all projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// `cantle.add_user`: makes a user with a first key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AddUser {
    /// Its name: letters, digits and `.-_@`, at most 64.
    pub name: String,
    /// Its first role.
    pub role: String,
    /// The project at the top of the tree in which it has that role; absent: all projects.
    pub project: Option<String>,
    /// The node that a service account of role `agent` acts for.
    pub node: Option<String>,
    /// The user of Kubernetes whose tokens are its.
    pub kubernetes: Option<String>,
    /// Its groups.
    pub groups: Vec<String>,
}
endpoint!("cantle.add_user", AddUser => NewKey);

/// A new key. The server cannot show the secret again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewKey {
    /// Name of its user.
    pub user: String,
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
}

/// `users.get_current_user`: the caller.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetCurrentUser {}
endpoint!("users.get_current_user", GetCurrentUser => CurrentUser);

/// Answer of `users.get_current_user`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CurrentUser {
    /// The caller.
    pub user: OwnUser,
}

/// The caller, as far as cantle's own programs ask.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnUser {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its roles. ClearML's own server names none.
    pub cantle_roles: Vec<OwnRole>,
}

/// A role of the caller.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OwnRole {
    /// Its name.
    pub role: String,
    /// The project at the top of the tree in which it holds; empty: all projects.
    pub project: String,
}

/// `cantle.remove_user`: revokes its keys and roles. Its tasks stay and keep its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RemoveUser {
    /// Name or id.
    pub user: String,
}
endpoint!("cantle.remove_user", RemoveUser => Empty);

/// `cantle.forget_user`: no run that has ended is this user's any more. Reports have its time on a line without a name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ForgetUser {
    /// Name or id, also of a removed user.
    pub user: String,
}
endpoint!("cantle.forget_user", ForgetUser => ForgottenUser);

/// Answer of `cantle.forget_user`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForgottenUser {
    /// Runs that were the user's.
    pub runs: u64,
    /// Runs that last, and still are.
    pub lasting: u64,
}

/// `cantle.set_user`: what a user may have at once, from now on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetUser {
    /// Name or id.
    pub user: String,
    /// All of its limits; one that is absent is none.
    pub limits: UserLimits,
}
endpoint!("cantle.set_user", SetUser => Empty);

/// `cantle.set_role`: gives a role or takes it away.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetRole {
    /// Name of a user, `group:NAME` or `everybody`.
    pub who: String,
    /// The role.
    pub role: String,
    /// The project at the top of the tree; absent: all projects.
    pub project: Option<String>,
    /// Take it away.
    pub remove: bool,
}
endpoint!("cantle.set_role", SetRole => Empty);

/// `cantle.get_keys`: the caller's keys, or for administrators those of a user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetKeys {
    /// Name or id; absent: the caller.
    pub user: Option<String>,
}
endpoint!("cantle.get_keys", GetKeys => KeyViews);

/// Answer of `cantle.get_keys`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeyViews {
    /// Oldest first, also revoked ones.
    pub keys: Vec<KeyView>,
}

/// A key, without its secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeyView {
    /// The public half.
    pub access_key: String,
    /// Name of its user.
    pub user: String,
    /// Its label.
    pub label: String,
    /// RFC 3339.
    pub created: String,
    /// RFC 3339, to about 10 seconds.
    pub last_used: Option<String>,
    /// The address from which it was.
    pub last_used_from: Option<String>,
    /// When it was revoked, RFC 3339.
    pub revoked: Option<String>,
}

/// `cantle.add_key`: a new key of the caller, or for administrators of a user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AddKey {
    /// Name or id; absent: the caller.
    pub user: Option<String>,
    /// Its purpose.
    pub label: String,
    /// Revoke this key in the same step.
    pub instead_of: Option<String>,
}
endpoint!("cantle.add_key", AddKey => NewKey);

/// `cantle.revoke_key`: a key of the caller, or for administrators of any user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RevokeKey {
    /// The public half.
    pub access_key: String,
}
endpoint!("cantle.revoke_key", RevokeKey => Empty);

/// `cantle.get_audit`: the actions of users, for administrators.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetAudit {
    /// After the record with this id; without it the newest ones.
    pub after: Option<i64>,
    /// Of this user (name or id).
    pub user: Option<String>,
    /// Of this action: an endpoint, or `login`.
    pub action: Option<String>,
    /// About this.
    pub subject: Option<String>,
    /// Only refusals.
    pub refused: bool,
    /// Maximum number of records; 200 by default, 10,000 at most.
    pub limit: Option<u64>,
}
endpoint!("cantle.get_audit", GetAudit => AuditViews);

/// Answer of `cantle.get_audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditViews {
    /// Oldest first.
    pub records: Vec<AuditView>,
}

/// One record of the audit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditView {
    /// Position in the order.
    pub id: i64,
    /// RFC 3339.
    pub time: String,
    /// Name of the user then; empty if the user was unknown.
    pub user: String,
    /// Id of the user.
    pub user_id: String,
    /// From which address.
    pub from: String,
    /// An endpoint, or `login`.
    pub action: String,
    /// `done`, or why it was refused.
    pub outcome: String,
    /// The object of the action.
    pub subject: String,
    /// The former state; null if unknown.
    #[serde(default)]
    pub before: serde_json::Value,
    /// The request, without secrets.
    #[serde(default)]
    pub after: serde_json::Value,
}

#[cfg(test)]
mod tests {
    use super::Role;

    #[test]
    fn names_are_read_back() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.name()), Some(role));
        }
        assert_eq!(Role::parse("root"), None);
    }
}
