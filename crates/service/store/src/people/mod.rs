//! People and projects: rights, the limits of projects, and the notices for users.

pub(crate) mod audit;
pub(crate) mod budgets;
pub(crate) mod limits;
pub(crate) mod notices;
pub(crate) mod projects;
pub(crate) mod quota_times;
pub(crate) mod quotas;
pub(crate) mod secrets;
pub(crate) mod sessions;
pub(crate) mod users;
