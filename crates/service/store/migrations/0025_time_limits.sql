-- How long the present or the next run of a task may last: set when the task enters a queue, and by `cantle extend`.
ALTER TABLE tasks ADD COLUMN time_limit_s BIGINT;

-- Queues that limit the time of their tasks.
CREATE TABLE queue_times (
    queue     TEXT PRIMARY KEY,
    max_s     BIGINT,
    default_s BIGINT
);
