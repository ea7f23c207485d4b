//! Rows as styled lines: the same for `--once` and for the screen. Everything can be read without colors.

use cantle_clearml::cantle::{GpuView, ProcessView, SliceView, TaskView};
use cantle_model::{Bytes, Enforcement, Milli, TaskStatus, counted};
use ratatui::style::{Color, Modifier, Style as Look};
use ratatui::text::{Line, Span};

use super::rows::{Picture, TopRow, used_bytes};

/// The abilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) ascii: bool,
    pub(crate) color: bool,
}

/// Cells of a GPU's bar.
const BAR: usize = 24;
/// Colors that distinguish the slices of a GPU, in turn.
const COLORS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::LightRed];

/// The meaning of a cell of the bar: used memory of a slice, the rest of its limit, free.
struct Glyphs {
    used: &'static str,
    limit: &'static str,
    free: &'static str,
    branch: &'static str,
    stem: &'static str,
    last: &'static str,
}

const UNICODE: Glyphs =
    Glyphs { used: "█", limit: "▒", free: "·", branch: "├ ", stem: "│", last: "└ " };
const ASCII: Glyphs = Glyphs { used: "#", limit: "=", free: ".", branch: "|-", stem: "|", last: "`-" };

impl Style {
    const fn glyphs(self) -> &'static Glyphs {
        if self.ascii { &ASCII } else { &UNICODE }
    }

    fn color(self, at: usize) -> Look {
        if self.color { Look::new().fg(COLORS[at % COLORS.len()]) } else { Look::new() }
    }
}

/// One line about everything.
pub(crate) fn summary(picture: &Picture) -> Line<'static> {
    let gpus: Vec<&GpuView> =
        picture.nodes.iter().filter(|node| node.alive).flat_map(|node| &node.gpus).collect();
    let given = Milli(gpus.iter().map(|gpu| gpu.allocated_milli).sum());
    let used: u64 = gpus.iter().map(|gpu| used_bytes(gpu)).sum();
    let total: u64 = gpus.iter().map(|gpu| gpu.memory_bytes).sum();
    let count = |state| picture.tasks.iter().filter(|task| task.state == state).count();
    let (running, waiting) = (count(TaskStatus::InProgress), count(TaskStatus::Queued));
    let text = format!(
        "{given} of {} allocated, {} of {} used, {running} running, {waiting} waiting",
        counted(gpus.len(), "GPU"),
        Bytes(used),
        Bytes(total),
    );
    Line::styled(text, Look::new().add_modifier(Modifier::BOLD))
}

/// One row.
pub(crate) fn row(row: &TopRow, style: Style) -> Line<'static> {
    match row {
        TopRow::Gpu { node, gpu } => gpu_line(node, gpu, style),
        TopRow::Slice { slice, at, last, task } => slice_line(slice, *at, *last, task.as_deref(), style),
        TopRow::Process { process, last, .. } => process_line(process, *last, style),
        TopRow::Waiting(count) => {
            Line::styled(format!("waiting: {count}"), Look::new().add_modifier(Modifier::BOLD))
        }
        TopRow::Task(task) => waiting_line(task),
    }
}

fn gpu_line(node: &str, gpu: &GpuView, style: Style) -> Line<'static> {
    let model = gpu.model.strip_prefix("NVIDIA ").unwrap_or(&gpu.model);
    let mode = gpu.mode.word();
    let mut line = Line::default();
    line.push_span(Span::styled(
        format!("{:<16}", format!("{node}/{}", gpu.index)),
        Look::new().add_modifier(Modifier::BOLD),
    ));
    line.push_span(format!(" {model:<18} {mode:<6} ["));
    bar(gpu, style).into_iter().for_each(|span| line.push_span(span));
    let (given, used) = (Milli(gpu.allocated_milli).to_string(), Bytes(used_bytes(gpu)).to_string());
    let total = Bytes(gpu.memory_bytes);
    line.push_span(format!("] {given:>5} of 1  {used:>8} of {total}"));
    line
}

/// The memory of a GPU from left to right: each slice as wide as its limit, and how much of that is used.
fn bar(gpu: &GpuView, style: Style) -> Vec<Span<'static>> {
    let glyphs = style.glyphs();
    let (mut spans, mut end_bytes, mut drawn) = (Vec::new(), 0, 0);
    for (at, slice) in gpu.slices.iter().enumerate() {
        end_bytes += slice.memory_limit_bytes;
        // Ends are rounded, not widths: so the bar's length never depends on how many slices there are.
        let end = cells(end_bytes, gpu.memory_bytes).max(drawn);
        let width = end - drawn;
        let used = match slice.memory_used_bytes {
            0 => 0,
            used => (width * cells(used, slice.memory_limit_bytes)).div_ceil(BAR).min(width),
        };
        let text = glyphs.used.repeat(used) + &glyphs.limit.repeat(width - used);
        spans.push(Span::styled(text, style.color(at)));
        drawn = end;
    }
    let foreign: u32 = gpu.foreign.iter().map(|instance| instance.milli).sum();
    let taken = cells(u64::from(foreign), u64::from(Milli::ONE.0)).min(BAR - drawn);
    spans.push(Span::raw(glyphs.free.repeat(BAR - drawn - taken) + &"#".repeat(taken)));
    spans
}

/// A part of the whole in cells of the bar.
fn cells(part: u64, whole: u64) -> usize {
    let cells = (u128::from(part) * BAR as u128 + u128::from(whole) / 2) / u128::from(whole.max(1));
    usize::try_from(cells).map_or(BAR, |cells| cells.min(BAR))
}

fn slice_line(
    slice: &SliceView,
    at: usize,
    last: bool,
    task: Option<&TaskView>,
    style: Style,
) -> Line<'static> {
    let glyphs = style.glyphs();
    let share = match &slice.mig {
        Some(mig) => mig.profile.clone(),
        None => Milli(slice.milli).to_string(),
    };
    let name = task.map_or(slice.task.as_str(), |task| &task.name);
    let queue = task.and_then(|task| task.queue.as_deref()).unwrap_or("-");
    let mut line = Line::raw(format!("  {}", if last { glyphs.last } else { glyphs.branch }));
    line.push_span(Span::styled(glyphs.used.to_owned(), style.color(at)));
    let enforced = slice.enforcement.map_or("-", Enforcement::word);
    line.push_span(format!(
        " {:<30} {queue:<12} {share:<9} {:>8} of {:<8} {enforced:<9} {}",
        clip(name, 30),
        Bytes(slice.memory_used_bytes).to_string(),
        Bytes(slice.memory_limit_bytes).to_string(),
        slice.task,
    ));
    if let Some(compute) = &slice.compute {
        line.push_span(format!("  {compute}"));
    }
    line
}

/// Its memory is aligned with that of its slice.
fn process_line(process: &ProcessView, last: bool, style: Style) -> Line<'static> {
    let stem = if last { " " } else { style.glyphs().stem };
    let pid = format!("pid {}", process.pid);
    let text = format!("  {stem}   {pid:<53} {:>8}", Bytes(process.memory_bytes).to_string());
    Line::styled(text, Look::new().add_modifier(Modifier::DIM))
}

fn waiting_line(task: &TaskView) -> Line<'static> {
    let reason = task.reason.as_deref().unwrap_or("no agent has looked at it yet");
    let queue = task.queue.as_deref().unwrap_or("-");
    Line::raw(format!("  {:<32} {queue:<12} {reason}", clip(&task.name, 32)))
}

/// A line for stdout: with the terminal's colors, if it wants them.
pub(crate) fn to_text(line: &Line<'_>, style: Style) -> String {
    let mut text = String::new();
    for span in &line.spans {
        match span.style.fg.and_then(ansi).filter(|_| style.color) {
            Some(code) => text += &format!("\x1b[{code}m{}\x1b[0m", span.content),
            None => text += &span.content,
        }
    }
    text.trim_end().to_owned()
}

const fn ansi(color: Color) -> Option<u8> {
    Some(match color {
        Color::Green => 32,
        Color::Yellow => 33,
        Color::Blue => 34,
        Color::Magenta => 35,
        Color::Cyan => 36,
        Color::LightRed => 91,
        _ => return None,
    })
}

fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(std::iter::once('~')).collect()
}

#[cfg(test)]
pub(crate) mod tests;
