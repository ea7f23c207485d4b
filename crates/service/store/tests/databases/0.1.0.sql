-- A database of cantle 0.1.0, as its first schema left it: every table has records. Never changed; tests/upgrade.rs opens it.
BEGIN TRANSACTION;
CREATE TABLE projects (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    description    TEXT NOT NULL,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);
INSERT INTO projects VALUES('p1','vision','',1000,1000,'{}');
CREATE TABLE queues (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);
INSERT INTO queues VALUES('q1','default',1000,1000,'{"tags":["old"]}');
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
INSERT INTO tasks VALUES('t-draft','draft','training','created','p1',NULL,'q1','["t"]','[]','','',1000,2000,2000,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'[]',NULL,NULL,'{"script":{"entry_point":"train.py"},"hyperparams":{}}');
INSERT INTO tasks VALUES('t-waits','waits','training','queued','p1',NULL,'q1','["t"]','[]','','',1000,2000,2000,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,'[]',NULL,NULL,'{"script":{"entry_point":"train.py"},"hyperparams":{}}');
INSERT INTO tasks VALUES('t-runs','runs','training','in_progress','p1',NULL,'q1','["t"]','[]','','',1000,2000,2000,1500,NULL,NULL,NULL,NULL,0,'node1','l1','[{"gpu":"GPU-1","milli":500,"memory_limit_bytes":1073741824,"mig":null}]',NULL,NULL,'{"script":{"entry_point":"train.py"},"hyperparams":{}}');
INSERT INTO tasks VALUES('t-asked','asked','training','in_progress','p1',NULL,'q1','["t"]','[]','','stopping',1000,2000,2000,1500,NULL,NULL,NULL,NULL,0,'node1','l2','[{"gpu":"GPU-1","milli":500,"memory_limit_bytes":1073741824,"mig":null}]',NULL,NULL,'{"script":{"entry_point":"train.py"},"hyperparams":{}}');
INSERT INTO tasks VALUES('t-done','done','training','completed','p1',NULL,'q1','["t"]','[]','','',1000,2000,2000,1500,1900,NULL,NULL,NULL,0,'node1','l3','[{"gpu":"GPU-1","milli":500,"memory_limit_bytes":1073741824,"mig":null}]',0,NULL,'{"script":{"entry_point":"train.py"},"hyperparams":{}}');
INSERT INTO tasks VALUES('t-failed','failed','training','failed','p1',NULL,'q1','["t"]','[]','','',1000,2000,2000,1500,1900,NULL,NULL,NULL,0,'node1','l4','[{"gpu":"GPU-1","milli":500,"memory_limit_bytes":1073741824,"mig":null}]',3,'no memory','{"script":{"entry_point":"train.py"},"hyperparams":{}}');
CREATE TABLE queue_entries (
    task     TEXT PRIMARY KEY,
    queue    TEXT NOT NULL,
    position BIGINT NOT NULL,
    added_us BIGINT NOT NULL
);
INSERT INTO queue_entries VALUES('t-waits','q1',1,1200);
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
INSERT INTO workers VALUES('node1:gpu0',1000,2000,600,'t-runs','q1','["q1"]','[]','127.0.0.1',NULL);
CREATE TABLE worker_properties (
    worker TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (worker, key)
);
INSERT INTO worker_properties VALUES('node1:gpu0','k','v');
CREATE TABLE nodes (
    node         TEXT PRIMARY KEY,
    last_seen_us BIGINT NOT NULL,
    interval_ms  BIGINT NOT NULL,
    report       TEXT NOT NULL
);
INSERT INTO nodes VALUES('node1',2000,2000,'{"node":"node1","worker":"node1:gpu0","queues":[{"name":"default","spec":"0.5"}],"gpus":[],"waiting":[],"interval_ms":2000}');
CREATE TABLE happenings (
    id      BIGINT PRIMARY KEY,
    time_us BIGINT NOT NULL,
    kind    TEXT NOT NULL,
    task    TEXT,
    queue   TEXT,
    node    TEXT,
    message TEXT NOT NULL
);
INSERT INTO happenings VALUES(1500,1500,'start','t-runs','default','node1','runs: queued → in_progress');
CREATE TABLE logs (
    id           BIGINT PRIMARY KEY,
    task         TEXT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    worker       TEXT NOT NULL,
    level        TEXT NOT NULL,
    msg          TEXT NOT NULL
);
INSERT INTO logs VALUES(1600,'t-runs',1,'node1:gpu0','INFO',replace('hello from t-runs\n','\n',char(10)));
INSERT INTO logs VALUES(1601,'t-done',1,'node1:gpu0','INFO',replace('hello from t-done\n','\n',char(10)));
CREATE TABLE scalars (
    task         TEXT NOT NULL,
    metric       TEXT NOT NULL,
    variant      TEXT NOT NULL,
    iter         BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    value        DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (task, metric, variant, iter)
);
INSERT INTO scalars VALUES('t-done','loss','train',1,1,0.25);
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
INSERT INTO latest_scalars VALUES('t-done','loss','train',1,1,0.25,0.25,0.5);
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
INSERT INTO reports VALUES('t-done','plot','m','v',1,1,'{"type":"plot"}');
CREATE TABLE models (
    id             TEXT PRIMARY KEY,
    name           TEXT NOT NULL,
    task           TEXT,
    project        TEXT,
    created_us     BIGINT NOT NULL,
    last_update_us BIGINT NOT NULL,
    doc            TEXT NOT NULL
);
INSERT INTO models VALUES('m1','model','t-done','p1',1000,1000,'{"uri":"file:///m"}');
CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, execution_time BIGINT NOT NULL);
INSERT INTO _sqlx_migrations VALUES(1,'first','2026-11-21 00:00:00',1,X'38604a225e65e5c77bc05772f53277a9ec5b5bb611e1999cbfcdd7e1a69c00df77133b0f2b4dc887ebd256737488c730',1);
CREATE INDEX tasks_by_created ON tasks (created_us);
CREATE INDEX tasks_by_status ON tasks (status);
CREATE INDEX tasks_by_project ON tasks (project);
CREATE INDEX tasks_by_queue ON tasks (queue);
CREATE UNIQUE INDEX queue_entries_in_order ON queue_entries (queue, position);
CREATE INDEX happenings_by_task ON happenings (task, id);
CREATE INDEX logs_by_task ON logs (task, id);
CREATE INDEX logs_by_time ON logs (task, timestamp_ms, id);
CREATE INDEX models_by_task ON models (task);
COMMIT;
