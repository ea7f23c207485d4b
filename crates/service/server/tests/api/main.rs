//! The server as its callers see it: each test starts one, and speaks HTTP with it. One program, because each program of this size is a
//! compilation and a link of its own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test says by panicking that something is wrong, and reads the environment of its suite"
)]
#![recursion_limit = "512"]

mod accounts;
mod agents;
mod batch;
mod browse;
mod budgets;
mod charts;
mod common;
mod crowd;
mod deputies;
mod door;
mod endpoints;
mod faults;
mod filters;
mod flow;
mod graphs;
mod hostile_provider;
mod hostile_requests;
mod kubernetes_tokens;
mod limits;
mod lists;
mod matrix;
mod metering;
mod notices;
mod older;
mod pools;
mod quotas;
mod replay;
mod replicas;
mod rights;
mod secrets;
mod sessions;
mod sizes;
mod table;
mod task_tokens;
mod tls;
mod usage_days;
mod week;
mod wire;
mod wishes;
