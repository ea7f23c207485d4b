-- What workers and queues were like, at most once a minute each and for a week. Times are the minute's beginning.

CREATE TABLE worker_samples (
    worker        TEXT NOT NULL,
    time_us       BIGINT NOT NULL,
    -- It worked on a task at some time in that minute.
    busy          BIGINT NOT NULL,
    machine_stats TEXT NOT NULL,
    PRIMARY KEY (worker, time_us)
);
CREATE INDEX worker_samples_by_time ON worker_samples (time_us);

CREATE TABLE queue_samples (
    queue        TEXT NOT NULL,
    time_us      BIGINT NOT NULL,
    waiting      BIGINT NOT NULL,
    -- Of all that wait together.
    total_wait_s BIGINT NOT NULL,
    PRIMARY KEY (queue, time_us)
);
CREATE INDEX queue_samples_by_time ON queue_samples (time_us);

-- Tasks ordered by one of their measured values.
CREATE INDEX latest_scalars_by_line ON latest_scalars (metric, variant);
