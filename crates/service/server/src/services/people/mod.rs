//! People and projects: the callers, their keys and roles, and the limits of projects.

pub(crate) mod admin;
pub(crate) mod auth;
pub(crate) mod budgets;
pub(crate) mod keys;
pub(crate) mod notify;
pub(crate) mod projects;
pub(crate) mod quotas;
pub(crate) mod secrets;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod users;
