//! cantle: sched
