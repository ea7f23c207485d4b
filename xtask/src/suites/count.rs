//! Adds up the counts that a suite's programs print at their end.

#[derive(Default, Clone, Copy)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// Steps that were not run, or not to their end, because the time of the whole run was used up.
    pub(super) unfinished: u64,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)?;
        if self.unfinished > 0 { write!(f, "; not run to its end") } else { Ok(()) }
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.unfinished += other.unfinished;
    }
}

/// Reads the closing lines of cargo's and pytest's runners, and the plain one.
pub(super) fn closing_line(line: &str) -> Option<Count> {
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
                // A test that cargo ignores here runs in another suite, or is not a separate test: nothing is lacking.
                "skipped" => count.skipped += number,
                _ => {}
            }
        }
    }
    (is_cargo || count.passed + count.failed + count.skipped > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_the_runners() {
        let read = |line| closing_line(line).map(|c| (c.passed, c.failed, c.skipped));
        let cargo =
            "test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(read(cargo), Some((9, 0, 0)));
        assert_eq!(read("3 failed, 12 passed, 2 skipped in 4.02s"), Some((12, 3, 2)));
        assert_eq!(read("18 passed in 163.60s (0:02:43)"), Some((18, 0, 0)));
        assert_eq!(read("==== 1 passed, 1 error in 0.10s ===="), Some((1, 1, 0)));
        assert_eq!(read("17 passed, 0 failed, 1 skipped"), Some((17, 0, 1)));
        assert_eq!(read("two tasks passed in the night"), None);
        assert_eq!(read("test a::b ... ok"), None);
    }
}
