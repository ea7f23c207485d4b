-- What a user may have at once, whatever its projects may; NULL: no limit. GPUs are in thousandths.
ALTER TABLE users ADD COLUMN most_gpu_milli BIGINT;
ALTER TABLE users ADD COLUMN most_queued BIGINT;
ALTER TABLE users ADD COLUMN most_priority BIGINT;

-- Who made it happen: a name, with the task if a task did. Empty: the server itself, or from before.
ALTER TABLE happenings ADD COLUMN who TEXT NOT NULL DEFAULT '';
