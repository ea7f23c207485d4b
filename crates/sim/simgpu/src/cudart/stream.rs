//! Streams and their capture.

use std::ffi::c_void;

use super::context;
use super::driver::driver;
use super::{CudaError, forwards, runtime_api};

type Callback = extern "C" fn(usize, i32, *mut c_void);

/// The arguments of a stream's callback that a host function lacks.
struct Called {
    stream: usize,
    callback: Callback,
    data: *mut c_void,
}

extern "C" fn call(called: *mut c_void) {
    // SAFETY: `cudaStreamAddCallback` made it with `Box::into_raw`, and the driver calls a host function once.
    let called = unsafe { Box::from_raw(called.cast::<Called>()) };
    (called.callback)(called.stream, 0, called.data);
}

runtime_api! {
    fn cudaStreamCreate(stream: *mut usize) {
        context::enter()?;
        driver!(cuStreamCreate(stream => *mut usize, 0 => u32))
    }
    fn cudaStreamAddCallback(stream: usize, callback: Option<Callback>, data: *mut c_void, _flags: u32) {
        context::enter()?;
        let called = Called { stream, callback: callback.ok_or(CudaError::INVALID_VALUE)?, data };
        let called = Box::into_raw(Box::new(called)).cast::<c_void>();
        driver!(cuLaunchHostFunc(stream => usize, call => extern "C" fn(*mut c_void), called => *mut c_void))
    }
}

forwards! {
    fn cudaStreamCreateWithFlags => cuStreamCreate(stream: *mut usize, flags: u32);
    fn cudaStreamCreateWithPriority => cuStreamCreateWithPriority(stream: *mut usize, flags: u32, priority: i32);
    fn cudaStreamDestroy => cuStreamDestroy(stream: usize);
    fn cudaStreamSynchronize => cuStreamSynchronize(stream: usize);
    fn cudaStreamQuery => cuStreamQuery(stream: usize);
    fn cudaStreamWaitEvent => cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    fn cudaStreamGetPriority => cuStreamGetPriority(stream: usize, priority: *mut i32);
    fn cudaStreamGetFlags => cuStreamGetFlags(stream: usize, flags: *mut u32);
    fn cudaLaunchHostFunc => cuLaunchHostFunc(stream: usize, function: *const c_void, data: *mut c_void);

    fn cudaStreamBeginCapture => cuStreamBeginCapture(stream: usize, mode: u32);
    fn cudaStreamBeginCaptureToGraph => cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, dependencies: *const usize, edges: *const c_void, count: usize, mode: u32,
    );
    fn cudaStreamEndCapture => cuStreamEndCapture(stream: usize, graph: *mut usize);
    fn cudaStreamIsCapturing => cuStreamIsCapturing(stream: usize, status: *mut i32);
    /// Programs of CUDA 13 call this one.
    fn cudaStreamGetCaptureInfo => cuStreamGetCaptureInfo(
        stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, dependencies: *mut usize, edges: *mut usize,
        count: *mut usize,
    );
    fn cudaStreamUpdateCaptureDependencies => cuStreamUpdateCaptureDependencies(
        stream: usize, dependencies: *mut usize, edges: *const c_void, count: usize, flags: u32,
    );
    fn cudaThreadExchangeStreamCaptureMode => cuThreadExchangeStreamCaptureMode(mode: *mut u32);
}

runtime_api! {
    /// Programs of CUDA 12 call this one: it says nothing of edges.
    fn cudaStreamGetCaptureInfo_v2(
        stream: usize, status: *mut i32, id: *mut u64, graph: *mut usize, dependencies: *mut usize, count: *mut usize,
    ) {
        context::enter()?;
        driver!(cuStreamGetCaptureInfo(
            stream => usize, status => *mut i32, id => *mut u64, graph => *mut usize, dependencies => *mut usize,
            std::ptr::null_mut() => *mut usize, count => *mut usize
        ))
    }
}
