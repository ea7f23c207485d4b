//! The account of GPUs: the part of each that a user had, for how long, and the time that no run had. Pure: no clock
//! and no database.
//!
//! The time of one GPU is divided into the shares of runs and a rest, which is free, faulty or away. The parts of each division add
//! up to the whole: they are whole numbers of [`MilliUs`], and nothing is rounded.

mod advice;
mod divide;
mod part;
mod period;
mod price;
mod report;
mod sides;

pub use advice::{LEAST_RUNS, RESERVE_PERCENT, Sample, SmallerShare, advise};
pub use divide::{Division, GpuPresence, GpuTime, Hold, divide};
pub use part::{
    Crossing, PartBuilder, PartGpu, PartRun, PartShare, PartTask, TaskId, Text, Texts, UsagePart,
};
pub use period::{MilliUs, Period};
pub use price::{Price, PriceError, Prices};
pub use report::{Column, GpuSums, Line, LineKey, Report, TimeKind, percentile};
pub use sides::{Guarantee, Holding, Sides, sides};
