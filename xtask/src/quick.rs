//! `cargo xtask quick`: checks one change. Format, clippy and tests of the packages that changed against `main` and of those
//! that depend on them.
//!
//! Tests are built for the whole workspace in the dev profile and chosen by target and filter: with fewer packages cargo would choose
//! other features, and build the dependencies once more.

mod changes;
mod nextest;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use changes::{Changes, Workspace};

/// Test programs that take longer than the loop may.
const SLOW: [&str; 4] = ["model", "node", "quality", "world"];
/// The same of modules of a test program.
const SLOW_MODULES: [&str; 3] = ["crowd::", "faults::", "matrix::"];
/// Random cases per property. The gate runs the number that each test sets.
const CASES: &str = "200";
const SCENARIOS: &str = "scenarios";

/// The packages to work on.
struct Plan {
    changed: BTreeSet<String>,
    dependents: BTreeSet<String>,
}

/// Runs the loop for the crates that are named, or for those that changed.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (options, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| **option != "--no-nextest") {
        bail!("quick has no option {unknown}; it has --no-nextest");
    }
    let workspace = Workspace::read()?;
    let Some(plan) = Plan::new(&workspace, &names)? else {
        println!("quick: nothing to compile: no crate and no scenario changed. `make test` runs every suite");
        return Ok(());
    };
    plan.print();
    let nextest = if options.is_empty() { nextest::find_or_install() } else { None };
    let mut clock = Clock::start();
    let done = steps(&mut clock, &plan, &workspace, nextest.as_deref());
    clock.stop();
    done
}

/// The steps, up to the first that fails.
fn steps(clock: &mut Clock, plan: &Plan, workspace: &Workspace, nextest: Option<&[String]>) -> Result<()> {
    if !plan.changed.is_empty() {
        clock.step("format", || plan.format())?;
        clock.step("clippy", || plan.clippy())?;
    }
    clock.step("tests", || plan.tests(workspace, nextest))
}

impl Plan {
    /// The named crates, or without names the changed ones; `None` if there are none.
    fn new(workspace: &Workspace, names: &[&str]) -> Result<Option<Self>> {
        let Changes { packages: changed, scenarios } = if names.is_empty() {
            let files = changes::changed_files()?;
            workspace.changed(files.iter().map(String::as_str))
        } else {
            workspace.named(names)?
        };
        let dependents = workspace.dependents(&changed);
        Ok((scenarios || !changed.is_empty()).then_some(Self { changed, dependents }))
    }

    /// Says what is done, and in one line what is left to the gate.
    fn print(&self) {
        let list = |names: &BTreeSet<String>| match names.len() {
            0 => "nothing".to_owned(),
            _ => names.iter().map(|name| name.trim_start_matches("cantle-")).collect::<Vec<_>>().join(", "),
        };
        println!("quick: changed: {}; depends on it: {}", list(&self.changed), list(&self.dependents));
        println!(
            "quick: left to the gate: clippy and integration tests of what depends on it, the test programs {}, the tests of {}, the slow \
             tests of .config/nextest.toml, more than {CASES} cases of a property, documentation tests, all other suites",
            SLOW.join(", "),
            SLOW_MODULES.join(", ")
        );
    }

    fn format(&self) -> Result<()> {
        cargo(&[&["fmt", "--check"], &self.packages()[..]].concat())
    }

    fn clippy(&self) -> Result<()> {
        let words = ["clippy", "--all-targets", "--locked", "--quiet"];
        cargo(&[&words[..], &self.packages(), &["--", "-D", "warnings"]].concat())
    }

    /// Runs all tests of what changed, the unit tests of what depends on it, and the scenarios.
    fn tests(&self, workspace: &Workspace, nextest: Option<&[String]>) -> Result<()> {
        let changed = || self.changed.iter().filter_map(|name| workspace.package(name));
        let programs =
            changed().flat_map(|package| &package.tests).filter(|name| !SLOW.contains(&name.as_str()));
        let programs = programs.map(String::as_str).chain([SCENARIOS]).collect();
        let examples: BTreeSet<&str> =
            changed().flat_map(|package| &package.examples).map(String::as_str).collect();
        if !examples.is_empty() {
            // Tests start them, and cargo builds them by itself only where all tests run.
            let words = ["build", "--workspace", "--locked", "--quiet"];
            cargo(&[&words[..], &targets("--example", &examples)].concat())?;
        }
        let units: &[&str] = if self.changed.is_empty() { &[] } else { &["--lib", "--bins"] };
        let targets =
            [&["--workspace", "--locked", "--cargo-quiet"], units, &targets("--test", &programs)].concat();
        let Some((program, first)) = nextest.and_then(<[String]>::split_first) else {
            let targets = targets.iter().map(|word| if *word == "--cargo-quiet" { "--quiet" } else { word });
            let skipped =
                ["--"].into_iter().chain(SLOW_MODULES.into_iter().flat_map(|slow| ["--skip", slow]));
            let words = ["test", "--no-fail-fast"].into_iter().chain(targets).chain(skipped);
            return cargo(&words.collect::<Vec<_>>());
        };
        let filter = self.filter();
        let run = ["run", "--profile", "quick", "-E", &filter];
        call(program, &[&first.iter().map(String::as_str).collect::<Vec<_>>()[..], &run, &targets].concat())
    }

    /// The tests that run, in nextest's language.
    fn filter(&self) -> String {
        let changed = self.changed.iter().map(|name| format!("package(={name})"));
        let dependents =
            self.dependents.iter().map(|name| format!("(package(={name}) & (kind(lib) | kind(bin)))"));
        let scenarios = format!("binary({SCENARIOS})");
        let wanted: Vec<String> = changed.chain(dependents).chain([scenarios]).collect();
        let slow: Vec<String> = SLOW_MODULES.iter().map(|slow| format!("test(/^{slow}/)")).collect();
        format!("({}) & not ({})", wanted.join(" | "), slow.join(" | "))
    }

    fn packages(&self) -> Vec<&str> {
        self.changed.iter().flat_map(|name| ["-p", name.as_str()]).collect()
    }
}

fn targets<'a>(option: &'a str, names: &BTreeSet<&'a str>) -> Vec<&'a str> {
    names.iter().flat_map(|name| [option, *name]).collect()
}

fn cargo(args: &[&str]) -> Result<()> {
    call("cargo", args)
}

/// Runs a program in the root. Its own output has the fault, so the error only names it.
fn call(program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).current_dir(crate::root()).env("PROPTEST_CASES", CASES);
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("failed: {program} {}", args.join(" "));
    }
    Ok(())
}

/// Measures the steps.
struct Clock {
    began: Instant,
    steps: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "how long a step took is what is printed")]
impl Clock {
    fn start() -> Self {
        Self { began: Instant::now(), steps: Vec::new() }
    }

    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let began = Instant::now();
        let done = work();
        self.steps.push(format!("{name} {:.1} s", began.elapsed().as_secs_f64()));
        done
    }

    fn stop(self) {
        println!("quick: {}; {:.1} s in all", self.steps.join(", "), self.began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_run_their_unit_tests_only() {
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        let plan = Plan { changed: set("cantle-sched"), dependents: set("cantle-cli") };
        let filter = "(package(=cantle-sched) | (package(=cantle-cli) & (kind(lib) | kind(bin))) | binary(scenarios)) \
             & not (test(/^crowd::/) | test(/^faults::/) | test(/^matrix::/))";
        assert_eq!(plan.filter(), filter);
        assert_eq!(plan.packages(), ["-p", "cantle-sched"]);
    }
}
