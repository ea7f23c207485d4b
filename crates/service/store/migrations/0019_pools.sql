-- Named sets of GPUs: patterns of node names and of GPU models, as JSON lists. Quotas of projects name them.
CREATE TABLE pools (
    name   TEXT PRIMARY KEY,
    nodes  TEXT NOT NULL,
    models TEXT NOT NULL
);
