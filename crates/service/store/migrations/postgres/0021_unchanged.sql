-- Instead of 0021_unchanged.sql, on PostgreSQL: a statement that writes what was decided on rows that another one had read ends with
-- this. If they have changed, it fails as one of two transactions that conflict does, and writes nothing.
CREATE FUNCTION cantle_unchanged(holds boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holds THEN
        RAISE EXCEPTION 'cantle: the task or its queue changed meanwhile; the step is repeated' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN TRUE;
END $$;
-- A task changes some times in its life, and a run too: with room in the page, a change that no index has stays there.
ALTER TABLE tasks SET (fillfactor = 80);
ALTER TABLE runs SET (fillfactor = 60);
-- Each change that an index has goes into all of them. Most tasks have no parent.
DROP INDEX tasks_by_parent;
CREATE INDEX tasks_by_parent ON tasks (parent) WHERE parent IS NOT NULL;
