"""Kernels that take time: which program gets the GPU, when things happen, and the driver's own count of it.

This machine's scheduler may stop a program between two calls, for long where other suites use the cores. So the order and the times of work are
those of work that is all queued before its stream begins (`hold` in busy.py), and the driver's own count is exact. Shares of programs that
queue work all the time are measured again where they do not hold."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

BUSY = pathlib.Path(__file__).parent / "busy.py"


@pytest.fixture
def program(machine):
    """Starts a process with a context."""

    def start(device=0, has_context=True):
        client = machine.client("busy.py")
        if has_context:
            client(f"context({device})")
        return client

    return start


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.05)


def gpu_time_us(machine, gpu=0):
    return {p["pid"]: p["gpu_time_us"] for p in machine.truth()[gpu]["processes"]}


def shares(machine, programs, seconds=1.0, gpu=0):
    """Each program's part of the GPU's time, by the driver's own count, and the sum."""

    def look():
        asked, truth = time.monotonic(), machine.truth()[gpu]
        # The driver was asked in between.
        return (asked + time.monotonic()) / 2, truth

    began, before = look()
    time.sleep(seconds)
    ended, after = look()
    took_us = (ended - began) * 1e6
    of = lambda truth: {p["pid"]: p["gpu_time_us"] for p in truth["processes"]}
    had = [(of(after)[p.pid] - of(before).get(p.pid, 0)) / took_us for p in programs]
    return had, (after["gpu_time_us"] - before["gpu_time_us"]) / took_us


def eventually(holds, machine, programs, tries=10):
    """Measures again while it does not hold: a program that was not woken up in time has left its turns unused."""
    for _ in range(tries):
        had, together = shares(machine, programs)
        if holds(had, together):
            return
    raise AssertionError(f"{had} of {together}")


def test_kernels_of_a_stream_come_one_after_the_other(program, machine):
    p = program()
    p("f, s, a, b = busy(1000), stream(), event(), event()")
    p("held = hold(s)")
    p("[ok(cu.cuEventRecord(a, s)), *[ok(launch(f, s)) for _ in range(100)], ok(cu.cuEventRecord(b, s))]")
    assert p("[cu.cuStreamQuery(s), cu.cuEventQuery(b), elapsed_ms(a, b)[0]]") == [600, 600, 600]
    assert p("seconds(lambda: [release(held), synchronize(s)])") >= 0.1
    assert p("[cu.cuStreamQuery(s), cu.cuEventQuery(b)]") == [0, 0]
    code, ms = p("elapsed_ms(a, b)")
    assert code == 0 and 100 <= ms < 101
    assert gpu_time_us(machine)[p.pid] == 100_000


def test_without_a_duration_nothing_takes_time(program, machine):
    p = program()
    p("f, s, a, b = kernel('kernel'), stream(), event(), event()")
    p("[ok(cu.cuEventRecord(e, s)) or launch(f, s) for e in (a, b)]")
    assert p("[cu.cuStreamQuery(s), cu.cuEventQuery(b), elapsed_ms(a, b)]") == [0, 0, [0, 0.0]]
    assert gpu_time_us(machine) == {p.pid: 0}
    assert machine.truth()[0]["gpu_time_us"] == 0


def test_a_full_queue_makes_launches_wait(program):
    p = program()
    p("f, s, current, ended = busy(1000), stream(), made('cuCtxGetCurrent'), []")
    p("held = hold(s)")
    assert p("[launch(f, s) for _ in range(1000)]") == [0] * 1000, "there is room for these"
    p("many = lambda: [cu.cuCtxSetCurrent(current), *[launch(f, s) for _ in range(500)], ended.append(time.monotonic())]")
    p("more = threading.Thread(target=many, daemon=True)")
    p("more.start()")
    time.sleep(0.3)
    assert p("ended") == [], "these wait"
    p("began = time.monotonic(); release(held); more.join()")
    # 1024 fit: for the last of these, some 480 kernels have ended.
    assert p("ended[0] - began") > 0.4
    assert p("cu.cuStreamQuery(s)") == 600


def test_streams_share_their_context(program, machine):
    p = program()
    p("f, s, t = busy(40000), stream(), stream()")
    p("a, b = event(), event()")
    p("held = hold(s)")
    p("[ok(cu.cuEventRecord(a, s)), ok(cu.cuStreamWaitEvent(t, a, 0)), launch(f, s), launch(f, t), ok(cu.cuEventRecord(b, s))]")
    p("release(held), ok(cu.cuCtxSynchronize())")
    # Each kernel ran at half speed while the other one did too.
    assert 79 < p("elapsed_ms(a, b)")[1] <= 81
    assert gpu_time_us(machine)[p.pid] == 80_000


@pytest.mark.parametrize("flags, least_ms, most_ms", [(0, 70, 71), (1, 39, 41)])
def test_the_legacy_stream_is_ordered_with_blocking_streams_only(program, flags, least_ms, most_ms):
    p = program()
    p(f"f, g, s, a, b = busy(50000), busy(20000), stream({flags}), event(), event()")
    p("held = hold(s)")
    p("[ok(cu.cuEventRecord(a, s)), ok(cu.cuStreamWaitEvent(None, a, 0)), launch(f, s), launch(g), ok(cu.cuEventRecord(b, None))]")
    p("release(held), ok(cu.cuCtxSynchronize())")
    # After the other stream's kernel, or at the same time, both at half speed.
    assert least_ms <= p("elapsed_ms(a, b)")[1] < most_ms


def test_a_stream_waits_for_an_event_of_another(program):
    p = program()
    p("f, g, s, t, e, a, b = busy(30000), busy(1000), stream(), stream(), event(), event(), event()")
    p("held = hold(s)")
    p("[ok(cu.cuEventRecord(a, s)), launch(f, s), ok(cu.cuEventRecord(e, s))]")
    p("[ok(cu.cuStreamWaitEvent(t, e, 0)), launch(g, t), ok(cu.cuEventRecord(b, t))]")
    p("release(held), synchronize(t)")
    assert 31 <= p("elapsed_ms(a, b)")[1] < 32


def test_a_stream_waits_for_an_event_on_another_gpu(program):
    p = program()
    p("f, s, e = busy(50000), stream(), event()")
    p("held = hold(s)")
    p("[launch(f, s), ok(cu.cuEventRecord(e, s)), context(1)]")
    p("t = stream()")
    p("[ok(cu.cuStreamWaitEvent(t, e, 0)), launch(f, t)]")
    assert p("seconds(lambda: [release(held), synchronize(t)])") >= 0.1


def test_memory_is_written_when_the_stream_comes_there(program):
    p = program()
    p("f, s, word = busy(50000), stream(), host_word()")
    p("held = hold(s)")
    p("[launch(f, s), ok(cu.cuStreamWriteValue64_v2(s, word, c_uint64(7), 0)), hold(s)]")
    assert p("word[0]") == 0
    # Without a call: an arbiter only reads.
    assert p("seconds(lambda: [release(held), until(lambda: word[0] == 7)])") >= 0.05
    assert p("cu.cuStreamQuery(s)") == 600


def test_a_stream_waits_for_its_host_functions(program):
    p = program()
    p("called = []; f, s = busy(20000), stream()")
    p("function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: (called.append(time.monotonic()), time.sleep(0.05))); "
      "began = time.monotonic()")
    work = "[launch(f, s), ok(cu.cuLaunchHostFunc(s, function, None)), launch(f, s)]"
    assert p(f"seconds(lambda: [{work}, synchronize(s)])") >= 0.09
    assert p("called[0] - began") >= 0.02


def test_a_stream_waits_for_a_word_of_memory(program):
    p = program()
    p("f, s, word = busy(1000), stream(), host_word()")
    p("[ok(cu.cuStreamWaitValue32_v2(s, word, 3, 1)), launch(f, s)]")
    time.sleep(0.05)
    assert p("cu.cuStreamQuery(s)") == 600
    p("word.__setitem__(0, 3)")
    assert p("seconds(lambda: synchronize(s))") < 10


def test_copies_take_time_where_kernels_do(program, machine):
    p = program()
    p("s, a, b, x, y, host = stream(), event(), event(), alloc(256 << 20), alloc(256 << 20), host_word()")
    measure = "[ok(cu.cuEventRecord(a, s)), ok({}), ok(cu.cuEventRecord(b, s)), synchronize(s)] and elapsed_ms(a, b)[1]"
    to_device = measure.format("cu.cuMemcpyHtoDAsync_v2(x, host, c_uint64(256 << 20), s)")
    within = measure.format("cu.cuMemcpyDtoDAsync_v2(x, y, c_uint64(256 << 20), s)")
    assert p(to_device) == p(within) == 0
    p("busy(1)")
    held = "(lambda held: [ok(cu.cuEventRecord(a, s)), ok({}), ok(cu.cuEventRecord(b, s)), release(held), synchronize(s)])(hold(s)) and elapsed_ms(a, b)[1]"
    assert 10.7 < p(held.format("cu.cuMemcpyHtoDAsync_v2(x, host, c_uint64(256 << 20), s)")) < 11, "25 GB/s"
    assert 0.4 < p(held.format("cu.cuMemcpyDtoDAsync_v2(x, y, c_uint64(256 << 20), s)")) < 9
    assert p("seconds(lambda: ok(cu.cuMemcpyDtoH_v2(host, x, c_uint64(256 << 20))))") > 0.0107
    assert gpu_time_us(machine)[p.pid] == 0, "a copy is no kernel"


CAPTURE = {
    "cu.cuStreamSynchronize(s)": 900,
    "cu.cuStreamQuery(s)": 900,
    "cu.cuCtxSynchronize()": 900,
    "cu.cuMemAlloc_v2(byref(c_uint64()), c_uint64(1 << 20))": 900,
    "cu.cuEventQuery(a)": 900,
    "launch(f)": 906,
    "cu.cuStreamWaitEvent(s, a, 0)": 905,
}


@pytest.mark.parametrize("call, code", CAPTURE.items())
def test_what_a_capture_forbids_invalidates_it(program, call, code):
    p = program()
    p("f, s, a, status, graph = busy(1000), stream(0), event(), c_uint64(), c_uint64(5)")
    p("[ok(cu.cuEventRecord(a, s)), ok(cu.cuStreamBeginCapture_v2(s, 0))]")
    assert p("launch(f, s)") == 0
    assert p(call) == code
    assert p("launch(f, s)") == 901
    assert p("[cu.cuStreamIsCapturing(s, byref(status)), status.value]") == [0, 2]
    assert p("[cu.cuStreamEndCapture(s, byref(graph)), graph.value]") == [901, 0]
    assert p("[launch(f, s), cu.cuStreamSynchronize(s)]") == [0, 0]


@pytest.mark.parametrize("mode, codes", [(0, [900, 901]), (1, [0, 0]), (2, [0, 0])])
def test_captures_forbid_other_threads_what_their_mode_says(program, mode, codes):
    p = program()
    p(f"s, graph = stream(), c_uint64(); ok(cu.cuStreamBeginCapture_v2(s, {mode}))")
    call = "cu.cuMemAlloc_v2(byref(c_uint64()), c_uint64(1 << 20))"
    assert p(f"[in_thread(lambda: {call}), cu.cuStreamEndCapture(s, byref(graph))]") == codes
    # A thread that says that it knows what it does may do it.
    p(f"ok(cu.cuStreamBeginCapture_v2(s, {mode})); mode = c_uint64(2); ok(cu.cuThreadExchangeStreamCaptureMode(byref(mode)))")
    assert p(f"[mode.value, {call}, cu.cuStreamEndCapture(s, byref(graph))]") == [0, 0, 0]


def test_streams_join_a_capture_through_events(program, machine):
    p = program()
    p("f, s, t, a, b, graph, exe = busy(1000), stream(), stream(), event(), event(), c_uint64(), c_uint64()")
    fork = "[ok(cu.cuStreamBeginCapture_v2(s, 0)), cu.cuEventRecord(a, s), cu.cuStreamWaitEvent(t, a, 0), launch(f, t)][1:]"
    assert p(fork) == [0, 0, 0]
    assert p("[cu.cuEventSynchronize(a), cu.cuStreamEndCapture(t, byref(graph))]") == [907, 903]
    assert p("cu.cuStreamEndCapture(s, byref(graph))") == 904
    assert p(fork) == [0, 0, 0]
    assert p("[cu.cuEventRecord(b, t), cu.cuStreamWaitEvent(s, b, 0), launch(f, s)]") == [0, 0, 0]
    assert p("cu.cuStreamEndCapture(s, byref(graph))") == 0
    p("[ok(cu.cuGraphInstantiateWithFlags(byref(exe), graph, c_uint64(0))), ok(cu.cuGraphLaunch(exe, s)), synchronize(s)]")
    assert gpu_time_us(machine)[p.pid] == 2000
    # Only the thread that began a capture ends it.
    p("ok(cu.cuStreamBeginCapture_v2(s, 0))")
    assert p("[in_thread(lambda: cu.cuStreamEndCapture(s, byref(graph))), cu.cuStreamEndCapture(s, byref(graph))]") == [908, 0]


@pytest.mark.clock
def test_two_busy_contexts_get_half_each(program, machine):
    programs = [program(has_context=False) for _ in range(2)]
    for p in programs:
        p("saturate(200)")
    time.sleep(0.3)
    # The cost of a change between them is missing.
    eventually(lambda had, together: had == pytest.approx([together / 2] * 2, abs=0.02) and 0.88 < together < 0.95, machine, programs)


@pytest.mark.clock
def test_who_opens_more_contexts_gets_more(program, machine):
    one, four = program(has_context=False), program(has_context=False)
    one("saturate(200)")
    four("saturate(200, contexts=4)")
    time.sleep(0.3)
    eventually(lambda had, together: had == pytest.approx([together / 5, together * 4 / 5], abs=0.04), machine, [one, four])


@pytest.mark.clock
def test_a_killed_process_gives_its_turn_up_at_once(program, machine):
    first, second = program(has_context=False), program(has_context=False)
    first("saturate(200)"), second("context()")
    second("f, s = busy(100000), stream()")
    second("launch(f, s)")
    time.sleep(0.02)
    first.kill()
    killed = time.monotonic()
    second("synchronize(s)")
    assert time.monotonic() - killed < 10, "it waits for the turns of the dead"
    assert list(gpu_time_us(machine)) == [second.pid]


@pytest.mark.clock
def test_a_stopped_process_stops_nobody_and_its_work_goes_on(program, machine):
    first, second = program(), program()
    first("f, s = busy(1000), stream()")
    first("[launch(f, s) for _ in range(300)]")
    os.kill(first.pid, signal.SIGSTOP)
    second("f, s = busy(1000), stream()")
    assert second("[launch(f, s) for _ in range(200)]") == [0] * 200
    assert second("seconds(lambda: synchronize(s))") < 10
    # Its queue continues without it, as on hardware: 300 ms in all.
    wait_until(lambda: gpu_time_us(machine) == {first.pid: 300_000, second.pid: 200_000})
    os.kill(first.pid, signal.SIGCONT)
    assert first("cu.cuStreamQuery(s)") == 0


@pytest.mark.clock
def test_processes_killed_and_stopped_at_random_stop_nobody(machine):
    random.seed(7)
    machine.client()("init()")

    def start():
        process = subprocess.Popen([sys.executable, BUSY], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        process.stdin.write(f"saturate({random.choice([20, 200, 5000])})\n".encode())
        process.stdin.flush()
        return process

    processes = [start() for _ in range(8)]
    try:
        wait_until(lambda: len(machine.truth()[0]["processes"]) == 8)
        time.sleep(0.5)
        for _ in range(20):
            for victim in random.sample(range(1, 8), 3):
                os.kill(processes[victim].pid, signal.SIGSTOP)
                if random.random() < 0.5:
                    processes[victim].kill()
                    processes[victim].wait()
                    processes[victim] = start()
            busy, began = machine.truth()[0]["gpu_time_us"], time.monotonic()
            time.sleep(0.1)
            # The driver looks at the GPU after that, so it sees no less.
            passed = time.monotonic() - began
            busy = machine.truth()[0]["gpu_time_us"] - busy
            assert busy > 0.8e6 * passed, "somebody was kept from the GPU"
            for process in processes:
                os.kill(process.pid, signal.SIGCONT)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert machine.truth()[0]["processes"] == []
    before = machine.truth()[0]["gpu_time_us"]
    time.sleep(0.1)
    assert machine.truth()[0]["gpu_time_us"] == before, "the dead keep the GPU busy"


def test_a_graph_is_one_unit(program, machine):
    p = program()
    p("f, s, graph, exe, a, b = busy(1000), stream(), c_uint64(), c_uint64(), event(), event()")
    p("ok(cu.cuStreamBeginCapture_v2(s, 0))")
    assert p("[launch(f, s) for _ in range(20)]") == [0] * 20
    p("ok(cu.cuStreamEndCapture(s, byref(graph)))")
    p("ok(cu.cuGraphInstantiateWithFlags(byref(exe), graph, c_uint64(0)))")
    assert gpu_time_us(machine)[p.pid] == 0
    p("held = hold(s)")
    p("[ok(cu.cuEventRecord(a, s)), ok(cu.cuGraphLaunch(exe, s)), ok(cu.cuEventRecord(b, s))]")
    p("release(held), synchronize(s)")
    assert 20 <= p("elapsed_ms(a, b)")[1] < 21
    assert gpu_time_us(machine)[p.pid] == 20_000


def test_kernels_spin_until_their_peers_run(program, machine):
    ranks = [program(device=device) for device in (0, 1)]
    for p in ranks:
        p("f, s = kernel('cantle_sim_spin_until_2'), stream()")
    ranks[0]("launch(f, s)")
    time.sleep(0.1)
    assert ranks[0]("cu.cuStreamQuery(s)") == 600
    assert gpu_time_us(machine)[ranks[0].pid] > 50_000
    ranks[1]("launch(f, s)")
    for p in ranks:
        assert p("seconds(lambda: synchronize(s))") < 10
    # Another group: the grid's first dimension is its name.
    ranks[0]("launch(f, s, 7)"), ranks[1]("launch(f, s, 8)")
    time.sleep(0.05)
    assert [p("cu.cuStreamQuery(s)") for p in ranks] == [600, 600]


def test_spinning_kernels_meet_though_others_want_the_gpus(program):
    ranks, others = [program(device=d) for d in (0, 1)], [program(has_context=False) for _ in (0, 1)]
    for device, p in enumerate(others):
        p(f"saturate(200, device={device})")
    for p in ranks:
        p("f, g, s = kernel('cantle_sim_spin_until_2'), busy(100), stream()")
        p("[launch(k, s) for _ in range(20) for k in (f, g)]")
    for p in ranks:
        assert p("seconds(lambda: synchronize(s))") < 60


@pytest.mark.clock
def test_a_kernel_without_end_leaves_others_their_turns(program, machine):
    persistent, other = program(), program(has_context=False)
    persistent("launch(busy(10**12), stream())")
    other("saturate(200)")
    time.sleep(0.3)
    eventually(lambda had, together: had == pytest.approx([together / 2] * 2, abs=0.02), machine, [persistent, other])


@pytest.mark.clock
def test_nvml_shows_who_is_busy(program, machine, python):
    show = """
import pynvml, json, sys
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
samples = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
print(json.dumps([pynvml.nvmlDeviceGetUtilizationRates(device).gpu, {s.pid: s.smUtil for s in samples}]))
"""
    idle, busy = program(), program(has_context=False)
    idle("busy(1)")
    busy("saturate(200)")

    def shown():
        percent, of = json.loads(machine.run(python, "-c", show))
        return percent, {int(pid): each for pid, each in of.items()}

    def is_busy(percent, of):
        return percent >= 99 and of.get(busy.pid, 0) >= 99 and of[idle.pid] == 0

    # Of the last period in which it was woken up in time.
    wait_until(lambda: is_busy(*shown()))
    busy.kill()
    wait_until(lambda: shown() == (0, {idle.pid: 0}))
