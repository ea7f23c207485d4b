-- How long each task of a user runs at most, in seconds; NULL: no limit.
ALTER TABLE users ADD COLUMN most_time_s BIGINT;
