//! cantle: server
