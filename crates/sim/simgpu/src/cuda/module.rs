//! Modules and libraries, and what they take of the GPU (see `image`). As with the driver's default, loading is lazy: the memory is
//! taken when the first function of the module is looked up. No function that a program calls mentions it.

use std::ffi::c_void;

use super::execution::{Object, create};
use super::image::granules_of;
use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
use crate::config::{ModuleLoading, module_loading};
use crate::ffi::{In, Out, Text};

const LAZY: i32 = 2;
const EAGER: i32 = 1;

/// A loaded module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) context: u32,
    /// The memory of its code, once loaded.
    granules: u64,
    is_resident: bool,
}

fn load(out: Out<u64>, image: In<u8>) -> CuResult {
    let granules = granules_of(image)?;
    create(out, |context| Object::Module(Module { context, granules, is_resident: false }))?;
    if module_loading() == ModuleLoading::Eager {
        let handle = out.get()?;
        let mut inner = session()?.lock();
        if let Err(error) = inner.make_resident(handle) {
            inner.objects.remove(handle)?;
            return Err(error);
        }
    }
    Ok(())
}

fn unload(handle: u64) -> CuResult {
    session()?.lock().unload(handle)
}

impl Inner {
    /// Takes what a module needs, if it has not got it yet.
    pub(super) fn make_resident(&mut self, handle: u64) -> CuResult {
        let Object::Module(module) = self.objects.get(handle)? else { return Err(CuError::INVALID_HANDLE) };
        if module.is_resident || module.granules == 0 {
            return Ok(());
        }
        let device = self.contexts.device_of(module.context)?;
        let (registration, account) = self.account(device)?;
        account.take(registration, module.granules)?;
        *self.objects.get_mut(handle)? = Object::Module(Module { is_resident: true, ..module });
        Ok(())
    }

    /// Ends a module, with what it takes.
    pub(super) fn unload(&mut self, handle: u64) -> CuResult {
        let Object::Module(module) = self.objects.get(handle)? else { return Err(CuError::INVALID_HANDLE) };
        self.objects.remove(handle)?;
        if !module.is_resident {
            return Ok(());
        }
        let device = self.contexts.device_of(module.context)?;
        let (registration, account) = self.account(device)?;
        account.give(registration, module.granules)
    }
}

driver_api! {
    fn cuModuleLoad(out: Out<u64>, path: Text) {
        const FILE_NOT_FOUND: CuError = CuError(301);
        let mut image = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
        image.push(0);
        load(out, In(image.as_ptr()))
    }
    fn cuModuleLoadData(out: Out<u64>, image: In<u8>) { load(out, image) }
    fn cuModuleLoadDataEx(
        out: Out<u64>, image: In<u8>, _count: u32, _options: *const i32, _values: *const c_void,
    ) {
        load(out, image)
    }
    fn cuModuleLoadFatBinary(out: Out<u64>, image: In<u8>) { load(out, image) }
    fn cuModuleUnload(module: u64) {
        session()?.lock().forbid_unsafe()?;
        unload(module)
    }
    fn cuModuleGetLoadingMode(mode: Out<i32>) {
        Ok(mode.set(if module_loading() == ModuleLoading::Eager { EAGER } else { LAZY })?)
    }
    fn cuLibraryLoadData(
        out: Out<u64>, image: In<u8>, _jit: *const c_void, _jit_values: *const c_void, _jit_count: u32,
        _options: *const c_void, _option_values: *const c_void, _option_count: u32,
    ) {
        load(out, image)
    }
    fn cuLibraryUnload(library: u64) { unload(library) }
}
