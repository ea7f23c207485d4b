-- Instead of 0018_tags.sql, on PostgreSQL, which indexes the elements of a list.
CREATE INDEX tasks_by_tag ON tasks USING gin ((tags::jsonb));
