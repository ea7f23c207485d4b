//! The test suites: each runs as a user would run it, writes its output to `target/test-logs/<suite>.log` and ends with
//! `N passed, N failed, N skipped`. Suites run in parallel as far as the machine's cores allow.

mod count;
mod output;
mod schedule;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use count::{Count, closing_line};
use schedule::Load;

/// Exit code of a program that could not run here; its last line has the reason.
const SKIPPED: i32 = 77;

/// One command of a suite, run in the repository's root; spaces separate its words.
enum Step {
    Run(&'static str),
    /// pytest, from the environment that tests/setup.sh makes, with these arguments.
    Pytest(&'static str),
}
use Step::{Pytest, Run};

impl Step {
    fn line(&self) -> String {
        match self {
            Run(line) => (*line).to_owned(),
            Pytest(args) => format!(".venv/bin/python -m pytest -q {args}"),
        }
    }
}

struct Suite {
    name: &'static str,
    /// As measured on two cores, and more where tests watch the clock.
    load: Load,
    steps: &'static [Step],
}

const fn suite(name: &'static str, load: Load, steps: &'static [Step]) -> Suite {
    Suite { name, load, steps }
}

/// In the order in which they start: what compiles and tells most, then the long ones, then the short ones, which fill what is left.
///
/// They share nothing but the cores: each has machines, directories, ports and engines of its own. Cargo compiles the whole
/// workspace in the dev profile: fewer packages or another profile mean other features, and with them all dependencies once
/// more. `nice`: the compiler gives way to the tests that run in parallel.
const SUITES: &[Suite] = &[
    suite(
        "style",
        10,
        &[
            Run("cargo fmt --all --check"),
            Run("nice cargo clippy --workspace --all-targets --locked -- -D warnings"),
            // The demo's features. Of the whole workspace, so that nothing below the command line is compiled again.
            Run("nice cargo clippy --workspace --all-targets --no-default-features --locked -- -D warnings"),
            Run("cargo xtask arch"),
            Run("cargo xtask deps"),
            Run("cargo xtask machine-path"),
            Run("tests/style/run.sh"),
        ],
    ),
    suite(
        "unit",
        10,
        &[
            Run("nice cargo test --workspace --locked --no-run"),
            Run("cargo test --workspace --locked --no-fail-fast"),
        ],
    ),
    suite("clearml", 4, &[Run("tests/clearml/run.sh")]),
    suite("docker", 8, &[Run("tests/docker/run.sh")]),
    // Two clusters at once. They wait more than they compute, and watch the clock.
    suite("k8s", 10, &[Run("tests/cluster/run.sh")]),
    // MIG's own are in the suite `mig`.
    suite("e2e", 6, &[Pytest("tests/e2e --ignore-glob=tests/e2e/test_mig*.py")]),
    suite("packages", 8, &[Run("tests/packages/run.sh")]),
    suite("ui", 10, &[Run("tests/ui/run.sh")]),
    suite("frameworks", 8, &[Run("tests/frameworks/run.sh")]),
    suite("bypass", 10, &[Pytest("tests/bypass")]),
    suite("compute", 6, &[Pytest("tests/compute")]),
    suite("postgres", 6, &[Run("tests/postgres/run.sh")]),
    suite("simgpu", 4, &[Pytest("tests/simgpu")]),
    suite(
        "mig",
        6,
        &[
            Run("cargo test --workspace --locked --test one_gpu --test quality --test requests"),
            Run("cargo test --workspace --locked --lib nor_do_instances"),
            Pytest("tests/simgpu -k mig"),
            Pytest("tests/e2e/test_mig.py tests/e2e/test_mig_as_shipped.py tests/e2e/test_mig_node.py"),
        ],
    ),
    suite("world", 8, &[Run("env CANTLE_WORLD_SEEDS=200 cargo test --workspace --locked --test world")]),
    // All forty in tests/soak.sh.
    suite("faults", 8, &[Run(".venv/bin/python tests/faults/faults.py --short")]),
    // It waits for a provider and for its intervals.
    suite("login", 4, &[Run("tests/login/run.sh")]),
    suite("chart", 6, &[Pytest("tests/chart")]),
    suite("files", 4, &[Run("tests/files/run.sh")]),
    suite("scenarios", 6, &[Run("cargo test --workspace --locked --test scenarios")]),
    suite("shim", 6, &[Run("cargo xtask verify-shim")]),
];

/// The result of a suite.
struct Outcome {
    name: &'static str,
    seconds: u64,
    count: Count,
}

impl Outcome {
    fn time(&self) -> String {
        format!("{} min {:02} s", self.seconds / 60, self.seconds % 60)
    }
}

/// Runs the named suites, or all; fails if any test failed. After the word `--serial` they run one after the other.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (serial, names) = match words {
        ["--list"] => {
            SUITES.iter().for_each(|suite| println!("{}", suite.name));
            return Ok(());
        }
        ["--serial", names @ ..] => (true, names),
        names => (false, names),
    };
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|suite| suite.name == **name)) {
        bail!("there is no suite \"{unknown}\"; `cargo xtask test --list` names them");
    }
    let wanted: Vec<&Suite> =
        SUITES.iter().filter(|suite| names.is_empty() || names.contains(&suite.name)).collect();
    let logs = crate::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let cores = if serial { 0 } else { std::thread::available_parallelism()?.get() };
    let outcomes = run_all(wanted, cores, &logs);

    let mut total = Count::default();
    println!();
    for outcome in SUITES.iter().filter_map(|suite| outcomes.get(suite.name)) {
        println!("{:<10} {:>12}  {}", outcome.name, outcome.time(), outcome.count);
        total += outcome.count;
    }
    println!("total: {total}");
    if total.failed > 0 {
        bail!("{} failed; the logs are in target/test-logs", total.failed);
    }
    Ok(())
}

/// Starts each suite as soon as the cores have enough left for it. With no cores to share they run one after the other.
fn run_all(mut waiting: Vec<&Suite>, cores: usize, logs: &Path) -> BTreeMap<&'static str, Outcome> {
    let live = cores == 0 || waiting.len() == 1;
    let mut running = BTreeMap::new();
    let mut ended = BTreeMap::new();
    let (sender, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        loop {
            let loads: Vec<Load> = waiting.iter().map(|suite| suite.load).collect();
            let busy: Vec<Load> = running.values().copied().collect();
            if let Some(at) = schedule::next(&loads, &busy, cores) {
                let suite = waiting.remove(at);
                println!("==> {}", suite.name);
                running.insert(suite.name, suite.load);
                let (sender, log) = (sender.clone(), log_of(logs, suite.name));
                scope.spawn(move || sender.send(run_suite(suite, &log, live)));
                continue;
            }
            if running.is_empty() {
                return ended;
            }
            // A sender of our own is never dropped before the end.
            let Ok(outcome) = outcomes.recv() else { return ended };
            running.remove(outcome.name);
            report(&outcome, logs, live);
            ended.insert(outcome.name, outcome);
        }
    })
}

fn log_of(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}

/// Prints how a suite ended, after what it said if that was not shown while it ran.
fn report(outcome: &Outcome, logs: &Path, live: bool) {
    let name = outcome.name;
    if !live {
        let text = std::fs::read(log_of(logs, name)).unwrap_or_default();
        print!("<== {name}\n{}", String::from_utf8_lossy(&text));
    }
    println!("{name}: {}\n{name} took {}", outcome.count, outcome.time());
}

/// Runs a suite to its end. One that cannot run at all has failed.
#[expect(clippy::disallowed_methods, reason = "how long a suite took is what is printed")]
fn run_suite(suite: &Suite, log: &Path, live: bool) -> Outcome {
    let began = Instant::now();
    let count = run_steps(suite, log, live).unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", suite.name);
        Count { failed: 1, ..Count::default() }
    });
    Outcome { name: suite.name, seconds: began.elapsed().as_secs(), count }
}

fn run_steps(suite: &Suite, path: &Path, live: bool) -> Result<Count> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut log = Log { file, live };
    let mut count = Count::default();
    for step in suite.steps {
        count += run_step(&step.line(), &mut log)?;
    }
    writeln!(log.file, "{count}")?;
    Ok(count)
}

/// The destination of a suite's output: to its file and, if it is the only one that runs, to the terminal.
struct Log {
    file: File,
    live: bool,
}

impl Log {
    fn line(&mut self, line: &str) -> Result<()> {
        if self.live {
            println!("{line}");
        }
        Ok(writeln!(self.file, "{line}")?)
    }
}

/// Runs one command and counts the tests in its output.
fn run_step(line: &str, log: &mut Log) -> Result<Count> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty step")?;
    writeln!(log.file, "$ {line}")?;
    let (reader, writer) = std::io::pipe()?;
    let child = Command::new(program)
        .args(words)
        .current_dir(crate::root())
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn();
    let mut child = child.with_context(|| format!("cannot start {program}"))?;
    let mut found = Count::default();
    let mut reports = false;
    let mut last = String::new();
    let status = output::follow(reader, &mut child, |line| {
        log.line(&line)?;
        if let Some(count) = closing_line(&line) {
            found += count;
            reports = true;
        }
        if !line.trim().is_empty() {
            last = line;
        }
        Ok(())
    })?;
    Ok(match status.code() {
        Some(0) if reports => found,
        // A check that counts nothing is one test.
        Some(0) => Count { passed: 1, ..found },
        Some(SKIPPED) => {
            log.line(&format!("skipped: {last}"))?;
            Count { skipped: found.skipped.max(1), ..found }
        }
        _ => Count { failed: found.failed.max(1), ..found },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workflow_has_a_job_for_each_suite() {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        let matrix = format!("suite: [{}]", names.join(", "));
        assert!(include_str!("../../.github/workflows/ci.yml").contains(&matrix), "{matrix}");
    }

    #[test]
    fn pytest_runs_in_the_environment_of_the_suites() {
        assert_eq!(Pytest("tests/simgpu -k mig").line(), ".venv/bin/python -m pytest -q tests/simgpu -k mig");
    }
}
