#!/usr/bin/env -S python3 -IS
"""Gives a container that is about to be made the driver and all GPUs, as NVIDIA's container runtime does. All containers get them,
also those that ask for none: only what cantle puts over that holds a container to its slice."""

import json
import os
import pathlib
import stat
import sys

# In containers; their images are Debian's.
LIBRARIES = pathlib.Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
PROGRAM = pathlib.Path("/usr/bin/nvidia-smi")
# On the node the driver is there too, or in a driver container of NVIDIA's GPU Operator.
ROOTS = [pathlib.Path("/"), pathlib.Path("/run/nvidia/driver")]
# Of all instances that the GPUs may ever have: a hundred nodes for each GPU, so they come as a directory.
CAPABILITIES = pathlib.Path("/dev/nvidia-caps")


def driver_files():
    """The driver's libraries by their real names, the links to them, and its program."""
    root = next(root for root in ROOTS if (below(root, LIBRARIES) / "libcuda.so.1").exists())
    libraries = below(root, LIBRARIES)
    version = (libraries / "libcuda.so.1").resolve().name.removeprefix("libcuda")
    named = [*libraries.glob("libcuda*.so*"), *libraries.glob("libnv*.so*")]
    there = [path for path in named if path.resolve().name.endswith(version)]
    links = [path for path in there if path.is_symlink()]
    programs = [path for path in [below(root, PROGRAM)] if path.exists()]
    return [path for path in there if not path.is_symlink()], links, programs


def below(root, path):
    return root / path.relative_to("/")


def nodes():
    """Path, numbers and mode of each."""
    for path in sorted(pathlib.Path("/dev").glob("nvidia*")):
        found = path.stat()
        if stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode):
            kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
            number = {"type": kind, "major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
            yield {"path": str(path), **number}, stat.S_IMODE(found.st_mode)


def give(bundle):
    config = bundle / "config.json"
    spec = json.loads(config.read_text())
    files, links, programs = driver_files()
    places = {path: LIBRARIES / path.name for path in files} | dict.fromkeys(programs, PROGRAM)
    bind = lambda path, to, *more: {"type": "bind", "source": str(path), "destination": str(to), "options": ["rbind", "ro", "nosuid", *more]}
    # Before those that the container has by name: cantle's cover the driver's.
    spec["mounts"] = [bind(path, to, "nodev") for path, to in places.items()] + spec.get("mounts", []) + [bind(CAPABILITIES, CAPABILITIES)]

    linux = spec["linux"]
    devices, rules = linux.setdefault("devices", []), linux.setdefault("resources", {}).setdefault("devices", [])
    has = {device["path"] for device in devices}
    for node, mode in nodes():
        if node["path"] not in has:
            devices.append({**node, "fileMode": mode, "uid": 0, "gid": 0})
        rule = {"allow": True, **{name: node[name] for name in ["type", "major", "minor"]}, "access": "rw"}
        if rule not in rules:
            rules.append(rule)
    config.write_text(json.dumps(spec))

    folder = bundle / spec["root"]["path"] / str(LIBRARIES).lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for link in links:
        if not os.path.lexists(folder / link.name):
            (folder / link.name).symlink_to(os.readlink(link))


def main():
    # A worker has none before a test asks for some.
    if pathlib.Path("/dev/nvidiactl").exists():
        give(pathlib.Path(sys.argv[sys.argv.index("--bundle") + 1]))


main()
