//! The endpoints, by service.

pub(crate) mod fleet;
pub(crate) mod output;
pub(crate) mod people;
pub(crate) mod refused;
pub(crate) mod runs;
pub(crate) mod tasks;

pub(crate) use fleet::nodes::gpus_alive_milli;
pub(crate) use people::budgets::{count as count_budgets, month};
pub(crate) use runs::usage_days::{FirstUsage, keep as keep_usage_days};

use crate::routes::Routes;

/// All endpoints that take one JSON object.
pub(crate) fn routes() -> Routes {
    let mut routes = Routes::default();
    runs::advice::add(&mut routes);
    people::auth::add(&mut routes);
    people::budgets::add(&mut routes);
    fleet::cantle::add(&mut routes);
    output::compare::add(&mut routes);
    tasks::edits::add(&mut routes);
    tasks::erase::add(&mut routes);
    output::events::add(&mut routes);
    tasks::execs::add(&mut routes);
    fleet::history::add(&mut routes);
    runs::metering::add(&mut routes);
    output::metrics::add(&mut routes);
    output::models::add(&mut routes);
    people::keys::add(&mut routes);
    people::notify::add(&mut routes);
    tasks::params::add(&mut routes);
    people::admin::add(&mut routes);
    fleet::pools::add(&mut routes);
    people::projects::add(&mut routes);
    fleet::queues::add(&mut routes);
    runs::leases::add(&mut routes);
    people::quotas::add(&mut routes);
    output::samples::add(&mut routes);
    people::secrets::add(&mut routes);
    people::sessions::add(&mut routes);
    tasks::records::add(&mut routes);
    tasks::list::add(&mut routes);
    tasks::starts::add(&mut routes);
    tasks::flow::add(&mut routes);
    runs::usage::add(&mut routes);
    people::users::add(&mut routes);
    tasks::values::add(&mut routes);
    tasks::wishes::add(&mut routes);
    fleet::workers::add(&mut routes);
    people::auth::add_endpoints(&mut routes);
    routes
}
