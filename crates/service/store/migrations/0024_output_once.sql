-- How much of the output of a run is kept, in bytes of the file on the node. A piece that begins before it was sent twice.
ALTER TABLE runs ADD COLUMN output_bytes BIGINT NOT NULL DEFAULT 0;
