//! ClearML's wire, once for all who speak it: server, agent and command line.
//!
//! Each endpoint is a request type that names its endpoint and its answer ([`Request`]); [`Client::call`] sends it and
//! the server's routes are keyed by the same types. Fields that a peer does not know are ignored, `null` means absent,
//! and what cantle adds beyond ClearML is the service [`cantle`] (and [`quotas`]) in the same style.

mod client;
mod command;
mod conf;
mod error;
mod execution;
mod wire;

pub mod cantle;
pub mod events;
pub mod projects;
pub mod queues;
pub mod quotas;
pub mod tasks;
pub mod workers;

pub use client::{Client, Credentials};
pub use command::{SECTION, TaskRequest, TaskRequestError, shell_words};
pub use conf::{Conf, ConfError};
pub use error::{Error, accept_refusal};
pub use execution::{ABORTED, CLEARML_AGENT, DONE, runnable, sdk_command};
pub use wire::{Empty, Envelope, Listing, Meta, MetaEndpoint, Request, Updated, subcode, without_nulls};
