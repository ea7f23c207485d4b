#!/usr/bin/env python3
"""Draws the pictures of the documentation, light and dark: `docs/pictures/draw.py [DIRECTORY]`, by default next to this file.

A drawing is a list of boxes, frames and arrows. tests/style/test_pictures.py compares what is committed with what this script makes."""

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Pixels. The width of a character is an upper estimate: every text is checked to fit its box.
FONT, SMALL = 14, 12
PER_CHARACTER = 0.56
LINE = 17

PALETTES = {
    "light": {"page": "#ffffff", "text": "#1f2328", "quiet": "#57606a", "line": "#8c959f", "box": "#f6f8fa", "cantle": "#ddf4ff", "edge": "#0969da"},
    "dark": {"page": "#0d1117", "text": "#e6edf3", "quiet": "#9198a1", "line": "#6e7681", "box": "#161b22", "cantle": "#0c2d4d", "edge": "#4493f8"},
}


@dataclass(frozen=True)
class Box:
    """A step or a part; `cantle` says whose it is. The first line is its title."""

    x: int
    y: int
    width: int
    text: str
    cantle: bool = True

    @property
    def lines(self):
        return self.text.split("\n")

    @property
    def height(self):
        return 20 + LINE * len(self.lines)

    def side(self, name):
        middle = self.x + self.width // 2, self.y + self.height // 2
        return {"left": (self.x, middle[1]), "right": (self.x + self.width, middle[1]), "top": (middle[0], self.y), "bottom": (middle[0], self.y + self.height)}[name]


@dataclass(frozen=True)
class Frame:
    """A dashed frame with a title."""

    x: int
    y: int
    width: int
    height: int
    text: str


@dataclass(frozen=True)
class Arrow:
    """A line through points; the label is next to the middle of its longest part."""

    points: tuple
    label: str = ""
    dashed: bool = False


def join(start, start_side, end, end_side, label=""):
    """A straight arrow between two boxes."""
    points = start.side(start_side), end.side(end_side)
    assert points[0][0] == points[1][0] or points[0][1] == points[1][1], f"not straight: {points}"
    return Arrow(points, label)


def life():
    """From `cantle submit` to the end of a task."""
    submit = Box(20, 40, 165, "Submit\ncantle submit or\nClearML's SDK", cantle=False)
    queued = Box(225, 40, 165, "Queued\nwaits in its queue;\nthe reason is known")
    planned = Box(430, 40, 165, "Planned\nGPU and slice chosen,\nthe plan is audited")
    leased = Box(635, 40, 165, "Leased\nthe lease is on disk,\nthe task is claimed")
    started = Box(635, 200, 165, "Started\naccounting region,\nfilter library or MIG")
    running = Box(430, 200, 165, "Running\nthe limit is enforced,\nlogs and metrics flow")
    ended = Box(225, 200, 165, "Ended\nexit code and log\nare on the server")
    freed = Box(20, 200, 165, "Slice free\nwhen the last process\nhas ended")
    back = Arrow((running.side("top"), (512, 150), (307, 150), queued.side("bottom")), "preempted: to the front", dashed=True)
    steps = [submit, queued, planned, leased, started, running, ended, freed]
    arrows = [join(a, "right", b, "left") for a, b in zip(steps[:3], steps[1:4])] + [join(leased, "bottom", started, "top")]
    arrows += [join(a, "left", b, "right") for a, b in zip(steps[4:7], steps[5:8])]
    return "The life of a task", 820, 291, [*steps, *arrows, back]


def enforcement():
    """The path of an allocation that is counted and refused."""
    frame = Frame(20, 40, 570, 190, "Mount namespace of the task")
    program = Box(40, 75, 130, "Program\nCUDA, PyTorch, …", cantle=False)
    shim = Box(225, 75, 140, "Filter library\nlibcuda.so.1")
    driver = Box(430, 75, 150, "NVIDIA's library\nlibcuda.so.1", cantle=False)
    gpu = Box(660, 75, 140, "GPU\nand its driver", cantle=False)
    region = Box(180, 165, 230, "Accounting region\nlimit and use of the slice")
    watchdog = Box(420, 290, 380, "Watchdog, 4 times a second\ncompares the accounting with the driver's own\nfigures; charges, reports or kills")
    return (
        "Where the limit is enforced, on GPUs without MIG",
        820,
        381,
        [
            frame, program, shim, driver, gpu, region, watchdog,
            join(program, "right", shim, "left"),
            join(shim, "right", driver, "left", "if it fits"),
            join(driver, "right", gpu, "left"),
            join(shim, "bottom", region, "top", "reserve first"),
            Arrow(((730, 290), (730, gpu.side("bottom")[1])), "read"),
            Arrow(((480, 290), (480, 192), region.side("right")), "read, charge"),
        ],
    )


def kubernetes():
    """The two ways of a pod to its slice."""
    left, right, wide = 20, 430, 370
    pod = Box(225, 40, 370, "Pod\nclearml-injector/fraction: \"0.500\"", cantle=False)
    columns = []
    for x, path, texts in [
        (left, "DRA path", [
            ("Injector\nadds a ResourceClaim to the pod", True),
            ("kube-scheduler of the cluster\nallocates a share of a device", False),
            ("kubelet\nNodePrepareResources", False),
        ]),
        (right, "Classic path", [
            ("Injector\nadds 1 of cantle.dev/slice and a scheduler", True),
            ("kube-scheduler with cantle's extender\nwrites the placement to the node", True),
            ("kubelet\nPreStartContainer of the device plugin", False),
        ]),
    ]:
        frame = Frame(x - 10, 118, wide + 20, 262, path)
        boxes = [Box(x, 150 + 76 * at, wide, text, ours) for at, (text, ours) in enumerate(texts)]
        columns.append((frame, boxes))
    (frame, dra), (other, classic) = columns
    node = Box(130, 420, 560, "Node: cantle controller node\naudits the allocation, writes the lease and the container's device (CDI)")
    container = Box(130, 510, 560, "Container\nstarts with the filter library or with its MIG instance", cantle=False)
    downs = [join(a, "bottom", b, "top") for boxes in (dra, classic) for a, b in zip(boxes, boxes[1:])]
    ways = [Arrow(((x, pod.side("bottom")[1]), (x, 150))) for x in (300, 520)]
    ends = [Arrow(((x, boxes[-1].side("bottom")[1]), (x, 420))) for x, boxes in ((205, dra), (615, classic))]
    return "Kubernetes: two paths to a slice", 820, 584, [frame, other, pod, *dra, *classic, node, container, *ways, *downs, *ends, join(node, "bottom", container, "top")]


def scheduler():
    """From what is known to what is done."""
    callers = Box(20, 40, 240, "Callers\nagent, server, simulator;\nKubernetes: extender, queues", cantle=False)
    snapshot = Box(20, 165, 240, "Snapshot\nGPUs and leases, waiting tasks,\nquotas and past use, the time")
    frame = Frame(300, 40, 280, 270, "plan")
    order = Box(315, 70, 250, "Order\nby queue, in turn, or by fair share")
    place = Box(315, 150, 250, "Placement\nworth, binpack or spread; MIG")
    room = Box(315, 230, 250, "Make room\nreclaim, preempt; backfill behind")
    audit = Box(620, 70, 180, "audit\nwritten independently;\na violation stops it")
    result = Box(620, 215, 180, "Result\nstarts and stops, and\na reason for each task\nthat waits")
    return (
        "The scheduler: the same input gives the same plan",
        820,
        331,
        [
            frame, callers, snapshot, order, place, room, audit, result,
            join(callers, "bottom", snapshot, "top", "describe"),
            Arrow((snapshot.side("right"), (300, snapshot.side("right")[1]))),
            join(order, "bottom", place, "top"),
            join(place, "bottom", room, "top", "if it does not fit"),
            Arrow(((580, audit.side("left")[1]), audit.side("left"))),
            join(audit, "bottom", result, "top"),
        ],
    )


def fleet():
    """A server as replicas, and what each of them needs."""
    clients = Box(20, 40, 230, "Clients\nSDK, command line, browser,\nClearML's own agents", cantle=False)
    agents = Box(560, 40, 240, "Agents, one per node\nclaim tasks and enforce slices;\ntheir tasks outlive a server")
    address = Box(260, 140, 300, "One address, a load balancer\nasks /readyz of each server", cantle=False)
    frame = Frame(20, 225, 780, 100, "cantle server: equal replicas, no sticky sessions")
    replicas = [Box(45 + 255 * at, 255, 220, name) for at, name in enumerate(["Replica\nanswers any call", "Replica, the leader\nalso the periodic work", "Replica\nanswers any call"])]
    database = Box(100, 395, 290, "PostgreSQL\ntasks, runs, rights; the leader's lock", cantle=False)
    files = Box(430, 395, 290, "S3-compatible store\nartifacts, models, debug images", cantle=False)
    return (
        "A fleet: replicas of the server",
        820,
        469,
        [
            frame, clients, agents, address, *replicas, database, files,
            Arrow((clients.side("bottom"), (135, address.side("left")[1]), address.side("left")), "calls"),
            Arrow((agents.side("bottom"), (680, address.side("right")[1]), address.side("right")), "calls"),
            Arrow((address.side("bottom"), (410, 225))),
            Arrow(((245, 325), (245, 395)), "claims, fenced by run"),
            Arrow(((575, 325), (575, 395)), "uploads"),
        ],
    )


DRAWINGS = {"task-life": life, "enforcement": enforcement, "kubernetes-paths": kubernetes, "scheduler": scheduler, "fleet": fleet}


def text(x, y, words, color, size=FONT, anchor="middle", weight="normal"):
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{escape(words, quote=False)}</text>'


def box(each, colors):
    fill, edge = (colors["cantle"], colors["edge"]) if each.cantle else (colors["box"], colors["line"])
    yield f'<rect x="{each.x}" y="{each.y}" width="{each.width}" height="{each.height}" rx="6" fill="{fill}" stroke="{edge}"/>'
    middle = each.x + each.width // 2
    title, *rest = each.lines
    yield text(middle, each.y + 22, title, colors["text"], weight="bold")
    for at, line in enumerate(rest, 1):
        yield text(middle, each.y + 22 + LINE * at, line, colors["quiet"], SMALL)


def frame(each, colors):
    yield f'<rect x="{each.x}" y="{each.y}" width="{each.width}" height="{each.height}" rx="8" fill="none" stroke="{colors["line"]}" stroke-dasharray="5 4"/>'
    yield text(each.x + 12, each.y + 20, each.text, colors["quiet"], SMALL, "start")


def arrow(each, colors):
    path = "M" + "L".join(f"{x} {y}" for x, y in each.points)
    dash = ' stroke-dasharray="5 4"' if each.dashed else ""
    yield f'<path d="{path}" fill="none" stroke="{colors["text"]}"{dash} marker-end="url(#end)"/>'
    if each.label:
        (x, y), (to_x, to_y) = max(zip(each.points, each.points[1:]), key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1]))
        if y == to_y:
            yield text((x + to_x) // 2, y - 6, each.label, colors["quiet"], SMALL)
        else:
            yield text(x + 8, (y + to_y) // 2 + 4, each.label, colors["quiet"], SMALL, "start")


def svg(drawing, colors):
    title, width, height, things = drawing()
    draw = {Box: box, Frame: frame, Arrow: arrow}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif">',
        f"<title>{escape(title, quote=False)}</title>",
        f'<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colors["text"]}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="{colors["page"]}"/>',
        text(20, 24, title, colors["text"], 16, "start", "bold"),
        *(line for thing in things for line in draw[type(thing)](thing, colors)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def pictures():
    """All files, by name."""
    return {f"{name}-{theme}.svg": svg(drawing, colors) for name, drawing in DRAWINGS.items() for theme, colors in PALETTES.items()}


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, content in pictures().items():
        (directory / name).write_text(content)
