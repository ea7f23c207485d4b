//! Filters texts of tasks and other users (names, messages, output) before they reach a terminal.
//!
//! Escape sequences can write the clipboard (OSC 52), answer for the user, or move the cursor over what was printed before. Colors
//! and progress bars stay: `\r`, and the sequences that set colors or clear a line.

use std::borrow::Cow;

/// `text` without control characters that do more than color; each of the others is shown as it would be written in a program.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = color(rest).unwrap_or_else(|| first.len_utf8());
        let (taken, after) = rest.split_at(length);
        if length > first.len_utf8() || is_plain(first) {
            out.push_str(taken);
        } else {
            out.extend(first.escape_default());
        }
        rest = after;
    }
    Cow::Owned(out)
}

/// The length of the sequence at the beginning of `text` that sets a color or clears (a part of) the line.
fn color(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    matches!(parameters.as_bytes().get(end), Some(b'm' | b'K')).then_some("\u{1b}[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_and_progress_bars_stay() {
        for text in ["plain", "50 %\r100 %\n", "\u{1b}[1;31mred\u{1b}[0m", "\u{1b}[Kline", "größer\t2"] {
            assert_eq!(harmless(text), text);
        }
    }

    #[test]
    fn nothing_else_reaches_the_terminal() {
        assert_eq!(
            harmless("\u{1b}]52;c;cm0gLXJm\u{7}"),
            "\\u{1b}]52;c;cm0gLXJm\\u{7}",
            "the clipboard is not written"
        );
        assert_eq!(harmless("\u{1b}[2J\u{1b}[H"), "\\u{1b}[2J\\u{1b}[H", "the screen is not cleared");
        assert_eq!(harmless("\u{9b}31m"), "\\u{9b}31m", "nor by the one-character form");
        assert_eq!(harmless("cut \u{1b}[3"), "cut \\u{1b}[3");
    }
}
