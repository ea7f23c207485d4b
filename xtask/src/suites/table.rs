//! The table of the suites: what each one runs, when, and for how long.
//!
//! Each test runs in exactly one suite. A test in Python that needs what `tests/setup.sh` installs, or that takes long, is marked `full`.
//! One that watches a clock is marked `clock`, if not its whole suite does (`Kind::Clock`). A test in Rust that watches a clock is in a
//! module named `clock`, and ignored with that word.

use super::schedule::Load;

/// When a suite runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// `make test`: right after a clone, with Rust, a C compiler and Python only.
    Gate,
    /// `make test-all`, after the gate: each suite installs what else it needs.
    Full,
}

/// The result of a suite depends on this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Limits, accounting, decisions: no clock decides, so one failure is a failure.
    Invariants,
    /// A clock or an engine (of containers, of a cluster, a browser). These suites run after the others. A step that fails runs once
    /// more, alone, when everything else has ended.
    Clock,
}

/// The tests in Python that a step runs, by their marks.
#[derive(Clone, Copy)]
enum Marked {
    Gate,
    Full,
    Clock,
    All,
}

impl Marked {
    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Gate => &["-m", "not full and not clock"],
            Self::Full => &["-m", "full and not clock"],
            Self::Clock => &["-m", "clock"],
            Self::All => &[],
        }
    }
}

/// One command of a suite, run in the repository's root; spaces separate its words.
pub(super) struct Step {
    line: &'static str,
    marked: Marked,
}

impl Step {
    /// The program and its words.
    pub(super) fn words(&self) -> Vec<&'static str> {
        self.line.split_whitespace().chain(self.marked.options().iter().copied()).collect()
    }
}

const fn run(line: &'static str) -> Step {
    Step { line, marked: Marked::All }
}

/// A script that gives its words to pytest.
const fn marked(marked: Marked, line: &'static str) -> Step {
    Step { line, marked }
}

pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) stage: Stage,
    pub(super) kind: Kind,
    /// As measured on two cores, and more where tests watch the clock.
    pub(super) load: Load,
    /// The usual time of all steps on two cores, next to other suites. Three times that, and at least 15 minutes, end a suite.
    pub(super) minutes: u64,
    /// The word of `tests/setup.sh` that installs what the suite needs.
    pub(super) setup: &'static str,
    pub(super) steps: &'static [Step],
}

impl Suite {
    /// By its name, or by that of the suites of which it is a part: `e2e` names `e2e-a-p`, too.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

/// A suite of the gate.
const fn gate(
    name: &'static str,
    load: Load,
    minutes: u64,
    setup: &'static str,
    steps: &'static [Step],
) -> Suite {
    Suite { name, stage: Stage::Gate, kind: Kind::Invariants, load, minutes, setup, steps }
}

/// A suite of the full stage in which no clock decides.
const fn full(
    name: &'static str,
    load: Load,
    minutes: u64,
    setup: &'static str,
    steps: &'static [Step],
) -> Suite {
    Suite { name, stage: Stage::Full, kind: Kind::Invariants, load, minutes, setup, steps }
}

/// A suite of the full stage that watches a clock or an engine.
const fn clock(
    name: &'static str,
    load: Load,
    minutes: u64,
    setup: &'static str,
    steps: &'static [Step],
) -> Suite {
    Suite { name, stage: Stage::Full, kind: Kind::Clock, load, minutes, setup, steps }
}

macro_rules! pytest {
    ($args:literal) => {
        concat!(".venv/bin/python -m pytest -q ", $args)
    };
}
const BYPASS: &str = pytest!("tests/bypass");
const SIMGPU: &str = pytest!("tests/simgpu");
const FOREIGN: &str = pytest!("tests/scenarios/foreign");
const MIG: &str =
    pytest!("tests/e2e/test_mig.py tests/e2e/test_mig_as_shipped.py tests/e2e/test_mig_node.py");
// MIG's own are in the suite `mig`.
const E2E: &str = pytest!("tests/e2e --ignore-glob=tests/e2e/test_mig*.py");
const E2E_A_TO_P: &str =
    pytest!("tests/e2e --ignore-glob=tests/e2e/test_mig*.py --ignore-glob=tests/e2e/test_[q-z]*.py");
const E2E_Q_TO_Z: &str = pytest!("tests/e2e --ignore-glob=tests/e2e/test_[a-p]*.py");

/// In the order of the closing lines; the longest start first.
///
/// They share nothing but the cores: each has machines, directories, ports and engines of its own. Cargo compiles the whole
/// workspace in the dev profile: fewer packages or another profile mean other features, and with them all dependencies once
/// more. `nice`: the compiler gives way to the tests that run in parallel.
pub(super) const SUITES: &[Suite] = &[
    gate(
        "style",
        10,
        3,
        "gate",
        &[
            run("cargo fmt --all --check"),
            run("nice cargo clippy --workspace --all-targets --locked -- -D warnings"),
            run("cargo xtask arch"),
            run("cargo xtask commits"),
            run("cargo xtask deps"),
            run("cargo xtask machine-path"),
            marked(Marked::Gate, pytest!("tests/style")),
        ],
    ),
    // The golden scenarios are the next suite.
    gate(
        "unit",
        10,
        15,
        "gate",
        &[run("cargo test --workspace --locked --no-fail-fast -- --skip golden_scenarios")],
    ),
    gate(
        "scenarios",
        5,
        1,
        "gate",
        &[
            run("cargo test --workspace --locked --test scenarios golden_scenarios"),
            marked(Marked::Gate, FOREIGN),
        ],
    ),
    gate("shim", 5, 1, "gate", &[run("cargo xtask verify-shim")]),
    gate("simgpu", 5, 2, "gate", &[marked(Marked::Gate, SIMGPU)]),
    gate("bypass", 4, 4, "gate", &[marked(Marked::Gate, BYPASS)]),
    gate("mig", 5, 2, "gate", &[marked(Marked::Gate, MIG)]),
    gate("chart", 5, 1, "gate", &[run(pytest!("tests/chart"))]),
    // They wait more than they compute, and would be the last to end.
    gate("e2e-a-p", 4, 7, "gate", &[marked(Marked::Gate, E2E_A_TO_P)]),
    gate("e2e-q-z", 4, 7, "gate", &[marked(Marked::Gate, E2E_Q_TO_Z)]),
    gate("sdk", 5, 1, "sdk", &[marked(Marked::Gate, "tests/clearml/run.sh")]),
    // The features of the demo.
    full("demo", 10, 2, "common", &[run("nice cargo check -p cantle-cli --no-default-features --locked")]),
    full("prose", 5, 1, "style", &[marked(Marked::Full, "tests/style/run.sh")]),
    full(
        "rest",
        5,
        5,
        "common",
        &[
            marked(Marked::Full, BYPASS),
            marked(Marked::Full, SIMGPU),
            marked(Marked::Full, MIG),
            marked(Marked::Full, E2E),
            marked(Marked::Full, FOREIGN),
        ],
    ),
    full("frameworks", 8, 6, "frameworks", &[run("tests/frameworks/run.sh")]),
    clock(
        "clock",
        8,
        5,
        "common",
        &[
            run("cargo test --workspace --locked --no-fail-fast -- --ignored clock::"),
            marked(Marked::Clock, BYPASS),
            marked(Marked::Clock, SIMGPU),
            marked(Marked::Clock, MIG),
            marked(Marked::Clock, E2E),
        ],
    ),
    // Two clusters at once. They wait more than they compute.
    clock("k8s", 10, 20, "k8s", &[run("tests/cluster/run.sh")]),
    clock("clearml", 4, 18, "clearml", &[marked(Marked::Full, "tests/clearml/run.sh")]),
    clock("docker", 8, 8, "docker", &[run("tests/docker/run.sh")]),
    clock("packages", 8, 10, "packages", &[run("tests/packages/run.sh")]),
    clock("ui", 10, 8, "ui", &[run("tests/ui/run.sh")]),
    clock("compute", 6, 4, "common", &[run(pytest!("tests/compute"))]),
    clock("postgres", 6, 10, "postgres", &[run("tests/postgres/run.sh")]),
    // All of them in tests/soak.sh.
    clock("faults", 8, 4, "common", &[run(".venv/bin/python tests/faults/faults.py --short")]),
    // It waits for a provider and for its intervals.
    clock("login", 4, 3, "login", &[run("tests/login/run.sh")]),
    clock("files", 4, 2, "files", &[run("tests/files/run.sh")]),
];
