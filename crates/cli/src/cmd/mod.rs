//! The commands, one module per family. Each owns its arguments and its code.

pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod kubernetes;
pub(crate) mod machine;
pub(crate) mod manual;
pub(crate) mod people;
pub(crate) mod tasks;
