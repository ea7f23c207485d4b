-- Written and never read: it shows whether the disk takes anything.
CREATE TABLE probes (
    id     BIGINT PRIMARY KEY,
    filler TEXT NOT NULL
);
