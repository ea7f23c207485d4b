-- What accounts need of a run: its task's tags when it began, and whether it could be stopped for others (NULL: not recorded).
ALTER TABLE runs ADD COLUMN tags TEXT;
ALTER TABLE runs ADD COLUMN preemptible BIGINT;
-- The pools of the GPU, with commas, in order.
ALTER TABLE gpu_times ADD COLUMN pools TEXT NOT NULL DEFAULT '';

-- How many thousandths of a GPU each project (by its id) was guaranteed over time. A row without an end lasts.
CREATE TABLE quota_times (
    project  TEXT NOT NULL,
    from_us  BIGINT NOT NULL,
    to_us    BIGINT,
    deserved BIGINT NOT NULL,
    PRIMARY KEY (project, from_us)
);
