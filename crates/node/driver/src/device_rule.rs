//! Rules about device nodes in control groups of version 2, whose only interface is a program in the kernel.
//!
//! An engine attaches a program to the group of a container, which decides for each device whether it may be opened. A rule is put in front of that
//! program, as NVIDIA's container toolkit does it: the instructions of the old program are read back, and the new one replaces it in one step.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::path::Path;

use nix::libc;

/// A device, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    /// A block device, not a character device.
    pub is_block: bool,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// Allows or denies the processes of the group in `dir` a device. Without a program of an engine there, nothing is denied and nothing changes.
///
/// # Errors
/// If the kernel does not let this process read or replace the group's programs.
pub fn set_device_rule(dir: &Path, device: DeviceNumber, is_allowed: bool) -> io::Result<()> {
    let group = File::open(dir)?;
    let (ids, flags) = attached(&group)?;
    for id in ids {
        let old = by_id(id)?;
        let new = load(&with_rule(&instructions(&old)?, device, is_allowed))?;
        replace(&group, &new, &old, flags)?;
    }
    Ok(())
}

/// `struct bpf_insn`, as one number.
type Instruction = u64;

const RULE_LENGTH: usize = 9;

/// `if the device is this one, return whether it is allowed`. The context is in r1: kind and access, major number, minor number.
fn rule(device: DeviceNumber, is_allowed: bool) -> [Instruction; RULE_LENGTH] {
    const LOAD_R2_FROM_R1: u64 = 0x1261;
    const AND_R2: u64 = 0x0254;
    const JUMP_UNLESS_R2_IS: u64 = 0x0255;
    const SET_R0: u64 = 0x00b7;
    const EXIT: u64 = 0x95;
    let instruction = |code: u64, offset: u64, value: u32| code | offset << 16 | u64::from(value) << 32;
    let kind = if device.is_block { 1 } else { 2 };
    [
        instruction(LOAD_R2_FROM_R1, 0, 0),
        instruction(AND_R2, 0, 0xffff),
        instruction(JUMP_UNLESS_R2_IS, 6, kind),
        instruction(LOAD_R2_FROM_R1, 4, 0),
        instruction(JUMP_UNLESS_R2_IS, 4, device.major),
        instruction(LOAD_R2_FROM_R1, 8, 0),
        instruction(JUMP_UNLESS_R2_IS, 2, device.minor),
        instruction(SET_R0, 0, u32::from(is_allowed)),
        instruction(EXIT, 0, 0),
    ]
}

/// The program with this rule in front, and without an earlier rule about the same device.
fn with_rule(program: &[Instruction], device: DeviceNumber, is_allowed: bool) -> Vec<Instruction> {
    let (mut kept, mut rest) = (rule(device, is_allowed).to_vec(), program);
    while let Some((head, tail)) = rest.split_first_chunk::<RULE_LENGTH>() {
        let [_, _, kind, _, major, _, minor, allowed, _] = head.map(|one| (one >> 32) as u32);
        let found = DeviceNumber { is_block: kind == 1, major, minor };
        if *head != rule(found, allowed != 0) {
            break;
        }
        if found != device {
            kept.extend(head);
        }
        rest = tail;
    }
    kept.extend(rest);
    kept
}

const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;
const REPLACE: u32 = 4;
/// The kernel's own limit of programs per group.
const MAX_PROGRAMS: usize = 64;

#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u32; 4],
    version: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct AskInfo {
    program: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_length: u32,
    length: u32,
    jited: u64,
    instructions: u64,
}

/// The system call with the attributes of one of its commands.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: `attributes` is a live `repr(C)` value of the length that is passed, and all addresses in it are those of live buffers of the lengths
    // that it names; the kernel checks the rest.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes as *mut T, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

fn descriptor(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for this process, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The programs about devices of this group itself, and how they are attached.
fn attached(group: &File) -> io::Result<(Vec<u32>, u32)> {
    let mut ids = vec![0u32; MAX_PROGRAMS];
    let mut query = Query {
        target: descriptor(group),
        attach_type: ATTACH_CGROUP_DEVICE,
        ids: ids.as_mut_ptr() as u64,
        count: MAX_PROGRAMS as u32,
        ..Query::default()
    };
    bpf(PROG_QUERY, &mut query)?;
    ids.truncate(query.count as usize);
    Ok((ids, query.attach_flags))
}

fn by_id(id: u32) -> io::Result<OwnedFd> {
    // The id, the next id, flags.
    bpf(PROG_GET_FD_BY_ID, &mut [id, 0, 0]).map(owned)
}

fn instructions(program: &OwnedFd) -> io::Result<Vec<Instruction>> {
    let mut info = Info::default();
    let ask = |info: &mut Info| {
        let length = size_of::<Info>() as u32;
        let mut ask = AskInfo { program: descriptor(program), length, info: std::ptr::from_mut(info) as u64 };
        bpf(OBJ_GET_INFO_BY_FD, &mut ask)
    };
    ask(&mut info)?;
    let mut found = vec![0 as Instruction; info.length as usize / size_of::<Instruction>()];
    info = Info { length: info.length, instructions: found.as_mut_ptr() as u64, ..Info::default() };
    ask(&mut info)?;
    if found.is_empty() || info.instructions == 0 {
        return Err(io::Error::other("the kernel does not show the instructions of the engine's program"));
    }
    Ok(found)
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let mut load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        ..Load::default()
    };
    bpf(PROG_LOAD, &mut load).map(owned)
}

fn replace(group: &File, new: &OwnedFd, old: &OwnedFd, flags: u32) -> io::Result<()> {
    // Without the first flag a group has one program, which any other one replaces.
    let (flags, old) =
        if flags & ALLOW_MULTI == 0 { (flags, 0) } else { (ALLOW_MULTI | REPLACE, descriptor(old)) };
    bpf(PROG_ATTACH, &mut [descriptor(group), descriptor(new), ATTACH_CGROUP_DEVICE, flags, old]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    const ZERO: DeviceNumber = DeviceNumber { is_block: false, major: 1, minor: 5 };
    const RANDOM: DeviceNumber = DeviceNumber { is_block: false, major: 1, minor: 8 };
    const ALLOW_ALL: [Instruction; 2] = [0x1_0000_00b7, 0x95];
    const DENY_ALL: [Instruction; 2] = [0xb7, 0x95];

    #[test]
    fn a_device_has_one_rule() {
        let once = with_rule(&ALLOW_ALL, ZERO, false);
        assert_eq!(once.len(), RULE_LENGTH + 2);
        let both = with_rule(&once, RANDOM, true);
        assert_eq!(both.len(), 2 * RULE_LENGTH + 2);
        let again = with_rule(&both, ZERO, true);
        assert_eq!(again, [&rule(ZERO, true)[..], &rule(RANDOM, true), &ALLOW_ALL].concat());
    }

    /// A group of version 2 with an engine's program; none where this process may make no group.
    fn group(name: &str, program: &[Instruction]) -> Option<PathBuf> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
        })?;
        let dir = mount.join(format!("cantle-rule-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let attach = load(program).and_then(|program| {
            let group = File::open(&dir)?;
            bpf(
                PROG_ATTACH,
                &mut [descriptor(&group), descriptor(&program), ATTACH_CGROUP_DEVICE, ALLOW_MULTI, 0],
            )
        });
        if attach.is_err() {
            std::fs::remove_dir(&dir).unwrap();
        }
        attach.ok().map(|_| dir)
    }

    fn opens(dir: &Path, device: &str) -> bool {
        let script = format!("echo $$ >{}/cgroup.procs && exec 3<{device}", dir.display());
        Command::new("sh").args(["-c", &script]).output().unwrap().status.success()
    }

    #[test]
    fn the_kernel_obeys_a_rule_in_front_of_an_engines_program() {
        for (name, program, others) in [("allows", ALLOW_ALL, true), ("denies", DENY_ALL, false)] {
            let Some(dir) = group(name, &program) else { return };
            let seen = [others, !others, others].map(|is_allowed| {
                set_device_rule(&dir, ZERO, is_allowed).unwrap();
                assert_eq!(opens(&dir, "/dev/zero"), is_allowed, "{name}");
                assert_eq!(opens(&dir, "/dev/random"), others, "{name}: it is another device");
                let (ids, _) = attached(&File::open(&dir).unwrap()).unwrap();
                instructions(&by_id(ids[0]).unwrap()).unwrap().len() + 1000 * ids.len()
            });
            std::fs::remove_dir(&dir).unwrap();
            assert_eq!(seen, [1000 + RULE_LENGTH + 2; 3], "one program with one rule");
        }
    }
}
