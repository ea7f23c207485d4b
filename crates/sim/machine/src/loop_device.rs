//! A block device over the machine's state. Containers can get its node, and all of them share one memory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{Result, step};

const CONTROL: &str = "/dev/loop-control";
/// From <linux/loop.h>.
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const AUTOCLEAR: u32 = 4;
/// Another process may take the free device between our two calls.
const ATTEMPTS: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// The device over `state`: the one that others in this machine use already, or a new one, which disappears when its last user
/// closes it. `None` where this kernel has no loop devices.
pub(crate) fn attach(state: &Path) -> Result<Option<File>> {
    let Ok(control) = OpenOptions::new().read(true).write(true).open(CONTROL) else { return Ok(None) };
    step("attach a loop device", || {
        let file = OpenOptions::new().read(true).write(true).open(state)?;
        // Two devices over one file would be two memories.
        let directory = File::open(state.parent().unwrap_or(state))?;
        directory.lock()?;
        if let Some(found) = existing(&file)? {
            return Ok(Some(found));
        }
        for _ in 0..ATTEMPTS {
            // SAFETY: this request takes no argument and writes no memory; `control` is open during the call.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let device = open(number.cast_unsigned())?;
            match configure(&device, &file) {
                Ok(()) => return Ok(Some(device)),
                Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {}
                Err(why) => return Err(why),
            }
        }
        Err(io::Error::other("other processes take every free loop device"))
    })
}

fn configure(device: &File, file: &File) -> io::Result<()> {
    let mut config = Config {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: 0,
        // SAFETY: a structure of integers and arrays of them, for which zero bytes are valid.
        info: unsafe { std::mem::zeroed() },
        reserved: [0; 8],
    };
    config.info.flags = AUTOCLEAR;
    let name = b"cantle simulated GPUs";
    config.info.file_name[..name.len()].copy_from_slice(name);
    // SAFETY: `config` has the layout of the `struct loop_config` that this request reads, and outlives the call; its file and
    // `device` are open during the call.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn existing(file: &File) -> io::Result<Option<File>> {
    let of_file = file.metadata()?;
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok());
        // A device that is not in use has no such directory.
        let Some(number) = number.filter(|n| Path::new(&format!("/sys/block/loop{n}/loop")).exists()) else {
            continue;
        };
        let Ok(device) = open(number) else { continue };
        // SAFETY: a structure of integers and arrays of them, for which zero bytes are valid.
        let mut info: Info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` has the layout of the `struct loop_info64` that this request writes, and is a live local.
        let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
        // The kernel encodes the device as `stat(2)` does.
        if rc == 0 && info.inode == of_file.ino() && info.device == of_file.dev() {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// By its number: the node may be missing in a `/dev` that is not the kernel's own.
fn open(number: u32) -> io::Result<File> {
    let usual = format!("/dev/loop{number}");
    OpenOptions::new().read(true).write(true).open(&usual).or_else(|_| {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        const LOOP_MAJOR: u64 = 7;
        mknod(
            Path::new(&usual),
            SFlag::S_IFBLK,
            Mode::from_bits_truncate(0o600),
            makedev(LOOP_MAJOR, number.into()),
        )?;
        OpenOptions::new().read(true).write(true).open(&usual)
    })
}
