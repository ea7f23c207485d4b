-- Was the agent of a running task asked to stop it? Until now its message said so, which anybody may overwrite.
ALTER TABLE tasks ADD COLUMN stop_asked BIGINT NOT NULL DEFAULT 0;
UPDATE tasks SET stop_asked = 1 WHERE status = 'in_progress' AND status_message = 'stopping';
