-- After 0011_audit.sql, on PostgreSQL: several servers write at once (0001_first.sql).
ALTER TABLE audit ALTER COLUMN id SET DEFAULT nextval('ids');
ALTER TABLE audit ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
