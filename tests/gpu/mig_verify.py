#!/usr/bin/env python3
"""Checks on a GPU with MIG the behavior that cantle relies on, and measures the driver's calls. Needs only root and
Python. Without --i-own-this-card nothing is changed: profiles, placements, codes and the time of each call. With it the GPU
must be in MIG mode and have no instances; they are created and destroyed through NVML, then by cantle, and at the end there are none in any
case. Prints
one JSON object; exit code 1 if anything is not as expected.
"""

import argparse
import ctypes as c
import json
import pathlib
import subprocess
import sys
import threading
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


class Pci(c.Structure):
    """nvmlPciInfo_t"""

    _fields_ = [("legacy", c.c_char * 16), *((name, c.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")), ("address", c.c_char * 32)]


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


def profile_v2():
    return GpuProfile(version=c.sizeof(GpuProfile) | 2 << 24)


def profiles(nvml, gpu):
    """The offers of the GPU, with the places of each profile."""
    for _, info, places in numbered_profiles(nvml, gpu):
        yield info, places


def numbered_profiles(nvml, gpu):
    for number in range(PROFILE_NUMBERS):
        info = profile_v2()
        code = nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, number, c.byref(info))
        if code == INVALID_ARGUMENT:
            return
        if code == NOT_SUPPORTED:
            continue
        count, places = c.c_uint(32), (Placement * 32)()
        nvml("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu, info.id, places, c.byref(count))
        yield number, info, [(place.start, place.size) for place in places[: count.value]]


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
    """The device nodes of an instance that exist without help; empty where the driver has none."""
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
    """The driver's behavior with each profile at each place, tried twice."""
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


def readings(nvml, gpu):
    """The queries that change nothing: the table, and the codes that programs rely on."""
    table = [
        {"profile": info.name.decode(), "id": info.id, "number": number, "memory_mib": info.memory_mib, "slices": info.slices,
         "max": info.instances, "multiprocessors": info.sms, "copy_engines": info.copy, "decoders": info.dec, "encoders": info.enc,
         "jpeg": info.jpeg, "ofa": info.ofa, "placements": places}
        for number, info, places in numbered_profiles(nvml, gpu)
    ]  # fmt: skip
    wrong = GpuProfile(version=c.sizeof(GpuProfile) | 77 << 24)
    none, count = c.c_void_p(), c.c_uint()
    codes = {
        "profile_wrong_version": nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, 0, c.byref(wrong)),
        "profile_beyond_the_last": nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, PROFILE_NUMBERS, c.byref(profile_v2())),
        "instances_of_unknown_profile": nvml.code("nvmlDeviceGetGpuInstances", gpu, 999, c.byref(none), c.byref(count)),
        "instance_by_unknown_id": nvml.code("nvmlDeviceGetGpuInstanceById", gpu, 99, c.byref(none)),
    }
    symbols = {name: hasattr(nvml.library, name) for name in SYMBOLS}
    return {"table": table, "codes": codes, "symbols": symbols}


SYMBOLS = (
    "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
)  # fmt: skip


def make(nvml, gpu, profile, start, size, numbers):
    """One instance that stays; its handle, id and UUID."""
    place, instance, compute = Placement(start, size), c.c_void_p(), c.c_void_p()
    nvml("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile.id, c.byref(place), c.byref(instance))
    full = full_compute_profile(nvml, instance)
    nvml("nvmlGpuInstanceCreateComputeInstance", instance, full.id, c.byref(compute))
    info, about = ComputeInfo(), GpuInfo()
    nvml("nvmlComputeInstanceGetInfo_v2", compute, c.byref(info))
    nvml("nvmlGpuInstanceGetInfo", instance, c.byref(about))
    numbers.append({"profile": profile.name.decode(), "start": start, "id": about.id, "uuid": uuid_of(nvml, c.c_void_p(info.device))})
    return numbers[-1]


def clear(nvml, gpu):
    """Destroys every instance of the GPU, as well as it goes; says whether it is empty."""
    left = 0
    for profile, _ in profiles(nvml, gpu):
        found, count = (c.c_void_p * 32)(), c.c_uint()
        if nvml.code("nvmlDeviceGetGpuInstances", gpu, profile.id, found, c.byref(count)):
            continue
        for instance in map(c.c_void_p, found[: count.value]):
            for number in range(PROFILE_NUMBERS):
                info, inside = ComputeProfile(), (c.c_void_p * 32)()
                code = nvml.code("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0, c.byref(info))
                if code == INVALID_ARGUMENT:
                    break
                if code or nvml.code("nvmlGpuInstanceGetComputeInstances", instance, info.id, inside, c.byref(count)):
                    continue
                for compute in map(c.c_void_p, inside[: count.value]):
                    nvml.code("nvmlComputeInstanceDestroy", compute)
            left += nvml.code("nvmlGpuInstanceDestroy", instance) != 0
    return left == 0


def step(args, what):
    """Another process does one thing to the GPU: its NVML is not this one."""
    done = subprocess.run([sys.executable, __file__, "--gpu", str(args.gpu), "--step", what], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the second process: {done.stderr.strip()}")
    return json.loads(done.stdout)


def one_step(nvml, gpu, what):
    if what == "clear":
        return clear(nvml, gpu)
    profile, places = next((profile, places) for profile, places in profiles(nvml, gpu) if profile.id == int(what))
    return make(nvml, gpu, profile, *places[0], [])


def pair_of_one_size(nvml, gpu):
    """Two profiles with the same first placement: their instances may have the same id."""
    seen = {}
    for profile, places in profiles(nvml, gpu):
        if places and places[0] in seen and profile.slices != seen[places[0]].slices:
            return seen[places[0]], profile
        if places:
            seen.setdefault(places[0], profile)
    return None


def what_a_process_remembers(nvml, args, gpu):
    """This process looks at an instance; another one replaces it by one of another profile; this one looks again."""
    pair = pair_of_one_size(nvml, gpu)
    if pair is None:
        return {"asked": False}
    before = step(args, str(pair[0].id))
    seen_before = listed(nvml, gpu, pair)
    step(args, "clear")
    after = step(args, str(pair[1].id))
    seen_after = listed(nvml, gpu, pair)
    step(args, "clear")
    stale = any(info["listed"] != info["told"] for info in seen_after)
    return {"asked": True, "made": [before, after], "before": seen_before, "after": seen_after, "remembers_the_old_profile": stale,
            "same_uuid": before["uuid"] == after["uuid"]}  # fmt: skip


def listed(nvml, gpu, of):
    rows = []
    for profile in of:
        found, count = (c.c_void_p * 32)(), c.c_uint()
        nvml("nvmlDeviceGetGpuInstances", gpu, profile.id, found, c.byref(count))
        for instance in map(c.c_void_p, found[: count.value]):
            info = GpuInfo()
            nvml("nvmlGpuInstanceGetInfo", instance, c.byref(info))
            rows.append({"listed": profile.id, "told": info.profile, "id": info.id, "start": info.place.start, "size": info.place.size})
    return rows


def does_another_gpu_wait(nvml, gpu, other):
    """Lists on another GPU, in this process, while an instance is made on this one."""
    alone = timed_list(nvml, other)
    profile, places = next(iter(profiles(nvml, gpu)))
    numbers, times = [], []
    making = threading.Thread(target=make, args=(nvml, gpu, profile, *places[0], numbers))
    began = time.monotonic()
    making.start()
    while making.is_alive():
        times.append(timed_list(nvml, other))
    took = (time.monotonic() - began) * 1000
    making.join()
    clear(nvml, gpu)
    return {"creation_ms": round(took, 1), "list_alone_ms": round(alone, 3), "longest_list_meanwhile_ms": round(max(times, default=0), 3)}


def timed_list(nvml, gpu):
    began, count = time.monotonic(), c.c_uint()
    profile = GpuProfile(version=c.sizeof(GpuProfile) | 2 << 24)
    nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, 0, c.byref(profile))
    nvml.code("nvmlDeviceGetGpuInstanceRemainingCapacity", gpu, profile.id, c.byref(count))
    return (time.monotonic() - began) * 1000


def names_under_neighbors(nvml, gpu):
    """Id and UUID of one place, alone and next to others: does a name belong to a place?"""
    profile, places = min(profiles(nvml, gpu), key=lambda row: (row[1][0][1], len(row[1])))
    rows = []
    for order in (places, places[::-1]):
        numbers = []
        for start, size in order[: profile.instances]:
            make(nvml, gpu, profile, start, size, numbers)
        clear(nvml, gpu)
        rows.append(sorted(numbers, key=lambda number: number["start"]))
    return {"upwards": rows[0], "downwards": rows[1], "name_is_of_place": rows[0] == rows[1]}


def cantle_facts(cantle, profile):
    """A task that stays, and a second one next to it: each has its own instance, the first one's stays as it is."""

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


def experiments(nvml, args, gpu):
    """Everything that makes and destroys instances. At the end there are none."""
    report, expected = {}, True
    try:
        report["instances"], expected = driver_facts(nvml, gpu)
        report["memory_of_a_process"] = what_a_process_remembers(nvml, args, gpu)
        report["names"] = names_under_neighbors(nvml, gpu)
        other = other_gpu(nvml, args.gpu)
        if other is not None:
            report["another_gpu"] = does_another_gpu_wait(nvml, gpu, other)
        if args.cantle:
            smallest = min(report["instances"], key=lambda fact: (fact["size"], fact["memory_mib"]))["profile"].removeprefix("MIG ")
            report["cantle"], fine = cantle_facts(args.cantle, smallest)
            expected &= fine
    finally:
        # This process's memory of instances may be wrong by now: another one cleans up.
        emptied = step(args, "clear")
    return report, expected and emptied


def other_gpu(nvml, index):
    """Another GPU in MIG mode, if there is one; nothing is changed there."""
    count = c.c_uint()
    nvml("nvmlDeviceGetCount_v2", c.byref(count))
    for number in set(range(count.value)) - {index}:
        gpu, current, pending = c.c_void_p(), c.c_uint(), c.c_uint()
        if nvml.code("nvmlDeviceGetHandleByIndex_v2", number, c.byref(gpu)):
            continue
        if not nvml.code("nvmlDeviceGetMigMode", gpu, c.byref(current), c.byref(pending)) and current.value:
            return gpu
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", type=int, default=0, metavar="INDEX", help="a GPU in MIG mode without instances")
    parser.add_argument("--cantle", metavar="PATH", help="also run tasks with this program")
    parser.add_argument("--i-own-this-card", action="store_true", help="make and destroy instances on it; without, it is only asked")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    nvml = Nvml()
    gpu, current, pending = c.c_void_p(), c.c_uint(), c.c_uint()
    nvml("nvmlDeviceGetHandleByIndex_v2", args.gpu, c.byref(gpu))
    has_no_mig = nvml.code("nvmlDeviceGetMigMode", gpu, c.byref(current), c.byref(pending))
    # The table can be read in any mode.
    if has_no_mig or (args.step or args.i_own_this_card) and not current.value:
        sys.exit(f"GPU {args.gpu} is not in MIG mode; nvidia-smi -i {args.gpu} -mig 1 turns it on")
    if args.step:
        print(json.dumps(one_step(nvml, gpu, args.step)))
        return
    if args.cantle and not args.i_own_this_card:
        sys.exit("--cantle makes instances; add --i-own-this-card")
    version, model = c.create_string_buffer(80), c.create_string_buffer(96)
    nvml("nvmlSystemGetDriverVersion", version, 80)
    nvml("nvmlDeviceGetName", gpu, model, 96)
    pci = Pci()
    nvml("nvmlDeviceGetPciInfo_v3", gpu, c.byref(pci))
    report = {"driver": version.value.decode(), "pci_id": f"0x{pci.id:08X}", "model": model.value.decode(), "gpu": uuid_of(nvml, gpu), "mig_mode": bool(current.value)}
    report["readings"] = readings(nvml, gpu)
    expected = True
    if args.i_own_this_card:
        if any(listed(nvml, gpu, [profile]) for profile, _ in profiles(nvml, gpu)):
            sys.exit(f"GPU {args.gpu} has instances; they are somebody's, and this script needs an empty GPU")
        changed, expected = experiments(nvml, args, gpu)
        report |= changed
    print(json.dumps(report | {"calls": nvml.latencies(), "as_expected": expected}, indent=1))
    sys.exit(0 if expected else 1)


if __name__ == "__main__":
    main()
