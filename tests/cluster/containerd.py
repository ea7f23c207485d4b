"""containerd, as it is, as the container runtime of a worker node."""

import os
import subprocess

from processes import Program, kill_with

CONFIG = """
version = 3
root = '{dir}/data'
state = '{dir}/state'
[grpc]
  address = '{dir}/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['{cdi}']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    use_internal_loopback = true
    bin_dirs = ['{cni}']
    conf_dir = '{dir}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runtime}'
        SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
"""


class Containerd:
    @staticmethod
    def missing(programs):
        """What of it is not here."""
        return [name for name in ("containerd", "containerd-shim-runc-v2", "ctr") if not (programs / name).exists()]

    def __init__(self, folder, programs, machine, fields):
        self.folder, self.programs = folder, programs
        self.socket = folder / "containerd.sock"
        config = folder / "config.toml"
        config.write_text(CONFIG.format(dir=folder, **fields))
        # It looks for its shim in its own directory.
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}
        self.program = Program("containerd", folder.parent, machine.command(programs / "containerd", "--config", config), env)

    def load(self, archive):
        """Takes the images of an archive (image.py)."""
        self.ctr("images", "import", archive)

    def tag(self, image, name):
        self.ctr("images", "tag", image, name)

    def images(self):
        """The names of all images, one in each line."""
        return self.ctr("images", "list", "--quiet")

    def stop(self):
        """The containers, and then itself."""
        if self.program.child and self.program.child.poll() is None:
            for task in self.ctr("tasks", "list", "--quiet").split():
                self.ctr("tasks", "delete", "--force", task)
        self.program.stop(15)
        # The shims outlive it; each has the name of its socket among its words.
        kill_with(str(self.socket))

    def ctr(self, *words):
        command = [self.programs / "ctr", "--address", self.socket, "--namespace", "k8s.io", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
