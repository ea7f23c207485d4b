//! cantle: shim
