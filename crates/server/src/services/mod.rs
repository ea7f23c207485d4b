//! The endpoints, by service.

pub(crate) mod auth;
mod cantle;
mod compare;
pub(crate) mod events;
mod explain;
mod history;
mod metrics;
mod models;
mod nodes;
mod params;
mod projects;
mod queues;
mod quotas;
mod shares;
mod task_list;
mod task_order;
mod tasks;
mod tasks_flow;
mod workers;

pub(crate) use nodes::gpus_alive_milli;

use crate::routes::Routes;

/// All endpoints that take one JSON object.
pub(crate) fn routes() -> Routes {
    let mut routes = Routes::default();
    auth::add(&mut routes);
    cantle::add(&mut routes);
    compare::add(&mut routes);
    events::add(&mut routes);
    history::add(&mut routes);
    metrics::add(&mut routes);
    models::add(&mut routes);
    params::add(&mut routes);
    projects::add(&mut routes);
    queues::add(&mut routes);
    quotas::add(&mut routes);
    tasks::add(&mut routes);
    task_list::add(&mut routes);
    tasks_flow::add(&mut routes);
    workers::add(&mut routes);
    auth::add_endpoints(&mut routes);
    routes
}
