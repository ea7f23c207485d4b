//! The commands, one module per family. Each owns its arguments and its code.

pub(crate) mod backup;
mod bundle;
pub(crate) mod check;
mod checkup;
pub(crate) mod cluster;
pub(crate) mod controller;
pub(crate) mod credentials;
pub(crate) mod daemon;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod image;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod mig;
pub(crate) mod move_task;
pub(crate) mod quota;
pub(crate) mod run;
mod serve;
pub(crate) mod server;
pub(crate) mod sim;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod task;
pub(crate) mod top;
pub(crate) mod up;
