-- Whose task it was and how long it had waited: for the accounts, also when the task is gone.
ALTER TABLE runs ADD COLUMN owner TEXT;
ALTER TABLE runs ADD COLUMN name TEXT;
ALTER TABLE runs ADD COLUMN queued_us BIGINT;
UPDATE runs SET owner = (SELECT owner FROM tasks WHERE id = runs.task), name = (SELECT name FROM tasks WHERE id = runs.task);
CREATE INDEX runs_by_end ON runs (ended_us);

-- The state of each GPU over time, without gaps from its first report: here, faulty, away. The newest row of a GPU has no end.
CREATE TABLE gpu_times (
    gpu     TEXT NOT NULL,
    from_us BIGINT NOT NULL,
    to_us   BIGINT,
    node    TEXT NOT NULL,
    model   TEXT NOT NULL,
    state   TEXT NOT NULL,
    PRIMARY KEY (gpu, from_us)
);
CREATE INDEX gpu_times_open ON gpu_times (node) WHERE to_us IS NULL;
