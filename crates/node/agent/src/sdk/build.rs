//! One builder for each environment. Tasks with the same requirements start at the same time in a search of parameters; the first
//! installs them, and the others wait until it has put the environment into the cache.
//!
//! The builder holds a lock on a file in the cache, one for each set of requirements. A process of its task watches it and has the
//! lock, so that the lock is free when the environment is in the cache, when the task's own code starts without one, and when the
//! builder is killed, by any program and at any time: then the next one builds.
//!
//! ```text
//! task ── __sdk-task ──exec──► clearml-agent ──exec──► the task's code
//!              └── watch   (only a builder's, until its environment is in the cache)
//! ```
//!
//! The file of the lock records the outcome: the name of the entry, or how many builders in a row left none.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use cantle_clearml::tasks;
use cantle_model::Holder;
use cantle_runtime::{WORKSPACE, alive, holder_of};
use serde::{Deserialize, Serialize};

use super::ITSELF;
use super::cache::{UNNAMED, directories};

/// The first argument that makes the binary start ClearML's agent in a task: see [`sdk_task_main`].
pub const SDK_TASK_COMMAND: &str = "__sdk-task";

/// The word after it that makes the binary watch a builder.
const WATCH: &str = "--watch";

/// The working directory of a task, for `clearml-agent`. Lower case: it wins over other spellings of the same variable.
const VENVS_DIR: &str = "CLEARML_AGENT__agent__venvs_dir";

const PAUSE: Duration = Duration::from_millis(200);
/// After this number of builders that left no entry, no task waits: the cache is not used, or its disk is full.
const MISSES: u32 = 2;
/// After this time a task tries again.
const MISSES_COUNT_FOR: Duration = Duration::from_secs(3600);

/// The orders with which a task of ClearML's SDK is started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The lock of its environment. None: it waits for no other task.
    lock: Option<PathBuf>,
}

impl Orders {
    /// An environment without requirements is not put into the cache, nor taken from it.
    pub(super) fn new(cache: Option<PathBuf>, script: &tasks::Script) -> Self {
        let requirements = script.requirements.as_object().filter(|all| !all.is_empty());
        let lock = cache.zip(requirements).map(|(cache, requirements)| {
            let mut key = DefaultHasher::new();
            (&script.binary, serde_json::Value::from(requirements.clone()).to_string()).hash(&mut key);
            cache.join(format!(".cantle-{:016x}", key.finish()))
        });
        Self { lock }
    }

    pub(super) fn to_word(&self) -> OsString {
        serde_json::json!(self).to_string().into()
    }
}

/// The content of the file of a lock.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    /// The environment is in the cache under this name. ClearML's agent adds further keys to names, between dots.
    Entry(String),
    /// This number of builders left none.
    Misses(u32),
}

/// A builder that is being watched.
#[derive(Debug, Serialize, Deserialize)]
struct Watch {
    builder: Holder,
    workspace: PathBuf,
    lock: PathBuf,
}

/// `main` of [`SDK_TASK_COMMAND`]; `args` are those after it. Runs inside of the task.
#[must_use]
pub fn sdk_task_main(args: &[OsString]) -> ExitCode {
    match args {
        [word, watch, detached @ ..] if word == WATCH => watch_main(watch, !detached.is_empty()),
        [orders, program, args @ ..] => {
            let workspace = std::env::var_os(WORKSPACE).map(PathBuf::from);
            let orders = orders.to_str().and_then(|text| serde_json::from_str::<Orders>(text).ok());
            if let (Some(lock), Some(workspace)) = (orders.and_then(|orders| orders.lock), &workspace)
                && let Err(error) = take_turn(&lock, workspace)
            {
                // It costs time, and no task.
                say(&format!(
                    "this task waits for no other with its requirements: {}: {error}",
                    lock.display()
                ));
            }
            let mut command = Command::new(program);
            command.args(args).envs(workspace.map(|workspace| (VENVS_DIR, hocon(&workspace))));
            let why = command.exec();
            say(&format!("{}: {why}", program.display()));
            ExitCode::from(127)
        }
        _ => ExitCode::from(2),
    }
}

/// A line in the task's own log.
fn say(line: &str) {
    // A full disk must not end the task here.
    let _ = writeln!(io::stderr(), "cantle: {line}");
}

/// A path as the value of a variable that ClearML's programs read as HOCON.
fn hocon(path: &Path) -> OsString {
    serde_json::Value::from(path.to_string_lossy()).to_string().into()
}

/// Returns when the environment is in the cache, or this task is its builder.
fn take_turn(lock: &Path, workspace: &Path) -> io::Result<()> {
    fs::create_dir_all(lock.parent().unwrap_or_else(|| Path::new("/")))?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(lock)?;
    let mut has_said = false;
    loop {
        if is_settled(lock) {
            return Ok(());
        }
        match file.try_lock() {
            Ok(()) if is_settled(lock) => return Ok(()),
            Ok(()) => return start_watch(file, lock, workspace),
            Err(TryLockError::WouldBlock) if has_said => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => {
                say("waiting for another task to install the environment of this one");
                has_said = true;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Is there nothing to wait for?
fn is_settled(lock: &Path) -> bool {
    match read_note(lock) {
        Some(Note::Entry(name)) => lock.parent().is_some_and(|cache| has_entry(cache, &name)),
        Some(Note::Misses(count)) => {
            let changed = fs::metadata(lock).and_then(|about| about.modified());
            let age = changed.map(|changed| changed.elapsed().unwrap_or_default());
            count >= MISSES && age.is_ok_and(|age| age < MISSES_COUNT_FOR)
        }
        None => false,
    }
}

fn read_note(lock: &Path) -> Option<Note> {
    serde_json::from_str(&fs::read_to_string(lock).ok()?).ok()
}

/// Is there an entry with one of the keys in this name?
fn has_entry(cache: &Path, name: &str) -> bool {
    let keys: Vec<&str> = name.split('.').collect();
    entries(cache)
        .iter()
        .filter_map(|entry| entry.file_name()?.to_str())
        .any(|entry| entry.split('.').any(|key| keys.contains(&key)))
}

/// The entries that are complete.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let is_named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(UNNAMED.as_bytes()))
    };
    fs::read_dir(cache).map(directories).unwrap_or_default().into_iter().filter(is_named).collect()
}

/// Has a process watch this one, which becomes ClearML's agent and then the task's code. It is no child of this one: a program
/// may wait for any of its children.
fn start_watch(lock: File, path: &Path, workspace: &Path) -> io::Result<()> {
    let builder = holder_of(std::process::id()).ok_or(io::ErrorKind::NotFound)?;
    let watch = Watch { builder, workspace: workspace.to_owned(), lock: path.to_owned() };
    let mut command = watcher(&serde_json::to_string(&watch)?.into());
    command.stdin(lock).spawn()?.wait()?;
    Ok(())
}

fn watcher(watch: &OsString) -> Command {
    let mut command = Command::new(ITSELF);
    command.args([OsStr::new(SDK_TASK_COMMAND), OsStr::new(WATCH), watch]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The first process of two makes the second an orphan. Both have the lock as their stdin.
fn watch_main(word: &OsString, is_detached: bool) -> ExitCode {
    if !is_detached {
        let started = watcher(word).arg("detached").spawn();
        return if started.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let watch = word.to_str().and_then(|text| serde_json::from_str::<Watch>(text).ok());
    let Some(watch) = watch else { return ExitCode::from(2) };
    if let Some(note) = watch.outcome() {
        // Without a note the next task builds.
        let _ = write_note(&watch.lock, &note);
    }
    ExitCode::SUCCESS
}

fn write_note(lock: &Path, note: &Note) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(lock)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(serde_json::to_string(note)?.as_bytes())
}

impl Watch {
    /// The outcome of the builder; `None` if it ended before its environment was ready.
    fn outcome(&self) -> Option<Note> {
        let cache = self.lock.parent()?;
        loop {
            // Before the look into the cache: what is true then stays so.
            let is_alive = alive(&self.builder);
            let is_over = !is_alive || self.code_runs();
            if let Some(entry) = self.entry_in(cache) {
                return Some(Note::Entry(entry));
            }
            match read_note(&self.lock) {
                _ if !is_alive => return None,
                Some(Note::Misses(count)) if is_over => return Some(Note::Misses(count.saturating_add(1))),
                _ if is_over => return Some(Note::Misses(1)),
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The entry of the cache that is a copy of the builder's environment, or the other way around: a copy of a directory has the
    /// time of the directory.
    fn entry_in(&self, cache: &Path) -> Option<String> {
        let built = fs::read_dir(&self.workspace).map(directories).ok()?;
        let times: Vec<SystemTime> = built.iter().filter_map(|environment| time_of(environment)).collect();
        let entry = entries(cache)
            .into_iter()
            .find(|entry| time_of(entry).is_some_and(|time| times.contains(&time)))?;
        Some(entry.file_name()?.to_str()?.to_owned())
    }

    /// Has ClearML's agent started the task's code? It becomes the code; where it must do something afterwards, the code is
    /// a child of it that writes without a buffer.
    fn code_runs(&self) -> bool {
        let now = argv_of(self.builder.pid);
        let is_code = |argv: &[String]| {
            argv.first().is_some_and(|program| Path::new(program).starts_with(&self.workspace))
                && argv.get(1).is_some_and(|option| option == "-u")
        };
        is_code(&now) || children_of(self.builder.pid).iter().any(|child| is_code(&argv_of(*child)))
    }
}

/// When the programs of an environment were last changed.
fn time_of(environment: &Path) -> Option<SystemTime> {
    fs::metadata(environment.join("bin")).and_then(|about| about.modified()).ok()
}

fn argv_of(pid: u32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn children_of(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn script(requirements: serde_json::Value) -> tasks::Script {
        tasks::Script { requirements, ..tasks::Script::default() }
    }

    #[test]
    fn tasks_with_the_same_requirements_share_a_lock() {
        let lock = |requirements| Orders::new(Some("/cache".into()), &script(requirements)).lock;
        let first = lock(json!({"pip": "six"}));
        assert!(first.as_ref().is_some_and(|lock| lock.starts_with("/cache")));
        assert_eq!(first, lock(json!({"pip": "six"})));
        assert_ne!(first, lock(json!({"pip": "six==1"})));
        assert_eq!(
            (lock(json!(null)), lock(json!({}))),
            (None, None),
            "ClearML's agent caches nothing for these"
        );
        assert_eq!(Orders::new(None, &script(json!({"pip": "six"}))).lock, None);
    }

    #[test]
    fn nobody_waits_for_what_is_there_or_never_comes() {
        let cache = tempfile::tempdir().unwrap();
        let lock = cache.path().join(".cantle-1");
        File::create(&lock).unwrap();
        assert!(!is_settled(&lock));
        write_note(&lock, &Note::Entry("a.b".to_owned())).unwrap();
        assert!(!is_settled(&lock), "the entry was removed");
        fs::create_dir(cache.path().join("_temp.a")).unwrap();
        assert!(!is_settled(&lock), "the entry is not complete");
        fs::create_dir(cache.path().join("b.c")).unwrap();
        assert!(is_settled(&lock), "ClearML's agent has renamed the entry");
        for (count, expected) in [(1, false), (2, true)] {
            write_note(&lock, &Note::Misses(count)).unwrap();
            assert_eq!(is_settled(&lock), expected);
        }
        let old = fs::metadata(&lock).unwrap().modified().unwrap() - 2 * MISSES_COUNT_FOR;
        File::options().write(true).open(&lock).unwrap().set_modified(old).unwrap();
        assert!(!is_settled(&lock), "a task tries again");
        fs::write(&lock, "{\"ent").unwrap();
        assert!(!is_settled(&lock), "a note that is being written");
    }

    #[test]
    fn a_builder_that_is_killed_leaves_no_note_and_one_that_has_built_names_the_entry() {
        let root = tempfile::tempdir().unwrap();
        let (cache, workspace) = (root.path().join("cache"), root.path().join("work"));
        fs::create_dir_all(workspace.join("3.11/bin")).unwrap();
        fs::create_dir_all(cache.join("other/bin")).unwrap();
        // Times of the file system are coarse.
        File::open(cache.join("other/bin")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let lock = cache.join(".cantle-1");
        File::create(&lock).unwrap();
        let builder = Holder { pid: std::process::id(), start_ticks: 0 };
        let watch = Watch { builder, workspace: workspace.clone(), lock };
        assert_eq!(watch.outcome(), None);
        fs::create_dir_all(cache.join("mine/bin")).unwrap();
        let built = fs::metadata(workspace.join("3.11/bin")).unwrap().modified().unwrap();
        File::open(cache.join("mine/bin")).unwrap().set_modified(built).unwrap();
        assert_eq!(watch.outcome(), Some(Note::Entry("mine".to_owned())));
    }
}
