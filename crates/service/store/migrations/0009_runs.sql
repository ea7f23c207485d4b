-- Every run of a task, numbered from 1. A run begins when an agent takes or claims the task, or when the task starts without
-- one; it stays when the task runs again, and when the task is deleted.
CREATE TABLE runs (
    task       TEXT NOT NULL,
    run        BIGINT NOT NULL,
    project    TEXT,
    queue      TEXT,
    -- When an agent took the task out of its queue.
    taken_us   BIGINT,
    started_us BIGINT,
    ended_us   BIGINT,
    node       TEXT,
    lease      TEXT,
    slices     TEXT NOT NULL,
    exit_code  BIGINT,
    -- The state that it left its task in: completed, failed, stopped; queued or created: it was given up. NULL while it lasts.
    outcome    TEXT,
    -- Why it ended so, for people.
    why        TEXT,
    PRIMARY KEY (task, run)
);
-- The number of a task's newest run; 0: it never ran.
ALTER TABLE tasks ADD COLUMN run BIGINT NOT NULL DEFAULT 0;
INSERT INTO runs (task, run, project, queue, taken_us, started_us, ended_us, node, lease, slices, exit_code, outcome, why)
    SELECT id, 1, project, queue, taken_us, started_us, completed_us, node, lease, slices, exit_code,
        CASE WHEN status IN ('queued', 'in_progress') THEN NULL ELSE status END, reason
    FROM tasks WHERE lease IS NOT NULL OR started_us IS NOT NULL OR taken_us IS NOT NULL;
UPDATE tasks SET run = 1 WHERE lease IS NOT NULL OR started_us IS NOT NULL OR taken_us IS NOT NULL;
