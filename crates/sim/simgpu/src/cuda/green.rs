//! Green contexts: a part of a GPU's multiprocessors within its primary context. The parts are not simulated. As in the real
//! driver, the first version of `cuStreamGetCtx` refuses their streams, which have no `CUcontext` that a program could use.

use super::context::{self, retained_primary};
use super::execution::Object;
use super::session::session;
use super::stream::{check_not_captured, stream};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out};

/// `CU_GREEN_CTX_DEFAULT_STREAM`, without which none is made.
const DEFAULT_STREAM: u32 = 1;
const RESOURCE_SM: i32 = 1;
/// Any but null: a description is all resources there are.
const DESCRIPTION: u64 = 0xC0DD_0000_0000;

/// `CUdevResource`: of its union only the number of multiprocessors.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Resource {
    kind: i32,
    padding: [u8; 92],
    multiprocessors: u32,
    rest: [u8; 44],
}

const _: () = assert!(size_of::<Resource>() == 144);

/// The context that a green one is a part of.
fn green(handle: u64) -> CuResult<u32> {
    match session()?.lock().objects.get(handle)? {
        Object::Green { context } => Ok(context),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

/// Context and green context of a stream.
fn contexts_of(handle: u64) -> CuResult<(u32, u64)> {
    match stream(&session()?.lock(), handle)? {
        Object::Stream { context, green, .. } => Ok((context, green)),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

driver_api! {
    fn cuGreenCtxCreate(out: Out<u64>, description: u64, device: i32, flags: u32) {
        if description == 0 || flags != DEFAULT_STREAM {
            return Err(CuError::INVALID_VALUE);
        }
        let context = retained_primary(device)?;
        Ok(out.set(session()?.lock().objects.insert(Object::Green { context }))?)
    }
    fn cuGreenCtxDestroy(handle: u64) {
        green(handle)?;
        session()?.lock().objects.remove(handle).map(|_| ())
    }
    fn cuCtxFromGreenCtx(out: Out<usize>, handle: u64) { Ok(out.set(context::handle(green(handle)?))?) }
    fn cuGreenCtxStreamCreate(out: Out<u64>, handle: u64, flags: u32, priority: i32) {
        let context = green(handle)?;
        let stream = Object::Stream { flags, priority, context, green: handle };
        Ok(out.set(session()?.lock().objects.insert(stream))?)
    }
    fn cuStreamGetCtx(handle: u64, out: Out<usize>) {
        match contexts_of(handle)? {
            (context, 0) => Ok(out.set(context::handle(context))?),
            _ => Err(CuError::INVALID_CONTEXT),
        }
    }
    fn cuStreamGetCtx_v2(handle: u64, out: Out<usize>, green: Out<u64>) {
        let (context, of_green) = contexts_of(handle)?;
        out.set(if of_green == 0 { context::handle(context) } else { 0 })?;
        Ok(green.set(of_green)?)
    }
    fn cuStreamGetGreenCtx(handle: u64, out: Out<u64>) { Ok(out.set(contexts_of(handle)?.1)?) }
    fn cuStreamGetDevice(handle: u64, out: Out<i32>) {
        check_not_captured(handle)?;
        let (context, _) = contexts_of(handle)?;
        Ok(out.set(session()?.lock().contexts.device_of(context)? as i32)?)
    }
    fn cuDeviceGetDevResource(device: i32, out: Out<Resource>, kind: i32) {
        let multiprocessors = session()?.device(device)?.multiprocessors;
        if kind != RESOURCE_SM {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(out.set(Resource { kind, padding: [0; 92], multiprocessors, rest: [0; 44] })?)
    }
    fn cuDevResourceGenerateDesc(out: Out<u64>, resources: In<Resource>, count: u32) {
        if count == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        resources.get()?;
        Ok(out.set(DESCRIPTION)?)
    }
}
