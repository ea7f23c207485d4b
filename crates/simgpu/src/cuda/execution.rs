//! Streams, events, modules and launches. Everything completes at once; kernels do nothing.

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::session::{current, session};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out, Text};

/// What a handle of this module names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Stream { flags: u32, priority: i32, context: u32 },
    Event,
    Module,
    Function { module: u64 },
}

/// Living objects by handle.
pub(super) struct Objects {
    next: u64,
    live: BTreeMap<u64, Object>,
}

/// Handles are numbers, no pointers; the first three are CUDA's own stream handles.
const FIRST_HANDLE: u64 = 0xC0DB_0000_0000;
const SPECIAL_STREAMS: std::ops::RangeInclusive<u64> = 0..=2;

impl Objects {
    pub(super) fn new() -> Self {
        Self { next: FIRST_HANDLE, live: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, object: Object) -> u64 {
        self.next += 16;
        self.live.insert(self.next, object);
        self.next
    }

    pub(super) fn get(&self, handle: u64) -> CuResult<Object> {
        self.live.get(&handle).copied().ok_or(CuError::INVALID_HANDLE)
    }

    fn remove(&mut self, handle: u64) -> CuResult<Object> {
        self.live.remove(&handle).ok_or(CuError::INVALID_HANDLE)
    }
}

/// Makes an object in the current context.
fn create(out: Out<u64>, object: impl FnOnce(u32) -> Object) -> CuResult {
    let mut inner = session()?.lock();
    let (context, _) = inner.current_device()?;
    let handle = inner.objects.insert(object(context));
    Ok(out.set(handle)?)
}

fn destroy(handle: u64) -> CuResult {
    session()?.lock().objects.remove(handle).map(|_| ())
}

fn stream(handle: u64) -> CuResult<Object> {
    let inner = session()?.lock();
    let (context, _) = inner.current_device()?;
    if SPECIAL_STREAMS.contains(&handle) {
        return Ok(Object::Stream { flags: 0, priority: 0, context });
    }
    match inner.objects.get(handle)? {
        object @ Object::Stream { .. } => Ok(object),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

/// Whatever synchronizes lets the device's pools shrink.
pub(super) fn synchronize() -> CuResult {
    let mut inner = session()?.lock();
    let (_, device) = inner.current_device()?;
    inner.synchronize(device)
}

fn event(handle: u64) -> CuResult {
    match session()?.lock().objects.get(handle)? {
        Object::Event => Ok(()),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

fn load_module(out: Out<u64>, image: In<u8>) -> CuResult {
    image.get()?;
    create(out, |_| Object::Module)
}

/// Every name is a function of every module: what a module contains is not looked at.
fn get_function(out: Out<u64>, module: u64, name: Text) -> CuResult {
    name.get()?;
    session()?.lock().objects.get(module)?;
    create(out, |_| Object::Function { module })
}

/// The cheapest check there is: launches are what benchmarks count in nanoseconds.
#[inline]
fn launch(function: u64) -> CuResult {
    session()?;
    match (current(), function) {
        (0, _) => Err(CuError::INVALID_CONTEXT),
        (_, 0) => Err(CuError::INVALID_HANDLE),
        _ => Ok(()),
    }
}

fn function_attribute(value: Out<i32>, attribute: i32, function: u64) -> CuResult {
    session()?.lock().objects.get(function)?;
    let answer = match attribute {
        0 => 1024,   // threads per block
        4 => 32,     // registers
        5 | 6 => 80, // PTX and binary version
        8 => 49152,  // dynamic shared memory
        _ => 0,
    };
    Ok(value.set(answer)?)
}

driver_api! {
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        create(out, |context| Object::Stream { flags, priority: 0, context })
    }
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, |context| Object::Stream { flags, priority, context })
    }
    fn cuStreamDestroy_v2(handle: u64) { destroy(handle) }
    fn cuStreamSynchronize(handle: u64) { stream(handle).and(synchronize()) }
    fn cuStreamSynchronize_ptsz(handle: u64) { stream(handle).and(synchronize()) }
    fn cuStreamQuery(handle: u64) { stream(handle).map(|_| ()) }
    fn cuStreamQuery_ptsz(handle: u64) { stream(handle).map(|_| ()) }
    fn cuStreamWaitEvent(handle: u64, waited: u64, _flags: u32) { stream(handle).and(event(waited)) }
    fn cuStreamWaitEvent_ptsz(handle: u64, waited: u64, _flags: u32) { stream(handle).and(event(waited)) }
    fn cuStreamGetFlags(handle: u64, out: Out<u32>) {
        let Object::Stream { flags, .. } = stream(handle)? else { return Err(CuError::INVALID_HANDLE) };
        Ok(out.set(flags)?)
    }
    fn cuStreamGetPriority(handle: u64, out: Out<i32>) {
        let Object::Stream { priority, .. } = stream(handle)? else { return Err(CuError::INVALID_HANDLE) };
        Ok(out.set(priority)?)
    }
    fn cuStreamGetCtx(handle: u64, out: Out<usize>) {
        let Object::Stream { context, .. } = stream(handle)? else { return Err(CuError::INVALID_HANDLE) };
        Ok(out.set(super::context::handle(context))?)
    }
    /// The callback runs before this returns: everything queued before it has already completed.
    fn cuLaunchHostFunc(handle: u64, function: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) {
        stream(handle)?;
        function.ok_or(CuError::INVALID_VALUE)?(data);
        Ok(())
    }

    fn cuEventCreate(out: Out<u64>, _flags: u32) { create(out, |_| Object::Event) }
    fn cuEventDestroy_v2(handle: u64) { destroy(handle) }
    fn cuEventRecord(handle: u64, on: u64) { event(handle).and(stream(on).map(|_| ())) }
    fn cuEventRecord_ptsz(handle: u64, on: u64) { event(handle).and(stream(on).map(|_| ())) }
    fn cuEventRecordWithFlags(handle: u64, on: u64, _flags: u32) { event(handle).and(stream(on).map(|_| ())) }
    fn cuEventQuery(handle: u64) { event(handle) }
    fn cuEventSynchronize(handle: u64) { event(handle).and_then(|()| synchronize()) }
    /// Simulated work takes no time.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        event(start).and(event(end))?;
        Ok(milliseconds.set(0.0)?)
    }

    fn cuModuleLoad(out: Out<u64>, path: Text) {
        const FILE_NOT_FOUND: CuError = CuError(301);
        std::fs::metadata(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
        create(out, |_| Object::Module)
    }
    fn cuModuleLoadData(out: Out<u64>, image: In<u8>) { load_module(out, image) }
    fn cuModuleLoadDataEx(
        out: Out<u64>, image: In<u8>, _count: u32, _options: *const i32, _values: *const c_void,
    ) {
        load_module(out, image)
    }
    fn cuModuleLoadFatBinary(out: Out<u64>, image: In<u8>) { load_module(out, image) }
    fn cuModuleUnload(module: u64) { destroy(module) }
    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) { get_function(out, module, name) }
    fn cuModuleGetLoadingMode(mode: Out<i32>) {
        const LAZY: i32 = 2;
        Ok(mode.set(LAZY)?)
    }
    fn cuLibraryLoadData(
        out: Out<u64>, image: In<u8>, _jit: *const c_void, _jit_values: *const c_void, _jit_count: u32,
        _options: *const c_void, _option_values: *const c_void, _option_count: u32,
    ) {
        load_module(out, image)
    }
    fn cuLibraryUnload(library: u64) { destroy(library) }
    fn cuLibraryGetKernel(out: Out<u64>, library: u64, name: Text) { get_function(out, library, name) }
    fn cuLibraryGetModule(out: Out<u64>, library: u64) {
        session()?.lock().objects.get(library)?;
        Ok(out.set(library)?)
    }
    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) {
        session()?.lock().objects.get(kernel)?;
        Ok(out.set(kernel)?)
    }
    fn cuFuncGetModule(out: Out<u64>, function: u64) {
        let Object::Function { module } = session()?.lock().objects.get(function)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        Ok(out.set(module)?)
    }
    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: u64) {
        function_attribute(value, attribute, function)
    }
    fn cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: u64, _device: i32) {
        function_attribute(value, attribute, kernel)
    }
    fn cuFuncSetAttribute(function: u64, _attribute: i32, _value: i32) { launch(function) }
    fn cuKernelSetAttribute(_attribute: i32, _value: i32, kernel: u64, _device: i32) { launch(kernel) }
    fn cuFuncSetCacheConfig(function: u64, _config: i32) { launch(function) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, _function: u64, threads: i32, _shared: usize) {
        Ok(blocks.set((2048 / threads.clamp(1, 1024)).min(32))?)
    }
}

/// Launches differ in their arguments only; the function comes first, except where the configuration does.
macro_rules! launches {
    ($(fn $name:ident($($before:ident),*) ;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        pub(crate) extern "C" fn $name($($before: usize,)* function: u64) -> i32 {
            $(let _ = $before;)*
            super::code(launch(function))
        }
    )*};
}

launches! {
    fn cuLaunchKernel();
    fn cuLaunchKernel_ptsz();
    fn cuLaunchCooperativeKernel();
    fn cuLaunchCooperativeKernel_ptsz();
    fn cuLaunchKernelEx(_config);
    fn cuLaunchKernelEx_ptsz(_config);
}
