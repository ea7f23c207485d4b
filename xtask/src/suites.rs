//! The test suites: each runs as a user would run it, keeps its output in `target/test-logs/<suite>.log` and closes with
//! `N passed, N failed, N skipped`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Exit code of a program that could not run here and says why in its last line.
const SKIPPED: i32 = 77;

/// One suite: its name and the commands that make it up, run in the repository's root.
struct Suite {
    name: &'static str,
    steps: &'static [&'static [&'static str]],
}

const PYTEST: [&str; 4] = [".venv/bin/python", "-m", "pytest", "-q"];

/// In the order in which they say most about what is broken.
const SUITES: &[Suite] = &[
    Suite {
        name: "style",
        steps: &[
            &["cargo", "fmt", "--all", "--check"],
            &[
                "cargo",
                "clippy",
                "--workspace",
                "--all-targets",
                "--release",
                "--locked",
                "--",
                "-D",
                "warnings",
            ],
            &["cargo", "xtask", "arch"],
            &["cargo", "xtask", "deps"],
            &["cargo", "xtask", "machine-path"],
        ],
    },
    Suite { name: "shim", steps: &[&["cargo", "xtask", "verify-shim"]] },
    Suite {
        name: "unit",
        steps: &[&["cargo", "test", "--workspace", "--release", "--locked", "--no-fail-fast"]],
    },
    Suite {
        name: "scenarios",
        steps: &[&["cargo", "test", "--release", "--locked", "-p", "cantle-sim", "--test", "scenarios"]],
    },
    Suite { name: "simgpu", steps: &[&[PYTEST[0], PYTEST[1], PYTEST[2], PYTEST[3], "tests/simgpu"]] },
    Suite { name: "bypass", steps: &[&[PYTEST[0], PYTEST[1], PYTEST[2], PYTEST[3], "tests/bypass"]] },
    // MIG's own are in the suite `mig`.
    Suite {
        name: "e2e",
        steps: &[&[
            PYTEST[0],
            PYTEST[1],
            PYTEST[2],
            PYTEST[3],
            "tests/e2e",
            "--ignore=tests/e2e/test_mig.py",
        ]],
    },
    Suite { name: "chart", steps: &[&[PYTEST[0], PYTEST[1], PYTEST[2], PYTEST[3], "tests/chart"]] },
    Suite { name: "docker", steps: &[&["tests/docker/run.sh"]] },
    Suite { name: "clearml", steps: &[&["tests/clearml/run.sh"]] },
    Suite { name: "k8s", steps: &[&["tests/cluster/run.sh"]] },
    Suite { name: "ui", steps: &[&["tests/ui/run.sh"]] },
    Suite {
        name: "mig",
        steps: &[
            &["cargo", "test", "--release", "--locked", "-p", "cantle-mig"],
            &[PYTEST[0], PYTEST[1], PYTEST[2], PYTEST[3], "tests/simgpu", "-k", "mig"],
            &[PYTEST[0], PYTEST[1], PYTEST[2], PYTEST[3], "tests/e2e/test_mig.py"],
        ],
    },
];

#[derive(Default, Clone, Copy)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs the named suites, or all; fails if any test failed.
#[expect(clippy::disallowed_methods, reason = "how long a suite took is what is printed")]
pub(crate) fn run(names: &[&str]) -> Result<()> {
    if names == ["--list"] {
        SUITES.iter().for_each(|suite| println!("{}", suite.name));
        return Ok(());
    }
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|suite| suite.name == **name)) {
        bail!("there is no suite \"{unknown}\"; `cargo xtask test --list` names them");
    }
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    let logs = crate::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let mut lines = Vec::new();
    let mut total = Count::default();
    for suite in SUITES.iter().filter(|s| wanted(s.name)) {
        println!("==> {}", suite.name);
        let began = Instant::now();
        let count = run_suite(suite, &logs)?;
        let seconds = began.elapsed().as_secs();
        let time = format!("{} min {:02} s", seconds / 60, seconds % 60);
        println!("{}: {count}\n{} took {time}", suite.name, suite.name);
        lines.push(format!("{:<10} {time:>12}  {count}", suite.name));
        total += count;
    }
    println!("\n{}\ntotal: {total}", lines.join("\n"));
    if total.failed > 0 {
        bail!("{} failed; the logs are in target/test-logs", total.failed);
    }
    Ok(())
}

fn run_suite(suite: &Suite, logs: &Path) -> Result<Count> {
    let path = logs.join(format!("{}.log", suite.name));
    let mut log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut count = Count::default();
    for step in suite.steps {
        count += run_step(step, &mut log)?;
    }
    writeln!(log, "{count}")?;
    Ok(count)
}

/// Runs one command, copying what it says to the log and to the terminal, and counts the tests in it.
fn run_step(step: &[&str], log: &mut File) -> Result<Count> {
    let (program, args) = step.split_first().context("an empty step")?;
    writeln!(log, "$ {}", step.join(" "))?;
    let (reader, writer) = std::io::pipe()?;
    let child = Command::new(program)
        .args(args)
        .current_dir(crate::root())
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn();
    let mut child = child.with_context(|| format!("cannot start {program}"))?;
    let mut found = Count::default();
    let mut reports = false;
    let mut last = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        writeln!(log, "{line}")?;
        if let Some(count) = closing_line(&line) {
            found += count;
            reports = true;
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    let status = child.wait()?;
    Ok(match status.code() {
        Some(0) if reports => found,
        // A check that counts nothing is one test.
        Some(0) => Count { passed: 1, ..found },
        Some(SKIPPED) => {
            println!("skipped: {last}");
            Count { skipped: found.skipped.max(1), ..found }
        }
        _ => Count { failed: found.failed.max(1), ..found },
    })
}

/// Reads the closing lines of cargo's and pytest's runners, and the plain one.
fn closing_line(line: &str) -> Option<Count> {
    let is_cargo = line.starts_with("test result:");
    // "3 passed in 4.02s", over a minute "3 passed in 64.02s (0:01:04)".
    let is_pytest = line.split_once(" in ").is_some_and(|(_, time)| {
        let seconds = time.split([' ', '=']).next().and_then(|word| word.strip_suffix('s'));
        seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
    });
    let is_plain =
        line.split(", ").count() >= 2 && line.split(", ").all(|p| p.trim().split(' ').count() == 2);
    let mut count = Count::default();
    if is_cargo || is_pytest || is_plain {
        let words: Vec<&str> = line.split([' ', ',', ';', '.', '=']).filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2) {
            let [number, what] = pair else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match *what {
                "passed" => count.passed += number,
                "failed" | "errors" | "error" => count.failed += number,
                "skipped" | "ignored" => count.skipped += number,
                _ => {}
            }
        }
    }
    (count.passed + count.failed + count.skipped > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_the_runners() {
        let read = |line| closing_line(line).map(|c| (c.passed, c.failed, c.skipped));
        let cargo =
            "test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(read(cargo), Some((9, 0, 1)));
        assert_eq!(read("3 failed, 12 passed, 2 skipped in 4.02s"), Some((12, 3, 2)));
        assert_eq!(read("18 passed in 163.60s (0:02:43)"), Some((18, 0, 0)));
        assert_eq!(read("==== 1 passed, 1 error in 0.10s ===="), Some((1, 1, 0)));
        assert_eq!(read("17 passed, 0 failed, 1 skipped"), Some((17, 0, 1)));
        assert_eq!(read("two tasks passed in the night"), None);
        assert_eq!(read("test a::b ... ok"), None);
    }
}
