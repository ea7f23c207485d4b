use cantle_model::{GpuUuid, Measured, Milli, Slice, TaskStatus};
use cantle_store::{GpuTimeRow, QuotaTime, RunRow};
use proptest::prelude::*;

use crate::services::runs::usage::*;

#[test]
fn the_lines_with_most_unused_memory_come_first() {
    let line = |name: &str, kind, gpu_seconds, memory_peak| UsageLine {
        kind,
        keys: vec![name.to_owned()],
        gpu_seconds,
        memory_peak,
        ..UsageLine::default()
    };
    let mut lines = vec![
        line("", UsageKind::Free, 900.0, None),
        line("half", UsageKind::Allocated, 30.0, Some(0.5)),
        line("unknown", UsageKind::Allocated, 80.0, None),
        line("little", UsageKind::Allocated, 20.0, Some(0.1)),
        line("full", UsageKind::Allocated, 70.0, Some(1.0)),
    ];
    keep_most_unused(&mut lines, 5);
    assert_eq!(lines.iter().map(|line| line.keys[0].as_str()).collect::<Vec<_>>(), ["little", "half"]);
    keep_most_unused(&mut lines, 1);
    assert_eq!(lines.len(), 1);
}

#[test]
fn a_period_is_covered_once_and_in_order() {
    let day = |n: i64| n * DAY_US;
    let period = Period { from_us: day(10) + 5, to_us: day(60) + 7 };
    let days: Vec<i64> = (9..12).chain(14..40).collect();
    let plan = plan(period, &days);
    let of = |stretch: &Stretch| match *stretch {
        Stretch::Kept(first, end) => (day(first), day(end)),
        Stretch::Read(period) => (period.from_us, period.to_us),
    };
    assert_eq!(of(&plan[0]), (period.from_us, day(11)));
    assert_eq!(plan[1], Stretch::Kept(11, 12));
    assert_eq!(plan[3], Stretch::Kept(14, 22));
    assert!(plan.windows(2).all(|pair| of(&pair[0]).1 == of(&pair[1]).0), "{plan:?}");
    assert_eq!(of(&plan[plan.len() - 1]).1, period.to_us);
    assert!(plan.iter().all(|one| of(one).1 - of(one).0 <= READ_US.max(KEPT_DAYS * DAY_US)));
}

/// Until then all is over.
const END_US: i64 = 100;
const PROJECTS: [&str; 3] = ["vision", "vision/a", "speech"];

fn any_run() -> impl Strategy<Value = RunRow> {
    let shape = (0..4_usize, 0..4_usize, any::<bool>(), any::<bool>());
    (shape, -20..95_i64, 1..60_i64, 100..900_u32, prop::option::of(1..40_i64)).prop_map(
        |((gpu, project, is_kept, given_up), taken_us, length, milli, waited)| {
            let slice = |gpu: usize| Slice {
                gpu: GpuUuid(format!("GPU-{gpu}")),
                milli: Milli(milli),
                memory_limit_bytes: 1000 * u64::from(milli),
                mig: None,
            };
            RunRow {
                task: String::new(),
                run: 1,
                project: PROJECTS.get(project).map(|name| format!("id of {name}")),
                queue: None,
                owner: None,
                name: None,
                queued_us: waited.map(|waited| taken_us - waited),
                taken_us: Some(taken_us),
                started_us: Some(taken_us),
                ended_us: Some(taken_us + length),
                node: Some("n".to_owned()),
                lease: None,
                // The last one of them has none, and another one has two.
                slices: match gpu {
                    0 => vec![slice(0), slice(1)],
                    3 => Vec::new(),
                    gpu => vec![slice(gpu)],
                },
                changes: Vec::new(),
                exit_code: None,
                outcome: Some(if given_up { TaskStatus::Queued } else { TaskStatus::Completed }),
                why: None,
                tags: vec![format!("team:{milli}")],
                preemptible: Some(!is_kept),
                measured: Measured { peak_bytes: waited.map(i64::unsigned_abs), gpu_time_us: None },
            }
        },
    )
}

/// The times of three GPUs, of which one comes to another node.
fn times() -> Vec<GpuTimeRow> {
    let time = |gpu: usize, from_us, to_us, node: &str, state: &str| GpuTimeRow {
        gpu: format!("GPU-{gpu}"),
        from_us,
        to_us,
        node: node.to_owned(),
        model: "A100".to_owned(),
        pools: String::new(),
        state: state.to_owned(),
    };
    vec![
        time(0, -50, Some(40), "n", "here"),
        time(0, 40, Some(55), "n", "away"),
        time(0, 55, None, "n", "here"),
        time(1, 10, Some(30), "n", "here"),
        time(1, 30, Some(60), "m", "here"),
        time(1, 60, Some(90), "m", "faulty"),
        time(2, -10, None, "n", "here"),
    ]
}

fn quotas(period: Period) -> sides::Quotas {
    let quota = |name: &str, from_us, to_us, deserved_milli| QuotaTime {
        project: format!("id of {name}"),
        from_us,
        to_us,
        deserved_milli,
    };
    let all = vec![
        quota("vision", -100, Some(45), 1000),
        quota("vision", 45, None, 1500),
        quota("vision/a", 20, Some(70), 500),
    ];
    let overlaps = |time: &QuotaTime| {
        time.from_us < period.to_us && time.to_us.is_none_or(|to_us| to_us > period.from_us)
    };
    let names = PROJECTS.iter().map(|name| (format!("id of {name}"), (*name).to_owned())).collect();
    sides::Quotas::of(all.into_iter().filter(overlaps).collect(), names)
}

/// The records that the database returns for a time.
fn records(runs: &[RunRow], period: Period) -> Records {
    let runs =
        runs.iter().filter(|run| run.taken_us < Some(period.to_us) && run.ended_us > Some(period.from_us));
    let times = times()
        .into_iter()
        .filter(|time| time.from_us < period.to_us && time.to_us.is_none_or(|to_us| to_us > period.from_us));
    Records::of(runs.cloned().collect(), times.collect(), END_US)
}

fn sums(by: &[UsageKey]) -> Sums {
    let view =
        View::of_all(PROJECTS.iter().map(|name| (format!("id of {name}"), (*name).to_owned())).collect());
    Sums { report: Report::default(), lent: BTreeMap::new(), view, by: by.to_vec(), prices: None }
}

fn in_order(mut line: Line) -> Line {
    line.waits_us.sort_unstable();
    line
}

/// The lines with waits in order, the accounts, and what was lent.
fn finished(mut sums: Sums) -> (Vec<(LineKey, Line)>, BTreeMap<String, GpuSums>, MilliUs) {
    let (lines, accounts) = std::mem::take(&mut sums.report).finish();
    let lines = lines.into_iter().map(|(key, line)| (key, in_order(line)));
    (lines.collect(), accounts, sums.lent.values().sum())
}

proptest! {
    /// A report from days that were kept, each from the records of its own time, says what one from all records says.
    #[test]
    fn kept_days_say_what_the_records_say(
        runs in prop::collection::vec(any_run(), 0..12),
        cuts in prop::collection::vec(0..END_US, 0..6),
        by in prop::sample::subsequence(vec![
            UsageKey::Project, UsageKey::Side, UsageKey::Gpu, UsageKey::Node, UsageKey::Task, UsageKey::Label("team".to_owned()),
        ], 0..4),
    ) {
        let mut runs = runs;
        runs.iter_mut().enumerate().for_each(|(index, run)| run.task = format!("t{index:02}"));
        runs.sort_by_key(|run| (run.taken_us, run.task.clone()));
        let period = Period { from_us: 0, to_us: END_US };
        let mut whole = sums(&by);
        let found = (records(&runs, period), quotas(period), vec![period]);
        StretchRecords::Read(Box::new(found)).add_to(&mut whole);
        let mut kept = sums(&by);
        for part in period.cut(cuts) {
            let made = records(&runs, part).parts_of(&[part], &quotas(part)).remove(0);
            let (bytes, tasks) = made.encode().unwrap();
            let read = UsagePart::decode(&bytes, by.contains(&UsageKey::Task).then_some(&*tasks)).unwrap();
            kept.add(part, &read);
        }
        let (whole, kept) = (finished(whole), finished(kept));
        prop_assert_eq!(&whole.0, &kept.0);
        prop_assert_eq!(&whole.1, &kept.1);
        // Each part is rounded down.
        prop_assert!(whole.2.abs_diff(kept.2) < 1000, "{} {}", whole.2, kept.2);
    }
}
