-- What a run used, as its agent measured it: the most memory that it had of one of its GPUs, and the GPU time that it was charged.
ALTER TABLE runs ADD COLUMN peak_bytes BIGINT;
ALTER TABLE runs ADD COLUMN gpu_time_us BIGINT;
