//! The files in `/proc/driver/nvidia` that programs read.

use std::fs;
use std::io;
use std::path::Path;

use crate::hardware::Hardware;
use crate::mounts::{Stage, bind};
use crate::{Result, step};

pub(crate) fn put(stage: &Stage, hardware: &Hardware) -> Result<()> {
    // A kernel without such drivers has no directory to mount it on.
    if !Path::new("/proc/driver").is_dir() {
        return Ok(());
    }
    let dir = stage.directory("proc-driver")?;
    step("write /proc/driver/nvidia", || {
        write(&dir, "nvidia/version", &version(&hardware.driver))?;
        write(&dir, "nvidia/params", PARAMS)?;
        for (minor, gpu) in hardware.gpus.iter().enumerate() {
            let (model, uuid, pci, driver) = (&gpu.model, &gpu.uuid, &gpu.pci, &hardware.driver);
            let text = format!(
                "Model: \t\t {model}\nIRQ:   \t\t 0\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nBus Location: \t {pci}\n\
                 Device Minor: \t {minor}\nGPU Firmware: \t {driver}\nGPU Excluded:\t No\n"
            );
            write(&dir, &format!("nvidia/gpus/{pci}/information"), &text)?;
        }
        if !hardware.capability_nodes.is_empty() {
            write(&dir, "nvidia-caps/mig-minors", &hardware.mig_minors)?;
            for (name, minor) in [("config", 1), ("monitor", 2)] {
                let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
                write(&dir, &format!("nvidia/capabilities/mig/{name}"), &text)?;
            }
        }
        Ok(())
    })?;
    bind(&dir, Path::new("/proc/driver"))
}

const PARAMS: &str = "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nModifyDeviceFiles: 1\n";

fn version(driver: &str) -> String {
    let arch = std::env::consts::ARCH;
    format!("NVRM version: NVIDIA UNIX {arch} Kernel Module  {driver}  (simulated)\nGCC version:  none\n")
}

fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = dir.join(name);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}
