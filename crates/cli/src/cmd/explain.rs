//! `cantle explain`: a page for each short name that cantle prints, and for its exit codes.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Args;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use serde::Serialize;

use crate::complete::candidates;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format};

/// `cantle explain`
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The word, e.g. allocation-refused, or an exit code
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(offer_pages))]
    name: Option<String>,
}

const CHAPTERS: [&str; 3] = [
    include_str!("../explain/enforcement.md"),
    include_str!("../explain/waiting.md"),
    include_str!("../explain/exit-codes.md"),
];

/// Names at least this similar, of 1, may be what the user meant (`strsim::jaro_winkler`).
const ALIKE: f64 = 0.75;

/// One page: in the text, a heading `# name: title` and what follows it.
#[derive(Serialize, Clone, Copy)]
struct Page {
    name: &'static str,
    title: &'static str,
    text: &'static str,
}

impl Page {
    fn read(section: &'static str) -> Option<Self> {
        let (heading, text) = section.split_once('\n')?;
        let (name, title) = heading.split_once(": ")?;
        Some(Self { name, title, text: text.trim() })
    }

    /// `6` and `exit-6` mean the same.
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix("exit-") == Some(name)
    }
}

const COLUMNS: [Column<Page>; 2] = [
    Column { head: "NAME", wide: false, cell: |page| page.name.to_owned() },
    Column { head: "ABOUT", wide: false, cell: |page| page.title.to_owned() },
];

/// All pages, chapter by chapter.
fn pages() -> impl Iterator<Item = Page> {
    CHAPTERS.into_iter().flat_map(|chapter| {
        chapter.strip_prefix("# ").unwrap_or(chapter).split("\n# ").filter_map(Page::read)
    })
}

/// The pages, for a shell that completes.
fn offer_pages(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, pages().map(|page| (page.name.to_owned(), page.title.to_owned())))
}

/// Prints one page, or lists them all.
pub(crate) fn explain(context: &Context, args: &ExplainArgs) -> CommandResult {
    let printer = &context.printer;
    let Some(name) = args.name.as_deref() else {
        printer.items(&pages().collect::<Vec<_>>(), |page| page.name.to_owned(), &COLUMNS);
        return Ok(ExitCode::SUCCESS);
    };
    let page = pages().find(|page| page.is_called(name)).ok_or_else(|| unknown(name))?;
    match printer.format {
        Format::Table | Format::Wide | Format::Conf | Format::Focus => {
            printer.data(&printer.bold(&format!("{}: {}", page.name, page.title)));
            printer.data(&format!("\n{}", page.text));
        }
        Format::Json | Format::Name | Format::Csv => {
            printer.items(&[page], |page| page.name.to_owned(), &COLUMNS)
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(name: &str) -> CliError {
    let mut alike: Vec<(f64, &str)> =
        pages().map(|page| (strsim::jaro_winkler(page.name, name), page.name)).collect();
    alike.retain(|(likeness, _)| *likeness >= ALIKE);
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    let meant: Vec<&str> = alike.into_iter().map(|(_, name)| name).take(3).collect();
    let hint = match meant.as_slice() {
        [] => "all pages are listed by cantle explain".to_owned(),
        names => format!("did you mean {}?", names.join(", ")),
    };
    CliError::new(ErrorKind::NotFound, format!("there is no page \"{name}\"")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn names() -> BTreeSet<&'static str> {
        pages().map(|page| page.name).collect()
    }

    /// The words that follow `before` in `text`.
    fn words_after<'t>(text: &'t str, before: &str) -> Vec<&'t str> {
        let word = |rest: &'t str| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next();
        text.split(before).skip(1).filter_map(word).filter(|word| !word.is_empty()).collect()
    }

    /// All text of the files with this ending below a directory.
    fn read_all(dir: &Path, ending: &str, text: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_all(&path, ending, text);
            } else if path.extension().is_some_and(|found| found == ending) {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn every_page_is_whole() {
        let count = CHAPTERS.iter().flat_map(|text| text.lines()).filter(|l| l.starts_with("# ")).count();
        assert_eq!(names().len(), count, "a heading that is not `# name: title`, or a name given twice");
        assert!(pages().all(|page| !page.title.is_empty() && !page.text.is_empty()));
    }

    #[test]
    fn every_page_that_is_named_anywhere_exists() {
        let mut text = String::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        read_all(crates, "rs", &mut text);
        read_all(crates, "md", &mut text);
        let named: BTreeSet<&str> = words_after(&text, "cantle explain ").into_iter().collect();
        for name in ["allocation-refused", "watchdog-kill", "no-capacity"] {
            assert!(
                named.contains(name),
                "cantle prints {name}, or this test reads the wrong files: {named:?}"
            );
        }
        let known = names();
        let missing: Vec<_> = named.difference(&known).collect();
        assert!(missing.is_empty(), "no page for {missing:?}");
    }

    #[test]
    fn every_exit_code_has_a_page() {
        let table = include_str!("../../../../docs/reference/layout.md");
        let codes: Vec<u8> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
            .flat_map(|cell| cell.split(", "))
            .filter_map(|code| code.parse().ok())
            .filter(|code| *code != 0)
            .collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 125, 126, 127]);
        for code in codes {
            assert!(pages().any(|page| page.is_called(&code.to_string())), "no page for exit code {code}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_right_gets_a_hint() {
        assert_eq!(unknown("alocation-refuse").hints(), ["did you mean allocation-refused?"]);
        assert_eq!(unknown("xyz").hints(), ["all pages are listed by cantle explain"]);
    }
}
