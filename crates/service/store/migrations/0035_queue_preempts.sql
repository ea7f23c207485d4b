-- Queues that say how their tasks make room for others.
CREATE TABLE queue_preempts (
    queue   TEXT PRIMARY KEY,
    -- suspend,requeue or requeue
    preempt TEXT NOT NULL
);
