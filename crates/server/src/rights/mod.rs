//! Who calls, and what they may do.
//!
//! A call comes with a key or a token; [`People`] finds the [`Principal`] that it belongs to. A principal has roles in
//! trees of projects; a role is a set of rights.

mod bootstrap;
mod people;
mod principal;
mod role;

pub(crate) use bootstrap::bootstrap;
pub(crate) use people::{
    EVERYBODY, ExternalIdentity, People, Register, Stranger, key_row, new_key, subject_of,
};
pub(crate) use principal::{Principal, Via};
pub(crate) use role::{Right, Role};
