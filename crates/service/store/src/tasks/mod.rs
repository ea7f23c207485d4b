//! Tasks: their records, the changes of their state, and the lists of them.

pub(crate) mod after;
pub(crate) mod arrays;
pub(crate) mod batch;
pub(crate) mod documents;
pub(crate) mod entering;
pub(crate) mod erase;
pub(crate) mod filter;
pub(crate) mod flow;
pub(crate) mod listing;
pub(crate) mod literal;
pub(crate) mod owned;
pub(crate) mod record;
pub(crate) mod scope;
pub(crate) mod state;
pub(crate) mod values;
pub(crate) mod wishes;
