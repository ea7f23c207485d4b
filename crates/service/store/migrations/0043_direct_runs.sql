-- A run of no task of the server: `cantle run` on a node with an agent, or a pod that no queue made. Its task is its lease.
ALTER TABLE runs ADD COLUMN direct BIGINT NOT NULL DEFAULT 0;
CREATE INDEX runs_direct ON runs (node) WHERE direct = 1 AND ended_us IS NULL;
