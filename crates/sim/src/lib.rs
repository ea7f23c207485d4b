//! cantle: sim
