-- Arrays: tasks from which others are made, one for each index. Such a task is queued and in no queue until all have ended.
CREATE TABLE arrays (
    task TEXT PRIMARY KEY,
    spec TEXT NOT NULL,
    -- How many of its elements exist: the next one is at this position.
    made BIGINT NOT NULL DEFAULT 0,
    -- How many have ended in which way, and are counted.
    completed BIGINT NOT NULL DEFAULT 0,
    failed    BIGINT NOT NULL DEFAULT 0,
    stopped   BIGINT NOT NULL DEFAULT 0
);
-- The tasks of arrays. `ended` is the column above in which one is counted, once it has ended.
CREATE TABLE array_elements (
    task     TEXT PRIMARY KEY,
    of_array TEXT NOT NULL,
    ended    TEXT
);
CREATE INDEX array_elements_of ON array_elements (of_array, ended);
