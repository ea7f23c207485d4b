//! Kernels: the registrations by the compiler before `main`, the modules that are loaded from them on first use, and
//! launches.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::sync::Mutex;

use super::driver::driver;
use super::{CudaError, CudaResult, context, forwards, runtime_api};
use crate::ffi::{In, Out};

/// A grid's or a block's size, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// `__fatBinC_Wrapper_t`: what `__cudaRegisterFatBinary` gets.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wrapper {
    magic: i32,
    version: i32,
    image: usize,
    rest: usize,
}

/// The beginning of `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Launch {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: usize,
}

/// Something that a program registered: which image has it, and under which name.
#[derive(Clone, Copy)]
struct Registered {
    image: usize,
    name: usize,
}

/// All of it, by the address of the host's side; and what has been loaded, by context.
struct Registry {
    registered: BTreeMap<usize, Registered>,
    modules: BTreeMap<(usize, usize), usize>,
    functions: BTreeMap<(usize, usize), usize>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    registered: BTreeMap::new(),
    modules: BTreeMap::new(),
    functions: BTreeMap::new(),
});

thread_local! {
    /// Between `<<<…>>>` and the function that it calls.
    static CONFIGURED: RefCell<Vec<Launch>> = const { RefCell::new(Vec::new()) };
}

fn registry() -> std::sync::MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Drops the modules of contexts that are gone.
pub(super) fn forget_loaded() {
    let mut registry = registry();
    registry.modules.clear();
    registry.functions.clear();
}

impl Registry {
    /// The module of an image in a context, loaded now if it is not yet.
    fn module(&mut self, image: usize, context: usize) -> CudaResult<usize> {
        if let Some(module) = self.modules.get(&(image, context)) {
            return Ok(*module);
        }
        let mut module = 0;
        driver!(cuModuleLoadData(&raw mut module => *mut usize, image => usize))?;
        self.modules.insert((image, context), module);
        Ok(module)
    }
}

/// The driver's function behind a kernel: the address of its host side, or the driver's own handle (of a library).
fn function(kernel: usize) -> CudaResult<usize> {
    context::enter()?;
    let context = context::current()?;
    let mut registry = registry();
    if let Some(function) = registry.functions.get(&(kernel, context)) {
        return Ok(*function);
    }
    let Some(Registered { image, name }) = registry.registered.get(&kernel).copied() else {
        return if kernel == 0 { Err(CudaError::INVALID_DEVICE_FUNCTION) } else { Ok(kernel) };
    };
    let module = registry.module(image, context)?;
    let mut function = 0;
    driver!(cuModuleGetFunction(&raw mut function => *mut usize, module => usize, name => usize))?;
    registry.functions.insert((kernel, context), function);
    Ok(function)
}

/// Address and size of a variable on the device.
pub(super) fn symbol(host: *const c_void) -> CudaResult<(u64, usize)> {
    context::enter()?;
    let context = context::current()?;
    let mut registry = registry();
    let found = registry.registered.get(&(host as usize)).copied();
    let Registered { image, name } = found.ok_or(CudaError(13))?;
    let module = registry.module(image, context)?;
    let (mut address, mut size_bytes) = (0, 0);
    driver!(cuModuleGetGlobal(
        &raw mut address => *mut u64, &raw mut size_bytes => *mut usize, module => usize, name => usize
    ))?;
    Ok((address, size_bytes))
}

fn launch(kernel: usize, launch: Launch, arguments: *mut c_void) -> CudaResult {
    let function = function(kernel)?;
    let Launch { grid, block, shared_bytes, stream } = launch;
    driver!(cuLaunchKernel(
        function => usize, grid.x => u32, grid.y => u32, grid.z => u32, block.x => u32, block.y => u32, block.z => u32,
        shared_bytes as u32 => u32, stream => usize, arguments => *mut c_void, std::ptr::null_mut() => *mut c_void
    ))
}

fn register(handle: In<usize>, host: usize, name: usize) -> CudaResult {
    let image = handle.get()?;
    registry().registered.insert(host, Registered { image, name });
    Ok(())
}

runtime_api! {
    fn __cudaRegisterFunction(
        handle: In<usize>, host: usize, _device: usize, name: usize, _threads: i32, _tid: usize, _bid: usize,
        _block: usize, _grid: usize, _warp: usize,
    ) {
        register(handle, host, name)
    }
    fn __cudaRegisterVar(
        handle: In<usize>, host: usize, _device: usize, name: usize, _external: i32, _size_bytes: usize, _constant: i32,
        _global: i32,
    ) {
        register(handle, host, name)
    }
    fn __cudaRegisterManagedVar(handle: In<usize>, host: usize, _device: usize, name: usize) {
        register(handle, host, name)
    }
    fn __cudaRegisterFatBinaryEnd(_handle: usize) { Ok(()) }
    /// Programs call it when they end; what they registered is not used any more.
    fn __cudaUnregisterFatBinary(_handle: usize) { Ok(()) }

    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<usize>) {
        let configured = CONFIGURED.with_borrow_mut(Vec::pop).ok_or(CudaError::INVALID_VALUE)?;
        grid.set(configured.grid)?;
        block.set(configured.block)?;
        shared_bytes.set(configured.shared_bytes)?;
        Ok(stream.set(configured.stream)?)
    }
    /// The host's side means the kernel in every context; `function` finds what it means.
    fn __cudaGetKernel(kernel: Out<usize>, host: usize) { Ok(kernel.set(host)?) }
    fn __cudaLaunchKernel(
        kernel: usize, grid: Dim3, block: Dim3, arguments: *mut c_void, shared_bytes: usize, stream: usize,
    ) {
        launch(kernel, Launch { grid, block, shared_bytes, stream }, arguments)
    }
    fn cudaLaunchKernel(
        kernel: usize, grid: Dim3, block: Dim3, arguments: *mut c_void, shared_bytes: usize, stream: usize,
    ) {
        launch(kernel, Launch { grid, block, shared_bytes, stream }, arguments)
    }
    fn cudaLaunchCooperativeKernel(
        kernel: usize, grid: Dim3, block: Dim3, arguments: *mut c_void, shared_bytes: usize, stream: usize,
    ) {
        launch(kernel, Launch { grid, block, shared_bytes, stream }, arguments)
    }
    /// Attributes of a launch (clusters, priorities) are ignored.
    fn cudaLaunchKernelExC(config: In<Launch>, kernel: usize, arguments: *mut c_void) {
        launch(kernel, config.get()?, arguments)
    }
    fn cudaGetFuncBySymbol(out: Out<usize>, kernel: usize) { Ok(out.set(function(kernel)?)?) }
    fn cudaGetSymbolAddress(address: Out<u64>, host: *const c_void) { Ok(address.set(symbol(host)?.0)?) }
    fn cudaGetSymbolSize(size_bytes: Out<usize>, host: *const c_void) { Ok(size_bytes.set(symbol(host)?.1)?) }

    fn cudaFuncGetAttributes(out: Out<FuncAttributes>, kernel: usize) {
        let function = function(kernel)?;
        Ok(out.set(FuncAttributes::of(function)?)?)
    }
    fn cudaFuncSetAttribute(kernel: usize, attribute: i32, value: i32) {
        driver!(cuFuncSetAttribute(function(kernel)? => usize, attribute => i32, value => i32))
    }
    fn cudaFuncSetCacheConfig(kernel: usize, config: i32) {
        driver!(cuFuncSetCacheConfig(function(kernel)? => usize, config => i32))
    }
    fn cudaKernelSetAttributeForDevice(kernel: usize, attribute: i32, value: i32, device: i32) {
        let function = function(kernel)?;
        driver!(cuKernelSetAttribute(attribute => i32, value => i32, function => usize, device => i32))
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, kernel: usize, threads: i32, shared_bytes: usize) {
        driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks => *mut i32, function(kernel)? => usize, threads => i32, shared_bytes => usize
        ))
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut i32, kernel: usize, threads: i32, shared_bytes: usize, _flags: u32,
    ) {
        driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks => *mut i32, function(kernel)? => usize, threads => i32, shared_bytes => usize
        ))
    }
}

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FuncAttributes {
    /// Shared, constant and local memory.
    bytes: [usize; 3],
    /// Threads per block, registers, PTX and binary version, cache mode, dynamic shared memory, carveout, then those of clusters.
    numbers: [i32; 13],
    reserved: [i32; 16],
}

impl FuncAttributes {
    fn of(function: usize) -> CudaResult<Self> {
        let get = |number: i32| -> CudaResult<i32> {
            let mut value = 0;
            driver!(cuFuncGetAttribute(&raw mut value => *mut i32, number => i32, function => usize))?;
            Ok(value)
        };
        let mut numbers = [0; 13];
        for (at, number) in [0, 4, 5, 6, 7, 8, 9].into_iter().enumerate() {
            numbers[at] = get(number)?;
        }
        let bytes = [get(1)? as usize, get(2)? as usize, get(3)? as usize];
        Ok(Self { bytes, numbers, reserved: [0; 16] })
    }
}

/// The handle is a pointer to the address of the image.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(wrapper: In<Wrapper>) -> *mut usize {
    let image = wrapper.get().map_or(0, |wrapper| wrapper.image);
    Box::into_raw(Box::new(image))
}

/// Code with managed variables calls it before their first use; they are there already.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: usize) -> c_char {
    1
}

/// 0 lets the launch continue.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: usize,
) -> u32 {
    CONFIGURED.with_borrow_mut(|configured| configured.push(Launch { grid, block, shared_bytes, stream }));
    0
}

forwards! {
    fn cudaLibraryLoadData => cuLibraryLoadData(
        library: *mut usize, code: *const c_void, options: *const c_void, values: *const c_void, count: u32,
        library_options: *const c_void, library_values: *const c_void, library_count: u32,
    );
    fn cudaLibraryLoadFromFile => cuLibraryLoadFromFile(
        library: *mut usize, path: *const c_char, options: *const c_void, values: *const c_void, count: u32,
        library_options: *const c_void, library_values: *const c_void, library_count: u32,
    );
    fn cudaLibraryUnload => cuLibraryUnload(library: usize);
    fn cudaLibraryGetKernel => cuLibraryGetKernel(kernel: *mut usize, library: usize, name: *const c_char);
    fn cudaLibraryGetKernelCount => cuLibraryGetKernelCount(count: *mut u32, library: usize);
    fn cudaLibraryGetGlobal =>
        cuLibraryGetGlobal(address: *mut u64, size_bytes: *mut usize, library: usize, name: *const c_char);
    fn cudaLibraryGetManaged =>
        cuLibraryGetManaged(address: *mut u64, size_bytes: *mut usize, library: usize, name: *const c_char);
    fn cudaLibraryGetUnifiedFunction =>
        cuLibraryGetUnifiedFunction(function: *mut usize, library: usize, name: *const c_char);
}
