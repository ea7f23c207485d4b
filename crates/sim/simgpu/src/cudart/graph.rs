//! Graphs, and the objects of a program that they keep alive.

use std::ffi::c_void;

use super::driver::driver;
use super::{context, forwards, runtime_api};

forwards! {
    fn cudaGraphCreate => cuGraphCreate(graph: *mut usize, flags: u32);
    fn cudaGraphDestroy => cuGraphDestroy(graph: usize);
    fn cudaGraphInstantiate => cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64);
    fn cudaGraphInstantiateWithFlags => cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64);
    fn cudaGraphExecDestroy => cuGraphExecDestroy(executable: usize);
    fn cudaGraphLaunch => cuGraphLaunch(executable: usize, stream: usize);
    fn cudaGraphUpload => cuGraphUpload(executable: usize, stream: usize);
    fn cudaGraphGetNodes => cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize);
    fn cudaGraphNodeGetType => cuGraphNodeGetType(node: usize, kind: *mut u32);
    fn cudaGraphNodeGetDependencies => cuGraphNodeGetDependencies(
        node: usize, dependencies: *mut usize, edges: *mut c_void, count: *mut usize,
    );
    fn cudaGraphAddNode => cuGraphAddNode(
        node: *mut usize, graph: usize, dependencies: *const usize, edges: *const c_void, count: usize,
        parameters: *mut c_void,
    );
    fn cudaUserObjectCreate => cuUserObjectCreate(
        object: *mut usize, data: *mut c_void, destroy: *const c_void, count: u32, flags: u32,
    );
    fn cudaUserObjectRetain => cuUserObjectRetain(object: usize, count: u32);
    fn cudaUserObjectRelease => cuUserObjectRelease(object: usize, count: u32);
    fn cudaGraphRetainUserObject => cuGraphRetainUserObject(graph: usize, object: usize, count: u32, flags: u32);
    fn cudaGraphReleaseUserObject => cuGraphReleaseUserObject(graph: usize, object: usize, count: u32);
}

runtime_api! {
    fn cudaGraphConditionalHandleCreate(handle: *mut u64, graph: usize, default: u32, flags: u32) {
        context::enter()?;
        let context = context::current()?;
        driver!(cuGraphConditionalHandleCreate(
            handle => *mut u64, graph => usize, context => usize, default => u32, flags => u32
        ))
    }
}
