"""Checks for machines with several cards of one model."""

import sys

from bench import Skip


def several(bench):
    cards = len(bench.nvml.devices)
    if cards < 2:
        raise Skip("there is one card")
    return cards


def each_card_has_its_own_slices(bench):
    """Two slices that do not fit on one card: each fills its own, and no card has more of it than one slice."""
    several(bench)
    limit, base = bench.part(0.75), bench.nvml.used()
    full = [bench.record(bench.job("fill", part=0.75)) for _ in range(2)]
    used = [now - before for now, before in zip(bench.nvml.used(), base, strict=True)]
    facts = {"nvml_bytes": used, "taken_bytes": [record["taken"] for record in full]}
    assert all(record["total"] == limit for record in full), (full, limit)
    assert sorted(taken > 0 for taken in used)[-2:] == [True, True] and max(used) <= limit, facts
    assert min(record["taken"] for record in full) > limit - (2 << 30), facts
    bench.end_children()
    # The negative control: alone, a program takes more of a card than that.
    alone = bench.record(bench.job("fill", part=None))
    assert alone["taken"] > limit, alone
    return facts


def whole_cards_are_all_there_is(bench):
    """A task with two whole cards sees two; one with a part sees one. Alone a program sees all."""
    cards = several(bench)
    count = [sys.executable, "-c", "import ctypes; n = ctypes.c_int(); d = ctypes.CDLL('libcuda.so.1'); d.cuInit(0); d.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"]
    facts = {"two": int(bench.run("run", "--quiet", "--gpus", "2", "--", *count).stdout)}
    facts["part"] = int(bench.run("run", "--quiet", "--gpu", "0.5", "--", *count).stdout)
    facts["alone"] = int(bench.alone(*count).communicate(timeout=60)[0])
    assert facts == {"two": 2, "part": 1, "alone": cards}, facts
    return facts
