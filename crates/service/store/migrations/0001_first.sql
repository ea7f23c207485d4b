-- Written in the subset that SQLite and PostgreSQL share. Times are microseconds since 1970; JSON is text.

CREATE TABLE projects (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    description    TEXT NOT NULL,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);

CREATE TABLE queues (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);

-- What is filtered or ordered by is a column; everything else that ClearML keeps in a task is in `doc`.
CREATE TABLE tasks (
    id                    TEXT PRIMARY KEY,
    name                  TEXT NOT NULL,
    kind                  TEXT NOT NULL,
    status                TEXT NOT NULL,
    project               TEXT,
    parent                TEXT,
    queue                 TEXT,
    tags                  TEXT NOT NULL,
    system_tags           TEXT NOT NULL,
    status_reason         TEXT NOT NULL,
    status_message        TEXT NOT NULL,
    created_us            BIGINT NOT NULL,
    last_update_us        BIGINT NOT NULL,
    status_changed_us     BIGINT NOT NULL,
    started_us            BIGINT,
    completed_us          BIGINT,
    -- When an agent took it out of its queue; it must start or be claimed soon after.
    taken_us              BIGINT,
    last_worker           TEXT,
    last_worker_report_us BIGINT,
    last_iteration        BIGINT NOT NULL,
    -- The claim: which lease on which node holds it.
    node                  TEXT,
    lease                 TEXT,
    slices                TEXT NOT NULL,
    exit_code             BIGINT,
    reason                TEXT,
    doc                   TEXT NOT NULL
);
CREATE INDEX tasks_by_created ON tasks (created_us);
CREATE INDEX tasks_by_status ON tasks (status);
CREATE INDEX tasks_by_project ON tasks (project);
CREATE INDEX tasks_by_queue ON tasks (queue);

-- A task waits in at most one queue: the task is the key.
CREATE TABLE queue_entries (
    task     TEXT PRIMARY KEY,
    queue    TEXT NOT NULL,
    position BIGINT NOT NULL,
    added_us BIGINT NOT NULL
);
CREATE UNIQUE INDEX queue_entries_in_order ON queue_entries (queue, position);

CREATE TABLE workers (
    id            TEXT PRIMARY KEY,
    registered_us BIGINT NOT NULL,
    last_seen_us  BIGINT NOT NULL,
    timeout_s     BIGINT NOT NULL,
    task          TEXT,
    queue         TEXT,
    queues        TEXT NOT NULL,
    tags          TEXT NOT NULL,
    ip            TEXT NOT NULL,
    machine_stats TEXT
);

-- Apart from `workers`: agents set them before they register and expect them after.
CREATE TABLE worker_properties (
    worker TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (worker, key)
);

CREATE TABLE nodes (
    node         TEXT PRIMARY KEY,
    last_seen_us BIGINT NOT NULL,
    interval_ms  BIGINT NOT NULL,
    report       TEXT NOT NULL
);

CREATE TABLE happenings (
    id      BIGINT PRIMARY KEY,
    time_us BIGINT NOT NULL,
    kind    TEXT NOT NULL,
    task    TEXT,
    queue   TEXT,
    node    TEXT,
    message TEXT NOT NULL
);
CREATE INDEX happenings_by_task ON happenings (task, id);

CREATE TABLE logs (
    id           BIGINT PRIMARY KEY,
    task         TEXT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    worker       TEXT NOT NULL,
    level        TEXT NOT NULL,
    msg          TEXT NOT NULL
);
CREATE INDEX logs_by_task ON logs (task, id);
CREATE INDEX logs_by_time ON logs (task, timestamp_ms, id);

CREATE TABLE scalars (
    task         TEXT NOT NULL,
    metric       TEXT NOT NULL,
    variant      TEXT NOT NULL,
    iter         BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    value        DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (task, metric, variant, iter)
);

-- Newest, least and greatest value of each line, so that nobody has to read the whole line for them.
CREATE TABLE latest_scalars (
    task         TEXT NOT NULL,
    metric       TEXT NOT NULL,
    variant      TEXT NOT NULL,
    iter         BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    value        DOUBLE PRECISION NOT NULL,
    least        DOUBLE PRECISION NOT NULL,
    greatest     DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (task, metric, variant)
);

-- Plots, debug images and vectors: kept as they came.
CREATE TABLE reports (
    task         TEXT NOT NULL,
    kind         TEXT NOT NULL,
    metric       TEXT NOT NULL,
    variant      TEXT NOT NULL,
    iter         BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    doc          TEXT NOT NULL,
    PRIMARY KEY (task, kind, metric, variant, iter)
);

CREATE TABLE models (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    task           TEXT,
    project        TEXT,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);
CREATE INDEX models_by_task ON models (task);
