//! ClearML's REST protocol, defined once for server, agent, queues controller and command line.
//!
//! Each endpoint has a request type that names the endpoint and its answer ([`Request`]). [`Client::call`] sends it,
//! and the server's routes are keyed by the same types. Unknown fields are ignored, and `null` means absent. cantle's
//! additions to ClearML are the service [`cantle`] (and [`quotas`]) in the same style.

mod arrays;
#[cfg(feature = "client")]
mod client;
mod command;
mod compute_view;
mod conf;
mod credentials;
#[cfg(feature = "client")]
mod error;
mod execution;
#[cfg(feature = "client")]
mod keys;
mod shell;
mod status;
mod suspended;
mod wire;

pub mod batch;
pub mod budgets;
pub mod cantle;
pub mod events;
pub mod exec;
pub mod leases;
pub mod metering;
pub mod notebook;
pub mod notify;
pub mod pools;
pub mod projects;
pub mod queues;
pub mod quotas;
pub mod runs;
pub mod secrets;
pub mod sessions;
pub mod starts;
pub mod tasks;
pub mod times;
#[cfg(feature = "client")]
mod tls;
pub mod usage;
pub mod users;
pub mod workers;

pub use arrays::ArrayView;
#[cfg(feature = "client")]
pub use client::Client;
pub use command::{ArrayElement, RequestedFlow, SECTION, TaskRequest, TaskRequestError};
pub use conf::{Conf, ConfError};
pub use credentials::{Credentials, KeySource, Proof};
#[cfg(feature = "client")]
pub use error::{WireError, accept_refusal};
pub use execution::{CLEARML_AGENT, Unrunnable, runnable, sdk_command};
pub use shell::shell_words;
pub use status::{ABORTED, DONE, StatusReason, StopRequest};
pub use suspended::SuspendedView;
#[cfg(feature = "client")]
pub use tls::ClientTls;
pub use wire::{Empty, Envelope, Listing, Meta, MetaEndpoint, Request, Updated, subcode, without_nulls};
