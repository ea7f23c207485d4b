-- What a project is granted, as JSON; NULL: it has no quota of its own.
ALTER TABLE projects ADD COLUMN quota TEXT;

-- What a claim counts: its slices in thousandths of a GPU, and what it asked for beside them.
ALTER TABLE tasks ADD COLUMN milli BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN cpu_milli BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN memory_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN preemptible BIGINT NOT NULL DEFAULT 1;

-- For whom, why (for programs and for people) and when it was asked to stop; kept while it waits to start again.
ALTER TABLE tasks ADD COLUMN evicted_for TEXT;
ALTER TABLE tasks ADD COLUMN evicted_cause TEXT;
ALTER TABLE tasks ADD COLUMN evicted_reason TEXT;
ALTER TABLE tasks ADD COLUMN evicted_us BIGINT;
CREATE INDEX tasks_evicted_us ON tasks (evicted_us) WHERE evicted_us IS NOT NULL;
