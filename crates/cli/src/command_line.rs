//! The words of a command line.

use std::ffi::OsString;

/// The words without these options and their values. The words after `--` belong to the user's command.
pub(crate) fn without_options(words: &[OsString], options: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        let has_value = |option: &&str| text.strip_prefix(option).is_some_and(|value| value.starts_with('='));
        if word == "--" {
            kept.push(word.clone());
            kept.extend(rest.by_ref().cloned());
        } else if options.contains(&&*text) {
            rest.next();
        } else if !options.iter().any(has_value) {
            kept.push(word.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_options_are_left_out_and_nothing_else() {
        let left = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            let kept = without_options(&words, &["--sim-gpus", "--sim-dir"]);
            kept.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(left(&["--sim-gpus", "1xT4-16GB", "run", "--gpu", "1"]), ["run", "--gpu", "1"]);
        assert_eq!(left(&["run", "--sim-gpus=1xT4-16GB", "--sim-dir=/x", "--gpu=1"]), ["run", "--gpu=1"]);
        assert_eq!(left(&["run", "--", "x", "--sim-gpus", "y"]), ["run", "--", "x", "--sim-gpus", "y"]);
    }
}
