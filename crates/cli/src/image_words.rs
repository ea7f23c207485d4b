//! `--image IMAGE ARGS… -- CMD`: the words between the image and `--` are options of `docker run`, whatever they look
//! like. The parser would take them for our own, so each becomes one word that it can't mistake.

use std::ffi::OsString;

/// The hidden option that carries one such word.
pub(crate) const CARRIER: &str = "image-arg";

/// The command line with those words carried.
pub(crate) fn carried(words: Vec<OsString>) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let image = words[..end].iter().position(|word| {
        let text = word.to_string_lossy();
        text == "--image" || text.starts_with("--image=")
    });
    let Some(image) = image else { return words };
    let first = image + if words[image] == "--image" { 2 } else { 1 };
    let carry = |(at, word): (usize, OsString)| {
        if !(first..end).contains(&at) {
            return word;
        }
        let mut carrier = OsString::from(format!("--{CARRIER}="));
        carrier.push(word);
        carrier
    };
    words.into_iter().enumerate().map(carry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried_text(line: &str) -> String {
        let words = carried(line.split(' ').map(Into::into).collect());
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn dockers_words_are_kept_apart_from_ours() {
        for (given, expected) in [
            ("run --gpu 0.5 -- docker --image x", "run --gpu 0.5 -- docker --image x"),
            ("run --image img -- ls -l", "run --image img -- ls -l"),
            ("run --image img -e A=1 -- ls", "run --image img --image-arg=-e --image-arg=A=1 -- ls"),
            ("run --image=img --ipc=host -- ls", "run --image=img --image-arg=--ipc=host -- ls"),
            ("run --image img --gpu 1", "run --image img --image-arg=--gpu --image-arg=1"),
            ("run --image", "run --image"),
        ] {
            assert_eq!(carried_text(given), expected);
        }
    }
}
