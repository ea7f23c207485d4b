//! Roles and the rights that they consist of.

/// What somebody may do in a tree of projects, or everywhere.
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
}

/// A set of rights with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Admin,
    Manager,
    Member,
    Viewer,
    Agent,
}

impl Role {
    pub(crate) const ALL: [Self; 5] = [Self::Admin, Self::Manager, Self::Member, Self::Viewer, Self::Agent];

    /// As users write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Manager => "manager",
            Self::Member => "member",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
        }
    }

    /// The role of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// What it consists of.
    pub(crate) const fn rights(self) -> &'static [Right] {
        match self {
            Self::Admin => {
                &[Right::See, Right::Read, Right::Submit, Right::Manage, Right::Administer, Right::Serve]
            }
            Self::Manager => &[Right::See, Right::Read, Right::Submit, Right::Manage],
            Self::Member => &[Right::See, Right::Submit],
            Self::Viewer => &[Right::See, Right::Read],
            Self::Agent => &[Right::Serve],
        }
    }

    pub(crate) fn has(self, right: Right) -> bool {
        self.rights().contains(&right)
    }
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
