-- Where users have notices of their tasks sent.
CREATE TABLE receivers (
    -- Id of the user.
    owner   TEXT NOT NULL,
    name    TEXT NOT NULL,
    address TEXT NOT NULL,
    -- The key of signatures, where there are any.
    secret  TEXT,
    -- What it gets, with commas.
    happens TEXT NOT NULL,
    -- 1: of all tasks of its user; 0: of those that name it.
    always  BIGINT NOT NULL,
    PRIMARY KEY (owner, name)
);

-- Notices that are not delivered yet. The owner is empty for receivers of the server's configuration.
CREATE TABLE notices (
    -- In order of time.
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    receiver   TEXT NOT NULL,
    body       TEXT NOT NULL,
    created_us BIGINT NOT NULL
);
CREATE INDEX notices_of ON notices (owner, receiver, id);

-- What became of deliveries.
CREATE TABLE receiver_states (
    owner    TEXT NOT NULL,
    receiver TEXT NOT NULL,
    -- The last delivery.
    sent_us  BIGINT,
    -- Why the last try failed; NULL: it did not.
    failure  TEXT,
    -- Tries that failed since the last delivery.
    failures BIGINT NOT NULL DEFAULT 0,
    -- Notices that were given up.
    dropped  BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, receiver)
);

-- The last event from which notices were made: one row at most.
CREATE TABLE notice_place (
    event BIGINT NOT NULL
);

-- What administrators are notified of, as long as it is so: a node is away, a GPU has failed, a quota is used up.
CREATE TABLE conditions (
    name     TEXT PRIMARY KEY,
    since_us BIGINT NOT NULL
);
