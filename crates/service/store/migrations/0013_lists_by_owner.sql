-- The conditions on whose tasks may be seen are tested on the same indexes as the others.
DROP INDEX tasks_listed_in_project;
DROP INDEX tasks_listed;
CREATE INDEX tasks_listed_in_project ON tasks
    (project, last_update_us, id, created_us, status, kind, name, tags, system_tags, parent, owner);
CREATE INDEX tasks_listed ON tasks
    (last_update_us, id, created_us, status, kind, name, tags, system_tags, project, parent, owner);
