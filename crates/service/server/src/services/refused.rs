//! The endpoints that ClearML's open-source server has and this one refuses, each with its reason.
//! `docs/reference/clearml-endpoints.md` is generated from this list and from the router.

const USERS: &str = "see `cantle users`";
const ONE_COMPANY: &str = "a cantle server has one company, and nothing that is shared between several";
const WEB: &str = "a part of ClearML's web application, which cantle does not include";
const SERVING: &str = "a part of ClearML Serving, which cantle does not include";
const STORAGE: &str = "credentials of storage are in each client's clearml.conf";
const DOWNLOAD: &str = "the answer is a file for ClearML's web application";

/// Endpoints and why they are not here.
const REFUSED: &[(&str, &str)] = &[
    ("auth.edit_user", USERS),
    ("auth.get_token_for_user", USERS),
    ("events.download_task_log", "read the pages of events.get_task_log, or use `cantle logs TASK`"),
    ("models.make_private", ONE_COMPANY),
    ("models.make_public", ONE_COMPANY),
    ("organization.download_for_get_all", DOWNLOAD),
    ("organization.get_project_usages", "see cantle.get_projects and the server's /metrics"),
    ("organization.prepare_download_for_get_all", DOWNLOAD),
    ("pipelines.delete_runs", "delete the tasks with tasks.delete_many"),
    ("pipelines.start_pipeline", "start the pipeline with the SDK, or use tasks.clone and tasks.enqueue"),
    ("projects.make_private", ONE_COMPANY),
    ("projects.make_public", ONE_COMPANY),
    ("reports.archive", WEB),
    ("reports.create", WEB),
    ("reports.delete", WEB),
    ("reports.get_all_ex", WEB),
    ("reports.get_tags", WEB),
    ("reports.get_task_data", WEB),
    ("reports.move", WEB),
    ("reports.publish", WEB),
    ("reports.unarchive", WEB),
    ("reports.update", WEB),
    ("server.config", "the settings of a cantle server are the flags of `cantle server`"),
    ("server.get_stats", "see the server's /metrics"),
    ("serving.container_status_report", SERVING),
    ("serving.get_endpoint_details", SERVING),
    ("serving.get_endpoint_metrics_history", SERVING),
    ("serving.get_endpoints", SERVING),
    ("serving.get_loading_instances", SERVING),
    ("serving.register_container", SERVING),
    ("serving.unregister_container", SERVING),
    ("storage.get_settings", STORAGE),
    ("storage.reset_settings", STORAGE),
    ("storage.set_settings", STORAGE),
    ("tasks.make_private", ONE_COMPANY),
    ("tasks.make_public", ONE_COMPANY),
    ("tasks.update_batch", "call tasks.update for each task"),
    ("users.create", USERS),
    ("users.delete", USERS),
    ("users.set_preferences", WEB),
    ("users.update", USERS),
];

/// Why this server does not answer an endpoint of ClearML's; `None` for what ClearML does not know either.
pub(crate) fn reason(endpoint: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == endpoint).map(|(_, reason)| *reason)
}
