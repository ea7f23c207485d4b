//! Commands about people and projects: keys, roles, quotas, and what was used.

pub(crate) mod advise;
pub(crate) mod budget;
pub(crate) mod credentials;
pub(crate) mod login;
pub(crate) mod notify;
pub(crate) mod quota;
pub(crate) mod secrets;
pub(crate) mod sessions;
pub(crate) mod usage;
pub(crate) mod users;
