//! Events.

use super::context;
use super::driver::driver;
use super::{forwards, runtime_api};

runtime_api! {
    fn cudaEventCreate(event: *mut usize) {
        context::enter()?;
        driver!(cuEventCreate(event => *mut usize, 0 => u32))
    }
}

forwards! {
    fn cudaEventCreateWithFlags => cuEventCreate(event: *mut usize, flags: u32);
    fn cudaEventDestroy => cuEventDestroy(event: usize);
    fn cudaEventRecord => cuEventRecord(event: usize, stream: usize);
    fn cudaEventRecordWithFlags => cuEventRecordWithFlags(event: usize, stream: usize, flags: u32);
    fn cudaEventQuery => cuEventQuery(event: usize);
    fn cudaEventSynchronize => cuEventSynchronize(event: usize);
    fn cudaEventElapsedTime => cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize);
}
