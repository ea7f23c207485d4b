//! The table of endpoints with the rights that each requires. `docs/reference/rights.md` is generated from it, and a call of
//! an endpoint that is not in the table is refused.

use super::role::Right;
use Need::{Anyone, Duplicate, Everywhere, Fair, Filtered, Model, Node, Own, Person, Project, Task, Within};

/// An action of a caller on a task or a model, which may belong to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// See that it is there, and its state.
    See,
    /// Read its output.
    Read,
    /// Change, stop or delete it.
    Change,
    /// Have it run.
    Run,
    /// Put it before others.
    Outbid,
    /// Run a command in it, as its user: not for an agent that runs it.
    Enter,
}

/// One thing that an endpoint needs. A path names members of the request, `a.b` those of each object in the list `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing but a key or a login.
    Anyone,
    /// One of these rights, for the whole server.
    Everywhere(&'static [Right]),
    /// Nothing: the answer has only what the caller may see.
    Filtered,
    /// Nothing: it is about the caller alone.
    Own,
    /// A person or a program with a key: not a task that runs.
    Person,
    /// The act, with the tasks at the path; those that are models instead are handled as models.
    Task(Act, &'static str),
    /// The act, with the models at the path.
    Model(Act, &'static str),
    /// The right in the project whose id or name is at the path, and which need not exist; nothing if the path is empty.
    Project(Right, &'static str),
    /// The same; the right for the whole server if the path is empty.
    Within(Right, &'static str),
    /// The right in the project above the one whose name is at the path.
    Above(Right, &'static str),
    /// For a copy of the task at the first path: to submit in the project at the second, or else in that of the task.
    Duplicate(&'static str, &'static str),
    /// A task that goes before others needs the right `manage`: a priority above 0, or that a task is never stopped for
    /// others. Tested are the tasks at the path, and the parameters in the request.
    Fair(&'static str),
    /// An agent names at the path its own node, or a worker of it.
    Node(&'static str),
}

/// An endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) endpoint: &'static str,
    /// All of them.
    pub(crate) needs: &'static [Need],
    /// Calls of it are in the audit.
    pub(crate) audited: bool,
}

const fn free(endpoint: &'static str, needs: &'static [Need]) -> Rule {
    Rule { endpoint, needs, audited: false }
}

const fn audited(endpoint: &'static str, needs: &'static [Need]) -> Rule {
    Rule { endpoint, needs, audited: true }
}

const SERVE: Need = Everywhere(&[Right::Serve]);
const QUEUES: Need = Everywhere(&[Right::Manage]);
const ADMIN: Need = Everywhere(&[Right::Administer]);

/// The rule of an endpoint.
pub(crate) fn rule(endpoint: &str) -> Option<&'static Rule> {
    TABLE.binary_search_by(|rule| rule.endpoint.cmp(endpoint)).ok().map(|at| &TABLE[at])
}

/// All endpoints, by name.
pub fn endpoints() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|rule| rule.endpoint)
}

/// In order of the names.
pub(crate) const TABLE: &[Rule] = &[
    audited("auth.create_credentials", &[Person, Own]),
    audited("auth.create_user", &[ADMIN]),
    audited("auth.edit_credentials", &[Person, Own]),
    free("auth.fixed_users_mode", &[Anyone]),
    free("auth.get_credentials", &[Person, Own]),
    free("auth.login", &[Anyone]),
    free("auth.logout", &[Anyone]),
    audited("auth.revoke_credentials", &[Person, Own]),
    free("auth.validate_token", &[Anyone]),
    free("cantle.add_events", &[SERVE, Filtered, Node("events.node")]),
    audited("cantle.add_key", &[Person, Own]),
    audited("cantle.add_user", &[ADMIN]),
    free("cantle.complete_tasks", &[Task(Act::Change, "runs.task")]),
    audited("cantle.delete_pool", &[ADMIN]),
    audited("cantle.delete_receiver", &[Person, Own]),
    audited("cantle.delete_secret", &[Person, Own]),
    free("cantle.end_fenced", &[SERVE, Task(Act::Change, "task")]),
    audited("cantle.end_sessions", &[Person, Own]),
    audited("cantle.evict", &[SERVE, Node("node"), Task(Act::Change, "victims.task")]),
    free("cantle.explain_task", &[Task(Act::See, "task")]),
    audited("cantle.extend_task", &[Task(Act::Outbid, "task")]),
    audited("cantle.forget_user", &[ADMIN]),
    free("cantle.get_advice", &[Filtered]),
    free("cantle.get_audit", &[ADMIN]),
    free("cantle.get_budgets", &[Filtered]),
    free("cantle.get_events", &[Filtered]),
    free("cantle.get_fleet", &[SERVE, Node("node")]),
    free("cantle.get_keys", &[Person, Own]),
    free("cantle.get_nodes", &[Filtered]),
    free("cantle.get_pools", &[Filtered]),
    free("cantle.get_projects", &[Filtered]),
    free("cantle.get_queues", &[Filtered]),
    free("cantle.get_quotas", &[Filtered]),
    free("cantle.get_receivers", &[Person, Own]),
    free("cantle.get_runs", &[Task(Act::See, "task")]),
    free("cantle.get_secrets", &[Person, Own]),
    free("cantle.get_sessions", &[Person, Own]),
    free("cantle.get_starts", &[Filtered]),
    free("cantle.get_task_token", &[SERVE, Task(Act::Change, "task")]),
    free("cantle.get_tasks", &[Filtered]),
    free("cantle.get_usage", &[Filtered]),
    free("cantle.get_users", &[ADMIN]),
    free("cantle.give_back", &[SERVE, Task(Act::Change, "task")]),
    audited("cantle.open_exec", &[Person, Task(Act::Enter, "task")]),
    audited("cantle.open_notebook", &[Person, Task(Act::Enter, "task")]),
    audited("cantle.remove_user", &[ADMIN]),
    // A lease is known to its agent alone; a renewal must not fail for a task that was deleted.
    free("cantle.renew_leases", &[SERVE, Node("node")]),
    free("cantle.report_node", &[SERVE, Node("node")]),
    free("cantle.report_slices", &[SERVE, Node("node"), Task(Act::Change, "task")]),
    free("cantle.report_task", &[SERVE, Node("node"), Task(Act::Change, "task")]),
    audited("cantle.revoke_key", &[Person, Own]),
    audited("cantle.set_budget", &[Need::Above(Right::Manage, "project")]),
    audited("cantle.set_pool", &[ADMIN]),
    audited("cantle.set_queue", &[QUEUES]),
    audited("cantle.set_queue_preempt", &[QUEUES]),
    audited("cantle.set_queue_times", &[QUEUES]),
    audited("cantle.set_quota", &[Need::Above(Right::Manage, "project")]),
    audited("cantle.set_receiver", &[Person, Own]),
    audited("cantle.set_role", &[ADMIN]),
    audited("cantle.set_secret", &[Person, Own]),
    audited("cantle.set_user", &[ADMIN]),
    audited("cantle.shorten_task", &[Task(Act::Change, "task")]),
    free(
        "cantle.submit_task",
        &[Within(Right::Submit, "task.project"), Task(Act::See, "task.parent"), Fair("")],
    ),
    free("cantle.take_tasks", &[SERVE]),
    audited("cantle.test_receiver", &[Person, Own]),
    free("cantle.wait_for_execs", &[SERVE, Node("node")]),
    free("cantle.wait_for_tasks", &[SERVE]),
    free("debug.ping", &[Anyone]),
    free("events.add", &[Task(Act::Change, "task")]),
    free("events.add_batch", &[Task(Act::Change, "task")]),
    free("events.clear_scroll", &[Anyone]),
    audited("events.clear_task_log", &[Task(Act::Change, "task")]),
    free("events.debug_images", &[Task(Act::Read, "task"), Task(Act::Read, "metrics.task")]),
    audited("events.delete_for_model", &[Model(Act::Change, "model")]),
    audited("events.delete_for_task", &[Task(Act::Change, "task")]),
    free("events.get_debug_image_sample", &[Task(Act::Read, "task")]),
    free("events.get_multi_task_metrics", &[Task(Act::Read, "tasks")]),
    free("events.get_multi_task_plots", &[Task(Act::Read, "tasks")]),
    free("events.get_plot_sample", &[Task(Act::Read, "task")]),
    free("events.get_scalar_metric_data", &[Task(Act::Read, "task")]),
    free("events.get_scalar_metrics_and_variants", &[Task(Act::Read, "task")]),
    free("events.get_task_events", &[Task(Act::Read, "task")]),
    free("events.get_task_latest_scalar_values", &[Task(Act::Read, "task")]),
    free("events.get_task_log", &[Task(Act::Read, "task")]),
    free("events.get_task_metrics", &[Task(Act::Read, "tasks")]),
    free("events.get_task_plots", &[Task(Act::Read, "task")]),
    free("events.get_task_single_value_metrics", &[Task(Act::Read, "tasks")]),
    free("events.get_vector_metrics_and_variants", &[Task(Act::Read, "task")]),
    free("events.multi_task_scalar_metrics_iter_histogram", &[Task(Act::Read, "tasks")]),
    free("events.next_debug_image_sample", &[Task(Act::Read, "task")]),
    free("events.next_plot_sample", &[Task(Act::Read, "task")]),
    free("events.plots", &[Task(Act::Read, "task"), Task(Act::Read, "metrics.task")]),
    free("events.scalar_metrics_iter_histogram", &[Task(Act::Read, "task")]),
    free("events.scalar_metrics_iter_raw", &[Task(Act::Read, "task")]),
    free("events.vector_metrics_iter_histogram", &[Task(Act::Read, "task")]),
    free("get_usages", &[ADMIN]),
    free("login.logout", &[Anyone]),
    free("login.supported_modes", &[Anyone]),
    free("models.add_or_update_metadata", &[Model(Act::Change, "model")]),
    free("models.archive_many", &[Model(Act::Change, "ids")]),
    free("models.create", &[Within(Right::Submit, "project"), Task(Act::Change, "task")]),
    audited("models.delete", &[Model(Act::Change, "model")]),
    audited("models.delete_many", &[Model(Act::Change, "ids")]),
    free("models.delete_metadata", &[Model(Act::Change, "model")]),
    free(
        "models.edit",
        &[Model(Act::Change, "model"), Project(Right::Submit, "project"), Task(Act::Change, "task")],
    ),
    free("models.get_all", &[Filtered]),
    free("models.get_all_ex", &[Filtered]),
    free("models.get_by_id", &[Model(Act::See, "model")]),
    free("models.get_by_id_ex", &[Model(Act::See, "model")]),
    free("models.get_by_task_id", &[Task(Act::See, "task")]),
    free("models.get_frameworks", &[Filtered]),
    free(
        "models.move",
        &[
            Model(Act::Change, "ids"),
            Project(Right::Submit, "project"),
            Project(Right::Submit, "project_name"),
        ],
    ),
    free("models.publish_many", &[Model(Act::Change, "ids")]),
    free("models.set_ready", &[Model(Act::Change, "model")]),
    free("models.unarchive_many", &[Model(Act::Change, "ids")]),
    free(
        "models.update",
        &[Model(Act::Change, "model"), Project(Right::Submit, "project"), Task(Act::Change, "task")],
    ),
    free("models.update_for_task", &[Task(Act::Change, "task"), Model(Act::Change, "override_model_id")]),
    free("models.update_tags", &[Model(Act::Change, "ids")]),
    free("organization.get_entities_count", &[Filtered]),
    free("organization.get_tags", &[Filtered]),
    free("organization.get_user_companies", &[Anyone]),
    free("projects.create", &[Within(Right::Submit, "name")]),
    audited("projects.delete", &[Project(Right::Manage, "project")]),
    free("projects.get_all", &[Filtered]),
    free("projects.get_all_ex", &[Filtered]),
    free("projects.get_by_id", &[Project(Right::See, "project")]),
    free("projects.get_hyper_parameters", &[Filtered]),
    free("projects.get_hyperparam_values", &[Filtered]),
    free("projects.get_model_metadata_keys", &[Filtered]),
    free("projects.get_model_metadata_values", &[Filtered]),
    free("projects.get_model_tags", &[Filtered]),
    free("projects.get_project_tags", &[Filtered]),
    free("projects.get_task_parents", &[Filtered]),
    free("projects.get_task_tags", &[Filtered]),
    free("projects.get_unique_metric_variants", &[Filtered, Task(Act::Read, "ids")]),
    free("projects.get_user_names", &[Filtered]),
    audited(
        "projects.merge",
        &[Project(Right::Manage, "project"), Project(Right::Manage, "destination_project")],
    ),
    audited("projects.move", &[Project(Right::Manage, "project"), Within(Right::Manage, "new_location")]),
    audited("projects.update", &[Project(Right::Manage, "project"), Project(Right::Manage, "name")]),
    free("projects.validate_delete", &[Project(Right::Manage, "project")]),
    audited("queues.add_or_update_metadata", &[QUEUES]),
    free("queues.add_task", &[Task(Act::Run, "task"), Fair("task")]),
    audited("queues.clear_queue", &[QUEUES]),
    audited("queues.create", &[Everywhere(&[Right::Manage, Right::Serve])]),
    audited("queues.delete", &[QUEUES]),
    audited("queues.delete_metadata", &[QUEUES]),
    free("queues.get_all", &[Filtered]),
    free("queues.get_all_ex", &[Filtered]),
    free("queues.get_by_id", &[Filtered]),
    free("queues.get_default", &[Anyone]),
    free("queues.get_next_task", &[SERVE]),
    free("queues.get_num_entries", &[Filtered]),
    free("queues.get_queue_metrics", &[Filtered]),
    audited("queues.move_task_backward", &[Task(Act::Change, "task")]),
    audited("queues.move_task_forward", &[Task(Act::Outbid, "task")]),
    audited("queues.move_task_to_back", &[Task(Act::Change, "task")]),
    audited("queues.move_task_to_front", &[Task(Act::Outbid, "task")]),
    free("queues.peek_task", &[Filtered]),
    audited("queues.remove_task", &[Task(Act::Change, "task")]),
    audited("queues.update", &[QUEUES]),
    free("server.endpoints", &[Anyone]),
    free("server.info", &[Anyone]),
    free("server.report_stats_option", &[Anyone]),
    free("tasks.add_or_update_artifacts", &[Task(Act::Change, "task")]),
    free("tasks.add_or_update_model", &[Task(Act::Change, "task"), Model(Act::See, "model")]),
    free("tasks.archive", &[Task(Act::Change, "tasks"), Task(Act::Change, "ids")]),
    free("tasks.archive_many", &[Task(Act::Change, "ids")]),
    free(
        "tasks.clone",
        &[Task(Act::See, "task"), Task(Act::See, "new_task_parent"), Duplicate("task", "new_task_project")],
    ),
    free("tasks.close", &[Task(Act::Change, "task")]),
    free("tasks.completed", &[Task(Act::Change, "task")]),
    free("tasks.create", &[Within(Right::Submit, "project"), Task(Act::See, "parent"), Fair("")]),
    audited("tasks.delete", &[Task(Act::Change, "task")]),
    audited("tasks.delete_artifacts", &[Task(Act::Change, "task")]),
    free("tasks.delete_configuration", &[Task(Act::Change, "task")]),
    free("tasks.delete_hyper_params", &[Task(Act::Change, "task")]),
    audited("tasks.delete_many", &[Task(Act::Change, "ids")]),
    audited("tasks.delete_models", &[Task(Act::Change, "task")]),
    audited("tasks.dequeue", &[Task(Act::Change, "task")]),
    audited("tasks.dequeue_many", &[Task(Act::Change, "ids")]),
    free(
        "tasks.edit",
        &[Task(Act::Change, "task"), Task(Act::See, "parent"), Fair(""), Project(Right::Submit, "project")],
    ),
    free("tasks.edit_configuration", &[Task(Act::Change, "task")]),
    free("tasks.edit_hyper_params", &[Task(Act::Change, "task"), Fair("")]),
    free("tasks.edit_runtime", &[Task(Act::Change, "task")]),
    free("tasks.enqueue", &[Task(Act::Run, "task"), Fair("task")]),
    free("tasks.enqueue_many", &[Task(Act::Run, "ids"), Fair("ids")]),
    free("tasks.failed", &[Task(Act::Change, "task")]),
    free("tasks.get_all", &[Filtered]),
    free("tasks.get_all_ex", &[Filtered]),
    free("tasks.get_by_id", &[Task(Act::See, "task")]),
    free("tasks.get_by_id_ex", &[Task(Act::See, "task")]),
    free("tasks.get_configuration_names", &[Task(Act::See, "tasks")]),
    free("tasks.get_configurations", &[Task(Act::See, "tasks")]),
    free("tasks.get_hyper_params", &[Task(Act::See, "tasks")]),
    free("tasks.get_types", &[Filtered]),
    free(
        "tasks.move",
        &[
            Task(Act::Change, "ids"),
            Project(Right::Submit, "project"),
            Project(Right::Submit, "project_name"),
        ],
    ),
    free("tasks.ping", &[Task(Act::Change, "task")]),
    audited("tasks.publish", &[Task(Act::Change, "task")]),
    audited("tasks.publish_many", &[Task(Act::Change, "ids")]),
    audited("tasks.reset", &[Task(Act::Change, "task")]),
    audited("tasks.reset_many", &[Task(Act::Change, "ids")]),
    free("tasks.set_requirements", &[Task(Act::Change, "task")]),
    free("tasks.started", &[Task(Act::Change, "task")]),
    audited("tasks.stop", &[Task(Act::Change, "task")]),
    audited("tasks.stop_many", &[Task(Act::Change, "ids")]),
    audited("tasks.stopped", &[Task(Act::Change, "task")]),
    free("tasks.unarchive", &[Task(Act::Change, "tasks"), Task(Act::Change, "ids")]),
    free("tasks.unarchive_many", &[Task(Act::Change, "ids")]),
    free("tasks.update", &[Task(Act::Change, "task"), Fair(""), Project(Right::Submit, "project")]),
    free("tasks.update_tags", &[Task(Act::Change, "ids")]),
    free("tasks.validate", &[Within(Right::Submit, "project"), Task(Act::See, "parent")]),
    free("users.get_all", &[Filtered]),
    free("users.get_all_ex", &[Filtered]),
    free("users.get_by_id", &[Filtered]),
    free("users.get_current_user", &[Own]),
    free("users.get_preferences", &[Anyone]),
    free("users.get_vaults", &[Anyone]),
    free("workers.cluster_report", &[SERVE]),
    free("workers.cluster_unregister", &[SERVE]),
    free("workers.get_activity_report", &[Filtered]),
    free("workers.get_all", &[Filtered]),
    free("workers.get_count", &[Filtered]),
    free("workers.get_metric_keys", &[Filtered]),
    free("workers.get_runtime_properties", &[Filtered]),
    free("workers.get_stats", &[Filtered]),
    free("workers.register", &[SERVE, Node("worker")]),
    free("workers.set_runtime_properties", &[SERVE, Node("worker")]),
    free("workers.status_report", &[SERVE, Node("worker"), Task(Act::Change, "task")]),
    free("workers.unregister", &[SERVE, Node("worker")]),
];
