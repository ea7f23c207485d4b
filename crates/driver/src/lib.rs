//! cantle: driver
