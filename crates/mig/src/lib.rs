//! cantle: mig
