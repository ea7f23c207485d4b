//! The driver over a tree of plain files, as the kernel shows two cards and a CPU.

use std::fs;

use super::*;

const GIB: u64 = 1 << 30;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write(
            "sys/class/kfd/kfd/topology/nodes/0/properties",
            "cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n",
        );
        for (node, minor, bus, unique) in [(1, 128, "05", "ab12cd34ef567890"), (2, 129, "26", "0")] {
            let properties = format!(
                "simd_count 1216\nsimd_per_cu 4\nvendor_id 4098\ndevice_id 29857\ndrm_render_minor {minor}\n"
            );
            tree.write(&format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"), &properties);
            let device = format!("sys/class/drm/renderD{minor}/device");
            tree.write(
                &format!("{device}/uevent"),
                &format!("DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{bus}:00.0\n"),
            );
            tree.write(&format!("{device}/mem_info_vram_total"), &format!("{}\n", 192 * GIB));
            tree.write(&format!("{device}/mem_info_vram_used"), &format!("{}\n", 2 * GIB));
            tree.write(&format!("{device}/unique_id"), &format!("{unique}\n"));
        }
        tree.write("sys/class/drm/renderD128/device/product_name", "AMD Instinct MI300X OAM\n");
        tree
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn driver(&self) -> AmdDriver {
        AmdDriver::open(self.0.path()).unwrap()
    }
}

#[test]
fn cards_are_found_by_the_topology() {
    let tree = Tree::new();
    let driver = tree.driver();
    let gpus = driver.gpus().unwrap();
    let names: Vec<_> = gpus.iter().map(|gpu| (gpu.index, gpu.uuid.0.as_str(), gpu.model.as_str())).collect();
    assert_eq!(
        names,
        [
            (0, "GPU-00001002-0000-0000-ab12-cd34ef567890", "AMD Instinct MI300X OAM"),
            (1, "GPU-00001002-0000-0001-0000-000000026000", "AMD GPU 0x74a1"),
        ]
    );
    let memory = driver.memory(&gpus[0].uuid).unwrap();
    assert_eq!((memory.total_bytes, memory.used_bytes, memory.free_bytes), (192 * GIB, 2 * GIB, 190 * GIB));
    assert!(driver.lost_gpus().is_empty());
    assert!(AmdDriver::open(tempfile::tempdir().unwrap().path()).is_none(), "a machine without them");
    fs::remove_file(tree.0.path().join("sys/class/drm/renderD129/device/mem_info_vram_total")).unwrap();
    let lost = tree.driver().lost_gpus();
    assert_eq!((lost.len(), lost[0].index), (1, 1));
    assert!(lost[0].why.to_string().contains("renderD129/device/mem_info_vram_total"), "{}", lost[0].why);
}

#[test]
fn a_load_is_what_the_sensors_have() {
    let tree = Tree::new();
    let gpu = tree.driver().gpus().unwrap()[0].uuid.clone();
    assert!(tree.driver().load(&gpu).is_err(), "no figure is made up");
    for (name, text) in [
        ("gpu_busy_percent", "37\n"),
        ("hwmon/hwmon3/temp1_input", "41000\n"),
        ("hwmon/hwmon3/power1_average", "90000000\n"),
    ] {
        tree.write(&format!("sys/class/drm/renderD128/device/{name}"), text);
    }
    let load = tree.driver().load(&gpu).unwrap();
    assert_eq!((load.busy_percent, load.celsius, load.milliwatts), (37, 41, Some(90_000)));
}

#[test]
fn memory_is_of_the_first_process_that_has_a_client() {
    let tree = Tree::new();
    let client = |pid: u32, fd: u32, bus: &str, id: u32, vram: &str| {
        let text = format!(
            "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t{id}\ndrm-pdev:\t0000:{bus}:00.0\n{vram}\n"
        );
        tree.write(&format!("proc/{pid}/fdinfo/{fd}"), &text);
    };
    client(70, 3, "05", 7, "drm-memory-vram:\t1024 KiB");
    client(70, 4, "05", 7, "drm-memory-vram:\t1024 KiB");
    client(70, 5, "05", 8, "drm-memory-vram:\t2 MiB");
    client(70, 6, "26", 9, "drm-memory-vram:\t64 MiB");
    client(71, 3, "05", 7, "drm-memory-vram:\t1024 KiB");
    client(72, 3, "05", 10, "drm-memory-gtt:\t5 MiB");
    tree.write("proc/73/fdinfo/0", "pos:\t0\nflags:\t0100002\n");
    tree.write("proc/self/fdinfo/0", "pos:\t0\n");
    let driver = tree.driver();
    let gpus = driver.gpus().unwrap();
    let of = |gpu: &Gpu| {
        let found = driver.processes(&gpu.uuid).unwrap();
        found.iter().map(|process| (process.pid, process.used_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(of(&gpus[0]), [(70, Some(3 << 20)), (71, Some(0)), (72, Some(0))]);
    assert_eq!(of(&gpus[1]), [(70, Some(64 << 20))]);
}

#[test]
fn a_task_finds_the_nodes_of_its_gpus_only() {
    let tree = Tree::new();
    let driver = tree.driver();
    let gpus = driver.gpus().unwrap();
    let slice = |gpu: &Gpu| Slice {
        gpu: gpu.uuid.clone(),
        milli: cantle_model::Milli(500),
        memory_limit_bytes: 96 * GIB,
        mig: None,
    };
    let access = driver.direct_access(&[slice(&gpus[0])], &[]).unwrap().unwrap();
    let dri = tree.0.path().join("dev/dri");
    assert_eq!(access.nodes, BTreeMap::from([(dri.clone(), vec![dri.join("renderD128")])]));
    assert_eq!(access.variables["ROCR_VISIBLE_DEVICES"], "GPU-ab12cd34ef567890");
    assert_eq!(access.variables["HIP_VISIBLE_DEVICES"], "0");
    assert!(!access.variables.contains_key("HSA_CU_MASK"));
    assert_eq!(driver.compute_units(&gpus[0].uuid), Ok(304));
    let masked = driver.direct_access(&[slice(&gpus[0])], &[(0, 3), (8, 8)]).unwrap().unwrap();
    assert_eq!(masked.variables["HSA_CU_MASK"], "0:0-3,8-8");
    let both = driver.direct_access(&[slice(&gpus[0]), slice(&gpus[1])], &[]).unwrap().unwrap();
    assert_eq!(both.variables["ROCR_VISIBLE_DEVICES"], "GPU-ab12cd34ef567890,1");
    assert_eq!(both.variables["HIP_VISIBLE_DEVICES"], "0,1");
}

#[test]
fn limits_are_those_of_the_kernels_controller() {
    let tree = Tree::new();
    let driver = tree.driver();
    let gpu = driver.gpus().unwrap()[0].uuid.clone();
    let group = tree.0.path().join("cgroup/cantle/lease");
    fs::create_dir_all(&group).unwrap();
    let LimitSupport::Unsupported(why) = driver.native_limit().probe(&gpu, &group) else { panic!() };
    assert!(why.contains("does not show a controller of device memory"), "{why}");
    assert!(driver.native_limit().set(&gpu, &group, GIB).is_err(), "nothing is unlimited in silence");
    tree.write("cgroup/dmem.capacity", &format!("drm/0000:26:00.0/vram {}\n", 192 * GIB));
    let LimitSupport::Unsupported(why) = driver.native_limit().probe(&gpu, &group) else { panic!() };
    assert!(why.ends_with("has no region of 0000:05:00.0"), "{why}");
    tree.write("cgroup/dmem.capacity", &format!("drm/0000:05:00.0/vram {}\n", 192 * GIB));
    assert_eq!(driver.native_limit().probe(&gpu, &group), LimitSupport::Supported(LimitBackend::Dmem));
    driver.native_limit().set(&gpu, &group, 96 * GIB).unwrap();
    assert_eq!(fs::read_to_string(group.join("dmem.max")).unwrap(), "drm/0000:05:00.0/vram 103079215104\n");
    assert_eq!(
        driver.native_limit().doors(&gpu, &group).unwrap(),
        Vec::<PathBuf>::new(),
        "the group's own hierarchy"
    );
    // Both partitions of a card have its address.
    tree.write("sys/class/drm/renderD129/device/uevent", "PCI_SLOT_NAME=0000:05:00.0\n");
    let LimitSupport::Unsupported(why) = tree.driver().native_limit().probe(&gpu, &group) else { panic!() };
    assert!(why.contains("is partitioned"), "{why}");
}
