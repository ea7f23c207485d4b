#!/usr/bin/env python3
"""Checks on a GPU in MIG mode what cantle relies on, and records how long the driver's calls take. Needs root and Python only.

The GPU must be in MIG mode and have no instances. They are made and destroyed through NVML, then by cantle; at the end
there are none. Prints one JSON object; exit code 1 if anything is not as expected.
"""

import argparse
import ctypes as c
import json
import pathlib
import subprocess
import sys
import time

PROFILE_NUMBERS = 64
INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
SEEN = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


class Placement(c.Structure):
    _fields_ = [("start", c.c_uint), ("size", c.c_uint)]


class GpuProfile(c.Structure):
    """nvmlGpuInstanceProfileInfo_v2_t"""

    _fields_ = [(name, c.c_uint) for name in ("version", "id", "p2p", "slices", "instances", "sms", "copy", "dec", "enc", "jpeg", "ofa")]
    _fields_ += [("memory_mib", c.c_ulonglong), ("name", c.c_char * 96)]


class ComputeProfile(c.Structure):
    """nvmlComputeInstanceProfileInfo_t"""

    _fields_ = [(name, c.c_uint) for name in ("id", "slices", "instances", "sms", "copy", "dec", "enc", "jpeg", "ofa")]


class ComputeInfo(c.Structure):
    """nvmlComputeInstanceInfo_t"""

    _fields_ = [("device", c.c_void_p), ("gpu_instance", c.c_void_p), ("id", c.c_uint), ("profile", c.c_uint), ("place", Placement)]


class GpuInfo(c.Structure):
    """nvmlGpuInstanceInfo_t"""

    _fields_ = [("device", c.c_void_p), ("id", c.c_uint), ("profile", c.c_uint), ("place", Placement)]


class Nvml:
    """NVML with each call timed."""

    def __init__(self):
        self.library = c.CDLL("libnvidia-ml.so.1")
        self.library.nvmlErrorString.restype = c.c_char_p
        self.milliseconds = {}
        self("nvmlInit_v2")

    def code(self, name, *arguments):
        started = time.monotonic()
        code = getattr(self.library, name)(*arguments)
        self.milliseconds.setdefault(name, []).append((time.monotonic() - started) * 1000)
        return code

    def __call__(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            sys.exit(f"{name}: {self.library.nvmlErrorString(code).decode()} ({code})")

    def latencies(self):
        def row(times):
            times = sorted(times)
            return {"calls": len(times), "median_ms": round(times[len(times) // 2], 3), "max_ms": round(times[-1], 3)}

        return {name: row(times) for name, times in self.milliseconds.items()}


def uuid_of(nvml, device):
    text = c.create_string_buffer(96)
    nvml("nvmlDeviceGetUUID", device, text, 96)
    return text.value.decode()


def profiles(nvml, gpu):
    """What the GPU offers, with the places of each profile."""
    for number in range(PROFILE_NUMBERS):
        info = GpuProfile(version=c.sizeof(GpuProfile) | 2 << 24)
        code = nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, number, c.byref(info))
        if code == INVALID_ARGUMENT:
            return
        if code == NOT_SUPPORTED:
            continue
        count, places = c.c_uint(32), (Placement * 32)()
        nvml("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu, info.id, places, c.byref(count))
        yield info, [(place.start, place.size) for place in places[: count.value]]


def full_compute_profile(nvml, instance):
    best = None
    for number in range(PROFILE_NUMBERS):
        info = ComputeProfile()
        code = nvml.code("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0, c.byref(info))
        if code == INVALID_ARGUMENT:
            break
        if code == 0 and (best is None or (info.slices, info.sms) > (best.slices, best.sms)):
            best = info
    return best


def nodes_of(nvml, gpu, instance):
    """Which of an instance's device nodes there are before anybody makes them; empty where the driver has none."""
    minor, info = c.c_uint(), GpuInfo()
    nvml("nvmlDeviceGetMinorNumber", gpu, c.byref(minor))
    nvml("nvmlGpuInstanceGetInfo", instance, c.byref(info))
    wanted = {f"gpu{minor.value}/gi{info.id}/{name}" for name in ("access", "ci0/access")}
    try:
        lines = pathlib.Path("/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    except OSError:
        return {}
    numbers = dict(line.split() for line in lines if line.split()[0] in wanted)
    return {name: pathlib.Path(f"/dev/nvidia-caps/nvidia-cap{number}").exists() for name, number in numbers.items()}


def life(nvml, gpu, profile, start, size):
    """One instance from nothing to nothing: its UUID, the compute profile that fills it, and its device nodes."""
    place, instance, compute, info = Placement(start, size), c.c_void_p(), c.c_void_p(), ComputeInfo()
    nvml("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile.id, c.byref(place), c.byref(instance))
    full = full_compute_profile(nvml, instance)
    nvml("nvmlGpuInstanceCreateComputeInstance", instance, full.id, c.byref(compute))
    nvml("nvmlComputeInstanceGetInfo_v2", compute, c.byref(info))
    uuid = uuid_of(nvml, c.c_void_p(info.device))
    nodes = nodes_of(nvml, gpu, instance)
    nvml("nvmlComputeInstanceDestroy", compute)
    nvml("nvmlGpuInstanceDestroy", instance)
    return uuid, {"id": full.id, "slices": full.slices, "multiprocessors": full.sms}, nodes


def driver_facts(nvml, gpu):
    """What the driver does with each profile at each place, tried twice."""
    facts, expected = [], True
    for profile, places in profiles(nvml, gpu):
        for start, size in places:
            first, compute, nodes = life(nvml, gpu, profile, start, size)
            second, _, _ = life(nvml, gpu, profile, start, size)
            expected &= first == second
            facts.append(
                {"profile": profile.name.decode(), "id": profile.id, "memory_mib": profile.memory_mib, "start": start, "size": size,
                 "uuid": first, "same_uuid_again": first == second, "compute": compute, "nodes": nodes}
            )  # fmt: skip
    return facts, expected


def cantle_facts(cantle, profile):
    """A task that stays, and a second one beside it: each has its own instance, the first one's stays as it is."""

    def run(*command, **options):
        return subprocess.Popen([cantle, "run", "--mig-profile", profile, "--", *command], stdout=subprocess.PIPE, text=True, **options)

    started = time.monotonic()
    first = run(sys.executable, "-c", SEEN + "; print(flush=True); input()", stdin=subprocess.PIPE)
    uuid = first.stdout.readline().strip()
    first_ms = (time.monotonic() - started) * 1000
    started = time.monotonic()
    other = run(sys.executable, "-c", SEEN)
    other_uuid = other.communicate(timeout=120)[0].strip()
    other_ms = (time.monotonic() - started) * 1000
    started = time.monotonic()
    again = run(sys.executable, "-c", SEEN).communicate(timeout=120)[0].strip()
    again_ms = (time.monotonic() - started) * 1000
    lives = first.poll() is None
    first.communicate("\n", timeout=120)
    facts = {"first": uuid, "second": other_uuid, "kept": again, "first_lives": lives, "first_exit": first.returncode,
             "first_ms": round(first_ms), "second_ms": round(other_ms), "kept_ms": round(again_ms)}  # fmt: skip
    apart = uuid.startswith("MIG-") and other_uuid.startswith("MIG-") and uuid not in (other_uuid, again)
    return facts, apart and other_uuid == again and lives and first.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="a GPU in MIG mode without instances")
    parser.add_argument("--cantle", metavar="PATH", help="also run tasks with this program")
    args = parser.parse_args()
    nvml = Nvml()
    gpu, current, pending = c.c_void_p(), c.c_uint(), c.c_uint()
    nvml("nvmlDeviceGetHandleByIndex_v2", args.gpu, c.byref(gpu))
    if nvml.code("nvmlDeviceGetMigMode", gpu, c.byref(current), c.byref(pending)) or not current.value:
        sys.exit(f"GPU {args.gpu} is not in MIG mode; nvidia-smi -i {args.gpu} -mig 1 turns it on")
    version = c.create_string_buffer(80)
    nvml("nvmlSystemGetDriverVersion", version, 80)
    facts, expected = driver_facts(nvml, gpu)
    report = {"driver": version.value.decode(), "gpu": uuid_of(nvml, gpu), "instances": facts, "calls": nvml.latencies()}
    if args.cantle:
        smallest = min(facts, key=lambda fact: (fact["size"], fact["memory_mib"]))["profile"].removeprefix("MIG ")
        report["cantle"], fine = cantle_facts(args.cantle, smallest)
        expected &= fine
    print(json.dumps(report | {"as_expected": expected}, indent=1))
    sys.exit(0 if expected else 1)


if __name__ == "__main__":
    main()
