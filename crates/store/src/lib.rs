//! cantle: store
