//! The output of `cantle`: data on stdout (tables, JSON, names), messages on stderr. Nothing else in this crate prints.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the one place that prints")]

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

use crate::error::CliError;
use crate::terminal::harmless;

/// How data is printed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Columns for people
    Table,
    /// More columns
    Wide,
    /// {"version":1,"items":[…]}
    Json,
    /// Comma-separated values with a header, for spreadsheets
    Csv,
    /// Names or ids, one a line
    Name,
    /// A ready clearml.conf (`credentials` only)
    Conf,
    /// Charges in the columns of FOCUS 1.3, as CSV (`usage` with a price sheet only)
    Focus,
}

/// One column of a table: its header, whether only `-o wide` shows it, and its cell.
pub(crate) struct Column<T> {
    pub(crate) head: &'static str,
    pub(crate) wide: bool,
    pub(crate) cell: fn(&T) -> String,
}

/// Prints for one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) format: Format,
    pub(crate) headers: bool,
    pub(crate) quiet: bool,
    pub(crate) color: bool,
}

/// A name cannot move the cursor, or begin a line of its own.
fn visible(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

impl Printer {
    /// A list, in the format that was requested.
    pub(crate) fn items<T: Serialize>(&self, items: &[T], name: fn(&T) -> String, columns: &[Column<T>]) {
        match self.format {
            Format::Json => self.json(&serde_json::json!({"version": 1, "items": items})),
            Format::Name => items.iter().for_each(|item| line(&name(item))),
            Format::Csv => {
                let head: Vec<String> = columns.iter().map(|c| c.head.to_lowercase()).collect();
                let row = |item| columns.iter().map(|c| (c.cell)(item)).collect();
                self.csv(&head, &items.iter().map(row).collect::<Vec<_>>());
            }
            Format::Table | Format::Wide | Format::Conf | Format::Focus => {
                let wide = self.format == Format::Wide;
                let columns: Vec<_> = columns.iter().filter(|c| wide || !c.wide).collect();
                let head: Vec<String> = columns.iter().map(|c| c.head.to_owned()).collect();
                let row = |item| columns.iter().map(|c| (c.cell)(item)).collect();
                self.rows(&head, &items.iter().map(row).collect::<Vec<_>>());
            }
        }
    }

    /// A table.
    pub(crate) fn rows(&self, head: &[String], rows: &[Vec<String>]) {
        let head = self.headers.then(|| head.to_vec());
        let rows = rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect());
        layout(&head.into_iter().chain(rows).collect::<Vec<_>>()).iter().for_each(|row| line(row));
    }

    /// Comma-separated values (RFC 4180).
    pub(crate) fn csv(&self, head: &[String], rows: &[Vec<String>]) {
        let cell = |text: &String| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let head = self.headers.then_some(head);
        for row in head.into_iter().chain(rows.iter().map(Vec::as_slice)) {
            line(&row.iter().map(cell).collect::<Vec<_>>().join(","));
        }
    }

    /// A value as indented JSON.
    pub(crate) fn json<T: Serialize>(&self, value: &T) {
        // Serializing our own plain types cannot fail; an empty line would be noticed.
        line(&serde_json::to_string_pretty(value).unwrap_or_default());
    }

    /// One line of data.
    pub(crate) fn data(&self, text: &str) {
        line(text);
    }

    /// Data without a line end of its own (a task's output).
    pub(crate) fn raw(&self, text: &str) {
        let text = for_stdout(text);
        let mut out = std::io::stdout().lock();
        note(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// A message: on stderr, silent under `-q`.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("{}", for_stderr(text));
        }
    }

    /// Bold on a terminal with colors.
    pub(crate) fn bold(&self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// How the line of an error begins.
pub(crate) const ERROR: &str = "cantle: ";
/// How the line of a cause begins.
pub(crate) const CAUSE: &str = "caused by: ";
/// How the line of a hint begins.
pub(crate) const HINT: &str = "hint: ";

/// An error: its line on stderr, below it its causes with `-v`, and the hints.
pub(crate) fn complain(error: &CliError, verbose: bool) {
    complaint(error, verbose).iter().for_each(|line| eprintln!("{}", for_stderr(line)));
}

fn complaint(error: &CliError, verbose: bool) -> Vec<String> {
    let mut lines = vec![format!("{ERROR}{error}")];
    if verbose {
        lines.extend(error.causes().iter().map(|cause| format!("{CAUSE}{cause}")));
    }
    lines.extend(error.hints().iter().map(|hint| format!("{HINT}{hint}")));
    lines
}

/// Is stdout a terminal?
pub(crate) fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Is there a terminal at which a person can answer?
pub(crate) fn has_somebody_to_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Asks for a yes; anything else is a no.
pub(crate) fn ask(question: &str) -> bool {
    eprint!("{} [y/N] ", for_stderr(question));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// A file or another program gets every byte.
fn for_stdout(text: &str) -> Cow<'_, str> {
    if on_terminal() { harmless(text) } else { Cow::Borrowed(text) }
}

fn for_stderr(text: &str) -> Cow<'_, str> {
    if std::io::stderr().is_terminal() { harmless(text) } else { Cow::Borrowed(text) }
}

fn line(text: &str) {
    let text = for_stdout(text);
    let mut out = std::io::stdout().lock();
    note(out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")));
}

/// Did stdout not take some of the data?
static IS_CUT: AtomicBool = AtomicBool::new(false);

/// A closed pipe (`| head`) is the reader's decision. On a full disk the data is incomplete, which is reported once.
fn note(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
        && !IS_CUT.swap(true, Ordering::Relaxed)
    {
        // A terminal that is gone takes no message either.
        let _ = writeln!(std::io::stderr(), "{ERROR}stdout is incomplete: {error}");
    }
}

/// Is the data on stdout incomplete?
pub(crate) fn is_cut() -> bool {
    IS_CUT.load(Ordering::Relaxed)
}

/// The age of a time of the server, in one unit; `-` without a time. `-o json` has the time itself.
pub(crate) fn ago(time: Option<&str>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| ago_at(time, Timestamp::now()))
}

/// The same, short enough for a column: `41s`, `2h`.
pub(crate) fn age(time: &str) -> String {
    between(time, None)
}

/// The time from one moment to another, or to now.
pub(crate) fn between(from: &str, to: Option<&str>) -> String {
    let to = to.map_or_else(|| Ok(Timestamp::now()), str::parse::<Timestamp>);
    let (Ok(from), Ok(to)) = (from.parse::<Timestamp>(), to) else { return "?".to_owned() };
    let seconds = to.duration_since(from).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn ago_at(time: &str, now: Timestamp) -> String {
    // A value that is not a time is shown unchanged.
    let Ok(then) = time.parse::<Timestamp>() else { return time.to_owned() };
    // The server's clock may be ahead of this one.
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// Pads cells to columns, two blanks between them, none at the end.
fn layout(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let row_text = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(row_text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_by_their_age() {
        let now: Timestamp = "2026-11-23T12:00:00Z".parse().unwrap();
        let cases = [
            ("2026-11-23T11:59:18.141000+00:00", "41 s ago"),
            ("2026-11-23T11:58:59+00:00", "1 min ago"),
            ("2026-11-23T09:30:00+00:00", "2 h ago"),
            ("2026-11-01T12:00:00+00:00", "22 d ago"),
            ("2026-11-23T12:00:05+00:00", "0 s ago"),
            ("never", "never"),
        ];
        for (time, expected) in cases {
            assert_eq!(ago_at(time, now), expected, "{time}");
        }
        assert_eq!(ago(None), "-");
        let to = |to| between("2026-11-23T12:00:00.5+00:00", Some(to));
        assert_eq!(to("2026-11-23T12:01:40+00:00"), "99s");
        assert_eq!(to("2026-11-23T12:02:01+00:00"), "2m");
        assert_eq!(to("2026-11-24T12:02:01+00:00"), "24h");
        assert_eq!(to("2026-11-29T12:02:01+00:00"), "6d");
        assert_eq!(to("2026-11-23T11:00:00+00:00"), "0s");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["A".into(), "BB".into()], vec!["ccc".into(), "d".into()]];
        assert_eq!(layout(&rows), ["A    BB", "ccc  d"]);
        assert!(layout(&[]).is_empty());
    }
}
