//! `cantle usage`: who had which part of the GPUs for how long, and the time that no run had.

mod focus;
pub(crate) mod prices;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr as _;

use cantle_clearml::usage::{GetUsage, GpuAccount, PriceSheet, Usage, UsageKey, UsageKind, UsageLine};
use clap::Args;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};
use serde_json::{Map, Value, json};

use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format};

pub(crate) const HOUR: f64 = 3600.0;

/// `cantle usage`
#[derive(Args, Debug)]
pub(crate) struct UsageArgs {
    /// First day or moment, like 2026-11-01 or 2026-11-01T08:00:00Z [default: the beginning of this month in UTC]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// First day or moment that does not count any more [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Timestamp>,
    /// Add up by project, user, queue, task, node, pool, gpu, model, side, day, month or label:KEY; repeat it, or give a list like
    /// project,user [default: project]
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = UsageKey::from_str)]
    by: Vec<UsageKey>,
    /// Compute costs with this price sheet, a TOML file (docs/guide/usage.md) [default: the one of the server, if it has one]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Print only the N lines that left most of their memory unused, the most first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    most_unused: Option<u32>,
    /// Compare the parts of each GPU's time with the time that has passed, and fail if they do not add up
    #[arg(long, conflicts_with_all = ["by", "prices", "most_unused"])]
    check: bool,
}

/// A day is its beginning in UTC.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let day = || text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok().map(|day| day.timestamp());
    let time = || text.parse::<Timestamp>().ok();
    // A date is read as such first: a time without an offset is no moment.
    time()
        .or_else(|| (text.len() == 10).then(day).flatten())
        .ok_or_else(|| "it is a day like 2026-11-01, or a moment like 2026-11-01T08:00:00Z".to_owned())
}

/// Refuses a period that ends before it begins.
pub(crate) fn check_order(from: Timestamp, to: Timestamp) -> Result<(), CliError> {
    if from < to {
        return Ok(());
    }
    let text = format!("--from is {from} and --to is {to}; --to is later than --from");
    Err(CliError::new(ErrorKind::Usage, text))
}

/// Prints the lines, or the account of each GPU.
pub(crate) fn usage(context: &Context, args: &UsageArgs) -> CommandResult {
    let to = args.to.unwrap_or_else(Timestamp::now);
    let from = args.from.map_or_else(|| month_of(to), Ok)?;
    check_order(from, to)?;
    let prices = args.prices.as_deref().map(prices::read).transpose()?;
    let by = keys(context, args)?;
    let request = GetUsage {
        from: from.to_string(),
        to: to.to_string(),
        by: by.clone(),
        prices,
        most_unused: args.most_unused.map(|count| count as usize),
    };
    let connection = Connection::open(context)?;
    let usage = match context.printer.format {
        Format::Focus => day_by_day(&connection, &request, from, to)?,
        _ => connection.call(&request)?,
    };
    if args.check {
        return check(context, &usage);
    }
    match context.printer.format {
        Format::Json => context.printer.json(&as_json(&usage, &by)),
        Format::Focus => {
            let charges = focus::charges(&usage)?;
            let head =
                charges.first().into_iter().flatten().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
            let row = |charge: &Vec<(_, String)>| charge.iter().map(|(_, value)| value.clone()).collect();
            context.printer.csv(&head, &charges.iter().map(row).collect::<Vec<Vec<String>>>());
        }
        Format::Csv => csv(context, &usage, &by),
        Format::Table | Format::Wide | Format::Name | Format::Conf => {
            table(context, &usage, &by);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines of each day, which are by day: all of them together may be more than a report has.
fn day_by_day(
    connection: &Connection,
    request: &GetUsage,
    from: Timestamp,
    to: Timestamp,
) -> Result<Usage, CliError> {
    let mut whole: Option<Usage> = None;
    let mut at = from;
    while at < to {
        let next = at.to_zoned(TimeZone::UTC).date().tomorrow().and_then(|day| day.to_zoned(TimeZone::UTC));
        let next = next.map_or(to, |day| day.timestamp().min(to));
        let part =
            connection.call(&GetUsage { from: at.to_string(), to: next.to_string(), ..request.clone() })?;
        let is_over = part.to.parse::<Timestamp>().is_ok_and(|until| until < next);
        match &mut whole {
            Some(whole) => {
                whole.lines.extend(part.lines);
                whole.to = part.to;
            }
            None => whole = Some(part),
        }
        if is_over {
            break;
        }
        at = next;
    }
    Ok(whole.unwrap_or_default())
}

/// The keys by which lines are added up.
fn keys(context: &Context, args: &UsageArgs) -> Result<Vec<UsageKey>, CliError> {
    let refused = |text: &str| Err(CliError::new(ErrorKind::Usage, text));
    match (context.printer.format, args.by.as_slice()) {
        (Format::Focus, _) if args.most_unused.is_some() => {
            refused("-o focus has all charges: it takes no --most-unused")
        }
        (Format::Focus, [_, ..]) => {
            refused("-o focus has a charge for each task, GPU and day: it takes no --by")
        }
        (Format::Focus, []) => Ok(focus::BY.to_vec()),
        (_, []) => Ok(vec![UsageKey::Project]),
        (_, some) => {
            let mut by = Vec::new();
            for key in some {
                if !by.contains(key) {
                    by.push(key.clone());
                }
            }
            Ok(by)
        }
    }
}

fn month_of(to: Timestamp) -> Result<Timestamp, CliError> {
    let first = to.to_zoned(TimeZone::UTC).first_of_month().and_then(|day| day.start_of_day());
    first.map(|day| day.timestamp()).map_err(|error| CliError::new(ErrorKind::Usage, error.to_string()))
}

/// One value of a line: its name in JSON and CSV, and the value.
fn values(line: &UsageLine, by: &[UsageKey], sheet: Option<&PriceSheet>) -> Vec<(String, Value)> {
    let mut all = vec![("kind".to_owned(), json!(line.kind))];
    all.extend(by.iter().zip(&line.keys).map(|(key, value)| (key.to_string(), json!(value))));
    let mut add = |name: &str, value| all.push((name.to_owned(), value));
    if by.contains(&UsageKey::Task) {
        add("name", json!(line.name));
    }
    let fixed = [
        ("runs", json!(line.runs)),
        ("gpu_seconds", json!(line.gpu_seconds)),
        ("guaranteed_gpu_seconds", json!(line.guaranteed_gpu_seconds)),
        ("borrowed_gpu_seconds", json!(line.borrowed_gpu_seconds)),
        ("lent_gpu_seconds", json!(line.lent_gpu_seconds)),
        ("memory_gib_seconds", json!(line.memory_gib_seconds)),
        ("memory_peak", json!(line.memory_peak)),
        ("wait_median_s", json!(line.wait_median_s)),
        ("wait_p95_s", json!(line.wait_p95_s)),
        ("given_up", json!(line.given_up)),
        ("lost_gpu_seconds", json!(line.lost_gpu_seconds)),
    ];
    fixed.into_iter().for_each(|(name, value)| add(name, value));
    if let Some(sheet) = sheet {
        add("cost", json!(line.cost));
        add("currency", json!(sheet.currency));
    }
    all
}

fn as_json(usage: &Usage, by: &[UsageKey]) -> Value {
    let item = |line| values(line, by, usage.prices.as_ref()).into_iter().collect();
    let items: Vec<Map<String, Value>> = usage.lines.iter().map(item).collect();
    json!({"version": 1, "from": usage.from, "to": usage.to, "items": items})
}

fn csv(context: &Context, usage: &Usage, by: &[UsageKey]) {
    let sheet = usage.prices.as_ref();
    let text = |value: Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    };
    let head = values(&UsageLine { keys: vec![String::new(); by.len()], ..UsageLine::default() }, by, sheet);
    let mut head: Vec<String> = head.into_iter().map(|(name, _)| name).collect();
    head.splice(0..0, ["period_start".to_owned(), "period_end".to_owned()]);
    let row = |line| {
        let period = [usage.from.clone(), usage.to.clone()].into_iter();
        period.chain(values(line, by, sheet).into_iter().map(|(_, value)| text(value))).collect()
    };
    let rows: Vec<Vec<String>> = usage.lines.iter().map(row).collect();
    context.printer.csv(&head, &rows);
}

fn table(context: &Context, usage: &Usage, by: &[UsageKey]) {
    let sheet = usage.prices.as_ref();
    // Of all GPUs, also where only some lines were asked for.
    let of_gpu =
        |gpu: &GpuAccount| gpu.allocated_seconds + gpu.free_seconds + gpu.faulty_seconds + gpu.away_seconds;
    let all: f64 = usage.gpus.iter().map(of_gpu).sum();
    let mut head: Vec<String> = by.iter().map(heading).collect();
    if by.contains(&UsageKey::Task) {
        head.push("NAME".to_owned());
    }
    let is_wide = context.printer.format == Format::Wide;
    head.extend(["KIND", "RUNS", "GPU-HOURS"].map(str::to_owned));
    head.extend(["GUARANTEED", "BORROWED", "LENT"].into_iter().filter(|_| is_wide).map(str::to_owned));
    head.extend(["SHARE", "GIB-HOURS", "PEAK", "WAIT", "WAIT-P95", "LOST"].map(str::to_owned));
    head.extend(sheet.map(|sheet| format!("COST ({})", sheet.currency)));
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let row = |line: &UsageLine| {
        let mut row: Vec<String> = line.keys.iter().map(|key| or_dash(key)).collect();
        if by.contains(&UsageKey::Task) {
            row.push(or_dash(line.name.as_deref().unwrap_or_default()));
        }
        let share = if all > 0.0 { 100.0 * line.gpu_seconds / all } else { 0.0 };
        row.extend([
            line.kind.word().to_owned(),
            if line.runs == 0 { "-".to_owned() } else { line.runs.to_string() },
            format!("{:.3}", line.gpu_seconds / HOUR),
        ]);
        if is_wide {
            let had = line.kind == UsageKind::Allocated;
            let sides =
                [had.then_some(line.guaranteed_gpu_seconds), had.then_some(line.borrowed_gpu_seconds)];
            let hours = |seconds: f64| format!("{:.3}", seconds / HOUR);
            let or_none = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), hours);
            row.extend(sides.into_iter().chain([line.lent_gpu_seconds]).map(or_none));
        }
        row.extend([
            format!("{share:.1} %"),
            format!("{:.1}", line.memory_gib_seconds / HOUR),
            line.memory_peak.map_or_else(|| "-".to_owned(), |part| format!("{:.0} %", 100.0 * part)),
            wait(line.wait_median_s),
            wait(line.wait_p95_s),
            if line.given_up == 0 { "-".to_owned() } else { format!("{:.3}", line.lost_gpu_seconds / HOUR) },
        ]);
        if sheet.is_some() {
            row.push(line.cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.2}")));
        }
        row
    };
    context.printer.rows(&head, &usage.lines.iter().map(row).collect::<Vec<_>>());
    if usage.lines.is_empty() {
        context.printer.say(&format!("no GPU was recorded between {} and {}", usage.from, usage.to));
    }
    if sheet.is_some() && usage.lines.iter().any(|line| line.cost.is_none()) {
        context.printer.say("a cost is absent where the price sheet has no price for all of the time");
    }
}

/// Keys of labels are written as the tags are.
fn heading(key: &UsageKey) -> String {
    match key {
        UsageKey::Label(key) => key.clone(),
        other => other.to_string().to_uppercase(),
    }
}

fn wait(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    let whole = jiff::SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
    let round = jiff::SignedDurationRound::new().smallest(if seconds < 10.0 {
        Unit::Millisecond
    } else {
        Unit::Second
    });
    format!("{:#}", whole.round(round).unwrap_or(whole))
}

const ACCOUNT: [Column<GpuAccount>; 10] = [
    Column { head: "GPU", wide: false, cell: |g| g.gpu.clone() },
    Column { head: "NODE", wide: false, cell: |g| g.node.clone() },
    Column { head: "RECORDED", wide: false, cell: |g| millis(g.recorded_seconds) },
    Column { head: "ALLOCATED", wide: false, cell: |g| millis(g.allocated_seconds) },
    Column { head: "FREE", wide: false, cell: |g| millis(g.free_seconds) },
    Column { head: "FAULTY", wide: false, cell: |g| millis(g.faulty_seconds) },
    Column { head: "AWAY", wide: false, cell: |g| millis(g.away_seconds) },
    Column { head: "UNRECORDED", wide: false, cell: |g| millis(g.unrecorded_seconds) },
    Column { head: "LATE", wide: false, cell: |g| millis(g.late_seconds) },
    Column { head: "CLOSES", wide: false, cell: |g| if g.closes { "yes" } else { "NO" }.to_owned() },
];

fn millis(seconds: f64) -> String {
    format!("{seconds:.3}")
}

fn check(context: &Context, usage: &Usage) -> CommandResult {
    context.printer.items(&usage.gpus, |gpu| gpu.gpu.clone(), &ACCOUNT);
    let open = usage.gpus.iter().filter(|gpu| !gpu.closes).count();
    if open > 0 {
        let text =
            format!("the parts of {open} of {} GPUs do not add up to the recorded time", usage.gpus.len());
        return Err(CliError::new(ErrorKind::Failed, text));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_moments_are_read() {
        assert_eq!(moment("2026-11-01").unwrap().to_string(), "2026-11-01T00:00:00Z");
        assert_eq!(moment("2026-11-01T08:00:00+01:00").unwrap().to_string(), "2026-11-01T07:00:00Z");
        for wrong in ["", "yesterday", "2026-11-31", "2026-11-01T08:00:00", "2026-11"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn waits_are_short() {
        assert_eq!(
            [Some(0.0), Some(1.5), Some(75.2), Some(7200.0), None].map(wait),
            ["0s", "1s 500ms", "1m 15s", "2h", "-"]
        );
    }
}
