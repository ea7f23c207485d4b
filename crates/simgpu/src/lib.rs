//! cantle: simgpu
