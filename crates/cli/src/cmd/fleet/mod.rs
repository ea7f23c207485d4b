//! Commands of those who run a server: its database, its queues and its pools.

pub(crate) mod backup;
pub(crate) mod db;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod server;
pub(crate) mod topology;
