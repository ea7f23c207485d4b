//! The test suites: each runs as a user would run it, writes its output to `target/test-logs/<suite>.log` and ends with
//! `N passed, N failed, N skipped`. Suites run in parallel as far as the machine's cores allow: first those in which no clock decides,
//! then those that watch one, then once more what failed among the latter.

mod again;
mod count;
mod limit;
mod output;
mod schedule;
mod slowest;
mod step;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Scope;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use count::Count;
use limit::Limit;
use schedule::Load;
use step::Log;
use table::{Kind, SUITES, Stage, Suite};

/// More tests than these that fail once and pass once are a failure of the run.
const FLAKY_LIMIT: usize = 3;

/// The result of a suite.
struct Outcome {
    suite: &'static Suite,
    seconds: u64,
    count: Count,
    /// The steps of a suite that watches a clock that failed, by their number.
    failed_steps: Vec<usize>,
    /// The tests that failed once and passed once.
    flaky: Vec<String>,
}

impl Outcome {
    /// Of a suite for which no time is left.
    fn not_run(suite: &'static Suite) -> Self {
        let count = Count { unfinished: 1, ..Count::default() };
        Self { suite, seconds: 0, count, failed_steps: Vec::new(), flaky: Vec::new() }
    }

    fn time(&self) -> String {
        format!("{} min {:02} s", self.seconds / 60, self.seconds % 60)
    }
}

/// A report from a thread of a run.
enum Event {
    /// The setup of this word is done.
    Ready(&'static str),
    Ended(Outcome),
}

/// Runs the named suites, or those of the gate, or after `--full` those of the full stage; fails if any test failed. After `--serial`
/// they run one after the other.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with("--"));
    let mut stage = Stage::Gate;
    let mut serial = false;
    for option in options {
        match option {
            "--list" => {
                SUITES.iter().for_each(|suite| println!("{}", suite.name));
                return Ok(());
            }
            "--full" => stage = Stage::Full,
            "--serial" => serial = true,
            other => bail!("there is no option \"{other}\"; it can be --full, --list or --serial"),
        }
    }
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|suite| suite.is_named(name))) {
        bail!("there is no suite \"{unknown}\"; `cargo xtask test --list` names them");
    }
    let is_wanted = |suite: &&Suite| {
        if names.is_empty() { suite.stage == stage } else { names.iter().any(|name| suite.is_named(name)) }
    };
    let wanted: Vec<&Suite> = SUITES.iter().filter(is_wanted).collect();
    let logs = crate::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let cores = if serial { 0 } else { std::thread::available_parallelism()?.get() };
    let live = wanted.len() == 1 || serial;
    let mut outcomes = Runner { cores, logs, live, limit: Limit::of_environment()? }.run_all(&wanted);
    outcomes.sort_by_key(|outcome| SUITES.iter().position(|suite| suite.name == outcome.suite.name));
    close(&outcomes)
}

/// Prints the closing lines.
fn close(outcomes: &[Outcome]) -> Result<()> {
    let mut total = Count::default();
    println!();
    for outcome in outcomes {
        println!("{:<11} {:>12}  {}", outcome.suite.name, outcome.time(), outcome.count);
        total += outcome.count;
    }
    println!("total: {total}");
    let flaky: Vec<&String> = outcomes.iter().flat_map(|outcome| &outcome.flaky).collect();
    if !flaky.is_empty() {
        println!("flaky:");
        flaky.iter().for_each(|test| println!("  {test}"));
        println!("both outputs of each are in target/test-logs: <suite>.log and <suite>.again.log");
    }
    let unfinished = outcomes.iter().filter(|outcome| outcome.count.unfinished > 0);
    let unfinished: Vec<&str> = unfinished.map(|outcome| outcome.suite.name).collect();
    if !unfinished.is_empty() {
        println!(
            "NOT RUN to their end, because the time of the whole run was used up: {}",
            unfinished.join(", ")
        );
        println!("without {} they run: cargo xtask test {}", limit::DEADLINE, unfinished.join(" "));
    }
    if total.failed > 0 {
        bail!("{} failed; the logs are in target/test-logs", total.failed);
    }
    if flaky.len() > FLAKY_LIMIT {
        bail!("{} flaky tests, at most {FLAKY_LIMIT} are tolerated", flaky.len());
    }
    Ok(())
}

struct Runner {
    /// With none to share, suites run one after the other.
    cores: usize,
    logs: PathBuf,
    /// Output goes to the terminal, too.
    live: bool,
    limit: Limit,
}

impl Runner {
    fn run_all(&self, wanted: &[&'static Suite]) -> Vec<Outcome> {
        let (sender, events) = mpsc::channel();
        let mut ready = BTreeSet::new();
        let mut outcomes = Vec::new();
        std::thread::scope(|scope| {
            let tell = sender.clone();
            scope.spawn(move || set_up(&setups(wanted), &self.limit, &tell));
            for kind in [Kind::Invariants, Kind::Clock] {
                let suites = wanted.iter().copied().filter(|suite| suite.kind == kind).collect();
                outcomes.extend(self.run_side_by_side(suites, scope, &sender, &events, &mut ready));
            }
        });
        outcomes.into_iter().map(|outcome| again::run(outcome, &self.logs, &self.limit)).collect()
    }

    /// Starts each suite as soon as what it needs is there and the cores have enough left for it.
    fn run_side_by_side<'scope, 'env>(
        &'env self,
        mut waiting: Vec<&'static Suite>,
        scope: &'scope Scope<'scope, 'env>,
        sender: &Sender<Event>,
        events: &Receiver<Event>,
        ready: &mut BTreeSet<&'static str>,
    ) -> Vec<Outcome> {
        waiting.sort_by_key(|suite| std::cmp::Reverse(suite.minutes));
        let mut running: BTreeMap<&str, Load> = BTreeMap::new();
        let mut ended = Vec::new();
        while !(waiting.is_empty() && running.is_empty()) {
            for late in waiting.extract_if(.., |suite| !self.limit.allows(suite)) {
                println!(
                    "{}: not run, it usually takes {} min{}",
                    late.name,
                    late.minutes,
                    self.limit.left()
                );
                ended.push(Outcome::not_run(late));
            }
            if waiting.is_empty() && running.is_empty() {
                break;
            }
            let able: Vec<usize> =
                (0..waiting.len()).filter(|&at| ready.contains(waiting[at].setup)).collect();
            let loads: Vec<Load> = able.iter().map(|&at| waiting[at].load).collect();
            let busy: Vec<Load> = running.values().copied().collect();
            if let Some(next) = schedule::next(&loads, &busy, self.cores) {
                let suite = waiting.remove(able[next]);
                println!("==> {}", suite.name);
                running.insert(suite.name, suite.load);
                let sender = sender.clone();
                scope.spawn(move || sender.send(Event::Ended(self.run_suite(suite))));
                continue;
            }
            // This function has a sender, so there is always one.
            match events.recv() {
                Ok(Event::Ready(word)) => drop(ready.insert(word)),
                Ok(Event::Ended(outcome)) => {
                    running.remove(outcome.suite.name);
                    self.report(&outcome);
                    ended.push(outcome);
                }
                Err(_) => return ended,
            }
        }
        ended
    }

    /// Prints how a suite ended, after its output if that was not shown while it ran.
    fn report(&self, outcome: &Outcome) {
        let name = outcome.suite.name;
        if !self.live {
            let text = std::fs::read(log_of(&self.logs, name)).unwrap_or_default();
            print!("<== {name}\n{}", String::from_utf8_lossy(&text));
        }
        println!("{name}: {}\n{name} took {}{}", outcome.count, outcome.time(), self.limit.left());
    }

    /// Runs a suite to its end. One that cannot run at all has failed.
    #[expect(clippy::disallowed_methods, reason = "how long a suite took is what is printed")]
    fn run_suite(&self, suite: &'static Suite) -> Outcome {
        let began = Instant::now();
        let mut failed_steps = Vec::new();
        let count = self.run_steps(suite, &mut failed_steps).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", suite.name);
            Count { failed: 1, ..Count::default() }
        });
        Outcome { suite, seconds: began.elapsed().as_secs(), count, failed_steps, flaky: Vec::new() }
    }

    fn run_steps(&self, suite: &Suite, failed_steps: &mut Vec<usize>) -> Result<Count> {
        let mut log = Log::create(&log_of(&self.logs, suite.name), self.live)?;
        let failures = failures_of(&self.logs, suite.name);
        std::fs::remove_file(&failures).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let mut end = self.limit.end_of(suite.minutes);
        // The gate is run to its end, or has failed.
        end.is_of_run &= suite.stage == Stage::Full;
        let mut count = Count::default();
        for (at, step) in suite.steps.iter().enumerate() {
            let of_step = step::run(step, &mut log, end, &[("CANTLE_TEST_FAILURES", &failures)])?;
            if of_step.failed > 0 && suite.kind == Kind::Clock {
                failed_steps.push(at);
            }
            count += of_step;
            if count.unfinished > 0 {
                break;
            }
        }
        log.note(&count.to_string())?;
        Ok(count)
    }
}

fn log_of(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}

/// The file to which the tests of a suite that fail write their names (`tests/conftest.py`).
fn failures_of(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.failures"))
}

/// The words of `tests/setup.sh` that these suites need, each once: what suites of the first pass need comes first.
fn setups(wanted: &[&'static Suite]) -> Vec<&'static str> {
    let mut words = Vec::new();
    for kind in [Kind::Invariants, Kind::Clock] {
        for suite in wanted.iter().filter(|suite| suite.kind == kind) {
            if !words.contains(&suite.setup) {
                words.push(suite.setup);
            }
        }
    }
    words
}

/// Installs what the suites with these words need, one after the other, while there is time. Where that fails, the
/// suite reports it.
fn set_up(words: &[&'static str], limit: &Limit, tell: &Sender<Event>) {
    let go_cache = crate::target_dir().join("go-cache");
    for word in words {
        let mut command = Command::new("nice");
        command.args(["tests/setup.sh", word]).env("CANTLE_GO_CACHE", &go_cache);
        command.current_dir(crate::root()).stdin(Stdio::null());
        match output::wait(&mut command, limit.end()) {
            Ok(Some(status)) if status.success() => {}
            Ok(Some(status)) => eprintln!("tests/setup.sh {word}: {status}"),
            Ok(None) => {
                eprintln!("tests/setup.sh {word}: ended, because the time of the whole run is used up")
            }
            Err(error) => eprintln!("tests/setup.sh {word} cannot be started: {error}"),
        }
        // No thread listens once all suites have ended.
        drop(tell.send(Event::Ready(word)));
    }
    // Most suites build nothing with Go.
    drop(std::fs::remove_dir_all(go_cache));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workflow_has_a_job_for_each_suite_of_the_full_stage() {
        let full = SUITES.iter().filter(|suite| suite.stage == Stage::Full);
        let names: Vec<&str> = full.map(|suite| suite.name).collect();
        let matrix = format!("suite: [{}]", names.join(", "));
        assert!(include_str!("../../.github/workflows/ci.yml").contains(&matrix), "{matrix}");
    }

    #[test]
    fn names_of_suites_are_unique() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), SUITES.len());
    }

    #[test]
    fn what_runs_first_is_set_up_first() {
        let all: Vec<&Suite> = SUITES.iter().collect();
        let words = setups(&all);
        assert_eq!(words.first(), Some(&"gate"));
        let at = |word| words.iter().position(|each| *each == word).unwrap();
        assert!(at("frameworks") < at("k8s"), "{words:?}");
    }

    #[test]
    fn no_clock_decides_in_the_gate() {
        assert!(SUITES.iter().all(|suite| suite.stage == Stage::Full || suite.kind == Kind::Invariants));
    }
}
