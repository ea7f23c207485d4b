"""Checks for a machine with a container engine (`--containers IMAGE`): the table of docs/containers.md on a real card. The image has Python 3.

Each way in which NVIDIA's container toolkit gives containers GPUs is its own negative control: plain `docker run` gets the whole card."""

import shutil
import subprocess

from bench import MIB, ROOT, Skip

TOOLS = ["--volume", f"{ROOT}/tests/docker:/tools:ro", "--network", "none"]
# First the version of CUDA that a program finds, then what it can take.
PROGRAM = ["sh", "-c", "python3 /tools/cuda_version.py && python3 /tools/fill.py"]
WAYS = {
    "gpus": ["--gpus", "all"],
    "runtime": ["--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all"],
    "cdi": ["--device", "nvidia.com/gpu=all"],
}


def read(out):
    version, taken = out.strip().splitlines()[-2:]
    mib, code, total = map(int, taken.split())
    return {"cuda": version, "taken_bytes": mib * MIB, "code": code, "total_bytes": total * MIB}


def plain(bench, image, way):
    if shutil.which("docker") is None:
        raise Skip("there is no docker here")
    words = ["docker", "run", "--rm", *WAYS[way], *TOOLS, image, *PROGRAM]
    done = subprocess.run(words, env=bench.env, capture_output=True, text=True, timeout=bench.time_left(), stdin=subprocess.DEVNULL)
    if done.returncode in (125, 127):
        raise Skip(f"the engine gives no GPU by {' '.join(WAYS[way])}: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def slice_of(image, way):
    def check(bench):
        alone = plain(bench, image, way)
        assert alone["taken_bytes"] > bench.part(0.8), alone
        facts = {"alone": alone}
        words = {
            "run": ["run", "--quiet", "--gpu", "0.5", "--image", image, *TOOLS, "--", *PROGRAM],
            "docker-run": ["docker-run", "--gpu", "0.5", "--", "docker", "run", "--rm", "--gpus", "device=0", *TOOLS, image, *PROGRAM],
        }
        for name, command in words.items():
            with bench.watched() as used:
                found = facts[name] = read(bench.run(*command).stdout)
            found["nvml_bytes"] = max(used)
            assert found["total_bytes"] == bench.half() // MIB * MIB and found["code"] == 2, facts
            assert max(found["nvml_bytes"], found["taken_bytes"]) <= bench.half(), facts
            assert found["cuda"] == alone["cuda"], "an image finds the CUDA that it finds without cantle"
        return facts

    check.__name__ = f"container_{way}"
    return check


def checks(image):
    return [slice_of(image, way) for way in WAYS]
