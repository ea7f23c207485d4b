//! The columns that are read from each table, by name: a column that a newer version adds changes no answer, and a missing
//! one fails in the test below rather than at run time.

/// The columns of a table that [`crate::row`] reads. Those of `tasks` carry the table's name: they are read in joins, too.
macro_rules! columns {
    (tasks) => {
        concat!(columns!(tasks_but_doc), ", tasks.doc")
    };
    (tasks_without_doc) => {
        concat!(columns!(tasks_but_doc), ", '{}' AS doc")
    };
    (tasks_but_doc) => {
        "tasks.id, tasks.name, tasks.kind, tasks.status, tasks.project, tasks.parent, tasks.queue, \
         tasks.tags, tasks.system_tags, tasks.status_reason, tasks.status_message, tasks.stop_asked, \
         tasks.created_us, tasks.last_update_us, tasks.status_changed_us, tasks.started_us, \
         tasks.completed_us, tasks.last_worker, tasks.last_worker_report_us, tasks.last_iteration, \
         tasks.node, tasks.lease, tasks.slices, tasks.exit_code, tasks.reason, tasks.milli, \
         tasks.cpu_milli, tasks.memory_bytes, tasks.preemptible, tasks.evicted_for, tasks.evicted_cause, \
         tasks.evicted_reason, tasks.evicted_us, tasks.run, tasks.taken_us, tasks.owner, tasks.time_limit_s, \
         tasks.idle_limit_s"
    };
    // PostgreSQL's: the transaction that wrote this version of the row.
    (version) => {
        ", tasks.xmin::text AS version"
    };
    (queues) => {
        "id, name, created_us, last_update_us, doc"
    };
    (projects) => {
        "id, name, description, created_us, last_update_us, quota, doc"
    };
    (workers) => {
        "id, registered_us, last_seen_us, timeout_s, task, queue, queues, tags, ip, machine_stats"
    };
    (nodes) => {
        "node, last_seen_us, interval_ms, report"
    };
    (happenings) => {
        "id, time_us, kind, task, queue, node, message, who"
    };
    (logs) => {
        "id, task, timestamp_ms, worker, level, msg"
    };
    (scalars) => {
        "task, metric, variant, iter, timestamp_ms, value"
    };
    (latest_scalars) => {
        "task, metric, variant, iter, timestamp_ms, value, least, greatest"
    };
    (reports) => {
        "task, kind, metric, variant, iter, timestamp_ms, doc"
    };
    (models) => {
        "id, name, task, project, owner, created_us, last_update_us, doc"
    };
    (queue_samples) => {
        "queue, time_us, waiting, total_wait_s"
    };
    (worker_samples) => {
        "worker, time_us, busy, machine_stats"
    };
    (runs) => {
        "task, run, project, queue, owner, name, queued_us, taken_us, started_us, ended_us, node, lease, slices, exit_code, \
         outcome, why, peak_bytes, gpu_time_us, tags, preemptible"
    };
    (run_slices) => {
        "task, run, from_us, slices"
    };
    (project_use) => {
        "project, used, as_of_us"
    };
    (gpu_times) => {
        "gpu, from_us, to_us, node, model, pools, state"
    };
    (quota_times) => {
        "project, from_us, to_us, deserved"
    };
    (budgets) => {
        "project, gpu_seconds, warn_percent, at_full, month, used_seconds, reported_percent"
    };
    (charts) => {
        "kind, id, line"
    };
    (pools) => {
        "name, nodes, models"
    };
}

/// `SELECT` of all columns of a table that are read, with what follows the table's name.
macro_rules! select {
    ($table:tt) => {
        concat!("SELECT ", columns!($table), " FROM ", stringify!($table))
    };
    ($table:tt, $($rest:tt)*) => {
        concat!("SELECT ", columns!($table), " FROM ", stringify!($table), " ", $($rest)*)
    };
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn each_named_column_exists() {
        let dir = tempfile::tempdir().unwrap();
        let store = crate::Store::open(&dir.path().join("cantle.db")).await.unwrap();
        for select in [
            select!(tasks),
            select!(queues),
            select!(projects),
            select!(workers),
            select!(nodes),
            select!(happenings),
            select!(logs),
            select!(scalars),
            select!(latest_scalars),
            select!(reports),
            select!(models),
            select!(queue_samples),
            select!(worker_samples),
            select!(runs),
            select!(run_slices),
            select!(gpu_times),
            select!(quota_times),
            select!(budgets),
            select!(project_use),
            select!(charts),
            select!(pools),
        ] {
            crate::query(select).fetch_all(&store.readers).await.unwrap();
        }
    }
}
