-- What a run held from when on, for a run whose slices changed while it lasted: it was moved, suspended, or given another size. Its first row is
-- from its beginning; then runs.milli is NULL.
CREATE TABLE run_slices (
    task    TEXT NOT NULL,
    run     BIGINT NOT NULL,
    from_us BIGINT NOT NULL,
    slices  TEXT NOT NULL,
    milli   BIGINT NOT NULL,
    PRIMARY KEY (task, run, from_us)
);
