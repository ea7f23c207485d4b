//! Finds the libcuda that a process has loaded: an image may contain a copy that no filter covers.

use std::collections::BTreeSet;
use std::fs;

/// The paths at which a process of a task finds the filter or, through it, the driver.
const COVERED: [&str; 6] = ["/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/", "/run/cantle/", "/opt/cantle/"];

/// The first libcuda of the process that is not where the filter is; `None` too if it cannot be seen.
pub(crate) fn other_libcuda(pid: u32) -> Option<String> {
    of_maps(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/maps")).ok()?))
}

fn of_maps(maps: &str) -> Option<String> {
    let paths: BTreeSet<&str> =
        maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).collect();
    let is_libcuda = |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so"));
    let mut others = paths.into_iter().filter(is_libcuda);
    others.find(|path| !COVERED.iter().any(|dir| path.starts_with(dir))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_an_image_is_told_from_the_filter() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 42 {path}\n");
        let filter = line("/usr/lib/x86_64-linux-gnu/libcuda.so.1") + &line("/run/cantle/real/libcuda.so.1");
        assert_eq!(of_maps(&filter), None);
        let copy = "/usr/local/cuda-12.8/compat/libcuda.so.570.1";
        assert_eq!(of_maps(&(filter + &line(copy))).as_deref(), Some(copy));
        assert_eq!(of_maps(&line("/opt/libcudart.so.12")), None);
    }
}
