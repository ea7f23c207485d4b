-- Lists of many tasks are answered from these indexes alone: they hold what is filtered and ordered by most.
CREATE INDEX tasks_listed_in_project ON tasks
    (project, last_update_us, id, created_us, status, kind, name, tags, system_tags, parent);
CREATE INDEX tasks_listed ON tasks
    (last_update_us, id, created_us, status, kind, name, tags, system_tags, project, parent);
CREATE INDEX tasks_by_name ON tasks (name);
CREATE INDEX tasks_by_parent ON tasks (parent);
DROP INDEX tasks_by_project;
DROP INDEX latest_scalars_by_line;
CREATE INDEX latest_scalars_by_value ON latest_scalars (metric, variant, value, task);
