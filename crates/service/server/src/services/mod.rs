//! The endpoints, by service.

mod accounts;
mod advice;
pub(crate) mod auth;
mod budgets;
mod cantle;
mod compare;
mod edits;
mod erase;
pub(crate) mod events;
mod execs;
mod explain;
mod history;
mod keys;
mod leases;
mod many;
mod metrics;
mod models;
pub(crate) mod nodes;
mod notify;
mod params;
mod people;
mod pools;
mod projects;
mod queues;
mod quotas;
pub(crate) mod refused;
mod samples;
mod secrets;
mod sessions;
mod shares;
mod sides;
mod sizes;
mod task_list;
mod task_order;
mod tasks;
mod tasks_flow;
mod usage;
mod usage_days;
mod users;
mod values;
mod wishes;
mod workers;

pub(crate) use budgets::{count as count_budgets, month};
pub(crate) use nodes::gpus_alive_milli;
pub(crate) use usage_days::{FirstUsage, keep as keep_usage_days};

use crate::routes::Routes;

/// All endpoints that take one JSON object.
pub(crate) fn routes() -> Routes {
    let mut routes = Routes::default();
    advice::add(&mut routes);
    auth::add(&mut routes);
    budgets::add(&mut routes);
    cantle::add(&mut routes);
    compare::add(&mut routes);
    edits::add(&mut routes);
    erase::add(&mut routes);
    events::add(&mut routes);
    execs::add(&mut routes);
    history::add(&mut routes);
    metrics::add(&mut routes);
    models::add(&mut routes);
    keys::add(&mut routes);
    notify::add(&mut routes);
    params::add(&mut routes);
    people::add(&mut routes);
    pools::add(&mut routes);
    projects::add(&mut routes);
    queues::add(&mut routes);
    leases::add(&mut routes);
    quotas::add(&mut routes);
    samples::add(&mut routes);
    secrets::add(&mut routes);
    sessions::add(&mut routes);
    tasks::add(&mut routes);
    task_list::add(&mut routes);
    tasks_flow::add(&mut routes);
    usage::add(&mut routes);
    users::add(&mut routes);
    values::add(&mut routes);
    wishes::add(&mut routes);
    workers::add(&mut routes);
    auth::add_endpoints(&mut routes);
    routes
}
