-- The task in whose run a task was made: a pipeline stops its own steps, and nobody else's.
ALTER TABLE tasks ADD COLUMN made_by TEXT;
