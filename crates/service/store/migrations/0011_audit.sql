-- Who did what. Rows are added, and removed when they are older than the audit is kept; none is ever changed.
CREATE TABLE audit (
    id        BIGINT PRIMARY KEY,
    time_us   BIGINT NOT NULL,
    user_id   TEXT NOT NULL,
    user_name TEXT NOT NULL,
    from_ip   TEXT NOT NULL,
    action    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    subject   TEXT NOT NULL,
    before    TEXT NOT NULL,
    after     TEXT NOT NULL
);
CREATE INDEX audit_by_user ON audit (user_id, id);
