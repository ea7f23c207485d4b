//! Tests of `cantle run`.

use std::process::Stdio;

use crate::Test;
use crate::daemon::until;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("run_says_what_it_got_and_gives_the_exit_code", says_what_it_got),
    ("run_fits_where_there_is_room_and_says_what_is_missing", room_and_no_room),
    ("run_waits_until_room_is_free", waits_for_room),
    ("run_refuses_what_can_never_fit_at_once", never),
    ("run_killed_leaves_the_slice_to_its_task", killed),
    ("run_that_cannot_start_leaves_nothing", cannot_start),
    ("many_runs_at_once_never_overlap", never_over),
];

fn says_what_it_got(place: &Place) {
    let out = place.run("0.5", 0, "echo $GPU_MEMORY_LIMIT; exit 7").output().unwrap();
    assert_eq!(out.status.code(), Some(7), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), (20u64 << 30).to_string());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.starts_with("cantle: 0.5 of GPU 0 (NVIDIA A100-SXM4-40GB), 20 GiB limit, enforced by "),
        "{said}"
    );
    assert_eq!(place.leases(), Vec::new());
    assert_eq!(std::fs::read_dir(place.node().dir().join("slices")).unwrap().count(), 0);
}

fn room_and_no_room(place: &Place) {
    let hold = "echo ready; read line";
    let start = |gpu: &str| {
        let mut child = place.run(gpu, 0, hold).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        child
    };
    let mut held = vec![start("1"), start("1"), start("0.75")];
    let refused = place.run("0.5", 0, "true").output().unwrap();
    assert_eq!(refused.status.code(), Some(6));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("needs 0.5 GPU, free 0.25 of GPU 2 (2.75 of 3 in use)"), "{said}");
    held.push(start("0.25"));
    let leases = place.leases();
    let milli: u32 = leases.iter().flat_map(|lease| &lease.slices).map(|slice| slice.milli.0).sum();
    assert_eq!((leases.len(), milli), (4, 3000));
    for mut child in held {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    assert_eq!(place.leases(), Vec::new());
}

fn waits_for_room(place: &Place) {
    let mut whole: Vec<_> =
        (0..3).map(|_| place.run("1", 0, &until(place, "end")).spawn().unwrap()).collect();
    eventually("three leases", || place.leases().len() == 3);
    let said = place.path().join("said");
    let mut waits = place.run("0.5", 60, "echo ran");
    let waits = waits.stdout(Stdio::piped()).stderr(std::fs::File::create(&said).unwrap()).spawn().unwrap();
    let told = "waiting: needs 0.5 GPU, nothing free";
    eventually("it waits", || std::fs::read_to_string(&said).unwrap().contains(told));
    std::fs::write(place.path().join("end"), "").unwrap();
    assert_eq!(String::from_utf8_lossy(&waits.wait_with_output().unwrap().stdout), "ran\n");
    whole.iter_mut().for_each(|child| drop(child.wait()));
}

fn never(place: &Place) {
    let out = place.run("41Gi", 3600, "true").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "an hour's timeout must not be waited for");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("needs 41 GiB of GPU memory, can never run here"), "{said}");
}

fn killed(place: &Place) {
    let mark = place.path().join("mark");
    let script = format!("trap '' TERM; touch {0}; while [ -e {0} ]; do sleep 0.05; done", mark.display());
    let mut run = place.run("1", 0, &script).spawn().unwrap();
    eventually("the task runs", || mark.exists());
    run.kill().unwrap();
    run.wait().unwrap();
    let sweep = || place.node().lock().unwrap().sweep().unwrap().len();
    assert_eq!(sweep(), 1, "the task lives, so its slice is not free");
    std::fs::remove_file(&mark).unwrap();
    eventually("the slice is free", || sweep() == 0);
}

fn cannot_start(place: &Place) {
    let sound = place.lib_dir().join("shim/libcuda.so.1");
    std::fs::remove_file(&sound).unwrap();
    let out = place.run("0.5", 0, "true").output().unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&out.stderr).contains("libcuda.so.1 is missing"));
    assert_eq!(place.leases(), Vec::new());
}

fn never_over(place: &Place) {
    let runs: Vec<_> = (0..16).map(|_| place.run("0.375", 300, "sleep 0.05").spawn().unwrap()).collect();
    let mut most = 0;
    let mut runs = runs;
    while !runs.is_empty() {
        let leases = place.leases();
        most = most.max(leases.len());
        for gpu in leases.iter().flat_map(|lease| &lease.slices).map(|slice| &slice.gpu) {
            let of_gpu = leases.iter().flat_map(|lease| &lease.slices).filter(|slice| slice.gpu == *gpu);
            let (milli, bytes) = of_gpu.fold((0, 0), |(m, b), s| (m + s.milli.0, b + s.memory_limit_bytes));
            assert!(milli <= 1000 && bytes <= 40 << 30, "{milli} thousandths, {bytes} bytes");
        }
        runs.retain_mut(|run| match run.try_wait().unwrap() {
            Some(status) => {
                assert_eq!(status.code(), Some(0));
                false
            }
            None => true,
        });
    }
    assert!((2..=6).contains(&most), "two fit on each of three GPUs; saw {most}");
}
