-- People and programs that call, their keys, and what they may do. Times are microseconds since 1970.
CREATE TABLE users (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    -- The one node that a service account of role `agent` acts for.
    node       TEXT,
    -- Who this is at an identity provider.
    external   TEXT UNIQUE,
    created_us BIGINT NOT NULL,
    -- The row stays: tasks and the audit name their user forever.
    removed_us BIGINT
);

-- Only a digest of the secret is kept.
CREATE TABLE user_keys (
    access_key     TEXT PRIMARY KEY,
    user_id        TEXT NOT NULL,
    secret_sha256  TEXT NOT NULL,
    label          TEXT NOT NULL,
    created_us     BIGINT NOT NULL,
    last_used_us   BIGINT,
    last_used_from TEXT,
    revoked_us     BIGINT
);
CREATE INDEX user_keys_by_user ON user_keys (user_id);

-- `subject` is `user:ID`, `group:NAME` or `everybody`; `project` is the top of a tree, empty for all projects.
CREATE TABLE user_grants (
    subject TEXT NOT NULL,
    project TEXT NOT NULL,
    role    TEXT NOT NULL,
    PRIMARY KEY (subject, project, role)
);

CREATE TABLE user_groups (
    user_id    TEXT NOT NULL,
    group_name TEXT NOT NULL,
    PRIMARY KEY (user_id, group_name)
);

-- Grows with each change of the tables above, so that a server notices what another one changed.
CREATE TABLE rights_version (
    id      BIGINT PRIMARY KEY,
    version BIGINT NOT NULL
);
INSERT INTO rights_version (id, version) VALUES (1, 1);

-- Whose it is. What 0.1.0 wrote belongs to the administrator, whose id this is.
ALTER TABLE tasks ADD COLUMN owner TEXT NOT NULL DEFAULT 'cantle-user';
ALTER TABLE models ADD COLUMN owner TEXT NOT NULL DEFAULT 'cantle-user';
CREATE INDEX tasks_by_owner ON tasks (owner, created_us);
