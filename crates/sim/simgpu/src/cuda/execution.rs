//! Functions and launches. Kernels do nothing, and take no time unless their names say so:
//! `cantle_sim_busy_us_N` occupies the GPU for N microseconds, and `cantle_sim_spin_until_N` until N such kernels run at the
//! same time. Kernels of one group have the same N and the same number of blocks (the grid's first dimension).

use std::collections::BTreeMap;

use super::graph::Node;
use super::kernel_time::Takes;
use super::module::Module;
use super::session::{Inner, current, session};
use super::stream::{per_thread, place};
use super::{CuError, CuResult, driver_api, timeline};
use crate::ffi::{In, Out, Text};

/// The object of a handle of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    /// Of a green context, whose handle is then not 0.
    Stream {
        flags: u32,
        priority: i32,
        context: u32,
        green: u64,
    },
    Green {
        context: u32,
    },
    Event {
        flags: u32,
    },
    Module(Module),
    Function {
        module: u64,
        takes: Takes,
    },
}

/// Living objects by handle.
pub(super) struct Objects {
    next: u64,
    live: BTreeMap<u64, Object>,
}

/// Handles are numbers, no pointers.
const FIRST_HANDLE: u64 = 0xC0DB_0000_0000;
/// Set in the handles of functions that take time: all others are recognized by one comparison.
const TIMED: u64 = 1 << 62;

impl Objects {
    pub(super) fn new() -> Self {
        Self { next: FIRST_HANDLE, live: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, object: Object) -> u64 {
        self.next += 16;
        let is_timed = matches!(object, Object::Function { takes, .. } if takes != Takes::NoTime);
        let handle = self.next | if is_timed { TIMED } else { 0 };
        self.live.insert(handle, object);
        handle
    }

    pub(super) fn get(&self, handle: u64) -> CuResult<Object> {
        self.live.get(&handle).copied().ok_or(CuError::INVALID_HANDLE)
    }

    pub(super) fn get_mut(&mut self, handle: u64) -> CuResult<&mut Object> {
        self.live.get_mut(&handle).ok_or(CuError::INVALID_HANDLE)
    }

    /// Handles of all modules of a context.
    pub(super) fn modules_of(&self, context: u32) -> Vec<u64> {
        let of_context = |(handle, object): (&u64, &Object)| {
            matches!(object, Object::Module(module) if module.context == context).then_some(*handle)
        };
        self.live.iter().filter_map(of_context).collect()
    }

    pub(super) fn remove(&mut self, handle: u64) -> CuResult<Object> {
        self.live.remove(&handle).ok_or(CuError::INVALID_HANDLE)
    }
}

/// Makes an object in the current context.
pub(super) fn create(out: Out<u64>, object: impl FnOnce(u32) -> Object) -> CuResult {
    let mut inner = session()?.lock();
    let (context, _) = inner.current_device()?;
    let handle = inner.objects.insert(object(context));
    Ok(out.set(handle)?)
}

pub(super) fn destroy(handle: u64) -> CuResult {
    session()?.lock().objects.remove(handle).map(|_| ())
}

/// Every name is a function of every module: the contents of a module are ignored.
fn get_function(out: Out<u64>, module: u64, name: Text) -> CuResult {
    let takes = Takes::of(name.get()?);
    let session = session()?;
    let mut inner = session.lock();
    inner.make_resident(module)?;
    inner.current_device()?;
    if takes != Takes::NoTime {
        timeline::begin(session.sim, inner.slot()?);
    }
    let handle = inner.objects.insert(Object::Function { module, takes });
    Ok(out.set(handle)?)
}

/// The duration of a kernel; none for another kind of handle.
pub(super) fn takes_of(inner: &Inner, function: u64) -> Takes {
    match inner.objects.get(function) {
        Ok(Object::Function { takes, .. }) => takes,
        _ => Takes::NoTime,
    }
}

/// The cheapest check there is: launches are what benchmarks count in nanoseconds. A function that takes time is for `timed`.
#[inline]
fn launch(function: u64, timed: impl FnOnce() -> CuResult) -> CuResult {
    session()?;
    match (current(), function) {
        (0, _) => Err(CuError::INVALID_CONTEXT),
        (_, 1..TIMED) => Ok(()),
        (_, 0) => Err(CuError::INVALID_HANDLE),
        _ => timed(),
    }
}

/// Queues a function that takes time, or adds it to the graph that the stream is captured into.
#[cold]
fn launch_timed(function: u64, blocks: u32, stream: u64) -> CuResult {
    let mut inner = session()?.lock();
    let Object::Function { takes, .. } = inner.objects.get(function)? else {
        return Err(CuError::INVALID_HANDLE);
    };
    if let Some(graph) = inner.capture_of(stream)? {
        return inner.graphs.add_captured(graph, Node::Kernel { takes, blocks }, stream).map(|_| ());
    }
    drop(inner);
    takes.queue(place(stream)?, blocks)
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
    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) { get_function(out, module, name) }
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
        let Object::Function { module, .. } = session()?.lock().objects.get(function)? else {
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
    fn cuFuncSetAttribute(function: u64, _attribute: i32, _value: i32) { launch(function, || Ok(())) }
    fn cuKernelSetAttribute(_attribute: i32, _value: i32, kernel: u64, _device: i32) {
        launch(kernel, || Ok(()))
    }
    fn cuFuncSetCacheConfig(function: u64, _config: i32) { launch(function, || Ok(())) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, _function: u64, threads: i32, _shared: usize) {
        Ok(blocks.set((2048 / threads.clamp(1, 1024)).min(32))?)
    }
}

/// The beginning of `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
}

/// Launches with their configuration in the arguments. The fields after the stream are ignored.
macro_rules! launches {
    ($(fn $name:ident($stream:ident $(=> $mapped:expr)?);)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        #[allow(clippy::too_many_arguments, reason = "the signature is CUDA's")]
        pub(crate) extern "C" fn $name(
            function: u64, blocks: u32, _y: u32, _z: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, $stream: u64,
        ) -> i32 {
            super::code(launch(function, || {
                $(let $stream = $mapped;)?
                launch_timed(function, blocks, $stream)
            }))
        }
    )*};
}

launches! {
    fn cuLaunchKernel(stream);
    fn cuLaunchKernel_ptsz(stream => per_thread(stream));
    fn cuLaunchCooperativeKernel(stream);
    fn cuLaunchCooperativeKernel_ptsz(stream => per_thread(stream));
}

driver_api! {
    fn cuLaunchKernelEx(config: In<Config>, function: u64) {
        launch(function, || {
            let config = config.get()?;
            launch_timed(function, config.grid[0], config.stream)
        })
    }
    fn cuLaunchKernelEx_ptsz(config: In<Config>, function: u64) {
        launch(function, || {
            let config = config.get()?;
            launch_timed(function, config.grid[0], per_thread(config.stream))
        })
    }
}
