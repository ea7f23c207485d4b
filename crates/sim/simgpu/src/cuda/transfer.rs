//! Copies, fills and hints: accepted without an effect, because there is no memory behind device addresses. They fail only
//! without a context, as the real ones do. Most of them ignore their arguments; copies of linear memory take time where
//! kernels do.

use std::convert::identity;

use super::address_space::Kind;
use super::session::session;
use super::stream::{is_captured, per_thread, place, settle_pools};
use super::timeline::timeline;
use super::{CuResult, code, driver_api};
use crate::time::Op;

/// PCIe with 16 lanes, fourth and fifth generation: what NVIDIA's `bandwidthTest` reaches, about 80 % of the signaling rate.
const LINK_BYTES_PER_US: u64 = 25_000;
const FAST_LINK_BYTES_PER_US: u64 = 50_000;
/// Within the GPU: of the order of what all cards since 2020 reach.
const DEVICE_BYTES_PER_US: u64 = 600_000;
/// The least that a copy takes.
const LATENCY_NS: u64 = 2_000;
const TYPE_MEMCPY: u32 = 1;

fn accepted() -> CuResult {
    session()?.lock().current_device().map(|_| ())
}

macro_rules! accept {
    ($(fn $name:ident();)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        // In the C calling convention the caller cleans up the arguments that are not declared here.
        pub(crate) extern "C" fn $name() -> i32 {
            code(accepted())
        }
    )*};
}

accept! {
    fn cuMemAdvise();
    fn cuMemAdvise_v2();
    fn cuMemDiscardAndPrefetchBatchAsync();
    fn cuMemDiscardBatchAsync();
    fn cuMemPrefetchBatchAsync();
    fn cuMemcpy2DAsync_v2();
    fn cuMemcpy2DAsync_v2_ptsz();
    fn cuMemcpy2DUnaligned_v2();
    fn cuMemcpy2DUnaligned_v2_ptds();
    fn cuMemcpy2D_v2();
    fn cuMemcpy2D_v2_ptds();
    fn cuMemcpy3DAsync_v2();
    fn cuMemcpy3DAsync_v2_ptsz();
    fn cuMemcpy3DBatchAsync();
    fn cuMemcpy3DBatchAsync_ptsz();
    fn cuMemcpy3DBatchAsync_v2();
    fn cuMemcpy3DPeer();
    fn cuMemcpy3DPeerAsync();
    fn cuMemcpy3DPeerAsync_ptsz();
    fn cuMemcpy3DPeer_ptds();
    fn cuMemcpy3D_v2();
    fn cuMemcpy3D_v2_ptds();
    fn cuMemcpyAtoA_v2();
    fn cuMemcpyAtoA_v2_ptds();
    fn cuMemcpyAtoD_v2();
    fn cuMemcpyAtoD_v2_ptds();
    fn cuMemcpyAtoHAsync_v2();
    fn cuMemcpyAtoHAsync_v2_ptsz();
    fn cuMemcpyAtoH_v2();
    fn cuMemcpyAtoH_v2_ptds();
    fn cuMemcpyBatchAsync();
    fn cuMemcpyBatchAsync_ptsz();
    fn cuMemcpyBatchAsync_v2();
    fn cuMemcpyDtoA_v2();
    fn cuMemcpyDtoA_v2_ptds();
    fn cuMemcpyHtoAAsync_v2();
    fn cuMemcpyHtoAAsync_v2_ptsz();
    fn cuMemcpyHtoA_v2();
    fn cuMemcpyHtoA_v2_ptds();
    fn cuMemcpyPeer();
    fn cuMemcpyPeerAsync();
    fn cuMemcpyPeerAsync_ptsz();
    fn cuMemcpyPeer_ptds();
    fn cuMemsetD2D16Async();
    fn cuMemsetD2D16Async_ptsz();
    fn cuMemsetD2D16_v2();
    fn cuMemsetD2D16_v2_ptds();
    fn cuMemsetD2D32Async();
    fn cuMemsetD2D32Async_ptsz();
    fn cuMemsetD2D32_v2();
    fn cuMemsetD2D32_v2_ptds();
    fn cuMemsetD2D8Async();
    fn cuMemsetD2D8Async_ptsz();
    fn cuMemsetD2D8_v2();
    fn cuMemsetD2D8_v2_ptds();
}

/// Queues a copy. One that is not asynchronous is over when this returns.
fn copy(to: u64, from: u64, bytes: u64, stream: u64, is_async: bool) -> CuResult {
    accepted()?;
    let Some(timeline) = timeline() else { return Ok(()) };
    if is_captured(stream, TYPE_MEMCPY)? {
        return Ok(());
    }
    let place = place(stream)?;
    let session = session()?;
    let is_on_device =
        |address| session.lock().addresses.containing(address).is_some_and(|(_, a)| a.kind != Kind::Managed);
    let is_within = is_on_device(to) && is_on_device(from);
    let is_fast =
        session.devices.iter().any(|d| d.index() == place.engine.device && d.model.capability.0 >= 9);
    let bytes_per_us = match (is_within, is_fast) {
        (true, _) => DEVICE_BYTES_PER_US,
        (false, true) => FAST_LINK_BYTES_PER_US,
        (false, false) => LINK_BYTES_PER_US,
    };
    let ns = LATENCY_NS + bytes.saturating_mul(1000) / bytes_per_us;
    let seq = timeline.submit(place, Op::Copy { ns }, None)?;
    // Between addresses of the device, the host does not wait.
    if !is_async && !is_within {
        timeline.wait(place.key, seq);
        settle_pools()?;
    }
    Ok(())
}

/// Copies of linear memory: to, from, bytes, and a stream if they are asynchronous.
macro_rules! copies {
    ($(fn $name:ident($stream:expr);)* async: $(fn $async_name:ident($async_stream:expr);)*) => {driver_api! {
        $(fn $name(to: u64, from: u64, bytes: usize) { copy(to, from, bytes as u64, $stream(0), false) })*
        $(fn $async_name(to: u64, from: u64, bytes: usize, stream: u64) {
            copy(to, from, bytes as u64, $async_stream(stream), true)
        })*
    }};
}

copies! {
    fn cuMemcpy(identity);
    fn cuMemcpyDtoD_v2(identity);
    fn cuMemcpyDtoD_v2_ptds(per_thread);
    fn cuMemcpyDtoH_v2(identity);
    fn cuMemcpyDtoH_v2_ptds(per_thread);
    fn cuMemcpyHtoD_v2(identity);
    fn cuMemcpyHtoD_v2_ptds(per_thread);
    fn cuMemcpy_ptds(per_thread);
    async:
    fn cuMemcpyAsync(identity);
    fn cuMemcpyAsync_ptsz(per_thread);
    fn cuMemcpyDtoDAsync_v2(identity);
    fn cuMemcpyDtoDAsync_v2_ptsz(per_thread);
    fn cuMemcpyDtoHAsync_v2(identity);
    fn cuMemcpyDtoHAsync_v2_ptsz(per_thread);
    fn cuMemcpyHtoDAsync_v2(identity);
    fn cuMemcpyHtoDAsync_v2_ptsz(per_thread);
}
