-- After 0001_first.sql, on PostgreSQL.

-- Ids of events and pieces of output; places in queues.
CREATE SEQUENCE ids;
CREATE SEQUENCE places;

-- Several servers write at once, and what got its number first may be seen last: `xid` says which transaction wrote it, so that
-- readers who go on from a number can wait for those before it.
ALTER TABLE happenings ALTER COLUMN id SET DEFAULT nextval('ids');
ALTER TABLE happenings ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX happenings_by_time ON happenings USING brin (time_us);
ALTER TABLE logs ALTER COLUMN id SET DEFAULT nextval('ids');
ALTER TABLE logs ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
ALTER TABLE logs ADD COLUMN arrived_us BIGINT NOT NULL;
CREATE INDEX logs_by_arrival ON logs USING brin (arrived_us);

-- The number that a text begins with, and 0 for one that begins with none: as SQLite's CAST.
CREATE FUNCTION cantle_number(word text) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT COALESCE(substring(word FROM '^\s*([-+]?\d{1,100}(?:\.\d{0,100})?(?:[eE][-+]?\d{1,2})?)')::double precision, 0)
$$;
