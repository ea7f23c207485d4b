"""An image that brings its own libcuda, and node drivers with the program that covers it. The image's is the simulated driver's with another
version in it (../docker/copies.py), as is that of CUDA's compatibility package."""

import pathlib
import re
import subprocess
import sys
import tarfile

import yaml

from classic import ClassicNode
from documented import LABELED
from driver import CANTLE, ROOT, Driver
from processes import wait_until
from test_documented_pods import GIB, PLAIN, held
from test_pods import FILL

sys.path.insert(0, str(ROOT / "tests/docker"))
from copies import library  # noqa: E402
from image import archive  # noqa: E402

IMAGE = "localhost/cantle-test-newer:1"
COMPAT = "usr/local/cuda-13.0/compat"
# CUDA 13 on a driver for CUDA 12.4.
NEWER, INSTALLED = "580.65.06", "550.163.01"
ON_NODE = "1xA100-40GB"
TELL = """
version = ctypes.c_int()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
print("version", version.value, flush=True)
"""
PROGRAM = FILL.replace("time.sleep", f"{TELL}time.sleep")
# As an image's variable has it, and as an entry point sets it.
WAYS = {
    "variable": ["python3", "-c", PROGRAM],
    "export": ["sh", "-c", f"export LD_LIBRARY_PATH=/usr/local/cuda/compat; exec python3 -c '{PROGRAM}'"],
}


class Covering:
    """The step of the chart's init container: libraries and program are in a directory that has the same path in this process and on the node."""

    def env(self):
        folder = self.home / "lib"
        if not folder.exists():
            subprocess.run([CANTLE, "controller", "libraries", "--to", folder], check=True)
        return {"CANTLE_LIB_DIR": str(folder)}


class CoveringDriver(Covering, Driver):
    pass


class CoveringClassicNode(Covering, ClassicNode):
    pass


def machine(worker, folder):
    """The worker's machine, with a driver that is older than the image, which the worker then has."""
    if IMAGE not in worker.runtime.images():
        add_image(worker, folder / "newer")
    return worker.with_gpus(ON_NODE, driver=INSTALLED)


def add_image(worker, made):
    made.mkdir()
    library(ROOT / "dist/lib/cantle/sim/libcuda.so.1", made / f"libcuda.so.{NEWER}", NEWER)
    (made / "libcuda.so.1").symlink_to(f"libcuda.so.{NEWER}")
    (made / "cuda").symlink_to("cuda-13.0")
    layer = made / "layer.tar"
    with tarfile.open(layer, "w") as out:
        for name in [f"libcuda.so.{NEWER}", "libcuda.so.1"]:
            out.add(made / name, f"{COMPAT}/{name}")
        out.add(made / "cuda", "usr/local/cuda")
    rootfs = subprocess.run([ROOT / "tests/rootfs.sh"], check=True, capture_output=True, text=True).stdout.strip()
    archive(pathlib.Path(rootfs), made / "image.tar", {"test": IMAGE}, [layer], [f"LD_LIBRARY_PATH=/{COMPAT}"])
    worker.runtime.load(made / "image.tar")


def create(pods, manifest, name, way):
    thing = yaml.safe_load(manifest)
    thing["metadata"]["name"] = name
    (container,) = thing["spec"]["containers"]
    container["image"], container["command"] = IMAGE, WAYS[way]
    pods.api.create(pods.path, thing)


def version(pods, name):
    """For which CUDA the driver is that the pod has found."""
    said = wait_until(lambda: re.search(r"version (\d+)", pods.log(name)), 60, lambda: pods.log(name))
    return int(said[1])


def held_with_its_own_libcuda(pods, node):
    """Without a slice the pod has all of the GPU by the image's libcuda; with one its limit, by the same libcuda."""
    create(pods, PLAIN, "plain", "variable")
    plain = pods.said("plain")
    assert plain["total"] == 40 << 10 and plain["taken"] > 39 << 10, f"negative control: {plain}"
    assert version(pods, "plain") == 13000
    pods.delete("plain")
    pods.wait_gone("plain")
    for way in WAYS:
        create(pods, LABELED, way, way)
        held(pods.said(way), 20 << 10)
        assert version(pods, way) == 13000, "the image's libcuda is used"
    (gpu,) = node.truth()
    assert 38 * GIB < gpu["used_bytes"] <= 40 * GIB and len(gpu["processes"]) == 2, gpu


def killed_past_its_slice(pods, node):
    """If the node cannot run the program, only the watchdog is left."""
    create(pods, LABELED, "uncovered", "variable")
    states = lambda: pods.get("uncovered")["status"].get("containerStatuses", [])
    ended = lambda: next((each["lastState"]["terminated"] for each in states() if each["lastState"]), None)
    wait_until(ended, 180, lambda: (pods.get("uncovered")["status"], node.log()))
    assert ended()["exitCode"] == 137
    wait_until(lambda: f"libcuda.so.{NEWER}" in node.log(), 60, node.log)
