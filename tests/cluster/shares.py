"""Pods with shares of a GPU's compute time. The GPU is simulated, with time; its driver's own count of GPU time per process is the witness."""

import pathlib
import time

from injector import pod
from processes import wait_until

# Launches kernels of a millisecond without end; a full queue blocks it.
LAUNCH = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel, stream = (ctypes.c_void_p() for _ in range(4))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"cantle_sim_busy_us_1000") == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
print("total", total.value >> 20, flush=True)
while cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None) == 0:
    pass
sys.exit("a launch failed")
"""


def annotations(fraction, compute, **parts):
    words = {f"cantle.dev/compute-{name}": str(part) for name, part in parts.items()}
    return {"gpu-fraction": fraction, "cantle.dev/compute": compute, **words}


def create(pods, name, asked):
    """Of one namespace; the pod's name is in its command line, so that its process can be identified."""
    thing = pod(annotations=asked, name=name)
    thing["spec"]["terminationGracePeriodSeconds"] = 1
    thing["spec"]["containers"][0]["command"] = ["python3", "-c", LAUNCH, f"{pods.path}/{name}"]
    pods.api.create(pods.path, thing)


def total_mib(pods, name):
    pods.wait_running(name)
    log = wait_until(lambda: pods.api.get(f"{pods.path}/{name}/log"), 60, lambda: pods.get(name)["status"])
    return int(log.split()[1])


def gpu_time_us(node, word):
    """Of the process with this word in its command line, by the simulated driver."""
    (gpu,) = node.truth()
    return sum(each["gpu_time_us"] for each in gpu["processes"] if word.encode() in command_line(each["pid"]))


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        # It has just ended.
        return []


def had(pods, node, *names, seconds=3):
    """Each pod's part of all time."""
    return had_by_words(node, *(f"{pods.path}/{name}" for name in names), seconds=seconds)


def part_of_first(had):
    """Of what all had together."""
    return had[0] / sum(had) if sum(had) else 0


def had_by_words(node, *words, seconds=3):
    """The same of processes by a word of their command lines."""
    look = lambda: [gpu_time_us(node, word) for word in words]
    began, before = time.monotonic(), look()
    time.sleep(seconds)
    after, passed = look(), time.monotonic() - began
    return [(there - here) / 1e6 / passed for here, there in zip(before, after)]


def shares_hold(pods, node, seen=lambda: None):
    """Two pods with equal memory: 3 to 1 of the time, and none is left to promise. Without shares they have the same, and a cap holds.
    `seen` looks at it in its own way."""
    for name in ("even-a", "even-b"):
        create(pods, name, annotations("0.25", "even"))
    assert [total_mib(pods, name) for name in ("even-a", "even-b")] == [10 << 10] * 2
    controls = []

    def even():
        controls.append(had(pods, node, "even-a", "even-b"))
        return 0.4 < part_of_first(controls[-1]) < 0.6

    wait_until(even, 60, lambda: f"negative control: {controls}")
    # Of all time: where all processors are busy, the GPU waits for threads that wake up late.
    busy = min(1, sum(controls[-1]))
    end(pods, "even-a", "even-b")

    create(pods, "most", annotations("0.25", "fair", request=0.75))
    create(pods, "rest", annotations("0.25", "fair"))
    assert [total_mib(pods, name) for name in ("most", "rest")] == [10 << 10] * 2, "memory as asked for"
    create(pods, "third", annotations("0.125", "fair"))
    shares = []

    def divided():
        shares.append(had(pods, node, "most", "rest"))
        return 0.7 <= part_of_first(shares[-1]) <= 0.8

    # What counts is each pod's part of what they had. The bounds of the other two are as far from what they tell apart.
    wait_until(divided, 60, lambda: (shares, node.log()))
    assert pods.get("third")["status"]["phase"] == "Pending", "0.75 and 0.25 are promised"
    seen()
    pods.delete("third")
    pods.wait_gone("third")
    end(pods, "most")
    alone = lambda: had(pods, node, "rest")[0] > 0.35 * busy
    wait_until(alone, 60, lambda: f"what nobody uses is lent: {had(pods, node, 'rest')} of {busy}")
    end(pods, "rest")

    create(pods, "capped", annotations("0.3", "strict"))
    total_mib(pods, "capped")
    capped = lambda: 0.15 * busy <= had(pods, node, "capped")[0] <= 0.33
    wait_until(capped, 60, node.log)
    end(pods, "capped")


def end(pods, *names):
    for name in names:
        pods.delete(name)
    for name in names:
        pods.wait_gone(name)
