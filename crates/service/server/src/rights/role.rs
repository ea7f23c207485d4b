//! Roles and the rights that they consist of.

pub(crate) use cantle_clearml::users::Role;

/// A right in a tree of projects, or everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// See which tasks, models and projects there are, and their state.
    See,
    /// Read the output of other people's tasks: logs, metrics, artifacts.
    Read,
    /// Make and run tasks; their maker may always change, stop and delete them.
    Submit,
    /// Change, stop and delete other people's tasks, go first, set quotas.
    Manage,
    /// Decide who may do what; read the audit.
    Administer,
    /// Do what an agent does for its node.
    Serve,
}

impl Right {
    pub(crate) const ALL: [Self; 6] =
        [Self::See, Self::Read, Self::Submit, Self::Manage, Self::Administer, Self::Serve];

    /// As refusals and the documentation name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::See => "see",
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Manage => "manage",
            Self::Administer => "administer",
            Self::Serve => "serve",
        }
    }

    /// The rights of a role.
    pub(crate) const fn of(role: Role) -> &'static [Self] {
        match role {
            Role::Admin => {
                &[Self::See, Self::Read, Self::Submit, Self::Manage, Self::Administer, Self::Serve]
            }
            Role::Manager => &[Self::See, Self::Read, Self::Submit, Self::Manage],
            Role::Member => &[Self::See, Self::Submit],
            Role::Viewer => &[Self::See, Self::Read],
            Role::Agent => &[Self::Serve],
        }
    }

    pub(crate) fn is_in(self, role: Role) -> bool {
        Self::of(role).contains(&self)
    }
}
