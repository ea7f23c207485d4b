"""CRI-O as the container runtime of a worker node, where $CANTLE_TEST_CRIO names the directory of its programs `crio` and `pinns`. Nothing here can download or
package it, so the gate does not have it. It needs Debian's conmon and skopeo besides.

One setting is not the default: control groups of cgroupfs, as the whole cluster has, because no systemd runs here."""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile

from processes import Program, kill_with

FOLDER = os.environ.get("CANTLE_TEST_CRIO")
CONFIG = """
[crio]
root = "{dir}/data"
runroot = "{dir}/run"
log_dir = "{dir}/log"
storage_driver = "overlay"
version_file = "{dir}/version"
clean_shutdown_file = "{dir}/clean"
[crio.api]
listen = "{dir}/crio.sock"
[crio.image]
pause_image = "{pause}"
signature_policy = "{dir}/policy.json"
[crio.network]
network_dir = "{dir}/cni"
plugin_dirs = ["{cni}"]
[crio.nri]
enable_nri = false
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{programs}/pinns"
namespaces_dir = "{dir}/namespaces"
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
cdi_spec_dirs = ["{cdi}"]
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "{runtime}"
runtime_root = "{dir}/runc"
monitor_path = "{conmon}"
"""


class Crio:
    @staticmethod
    def missing(_):
        """What of it is not here."""
        own = [name for name in ("crio", "pinns") if not (pathlib.Path(FOLDER) / name).exists()]
        return own + [name for name in ("conmon", "skopeo") if not shutil.which(name)]

    def __init__(self, folder, _, machine, fields):
        self.folder, programs = folder, pathlib.Path(FOLDER)
        self.socket = folder / "crio.sock"
        config = folder / "crio.conf"
        config.write_text(CONFIG.format(dir=folder, programs=programs, conmon=shutil.which("conmon"), **fields))
        (folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        # Names without a registry, as containerd reads them. CRI-O looks for this file in one place.
        settings = folder / "containers"
        settings.mkdir()
        (settings / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\nshort-name-mode = "permissive"\n')
        subprocess.run(machine.command("mount", "--bind", settings, "/etc/containers"), check=True)
        self.machine = machine
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        command = [programs / "crio", "--config", config, "--config-dir", folder / "none"]
        self.program = Program("CRI-O", folder.parent, machine.command(*command), env)

    def load(self, archive):
        """Takes the images of an archive, as image.py or Docker writes it."""
        layout = self.folder / "layout"
        with tarfile.open(archive) as file:
            file.extractall(layout)
        index = layout / "index.json"
        if index.exists():
            manifests = json.loads(index.read_text())["manifests"]
            for manifest in manifests:
                # skopeo finds an image by the standard's annotation.
                noted = manifest["annotations"]
                noted["org.opencontainers.image.ref.name"] = noted["io.containerd.image.name"]
            index.write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
            names = [manifest["annotations"]["io.containerd.image.name"] for manifest in manifests]
            source = f"oci:{layout}"
        else:
            names = [name for image in json.loads((layout / "manifest.json").read_text()) for name in image["RepoTags"]]
            source = f"docker-archive:{archive}"
        for name in names:
            self.copy(f"{source}:{name}", name)
        shutil.rmtree(layout)

    def tag(self, image, name):
        self.copy(self.stored(image), name)

    def images(self):
        """The names of all images, one in each line."""
        file = self.folder / "data/overlay-images/images.json"
        known = json.loads(file.read_text()) if file.exists() else []
        return "\n".join(name for image in known for name in image.get("names", []))

    def stop(self):
        """Itself, and then the containers, which outlive it: each monitor has the name of this directory among its words."""
        self.program.stop(15)
        runc = ["runc", "--root", self.folder / "runc"]
        listed = subprocess.run([*runc, "list", "--quiet"], capture_output=True, text=True, timeout=60).stdout.split()
        for container in listed:
            subprocess.run([*runc, "delete", "--force", container], capture_output=True, timeout=60)
        kill_with(str(self.folder))

    def stored(self, name):
        return f"containers-storage:[overlay@{self.folder / 'data'}+{self.folder / 'run'}]{name}"

    def copy(self, source, name):
        command = ["skopeo", "--policy", self.folder / "policy.json", "copy", "--quiet", source, self.stored(name)]
        subprocess.run(self.machine.command(*command), check=True, timeout=300)
