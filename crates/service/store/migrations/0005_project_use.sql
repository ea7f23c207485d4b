-- What the tasks of a project have used of the GPUs, decayed up to `as_of_us`: thousandths of a GPU times milliseconds.
CREATE TABLE project_use (
    project  TEXT PRIMARY KEY,
    used     DOUBLE PRECISION NOT NULL,
    as_of_us BIGINT NOT NULL
);
