"""An image of musl, such as Alpine: no program in it can load NVIDIA's driver. The image is made here, of a program and musl's loader."""

import pathlib
import shutil
import subprocess
import tarfile

import pytest

from image import archive
from injector import pod
from processes import wait_until

IMAGE = "localhost/cantle-test-musl:1"
LOADER = pathlib.Path("/lib/ld-musl-x86_64.so.1")


def load_image(worker, folder):
    if not shutil.which("musl-gcc") or not LOADER.exists():
        pytest.skip("no compiler for musl; run tests/setup.sh")
    source, program = folder / "main.c", folder / "main"
    source.write_text("#include <unistd.h>\nint main(void) { return sleep(600); }\n")
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    with tarfile.open(folder / "rootfs.tar", "w") as out:
        out.add(program, "bin/main")
        out.add(LOADER.resolve(), str(LOADER)[1:])
    archive(folder / "rootfs.tar", folder / "image.tar", {"test": IMAGE})
    worker.runtime.load(folder / "image.tar")


def refused_with_the_reason(pods):
    """Without a slice the image's program runs."""

    def create(name, labels):
        thing = pod(labels, name=name)
        thing["spec"]["terminationGracePeriodSeconds"] = 1
        (container,) = thing["spec"]["containers"]
        container["image"], container["command"] = IMAGE, ["/bin/main"]
        pods.api.create(pods.path, thing)

    create("plain", {})
    pods.wait_running("plain")
    create("slice", {"clearml-injector/fraction": "0.500"})
    said = lambda: str(pods.get("slice")["status"].get("containerStatuses"))
    wait_until(lambda: "the image has musl and no glibc" in said(), 120, said)
