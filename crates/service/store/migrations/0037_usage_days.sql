-- What reports of usage need of a day that is over (cantle-usage's UsagePart), in place of its runs. A row is there from when the day was marked
-- for it; `part` is written later. Whatever changes a day takes its row away: triggers do that, because servers of an earlier version, which
-- do not know the table, serve the same database during an upgrade.
CREATE TABLE usage_days (
    -- Days in UTC since 1970.
    day       BIGINT PRIMARY KEY,
    marked_us BIGINT NOT NULL,
    -- How both are written.
    form      BIGINT NOT NULL,
    part      BLOB,
    tasks     BLOB
);
CREATE TRIGGER usage_days_of_new_runs AFTER INSERT ON runs BEGIN
    DELETE FROM usage_days WHERE day >= COALESCE(NEW.taken_us, NEW.started_us) / 86400000000;
END;
CREATE TRIGGER usage_days_of_runs
AFTER UPDATE OF owner, name, tags, taken_us, started_us, ended_us, node, slices, outcome, peak_bytes, preemptible ON runs
WHEN NEW.outcome IS NOT NULL OR OLD.slices IS NOT NEW.slices OR OLD.started_us IS NOT NEW.started_us
    OR OLD.preemptible IS NOT NEW.preemptible BEGIN
    DELETE FROM usage_days WHERE day >= COALESCE(OLD.taken_us, OLD.started_us, NEW.started_us, 0) / 86400000000
        AND day <= COALESCE(OLD.ended_us, 9223372036854775807) / 86400000000;
END;
CREATE TRIGGER usage_days_of_new_slices AFTER INSERT ON run_slices BEGIN
    DELETE FROM usage_days WHERE day >= NEW.from_us / 86400000000;
END;
CREATE TRIGGER usage_days_of_slices AFTER UPDATE ON run_slices BEGIN
    DELETE FROM usage_days WHERE day >= NEW.from_us / 86400000000;
END;
CREATE TRIGGER usage_days_of_new_gpu_times AFTER INSERT ON gpu_times BEGIN
    DELETE FROM usage_days WHERE day >= NEW.from_us / 86400000000;
END;
CREATE TRIGGER usage_days_of_gpu_times AFTER UPDATE ON gpu_times BEGIN
    DELETE FROM usage_days WHERE day >= NEW.to_us / 86400000000;
END;
CREATE TRIGGER usage_days_of_new_quota_times AFTER INSERT ON quota_times BEGIN
    DELETE FROM usage_days WHERE day >= NEW.from_us / 86400000000;
END;
CREATE TRIGGER usage_days_of_quota_times AFTER UPDATE ON quota_times BEGIN
    DELETE FROM usage_days WHERE day >= NEW.to_us / 86400000000;
END;
-- The runs of a time are found without reading the later ones.
DROP INDEX runs_by_end;
CREATE INDEX runs_by_end ON runs (ended_us, (COALESCE(taken_us, started_us)));
