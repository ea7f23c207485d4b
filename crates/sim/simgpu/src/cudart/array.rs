//! Arrays, textures and surfaces, and drawings of graphs. Programs that are linked with the runtime (CuPy, PyTorch) start
//! only if these names exist. No program that runs on the stand-in uses them, so calls are refused.

use super::{CudaError, errors};

const NOT_SUPPORTED: CudaError = CudaError(801);

/// Exported functions that fail, with any arguments.
macro_rules! refused {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        extern "C" fn $name() -> i32 {
            errors::finish(Err(NOT_SUPPORTED))
        }
    )*};
}

refused! {
    cudaCreateSurfaceObject cudaCreateTextureObject cudaDestroySurfaceObject cudaDestroyTextureObject
    cudaFreeArray cudaGetChannelDesc cudaGraphDebugDotPrint cudaGetTextureObjectResourceDesc cudaGetTextureObjectTextureDesc
    cudaMalloc3DArray cudaMallocArray
    cudaMemcpy2DFromArray cudaMemcpy2DFromArrayAsync cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync
    cudaMemcpy3D cudaMemcpy3DAsync
}
