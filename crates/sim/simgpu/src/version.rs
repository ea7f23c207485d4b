//! The version of the simulated driver, and the CUDA version that belongs to it.

/// The default version of a machine.
pub const DEFAULT_DRIVER: &str = "580.95.05";

/// The CUDA version of each branch of the driver, newest first, from the table "CUDA Toolkit and Corresponding Driver
/// Versions" in the release notes of CUDA (13.3's is the last; the documentation of MPS names 615 and CUDA 13.4 together, and 620 and 13.5).
const BRANCHES: [(u32, i32); 17] = [
    (620, 13050),
    (615, 13040),
    (610, 13030),
    (595, 13020),
    (590, 13010),
    (580, 13000),
    (575, 12090),
    (570, 12080),
    (565, 12070),
    (560, 12060),
    (555, 12050),
    (550, 12040),
    (545, 12030),
    (535, 12020),
    (530, 12010),
    (525, 12000),
    (470, 11040),
];

/// The version of CUDA (1000 · major + 10 · minor) that a driver brings; `None` if this is no version of a driver that can
/// be simulated.
pub fn cuda_of(driver: &str) -> Option<i32> {
    let parts: Vec<&str> = driver.split('.').collect();
    let is_number =
        |part: &&str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if !(2..=3).contains(&parts.len()) || !parts.iter().all(is_number) {
        return None;
    }
    let branch: u32 = parts[0].parse().ok()?;
    BRANCHES.iter().find(|(oldest, _)| branch >= *oldest).map(|(_, cuda)| *cuda)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_bring_their_cuda() {
        assert_eq!(cuda_of(DEFAULT_DRIVER), Some(13000));
        assert_eq!(cuda_of("550.163.01"), Some(12040));
        assert_eq!(cuda_of("610.43.02"), Some(13030));
        assert_eq!(cuda_of("615.71.09"), Some(13040));
        assert_eq!(cuda_of("700.1"), Some(13050));
        for wrong in ["", "550", "550.", "580.95.05.2", "v550.1", "390.157", "550/163.01", "550.16301"] {
            assert_eq!(cuda_of(wrong), None, "{wrong}");
        }
    }
}
