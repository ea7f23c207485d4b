-- Values that users keep for their tasks.
CREATE TABLE secrets (
    -- Id of the user.
    owner   TEXT NOT NULL,
    name    TEXT NOT NULL,
    -- Encrypted, in base64, with a key that is not in the database.
    sealed  TEXT NOT NULL,
    set_us  BIGINT NOT NULL,
    -- When a task last got it.
    used_us BIGINT,
    PRIMARY KEY (owner, name)
);
-- The secrets that a task gets: those that it named when its owner put it into a queue.
CREATE TABLE task_secrets (
    task TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (task, name)
);
