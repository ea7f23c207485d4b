//! A machine with GPUs of AMD: what the kernel's driver makes appear in `/sys/class` and `/dev`, and the files of the controller of device
//! memory (dmem), as trees of plain files. They limit nothing, and no program computes there.
//!
//! ```text
//! <home>/amd/spec        the GPUs
//! <home>/amd/class/…     kfd and drm of /sys/class
//! <home>/amd/dmem/…      the controller's own hierarchy, as a machine with version 1 mounts it at /sys/fs/cgroup/dmem
//! <home>/amd/node        what every node of the machine leads to where no nodes can be made
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::mounts::{Stage, bind, mirror};
use crate::{MachineError, Result, step};

/// The largest machine that can be simulated.
const MAX_CARDS: usize = 16;
/// The first number of `/dev/dri/renderDN`.
const FIRST_MINOR: usize = 128;
/// Where the controller's hierarchy is mounted.
const DMEM: &str = "/sys/fs/cgroup/dmem";

/// A model of GPU. The figures are plausible.
#[derive(Debug, PartialEq, Eq)]
struct CardModel {
    key: &'static str,
    name: &'static str,
    memory_mib: u64,
    compute_units: u32,
    device_id: u32,
    target: u32,
}

#[rustfmt::skip]
const MODELS: [CardModel; 4] = [
    CardModel {
        key: "MI210",
        name: "AMD Instinct MI210",
        memory_mib: 65520,
        compute_units: 104,
        device_id: 0x740f,
        target: 90010,
    },
    CardModel {
        key: "MI250X",
        name: "AMD Instinct MI250X",
        memory_mib: 65520,
        compute_units: 110,
        device_id: 0x7408,
        target: 90010,
    },
    CardModel {
        key: "MI300X",
        name: "AMD Instinct MI300X OAM",
        memory_mib: 196_592,
        compute_units: 304,
        device_id: 0x74a1,
        target: 90402,
    },
    CardModel {
        key: "W7900",
        name: "AMD Radeon PRO W7900",
        memory_mib: 49136,
        compute_units: 96,
        device_id: 0x7448,
        target: 110_000,
    },
];

/// A GPU of the machine.
struct SimCard {
    model: &'static CardModel,
    /// The kernel limits its memory.
    has_dmem: bool,
}

/// Are these GPUs of AMD? A machine has those of one vendor.
pub(crate) fn is_spec(spec: &str) -> bool {
    spec.split(',').any(|item| {
        let key = item.trim().split(':').next().unwrap_or_default();
        let key = key
            .split_once(['x', 'X'])
            .filter(|(count, _)| count.parse::<u32>().is_ok())
            .map_or(key, |(_, key)| key);
        MODELS.iter().any(|model| model.key.eq_ignore_ascii_case(key))
    })
}

/// The GPUs of the machine in this directory, if they are AMD's.
pub(crate) fn spec_of(home: &Path) -> Option<String> {
    fs::read_to_string(home.join("amd/spec")).ok()
}

fn parse(spec: &str) -> Result<Vec<SimCard>> {
    let mut cards = Vec::new();
    for item in spec.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, suffix) = item.split_once(':').map_or((item, None), |(name, suffix)| (name, Some(suffix)));
        let has_dmem = match suffix {
            None => true,
            Some("no-dmem") => false,
            Some(other) => {
                return Err(MachineError::Gpus(format!(
                    "unknown suffix `:{other}` of a GPU of AMD; it has `:no-dmem`"
                )));
            }
        };
        let counted = name.split_once(['x', 'X']).and_then(|(count, key)| Some((count.parse().ok()?, key)));
        let (count, key): (usize, &str) = counted.unwrap_or((1, name));
        let model = MODELS.iter().find(|model| model.key.eq_ignore_ascii_case(key)).ok_or_else(|| {
            let known: Vec<&str> = MODELS.iter().map(|model| model.key).collect();
            MachineError::Gpus(format!(
                "`{key}` is no GPU of AMD, and a machine has those of one vendor; known of AMD: {}",
                known.join(", ")
            ))
        })?;
        if count == 0 || cards.len() + count > MAX_CARDS {
            return Err(MachineError::Gpus(format!("`{item}`: a machine has 1 to {MAX_CARDS} GPUs")));
        }
        cards.extend((0..count).map(|_| SimCard { model, has_dmem }));
    }
    Ok(cards)
}

/// Writes the trees of the machine.
pub(crate) fn create(home: &Path, spec: &str) -> Result<()> {
    let cards = parse(spec)?;
    let dir = home.join("amd");
    step("write the files of its GPUs", || {
        let _ = fs::remove_dir_all(&dir);
        let mut capacity = String::new();
        write(
            &dir,
            "class/kfd/kfd/topology/nodes/0/properties",
            "cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n",
        )?;
        for (index, card) in cards.iter().enumerate() {
            write_card(&dir, index, card.model)?;
            if card.has_dmem {
                let bytes = card.model.memory_mib << 20;
                // A `String` takes everything.
                let _ = writeln!(capacity, "drm/{}/vram {bytes}", address(index));
            }
        }
        if !capacity.is_empty() {
            write(&dir, "dmem/dmem.capacity", &capacity)?;
        }
        write(&dir, "node", "")?;
        write(&dir, "spec", spec)
    })
}

fn address(index: usize) -> String {
    format!("0000:{:02x}:00.0", 5 + 0x10 * index)
}

fn write_card(dir: &Path, index: usize, model: &CardModel) -> io::Result<()> {
    let (minor, pci, node) = (FIRST_MINOR + index, address(index), index + 1);
    let unique = unique_id()?;
    let properties = format!(
        "cpu_cores_count 0\nsimd_count {}\nsimd_per_cu 4\ngfx_target_version {}\nvendor_id 4098\ndevice_id {}\n\
         drm_render_minor {minor}\nunique_id {unique}\n",
        model.compute_units * 4,
        model.target,
        model.device_id
    );
    write(dir, &format!("class/kfd/kfd/topology/nodes/{node}/properties"), &properties)?;
    let device = format!("class/drm/renderD{minor}/device");
    let files = [
        ("uevent", format!("DRIVER=amdgpu\nPCI_SLOT_NAME={pci}\n")),
        ("vendor", "0x1002\n".to_owned()),
        ("device", format!("0x{:04x}\n", model.device_id)),
        ("product_name", format!("{}\n", model.name)),
        ("unique_id", format!("{unique:016x}\n")),
        ("mem_info_vram_total", format!("{}\n", model.memory_mib << 20)),
        ("mem_info_vram_used", format!("{}\n", 284_u64 << 20)),
        ("gpu_busy_percent", "0\n".to_owned()),
        ("hwmon/hwmon0/temp1_input", "36000\n".to_owned()),
        ("hwmon/hwmon0/power1_average", "141000000\n".to_owned()),
    ];
    for (name, text) in files {
        write(dir, &format!("{device}/{name}"), &text)?;
    }
    symlink(format!("renderD{minor}"), dir.join(format!("class/drm/card{index}")))
}

/// Differs from machine to machine.
fn unique_id() -> io::Result<u64> {
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace('-', "");
    u64::from_str_radix(random.get(..16).unwrap_or_default(), 16).map_err(io::Error::other)
}

fn write(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = dir.join(name);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}

/// The names of the machine's nodes below `/dev`.
pub(crate) fn nodes(home: &Path) -> Result<Vec<String>> {
    let count = parse(&spec_of(home).unwrap_or_default())?.len();
    let of_cards = (0..count)
        .flat_map(|index| [format!("dri/card{index}"), format!("dri/renderD{}", FIRST_MINOR + index)]);
    Ok(["kfd".to_owned()].into_iter().chain(of_cards).collect())
}

/// The file that all nodes lead to where no nodes can be made.
pub(crate) fn node_file(home: &Path) -> PathBuf {
    home.join("amd/node")
}

/// Makes the trees appear where the kernel has them.
pub(crate) fn put(stage: &Stage, home: &Path) -> Result<()> {
    let (dir, own) = (stage.directory("class")?, home.join("amd/class"));
    for entry in step("read /sys/class", || fs::read_dir("/sys/class"))? {
        let entry = step("read /sys/class", || entry)?;
        // The host may have GPUs, which the machine does not show.
        if entry.file_name() != "kfd" && entry.file_name() != "drm" {
            mirror(&entry.path(), &dir.join(entry.file_name()))?;
        }
    }
    for name in ["kfd", "drm"] {
        step("make a directory", || fs::create_dir(dir.join(name)))?;
        bind(&own.join(name), &dir.join(name))?;
    }
    bind(&dir, Path::new("/sys/class"))?;
    let dmem = home.join("amd/dmem");
    if !dmem.is_dir() {
        return Ok(());
    }
    match fs::create_dir(DMEM) {
        Ok(()) => {}
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
        // Without root there are no limits of control groups, on any machine.
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(why) => return step(&format!("make {DMEM}"), || Err(why)),
    }
    bind(&dmem, Path::new(DMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_gpus_of_one_vendor() {
        for spec in ["2xMI300X", "mi210", "1xW7900:no-dmem", "1xA100-40GB,1xMI300X"] {
            assert!(is_spec(spec), "{spec}");
        }
        for spec in ["3xA100-40GB,1xT4-16GB", "1xMI3", ""] {
            assert!(!is_spec(spec), "{spec}");
        }
        let refused = |spec| parse(spec).err().unwrap().to_string();
        assert!(refused("1xMI300X,1xT4-16GB").contains("`T4-16GB` is no GPU of AMD"));
        assert!(refused("1xMI300X:mig").contains("unknown suffix `:mig`"));
        assert!(
            refused("0xMI300X").contains("1 to 16 GPUs") && refused("17xMI300X").contains("1 to 16 GPUs")
        );
    }

    #[test]
    fn its_files_are_those_of_the_kernel() {
        let home = tempfile::tempdir().unwrap();
        create(home.path(), "1xMI300X,1xMI210:no-dmem").unwrap();
        let read = |name: &str| fs::read_to_string(home.path().join("amd").join(name)).unwrap();
        assert_eq!(read("dmem/dmem.capacity"), "drm/0000:05:00.0/vram 206141652992\n");
        assert_eq!(read("class/drm/renderD129/device/product_name"), "AMD Instinct MI210\n");
        assert_eq!(read("class/drm/card1/device/mem_info_vram_total"), "68702699520\n");
        assert_ne!(
            read("class/drm/renderD128/device/unique_id"),
            read("class/drm/renderD129/device/unique_id")
        );
        assert_eq!(
            nodes(home.path()).unwrap(),
            ["kfd", "dri/card0", "dri/renderD128", "dri/card1", "dri/renderD129"]
        );
    }
}
