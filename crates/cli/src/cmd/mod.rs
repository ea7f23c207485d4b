//! The commands, one module per family. Each owns its arguments and its code.

pub(crate) mod advise;
pub(crate) mod backup;
pub(crate) mod budget;
mod bundle;
#[cfg(feature = "kubernetes")]
pub(crate) mod check;
mod checkup;
#[cfg(feature = "kubernetes")]
pub(crate) mod cluster;
#[cfg(feature = "kubernetes")]
pub(crate) mod controller;
pub(crate) mod credentials;
pub(crate) mod daemon;
pub(crate) mod db;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod extend;
pub(crate) mod forward;
pub(crate) mod here;
pub(crate) mod image;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod manual;
pub(crate) mod mig;
pub(crate) mod move_task;
#[cfg(any(test, not(feature = "kubernetes")))]
mod no_kubernetes;
pub(crate) mod notebook;
pub(crate) mod notify;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod quota;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod secrets;
mod serve;
pub(crate) mod server;
mod sessions;
pub(crate) mod shell;
pub(crate) mod sim;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod suspend;
pub(crate) mod task;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod usage;
pub(crate) mod users;
pub(crate) mod wait;

#[cfg(not(feature = "kubernetes"))]
pub(crate) use no_kubernetes::{check, cluster, controller};
