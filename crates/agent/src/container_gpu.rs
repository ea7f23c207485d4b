//! What a container needs of the machine to reach a real GPU: device nodes, and the driver's other libraries.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cantle_model::{GpuUuid, Slice};

use crate::AgentError;

/// Device nodes that every CUDA program opens, whatever its GPU.
const COMMON: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
/// Opened by libcuda itself, under names that lie beside it: the compilers for PTX.
const COMPANIONS: [&str; 3] = ["libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-gpucomp.so"];
/// Where NVIDIA's kernel module describes each GPU.
const PROC: &str = "/proc/driver/nvidia/gpus";

/// Device nodes for these slices.
///
/// # Errors
/// If the kernel module does not know one of the GPUs.
pub(crate) fn devices(slices: &[Slice]) -> Result<Vec<PathBuf>, AgentError> {
    let proc = Path::new(PROC);
    let known = described(proc).map_err(|why| AgentError::file(proc, &why))?;
    let mut nodes: Vec<PathBuf> = COMMON.iter().map(PathBuf::from).filter(|node| node.exists()).collect();
    for slice in slices {
        let found = known.iter().find(|(uuid, _)| *uuid == slice.gpu);
        let (_, minor) = found.ok_or_else(|| cantle_driver::DriverError::NoSuchGpu(slice.gpu.clone()))?;
        nodes.push(PathBuf::from(format!("/dev/nvidia{minor}")));
    }
    Ok(nodes)
}

fn described(proc: &Path) -> io::Result<Vec<(GpuUuid, u32)>> {
    let mut known = Vec::new();
    for entry in fs::read_dir(proc)? {
        known.extend(identity(&fs::read_to_string(entry?.path().join("information"))?));
    }
    Ok(known)
}

/// UUID and device minor out of the kernel module's description.
fn identity(text: &str) -> Option<(GpuUuid, u32)> {
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    Some((GpuUuid::from(field("GPU UUID")?), field("Device Minor")?.parse().ok()?))
}

/// The driver's other libraries that lie beside libcuda.
pub(crate) fn driver_files(libcuda: &Path) -> Vec<PathBuf> {
    let Some(Ok(entries)) = libcuda.parent().map(fs::read_dir) else {
        return Vec::new();
    };
    let is_companion = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| COMPANIONS.iter().any(|stem| name.starts_with(stem)))
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_companion).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_modules_description() {
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 17\nGPU UUID: \t GPU-5a3f\nBus Type: \t PCIe\n\
                    Bus Location: \t 0000:0a:00.0\nDevice Minor: \t 3\n";
        assert_eq!(identity(text), Some((GpuUuid::from("GPU-5a3f"), 3)));
        assert_eq!(identity("Model: x\n"), None);
    }

    #[test]
    fn companions_lie_beside_libcuda() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["libcuda.so.550.1", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1", "libother.so"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let names = driver_files(&dir.path().join("libcuda.so.550.1"));
        let expected =
            ["libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1"].map(|name| dir.path().join(name));
        assert_eq!(names, expected);
    }
}
