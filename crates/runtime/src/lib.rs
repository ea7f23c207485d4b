//! cantle: runtime
