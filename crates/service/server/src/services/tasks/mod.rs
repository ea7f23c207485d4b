//! Tasks: making, changing and listing them, and why they wait.

pub(crate) mod edits;
pub(crate) mod erase;
pub(crate) mod execs;
pub(crate) mod explain;
pub(crate) mod flow;
pub(crate) mod list;
pub(crate) mod many;
pub(crate) mod order;
pub(crate) mod params;
pub(crate) mod records;
pub(crate) mod sizes;
pub(crate) mod starts;
pub(crate) mod values;
pub(crate) mod wishes;
