//! Contexts: explicit ones, primary ones, and which is current.

use std::cell::RefCell;
use std::ffi::c_void;

use super::context_state::{DEFAULT_LIMITS, Limits, extra_granules};
use super::session::{Inner, Session, current, session, set_current};
use super::timeline::timeline;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;
use crate::granules;
use crate::models::UNATTRIBUTED_MIB;

/// A context of this process. Contexts are numbered from 1; numbers are never reused, so a stale handle is recognized.
struct Context {
    device: usize,
    flags: u32,
    limits: Limits,
    alive: bool,
}

#[derive(Clone, Copy, Default)]
struct Primary {
    context: u32,
    retained: u32,
    flags: u32,
}

/// All contexts of this process.
pub(super) struct Contexts {
    all: Vec<Context>,
    primary: Vec<Primary>,
    /// Living contexts per device: the last gives back what pools have kept.
    living: Vec<u32>,
}

/// A `CUcontext`: no pointer, but a value that no other kind of handle has.
pub(super) type Handle = usize;
const HANDLE_BASE: Handle = 0xC0DA_0000_0000;

pub(super) fn handle(context: u32) -> Handle {
    if context == 0 { 0 } else { HANDLE_BASE + context as Handle * 16 }
}

/// The number behind a handle; 0 for null.
fn number(handle: Handle) -> CuResult<u32> {
    match handle.checked_sub(HANDLE_BASE) {
        _ if handle == 0 => Ok(0),
        Some(offset) if offset % 16 == 0 => u32::try_from(offset / 16).map_err(|_| CuError::INVALID_CONTEXT),
        _ => Err(CuError::INVALID_CONTEXT),
    }
}

thread_local! {
    /// The contexts below the current one.
    static STACK: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

impl Contexts {
    pub(super) fn new(devices: usize) -> Self {
        Self { all: Vec::new(), primary: vec![Primary::default(); devices], living: vec![0; devices] }
    }

    /// The limits of a living context.
    pub(super) fn limits(&mut self, context: u32) -> &mut Limits {
        &mut self.all[context as usize - 1].limits
    }

    /// The device of a living context.
    #[inline]
    pub(super) fn device_of(&self, context: u32) -> CuResult<usize> {
        match (context as usize).checked_sub(1).and_then(|i| self.all.get(i)) {
            Some(c) if c.alive => Ok(c.device),
            Some(_) => Err(CuError::CONTEXT_IS_DESTROYED),
            None => Err(CuError::INVALID_CONTEXT),
        }
    }
}

impl Inner {
    /// The current context and its device.
    #[inline]
    pub(super) fn current_device(&self) -> CuResult<(u32, usize)> {
        let context = current();
        Ok((context, self.contexts.device_of(context)?))
    }

    fn create(&mut self, session: &Session, device: usize, flags: u32) -> CuResult<u32> {
        self.register(session.sim)?;
        let (registration, account) = self.account(device)?;
        account.take_context(
            registration,
            context_granules(session, device),
            unattributed_granules(session, device),
        )?;
        self.contexts.living[device] += 1;
        self.contexts.all.push(Context { device, flags, limits: DEFAULT_LIMITS, alive: true });
        Ok(self.contexts.all.len() as u32)
    }

    fn destroy(&mut self, session: &Session, context: u32) -> CuResult {
        let device = self.contexts.device_of(context)?;
        if let Some(timeline) = timeline() {
            timeline.end_context(context);
        }
        self.free_all_of(context)?;
        let extra = extra_granules(self.contexts.limits(context), session.devices[device].resident_threads());
        let (registration, account) = self.account(device)?;
        account.give(registration, extra)?;
        self.contexts.all[context as usize - 1].alive = false;
        self.contexts.living[device] -= 1;
        if self.contexts.living[device] == 0 {
            self.trim_all(device)?;
        }
        let (registration, account) = self.account(device)?;
        account.give_context(
            registration,
            context_granules(session, device),
            unattributed_granules(session, device),
        )
    }

    /// Ends a device's primary context, if there is one.
    fn reset_primary(&mut self, session: &Session, device: usize) -> CuResult {
        let primary = &mut self.contexts.primary[device];
        primary.retained = 0;
        match std::mem::take(&mut primary.context) {
            0 => Ok(()),
            context => self.destroy(session, context),
        }
    }
}

fn context_granules(session: &Session, device: usize) -> u64 {
    granules(u64::from(session.devices[device].model.context_mib) << 20)
}

/// Memory that the driver's kernel module takes for a context in addition, if the GPU keeps memory for the driver.
fn unattributed_granules(session: &Session, device: usize) -> u64 {
    let keeps = session.sim.lock().devices[session.devices[device].index()].reserved_bytes() > 0;
    if keeps { granules(u64::from(UNATTRIBUTED_MIB) << 20) } else { 0 }
}

fn ordinal(session: &Session, device: i32) -> CuResult<usize> {
    session.device(device)?;
    Ok(device as usize)
}

fn create_and_push(out: Out<Handle>, flags: u32, device: i32) -> CuResult {
    let session = session()?;
    if out.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let device = ordinal(session, device)?;
    let context = session.lock().create(session, device, flags)?;
    push(context);
    Ok(out.set(handle(context))?)
}

fn push(context: u32) {
    STACK.with_borrow_mut(|stack| stack.push(current()));
    set_current(context);
}

fn pop() -> u32 {
    let popped = current();
    set_current(STACK.with_borrow_mut(Vec::pop).unwrap_or(0));
    popped
}

/// The context a handle names, null meaning the current one; it must be alive.
fn living(handle: Handle) -> CuResult<u32> {
    let context = if handle == 0 { current() } else { number(handle)? };
    session()?.lock().contexts.device_of(context)?;
    Ok(context)
}

fn set_primary_flags(device: i32, flags: u32) -> CuResult {
    let session = session()?;
    let device = ordinal(session, device)?;
    session.lock().contexts.primary[device].flags = flags;
    Ok(())
}

fn release_primary(device: i32) -> CuResult {
    let session = session()?;
    let device = ordinal(session, device)?;
    let mut inner = session.lock();
    match inner.contexts.primary[device].retained {
        0 => Err(CuError::INVALID_CONTEXT),
        1 => inner.reset_primary(session, device),
        n => {
            inner.contexts.primary[device].retained = n - 1;
            Ok(())
        }
    }
}

fn reset_primary(device: i32) -> CuResult {
    let session = session()?;
    let device = ordinal(session, device)?;
    let mut inner = session.lock();
    inner.reset_primary(session, device)
}

/// A device's primary context, which is made if need be; it has one owner more.
pub(super) fn retained_primary(device: i32) -> CuResult<u32> {
    let session = session()?;
    let device = ordinal(session, device)?;
    let mut inner = session.lock();
    if inner.contexts.primary[device].context == 0 {
        let flags = inner.contexts.primary[device].flags;
        inner.contexts.primary[device].context = inner.create(session, device, flags)?;
    }
    inner.contexts.primary[device].retained += 1;
    Ok(inner.contexts.primary[device].context)
}

/// The runtime's way to a primary context, which is no exported function.
pub(super) extern "C" fn retain_primary(context: Out<Handle>, device: i32) -> i32 {
    cuDevicePrimaryCtxRetain(context, device)
}

driver_api! {
    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) {
        create_and_push(context, flags, device)
    }

    fn cuCtxCreate_v3(context: Out<Handle>, _affinity: *const c_void, _count: i32, flags: u32, device: i32) {
        create_and_push(context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<Handle>, _params: *const c_void, flags: u32, device: i32) {
        create_and_push(context, flags, device)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        let session = session()?;
        let context = number(context)?;
        let mut inner = session.lock();
        if inner.contexts.primary.iter().any(|p| p.context == context && context != 0) {
            return Err(CuError::INVALID_CONTEXT);
        }
        inner.destroy(session, context)?;
        drop(inner);
        if current() == context {
            pop();
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        if context == 0 {
            return Err(CuError::INVALID_CONTEXT);
        }
        push(living(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        session()?;
        if current() == 0 {
            return Err(CuError::INVALID_CONTEXT);
        }
        context.set_if_asked(handle(pop()));
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        let context = if context == 0 { session().map(|_| 0)? } else { living(context)? };
        set_current(context);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        session()?;
        Ok(context.set(handle(current()))?)
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        Ok(device.set(session()?.lock().current_device()?.1 as i32)?)
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: Handle) {
        let context = living(context)?;
        Ok(device.set(session()?.lock().contexts.device_of(context)? as i32)?)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        let inner = session()?.lock();
        let (context, _) = inner.current_device()?;
        Ok(flags.set(inner.contexts.all[context as usize - 1].flags)?)
    }

    fn cuCtxSetFlags(flags: u32) {
        let mut inner = session()?.lock();
        let (context, _) = inner.current_device()?;
        inner.contexts.all[context as usize - 1].flags = flags;
        Ok(())
    }

    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        Ok(id.set(u64::from(living(context)?))?)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        living(context)?;
        // The version of the context interface, not of CUDA.
        Ok(version.set(3020)?)
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        Ok(context.set(handle(retained_primary(device)?))?)
    }

    fn cuDevicePrimaryCtxRelease(device: i32) { release_primary(device) }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) { release_primary(device) }

    fn cuDevicePrimaryCtxReset(device: i32) { reset_primary(device) }

    fn cuDevicePrimaryCtxReset_v2(device: i32) { reset_primary(device) }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let session = session()?;
        let device = ordinal(session, device)?;
        let primary = session.lock().contexts.primary[device];
        flags.set(primary.flags)?;
        Ok(active.set(i32::from(primary.context != 0))?)
    }
}
