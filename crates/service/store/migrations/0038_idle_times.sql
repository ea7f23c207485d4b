-- For how long the present or the next run of a task may be idle, in seconds: set as time_limit_s is.
ALTER TABLE tasks ADD COLUMN idle_limit_s BIGINT;

-- Queues that end idle tasks.
ALTER TABLE queue_times ADD COLUMN max_idle_s BIGINT;
ALTER TABLE queue_times ADD COLUMN default_idle_s BIGINT;
