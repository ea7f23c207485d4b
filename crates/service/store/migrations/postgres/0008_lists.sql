-- Instead of 0008_lists.sql, on PostgreSQL: an index takes no rows of more than 2704 bytes there, and names and tags are as long as
-- users make them.
CREATE INDEX tasks_listed_in_project ON tasks (project, last_update_us, id);
CREATE INDEX tasks_listed ON tasks (last_update_us, id);
CREATE INDEX tasks_by_name ON tasks USING hash (name);
CREATE INDEX tasks_by_parent ON tasks (parent);
DROP INDEX tasks_by_project;
DROP INDEX latest_scalars_by_line;
CREATE INDEX latest_scalars_by_value ON latest_scalars (metric, variant, value, task);
