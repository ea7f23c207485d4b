-- Queues that give a task to another node when its own is gone. Others hold it.
CREATE TABLE queue_requeues (
    queue    TEXT PRIMARY KEY,
    after_ms BIGINT NOT NULL
);

-- Runs that their node ends by itself when nobody renewed them for so long.
CREATE TABLE run_fences (
    task       TEXT PRIMARY KEY,
    lease      TEXT NOT NULL,
    renewed_us BIGINT NOT NULL,
    after_ms   BIGINT NOT NULL
);
