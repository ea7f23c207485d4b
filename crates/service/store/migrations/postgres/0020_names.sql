-- Instead of 0020_names.sql, on PostgreSQL: a text in names is found by its trigrams. Without the extension, or the right to create
-- it, all names are read.
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXECUTE format(
        'CREATE INDEX tasks_by_text ON tasks USING gin (name %I.gin_trgm_ops)',
        (SELECT nspname FROM pg_namespace JOIN pg_extension ON extnamespace = pg_namespace.oid WHERE extname = 'pg_trgm')
    );
EXCEPTION
    -- No such files on the server, or a service that allows only some extensions.
    WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR invalid_parameter_value THEN
        RAISE NOTICE 'no index of texts in names: %', SQLERRM;
END $$;
