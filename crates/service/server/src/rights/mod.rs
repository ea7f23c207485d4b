//! The caller of a request and its rights.
//!
//! A call comes with a key or a token; [`People`] finds the [`Principal`] that it belongs to. A principal has roles in
//! trees of projects; a role is a set of rights.

mod allowed;
pub(crate) mod audit;
mod bootstrap;
mod files;
mod guard;
mod own_run;
mod people;
mod principal;
#[cfg(test)]
mod reference;
mod role;
mod sessions;
mod sight;
mod table;

pub(crate) use allowed::{Allowed, Passed, act, object};
pub(crate) use bootstrap::bootstrap;
pub(crate) use files::{has_owner, may_use_file, tasks_in};
pub(crate) use guard::{check, is_of_node};
pub(crate) use own_run::lasts;
pub(crate) use people::{
    EVERYBODY, ExternalIdentity, People, Register, Stranger, Used, digest, new_key, subject_of,
};
pub(crate) use principal::{OwnRun, Principal, Via};
pub(crate) use role::{Right, Role};
pub(crate) use sessions::{Begin, OfSession};
pub(crate) use sight::Sight;
pub use table::endpoints;
pub(crate) use table::{Act, Rule, rule};
