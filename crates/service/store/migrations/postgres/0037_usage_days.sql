-- Instead of 0037_usage_days.sql, on PostgreSQL, whose triggers call functions.
CREATE TABLE usage_days (
    day       BIGINT PRIMARY KEY,
    marked_us BIGINT NOT NULL,
    form      BIGINT NOT NULL,
    part      BYTEA,
    tasks     BYTEA
);
-- Reading them is what a report waits for: they are not compressed.
ALTER TABLE usage_days ALTER COLUMN part SET STORAGE EXTERNAL, ALTER COLUMN tasks SET STORAGE EXTERNAL;
CREATE FUNCTION usage_days_of_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'INSERT' THEN
        DELETE FROM usage_days WHERE day >= COALESCE(NEW.taken_us, NEW.started_us) / 86400000000;
    ELSE
        DELETE FROM usage_days WHERE day >= COALESCE(OLD.taken_us, OLD.started_us, NEW.started_us, 0) / 86400000000
            AND day <= COALESCE(OLD.ended_us, 9223372036854775807) / 86400000000;
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION usage_days_from() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM usage_days WHERE day >= NEW.from_us / 86400000000;
    RETURN NULL;
END $$;
CREATE FUNCTION usage_days_to() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM usage_days WHERE day >= NEW.to_us / 86400000000;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_days_of_new_runs AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION usage_days_of_run();
CREATE TRIGGER usage_days_of_runs
AFTER UPDATE OF owner, name, tags, taken_us, started_us, ended_us, node, slices, outcome, peak_bytes, preemptible ON runs
FOR EACH ROW WHEN (NEW.outcome IS NOT NULL OR OLD.slices IS DISTINCT FROM NEW.slices
    OR OLD.started_us IS DISTINCT FROM NEW.started_us OR OLD.preemptible IS DISTINCT FROM NEW.preemptible)
EXECUTE FUNCTION usage_days_of_run();
CREATE TRIGGER usage_days_of_slices AFTER INSERT OR UPDATE ON run_slices FOR EACH ROW EXECUTE FUNCTION usage_days_from();
CREATE TRIGGER usage_days_of_new_gpu_times AFTER INSERT ON gpu_times FOR EACH ROW EXECUTE FUNCTION usage_days_from();
CREATE TRIGGER usage_days_of_gpu_times AFTER UPDATE ON gpu_times FOR EACH ROW EXECUTE FUNCTION usage_days_to();
CREATE TRIGGER usage_days_of_new_quota_times AFTER INSERT ON quota_times FOR EACH ROW EXECUTE FUNCTION usage_days_from();
CREATE TRIGGER usage_days_of_quota_times AFTER UPDATE ON quota_times FOR EACH ROW EXECUTE FUNCTION usage_days_to();
DROP INDEX runs_by_end;
CREATE INDEX runs_by_end ON runs (ended_us, (COALESCE(taken_us, started_us)));
