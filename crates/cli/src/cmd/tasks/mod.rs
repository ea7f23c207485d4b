//! Commands about tasks of a server.

pub(crate) mod delete;
pub(crate) mod exec;
pub(crate) mod extend;
pub(crate) mod forward;
pub(crate) mod list;
pub(crate) mod move_task;
pub(crate) mod notebook;
pub(crate) mod one;
pub(crate) mod runs;
pub(crate) mod shell;
mod starts;
pub(crate) mod submit;
pub(crate) mod wait;
