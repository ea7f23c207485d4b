-- The tasks that must end (as `ending` says) before a task starts. Such a task is queued and in no queue. A row goes when the
-- task waits for it no more.
CREATE TABLE task_after (
    task   TEXT NOT NULL,
    other  TEXT NOT NULL,
    ending TEXT NOT NULL,
    PRIMARY KEY (task, other)
);
