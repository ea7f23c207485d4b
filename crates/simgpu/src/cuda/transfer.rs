//! Copies, fills and hints: accepted and forgotten, because there is no memory behind device addresses. They fail only
//! without a context, as the real ones do. None of them looks at its arguments.

use super::session::session;
use super::{CuResult, code};

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
    fn cuMemPrefetchAsync();
    fn cuMemPrefetchAsync_ptsz();
    fn cuMemPrefetchAsync_v2();
    fn cuMemPrefetchAsync_v2_ptsz();
    fn cuMemPrefetchBatchAsync();
    fn cuMemcpy();
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
    fn cuMemcpyAsync();
    fn cuMemcpyAsync_ptsz();
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
    fn cuMemcpyDtoDAsync_v2();
    fn cuMemcpyDtoDAsync_v2_ptsz();
    fn cuMemcpyDtoD_v2();
    fn cuMemcpyDtoD_v2_ptds();
    fn cuMemcpyDtoHAsync_v2();
    fn cuMemcpyDtoHAsync_v2_ptsz();
    fn cuMemcpyDtoH_v2();
    fn cuMemcpyDtoH_v2_ptds();
    fn cuMemcpyHtoAAsync_v2();
    fn cuMemcpyHtoAAsync_v2_ptsz();
    fn cuMemcpyHtoA_v2();
    fn cuMemcpyHtoA_v2_ptds();
    fn cuMemcpyHtoDAsync_v2();
    fn cuMemcpyHtoDAsync_v2_ptsz();
    fn cuMemcpyHtoD_v2();
    fn cuMemcpyHtoD_v2_ptds();
    fn cuMemcpyPeer();
    fn cuMemcpyPeerAsync();
    fn cuMemcpyPeerAsync_ptsz();
    fn cuMemcpyPeer_ptds();
    fn cuMemcpy_ptds();
    fn cuMemsetD16Async();
    fn cuMemsetD16Async_ptsz();
    fn cuMemsetD16_v2();
    fn cuMemsetD16_v2_ptds();
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
    fn cuMemsetD32Async();
    fn cuMemsetD32Async_ptsz();
    fn cuMemsetD32_v2();
    fn cuMemsetD32_v2_ptds();
    fn cuMemsetD8Async();
    fn cuMemsetD8Async_ptsz();
    fn cuMemsetD8_v2();
    fn cuMemsetD8_v2_ptds();
}
