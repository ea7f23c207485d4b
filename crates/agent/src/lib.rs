//! cantle: agent
