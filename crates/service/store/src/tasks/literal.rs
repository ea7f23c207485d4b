//! A text that is part of all matches of a regular expression: looking for it is quicker than trying the expression.

use regex_syntax::hir::{Hir, HirKind};

/// The longest such text, as written and in this case; `None` if the expression is not valid or has none.
pub(crate) fn required(pattern: &str) -> Option<String> {
    let expression = regex_syntax::parse(pattern).ok()?;
    String::from_utf8(longest(&expression)?.to_vec()).ok()
}

fn longest(hir: &Hir) -> Option<&[u8]> {
    match hir.kind() {
        HirKind::Literal(text) => Some(&text.0),
        HirKind::Capture(group) => longest(&group.sub),
        HirKind::Repetition(repeated) if repeated.min > 0 => longest(&repeated.sub),
        HirKind::Concat(parts) => parts.iter().filter_map(longest).max_by_key(|text| text.len()),
        _ => None,
    }
}

/// Whether an index of trigrams can find its matches: it needs three letters or digits in a row. For other expressions PostgreSQL
/// would read all of that index, and then all rows.
pub(crate) fn has_trigram(pattern: &str) -> bool {
    const CHARS: usize = 3;
    pattern.split(|each: char| !each.is_alphanumeric()).any(|word| word.chars().count() >= CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_that_an_index_of_trigrams_finds() {
        for (pattern, found) in [
            ("abc", true),
            ("foo|bar", true),
            ("77", false),
            ("a.*b", false),
            (r"\d\d\d", false),
            ("üöä", true),
        ] {
            assert_eq!(has_trigram(pattern), found, "{pattern}");
        }
    }

    #[test]
    fn texts_that_each_match_has() {
        for (pattern, text) in [
            ("abc", Some("abc")),
            ("^train .*x$", Some("train ")),
            ("a(bcd)+e", Some("bcd")),
            ("a(bcd)*efg", Some("efg")),
            (r"v1\.2", Some("v1.2")),
            ("ü+", Some("ü")),
            ("abc|abx", None),
            ("abc|xyz", None),
            ("(?i)abc", None),
            ("(?i)a(?-i)bcd", Some("bcd")),
            (".*", None),
            ("", None),
            ("(", None),
        ] {
            assert_eq!(required(pattern).as_deref(), text, "{pattern}");
        }
    }
}
