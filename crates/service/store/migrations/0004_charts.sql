-- What the charts of the web page show: one line per task or queue, a few hundred samples thinned out as they grow older.

CREATE TABLE charts (
    -- task or queue
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    -- JSON, as the server keeps it.
    line TEXT NOT NULL,
    PRIMARY KEY (kind, id)
);
