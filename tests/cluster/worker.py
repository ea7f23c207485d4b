"""A worker node: containerd and kubelet, as they are."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from control_plane import GATES
from image import IMAGES
from processes import Program, free_ports, pids_with, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the first node only: run.sh has put them there.
KUBELET_DIR = pathlib.Path("/var/lib/kubelet")
CDI_DIR = pathlib.Path("/var/run/cdi")
SIM_DIR = pathlib.Path("/var/lib/cantle/sim")
# Every kubelet has its device plugins there, wherever else its folder is; a second one gets a place of its own.
HIDDEN = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {KUBELET_DIR}/device-plugins && exec "$@"', "sh"]
# With cgroups of version 1 there is one folder for each controller.
CGROUPS = [path for path in pathlib.Path("/sys/fs/cgroup").iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]
if pathlib.Path("/sys/fs/cgroup/cgroup.procs").exists():
    CGROUPS = [pathlib.Path("/sys/fs/cgroup")]

CONTAINERD = """
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
      base_runtime_spec = '{dir}/base.json'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runc}'
        SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
"""


class Worker:
    def __init__(self, folder, programs, control_plane, name="worker", is_first=True):
        self.folder, self.programs, self.plane, self.name = folder, programs, control_plane, name
        self.containerd_dir = folder / "containerd"
        self.kubelet_dir, self.cdi_dir, self.sim_dir = KUBELET_DIR, CDI_DIR, SIM_DIR
        self.hidden = [] if is_first else HIDDEN
        if not is_first:
            self.kubelet_dir, self.cdi_dir, self.sim_dir = (folder / part for part in ["kubelet", "cdi", "sim"])
        self.port, self.health_port = free_ports(2)
        self.socket = self.containerd_dir / "containerd.sock"
        for made in [self.containerd_dir / "cni", self.cdi_dir, self.sim_dir]:
            made.mkdir(parents=True)
        self.cgroup = f"cantle-test-{os.getpid()}-{name}"
        for folder in CGROUPS:
            (folder / self.cgroup).mkdir(exist_ok=True)
        self.containerd = self.make_containerd()
        self.kubelet = self.make_kubelet()

    def make_containerd(self):
        fields = {"dir": self.containerd_dir, "cdi": self.cdi_dir, "pause": IMAGES["pause"], "runc": shutil.which("runc")}
        fields["cni"] = ROOT / "tests/cluster/cni"
        config = self.containerd_dir / "config.toml"
        config.write_text(CONTAINERD.format(**fields))
        pods = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pods"}]}
        (self.containerd_dir / "cni/pods.conflist").write_text(json.dumps(pods))
        (self.containerd_dir / "base.json").write_text(json.dumps(self.base_spec()))
        # It looks for its shim beside itself.
        env = {"PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": str(self.folder)}
        return Program("containerd", self.folder, [self.programs / "containerd", "--config", config], env)

    def base_spec(self):
        """What every container begins with. As NVIDIA's container runtime does where it is the default one, it gives all of
        them the driver and all GPUs; only what cantle puts over that holds a container to its slice."""
        spec = json.loads(self.ctr("oci", "spec"))
        # The engine itself leaves this one away.
        spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] != "/run"]
        bind = lambda source, to, mode: {"type": "bind", "source": str(source), "destination": to, "options": ["rbind", mode]}
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"]:
            spec["mounts"].append(bind(ROOT / "dist/lib/cantle/sim" / name, f"/usr/lib/x86_64-linux-gnu/{name}", "ro"))
        spec["mounts"].append(bind(self.sim_dir, str(self.sim_dir), "rw"))
        spec["process"]["env"] = [f"CANTLE_SIM_DIR={self.sim_dir}"]
        return spec

    def make_kubelet(self):
        certificates, name, leaf = self.plane.certificates, self.name, f"kubelet-{self.name}"
        certificates.leaf(leaf, f"/O=system:nodes/CN=system:node:{name}", f"IP:127.0.0.1,DNS:{name}")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.port,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.health_port,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates.crt("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificates.crt(leaf)),
            "tlsPrivateKeyFile": str(certificates.key(leaf)),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            # A kubelet ends whatever it does not know below its root; another cluster may be running here.
            "cgroupRoot": f"/{self.cgroup}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            # Kubelets refuse cgroup v1 by default.
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
            # A pod whose claim could not be prepared is looked at again as rarely as one that runs: once a minute by default.
            "syncFrequency": "5s",
            "featureGates": {name: on == "true" for name, on in (gate.split("=") for gate in filter(None, GATES.split(",")))},
            "makeIPTablesUtilChains": False,
            "resolvConf": "/etc/resolv.conf",
            "volumePluginDir": str(self.folder / "kubelet-plugins"),
            "podLogsDir": str(self.folder / "podlogs"),
        }
        path = self.folder / "kubelet.json"
        path.write_text(json.dumps(config))
        flags = [f"--config={path}", f"--kubeconfig={certificates.kubeconfig(leaf)}", f"--root-dir={self.kubelet_dir}"]
        flags += [f"--cert-dir={self.kubelet_dir / 'pki'}", f"--hostname-override={name}", "--node-ip=127.0.0.1"]
        return Program("kubelet", self.folder, [*self.hidden, self.programs / "kubelet", *flags])

    def start(self, images):
        self.containerd.start()
        wait_until(self.socket.exists, 60, lambda: "no containerd:\n" + self.containerd.log()[-2000:])
        self.ctr("images", "import", images)
        there = self.ctr("images", "list", "--quiet")
        assert all(image in there for image in IMAGES.values()), there + self.containerd.log()[-2000:]
        self.kubelet.start()
        wait_until(self.is_ready, 120, lambda: "kubelet not ready:\n" + self.kubelet.log()[-3000:])
        # It leaves a loopback address out; without one nobody can ask it for logs.
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": self.name}]
        self.plane.api.merge(f"/api/v1/nodes/{self.name}/status", {"status": {"addresses": addresses}})
        return self

    def forget_gpus(self):
        """For a test with other ones."""
        shutil.rmtree(self.sim_dir)
        self.sim_dir.mkdir()

    def ctr(self, *words):
        command = [self.programs / "ctr", "--address", self.socket, "--namespace", "k8s.io", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout

    def is_ready(self):
        self.containerd.check()
        self.kubelet.check()
        node = self.plane.api.find(f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", []) if node else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def stop(self):
        """Kubelet, then the containers, then containerd; then what they leave: mounts and cgroups."""
        self.kubelet.kill()
        if self.containerd.child and self.containerd.child.poll() is None:
            for task in self.ctr("tasks", "list", "--quiet").split():
                self.ctr("tasks", "delete", "--force", task)
        self.containerd.stop()
        # The shims outlive it; each has the name of its socket among its words.
        for pid in pids_with(str(self.socket)):
            os.kill(pid, signal.SIGKILL)
        unmount_below(self.folder)
        remove_cgroups(self.cgroup)


def unmount_below(folder):
    mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
    below = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{folder}/")]
    for place in sorted(below, reverse=True):
        subprocess.run(["umount", "--lazy", place], capture_output=True)


def remove_cgroups(name):
    roots = [folder / name for folder in CGROUPS]
    end = time.monotonic() + 10
    while (left := [root for root in roots if root.is_dir()]) and time.monotonic() < end:
        for root in left:
            for folder in sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda p: -len(p.parts)):
                remove_cgroup(folder)
            remove_cgroup(root)
        time.sleep(0.1)


def remove_cgroup(folder):
    try:
        folder.rmdir()
    except OSError:
        # A process of it is just ending, or it is gone; it is looked at again.
        pass
