use std::os::unix::fs::MetadataExt as _;

use super::disk::Disk;
use super::*;

const PATH: &str = "/tasks/a/outcome.json";

fn write(disk: &Disk, value: &str, durability: Durability) -> io::Result<()> {
    write_json_to(disk, Path::new(PATH), &value, durability)
}

fn after_restart(disk: Disk) -> Option<String> {
    let text = disk.restart().remove(Path::new(PATH))?;
    serde_json::from_slice(&text).ok()
}

#[test]
fn what_was_written_survives_a_loss_of_power() {
    let disk = Disk::default();
    write(&disk, "new", Durability::PowerLoss).unwrap();
    let calls = [
        "create outcome.new 600",
        "write",
        "sync file",
        "rename outcome.new outcome.json",
        "sync directory a",
    ];
    assert_eq!(disk.calls(), calls);
    assert_eq!(after_restart(disk).as_deref(), Some("new"));
}

#[test]
fn a_loss_of_power_at_any_call_leaves_the_old_file_or_the_new_one() {
    const CALLS: usize = 5;
    for calls in CALLS..=2 * CALLS {
        let disk = Disk::default().power_for(calls);
        write(&disk, "old", Durability::PowerLoss).unwrap();
        let written = write(&disk, "new", Durability::PowerLoss);
        let found = after_restart(disk);
        match written {
            Ok(()) => assert_eq!(found.as_deref(), Some("new")),
            Err(_) => assert!(["old", "new"].map(Some).contains(&found.as_deref()), "{calls}: {found:?}"),
        }
    }
}

/// The negative control: the disk of these tests does lose what was not synced.
#[test]
fn what_need_not_survive_a_loss_of_power_does_not_wait_for_the_disk() {
    let disk = Disk::default();
    write(&disk, "new", Durability::Crash).unwrap();
    assert_eq!(disk.calls(), ["create outcome.new 600", "write", "rename outcome.new outcome.json"]);
    assert_eq!(after_restart(disk), None);
}

#[test]
fn only_the_owner_may_read_unless_it_is_for_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("task.json");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    // Leftovers of a killed process, of any version of cantle.
    fs::write(dir.path().join("task.new"), "{").unwrap();
    fs::set_permissions(dir.path().join("task.new"), fs::Permissions::from_mode(0o644)).unwrap();
    write_json(&path, &"secret", Durability::Crash).unwrap();
    assert_eq!(mode(&path), 0o600);
    write_public_json(&path, &"lease", Durability::Crash).unwrap();
    assert_eq!(mode(&path), 0o644);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left next to it");
}

#[test]
fn what_is_damaged_is_not_taken_for_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    assert_eq!(read_json::<String>(&path).unwrap(), None);
    write_json(&path, &"a", Durability::PowerLoss).unwrap();
    write_json(&dir.path().join("b.json"), &"b", Durability::Crash).unwrap();
    fs::write(dir.path().join("c.new"), "").unwrap();
    assert_eq!(read_all::<String>(dir.path()).unwrap(), ["a", "b"]);
    fs::write(&path, "{").unwrap();
    let error = read_json::<String>(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: ", path.display())), "{error}");
    remove(&path).unwrap();
    remove(&path).unwrap();
    remove(dir.path()).unwrap();
}
