-- Logins of people, so that they can be listed and ended. Times are microseconds since 1970. A row stays until it expires, also
-- when it was ended: a token that belongs to it may be good until then.
CREATE TABLE sessions (
    id             TEXT PRIMARY KEY,
    user_id        TEXT NOT NULL,
    -- The key pair that logged in; none: an identity provider.
    access_key     TEXT,
    -- `page` or `command line`.
    via            TEXT NOT NULL,
    -- What the client says that it is.
    client         TEXT NOT NULL,
    from_ip        TEXT NOT NULL,
    -- A digest of the provider's refresh token, by which a login is found that is refreshed.
    refresh_sha256 TEXT UNIQUE,
    created_us     BIGINT NOT NULL,
    expires_us     BIGINT NOT NULL,
    last_used_us   BIGINT NOT NULL,
    last_used_from TEXT NOT NULL,
    ended_us       BIGINT
);
