//! The slowest test programs of a step of cargo's. Its runner does not print the time of a test; pytest prints those by itself.

/// The programs that are printed.
const SHOWN: usize = 10;

/// Test programs with their seconds, as cargo prints them.
#[derive(Default)]
pub(super) struct Slowest {
    running: Option<String>,
    programs: Vec<(f64, String)>,
}

impl Slowest {
    pub(super) fn read(&mut self, line: &str) {
        if let Some(program) = line.trim_start().strip_prefix("Running ") {
            self.running = Some(program.split(" (").next().unwrap_or(program).to_owned());
        } else if let Some((_, time)) = line.split_once("; finished in ") {
            let seconds = time.strip_suffix('s').and_then(|time| time.parse().ok());
            self.programs.extend(seconds.zip(self.running.take()));
        }
    }

    /// Lines for the log, the slowest first; none if no program took a second.
    pub(super) fn lines(mut self) -> Vec<String> {
        self.programs.retain(|(seconds, _)| *seconds >= 1.0);
        self.programs.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        self.programs
            .into_iter()
            .take(SHOWN)
            .map(|(seconds, name)| format!("{seconds:7.2} s  {name}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_comes_first_and_the_quick_ones_not_at_all() {
        let mut slowest = Slowest::default();
        for line in [
            "     Running tests/a.rs (target/debug/deps/a-00)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "     Running unittests src/lib.rs (target/debug/deps/b-00)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.25s",
            "     Running tests/c.rs (target/debug/deps/c-00)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.99s",
        ] {
            slowest.read(line);
        }
        assert_eq!(slowest.lines(), ["  12.25 s  unittests src/lib.rs", "   1.50 s  tests/a.rs"]);
    }
}
