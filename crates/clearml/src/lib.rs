//! cantle: clearml
