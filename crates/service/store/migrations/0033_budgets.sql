-- The share of a run: the thousandths of GPUs of all its slices.
ALTER TABLE runs ADD COLUMN milli BIGINT;
UPDATE runs SET milli = (SELECT COALESCE(SUM(json_extract(value, '$.milli')), 0) FROM json_each(runs.slices)) WHERE slices <> '[]';

-- The GPU time that a project (by its id) and those below it may use in a month, and what they used in it, as last counted.
CREATE TABLE budgets (
    project     TEXT PRIMARY KEY,
    -- A GPU for an hour: 3600.
    gpu_seconds BIGINT NOT NULL,
    -- From this part on, its use is reported.
    warn_percent BIGINT NOT NULL,
    -- What happens when it is used up: warn, no-borrowing, queue.
    at_full     TEXT NOT NULL,
    -- The month in UTC that was counted, like 2026-11; empty: none yet.
    month       TEXT NOT NULL DEFAULT '',
    used_seconds BIGINT NOT NULL DEFAULT 0,
    -- The highest part in percent that was reported in this month: 0, the warning's, or 100.
    reported_percent BIGINT NOT NULL DEFAULT 0
);
