-- A list of tasks with a tag that few tasks have is answered from these rows. Triggers write them, because servers of an earlier
-- version, which do not know the table, serve the same database during an upgrade.
CREATE TABLE task_tags (
    tag  TEXT NOT NULL,
    task TEXT NOT NULL,
    PRIMARY KEY (tag, task)
);
INSERT OR IGNORE INTO task_tags SELECT value, tasks.id FROM tasks, json_each(tasks.tags);
CREATE TRIGGER task_tags_of_new AFTER INSERT ON tasks WHEN NEW.tags <> '[]' BEGIN
    INSERT OR IGNORE INTO task_tags SELECT value, NEW.id FROM json_each(NEW.tags);
END;
CREATE TRIGGER task_tags_of_changed AFTER UPDATE OF tags ON tasks WHEN NEW.tags <> OLD.tags BEGIN
    DELETE FROM task_tags WHERE task = OLD.id AND tag IN (SELECT value FROM json_each(OLD.tags));
    INSERT OR IGNORE INTO task_tags SELECT value, NEW.id FROM json_each(NEW.tags);
END;
CREATE TRIGGER task_tags_of_erased AFTER DELETE ON tasks WHEN OLD.tags <> '[]' BEGIN
    DELETE FROM task_tags WHERE task = OLD.id AND tag IN (SELECT value FROM json_each(OLD.tags));
END;
-- A text in names is looked for in this index alone.
DROP INDEX tasks_by_name;
CREATE INDEX tasks_by_name ON tasks (name, id);
