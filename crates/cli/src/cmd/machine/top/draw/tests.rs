use cantle_clearml::cantle::NodeView;
use cantle_model::{GpuMode, MigInstance};

use crate::cmd::machine::top::draw::*;
use crate::cmd::machine::top::rows::{Sort, ViewOptions, rows};

const GIB: u64 = 1 << 30;

fn task(id: &str, state: TaskStatus, reason: Option<&str>) -> TaskView {
    TaskView {
        id: format!("task-{id}"),
        name: id.to_owned(),
        user: String::new(),
        project: None,
        queue: Some("default".to_owned()),
        state,
        node: None,
        gpus: Vec::new(),
        milli: 0,
        memory_limit_bytes: 0,
        reason: reason.map(str::to_owned),
        exit_code: None,
        created: String::new(),
        started: None,
        ended: None,
        time_limit_s: None,
        idle_limit_s: None,
        host: None,
        array: None,
    }
}

fn slice(task: &str, milli: u32, limit_gib: u64, used_gib: u64) -> SliceView {
    SliceView {
        compute: None,
        direct: None,
        task: format!("task-{task}"),
        lease: format!("lease-{task}"),
        milli,
        memory_limit_bytes: limit_gib * GIB,
        memory_used_bytes: used_gib * GIB,
        mig: None,
        enforcement: Some(Enforcement::MountNamespace),
        enforced_by: Vec::new(),
        processes: vec![ProcessView { pid: 4711, memory_bytes: used_gib * GIB }],
    }
}

fn gpu(index: u32, mode: GpuMode, slices: Vec<SliceView>) -> GpuView {
    GpuView {
        index,
        uuid: format!("GPU-{index}"),
        model: "NVIDIA A100-SXM4-40GB".to_owned(),
        memory_bytes: 40 * GIB,
        mode,
        allocated_milli: slices.iter().map(|slice| slice.milli).sum(),
        slices,
        foreign: Vec::new(),
        fault: None,
    }
}

/// Two GPUs: one shared by a half and a quarter, one in MIG mode and free; one task waits.
pub(crate) fn picture() -> Picture {
    let shared = gpu(0, GpuMode::Shared, vec![slice("half", 500, 20, 5), slice("quarter", 250, 10, 10)]);
    let node = NodeView {
        links: Vec::new(),
        node: "n1".to_owned(),
        alive: true,
        gpus: vec![shared, gpu(1, GpuMode::Mig, Vec::new())],
        ..NodeView::default()
    };
    let tasks = vec![
        task("big", TaskStatus::Queued, Some("needs 2 GPUs, free 1.25 of 2")),
        task("quarter", TaskStatus::InProgress, None),
        task("half", TaskStatus::InProgress, None),
    ];
    Picture { nodes: vec![node], tasks }
}

fn text(picture: &Picture, filter: &str, sort: Sort, style: Style) -> Vec<String> {
    let view = ViewOptions { filter: filter.to_owned(), sort };
    rows(picture, &view).iter().map(|found| to_text(&row(found, style), style)).collect()
}

const PLAIN: Style = Style { ascii: true, color: false };

#[test]
fn monochrome_and_ascii() {
    assert_eq!(
        text(&picture(), "", Sort::Node, PLAIN),
        [
            "n1/0             A100-SXM4-40GB     shared [###=========######......]  0.75 of 1    15 GiB of 40 GiB",
            "  |-# half                           default      0.5          5 GiB of 20 GiB   mounts    task-half",
            "  |   pid 4711                                                 5 GiB",
            "  `-# quarter                        default      0.25        10 GiB of 10 GiB   mounts    task-quarter",
            "      pid 4711                                                10 GiB",
            "n1/1             A100-SXM4-40GB     mig    [........................]     0 of 1       0 B of 40 GiB",
            "waiting: 1",
            "  big                              default      needs 2 GPUs, free 1.25 of 2",
        ]
    );
    assert_eq!(
        to_text(&summary(&picture()), PLAIN),
        "0.75 of 2 GPUs allocated, 15 GiB of 80 GiB used, 2 running, 1 waiting"
    );
}

#[test]
fn colors_only_where_wanted() {
    let colored = text(&picture(), "", Sort::Node, Style { ascii: false, color: true });
    assert!(colored[0].contains("\x1b[36m███▒▒▒▒▒▒▒▒▒\x1b[0m\x1b[33m██████\x1b[0m······"), "{}", colored[0]);
    let plain = text(&picture(), "", Sort::Node, Style { ascii: false, color: false });
    assert!(plain.iter().all(|line| !line.contains('\x1b')));
}

#[test]
fn filters_and_orders() {
    let first =
        |filter: &str, sort| text(&picture(), filter, sort, PLAIN).first().cloned().unwrap_or_default();
    assert!(first("QUARTER", Sort::Node).starts_with("n1/0"));
    assert_eq!(first("big", Sort::Node), "waiting: 1");
    assert_eq!(first("no such thing", Sort::Node), "");
    let mut turned = picture();
    turned.nodes[0].gpus.reverse();
    for sort in [Sort::Used, Sort::Given] {
        assert!(text(&turned, "", sort, PLAIN)[0].starts_with("n1/0"));
    }
}

#[test]
fn bars_are_always_as_long() {
    for count in 1..=7u32 {
        let slices = (0..count).map(|_| slice("x", 1000 / 7, 40 / 7, 1)).collect();
        let spans = bar(&gpu(0, GpuMode::Shared, slices), PLAIN);
        assert_eq!(spans.iter().map(|span| span.content.chars().count()).sum::<usize>(), BAR);
    }
}

#[test]
fn mig_slices_say_their_profile() {
    let mut mig = slice("m", 250, 10, 0);
    mig.mig = Some(MigInstance { profile: "2g.10gb".into(), start: 0, size: 2, uuid: "MIG-0".into() });
    let line = to_text(&slice_line(&mig, 0, true, None, PLAIN), PLAIN);
    assert!(line.contains(" 2g.10gb "), "{line}");
}
