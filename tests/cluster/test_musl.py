"""An image of musl, such as Alpine: no program in it can load NVIDIA's driver. The image is made here, of a program and musl's loader."""

import pathlib
import shutil
import subprocess
import tarfile

import pytest

from image import archive
from injector import pod
from own_libcuda import CoveringDriver
from processes import wait_until
from test_pods import Pods

IMAGE = "localhost/cantle-test-musl:1"
LOADER = pathlib.Path("/lib/ld-musl-x86_64.so.1")


@pytest.fixture
def image(worker, tmp_path):
    if not shutil.which("musl-gcc") or not LOADER.exists():
        pytest.skip("no compiler for musl; run tests/setup.sh")
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text("#include <unistd.h>\nint main(void) { return sleep(600); }\n")
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    with tarfile.open(tmp_path / "rootfs.tar", "w") as out:
        out.add(program, "bin/main")
        out.add(LOADER.resolve(), str(LOADER)[1:])
    archive(tmp_path / "rootfs.tar", tmp_path / "image.tar", {"test": IMAGE})
    worker.runtime.load(tmp_path / "image.tar")


@pytest.mark.dra("An image with musl and without glibc (Alpine) is refused at its start, with the reason")
def test_an_image_of_musl_is_refused_with_the_reason(plane, worker, make_node, injector, namespace, image):
    node = make_node(CoveringDriver, worker.name, worker.with_gpus("1xA100-40GB"))
    wait_until(lambda: "registered with the kubelet" in node.log(), 60, node.log)
    pods = Pods(plane.api, namespace)

    def create(name, labels):
        thing = pod(labels, name=name)
        thing["spec"]["terminationGracePeriodSeconds"] = 1
        (container,) = thing["spec"]["containers"]
        container["image"], container["command"] = IMAGE, ["/bin/main"]
        plane.api.create(pods.path, thing)

    create("plain", {})
    pods.wait_running("plain")
    create("slice", {"clearml-injector/fraction": "0.500"})
    said = lambda: str(pods.get("slice")["status"].get("containerStatuses"))
    wait_until(lambda: "the image has musl and no glibc" in said(), 120, said)
