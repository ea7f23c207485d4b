"""A worker node: containerd and kubelet, as they are, on a machine of their own."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from control_plane import GATES
from image import IMAGES
from processes import Program, free_ports, pids_with, wait_until
from worker_machine import WorkerMachine

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBELET_DIR = pathlib.Path("/var/lib/kubelet")
CDI_DIR = pathlib.Path("/run/cdi")
# With cgroups of version 1 there is one directory for each controller.
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
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runtime}'
        SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = true
"""


class Worker:
    def __init__(self, folder, programs, control_plane, name="worker"):
        self.folder, self.programs, self.plane, self.name = folder, programs, control_plane, name
        self.machine = WorkerMachine()
        self.containerd_dir = folder / "containerd"
        self.port, self.health_port = free_ports(2)
        self.socket = self.containerd_dir / "containerd.sock"
        (self.containerd_dir / "cni").mkdir(parents=True)
        self.cgroup = f"cantle-test-{os.getpid()}-{name}"
        for folder in CGROUPS:
            (folder / self.cgroup).mkdir(exist_ok=True)
        self.containerd = self.make_containerd()
        self.kubelet = self.make_kubelet()

    def make_containerd(self):
        here = ROOT / "tests/cluster"
        fields = {"dir": self.containerd_dir, "cdi": CDI_DIR, "pause": IMAGES["pause"], "cni": here / "cni", "runtime": here / "runtime.sh"}
        config = self.containerd_dir / "config.toml"
        config.write_text(CONTAINERD.format(**fields))
        # Pods of all nodes are in one network.
        plugin = {"type": "pods", "addresses": str(self.plane.folder / "pod-addresses")}
        pods = {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        (self.containerd_dir / "cni/pods.conflist").write_text(json.dumps(pods))
        # It looks for its shim in its own directory.
        env = {"PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": str(self.folder)}
        return Program("containerd", self.folder, self.machine.command(self.programs / "containerd", "--config", config), env)

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
            # A kubelet ends all unknown pods below its root; another cluster may be running here.
            "cgroupRoot": f"/{self.cgroup}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            # Kubelets refuse cgroup v1 by default.
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            # An image that a kubelet has removed because the machine's disk is full does not come back.
            "imageGCHighThresholdPercent": 100,
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
        flags = [f"--config={path}", f"--kubeconfig={certificates.kubeconfig(leaf)}", f"--root-dir={KUBELET_DIR}"]
        flags += [f"--cert-dir={KUBELET_DIR / 'pki'}", f"--hostname-override={name}", "--node-ip=127.0.0.1"]
        return Program("kubelet", self.folder, self.machine.command(self.programs / "kubelet", *flags))

    def start(self, images):
        self.containerd.start()
        wait_until(self.socket.exists, 60, lambda: "no containerd:\n" + self.containerd.log()[-2000:])
        self.ctr("images", "import", images)
        there = self.ctr("images", "list", "--quiet")
        assert all(image in there for image in IMAGES.values()), there + self.containerd.log()[-2000:]
        self.kubelet.start()
        wait_until(self.is_ready, 120, lambda: "kubelet not ready:\n" + self.kubelet.log()[-3000:])
        # It omits a loopback address; without an address it cannot be asked for logs.
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": self.name}]
        self.plane.api.merge(f"/api/v1/nodes/{self.name}/status", {"status": {"addresses": addresses}})
        return self

    def with_gpus(self, gpus, **how):
        """The machine, which now has these and no others."""
        self.machine.insert(gpus, **how)
        return self.machine

    def ctr(self, *words):
        command = [self.programs / "ctr", "--address", self.socket, "--namespace", "k8s.io", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout

    def is_ready(self):
        return any(each["status"] == "True" for each in self.readiness())

    def readiness(self):
        """What the node says of it: one condition, or none yet."""
        self.containerd.check()
        self.kubelet.check()
        node = self.plane.api.find(f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", []) if node else []
        return [each for each in conditions if each["type"] == "Ready"]

    def restart_kubelet(self):
        """Ends it without any grace. What the node says before the next one has spoken is the word of the former."""
        before = self.readiness()
        self.kubelet.kill()
        # A heartbeat has whole seconds.
        time.sleep(1)
        self.kubelet.start()
        heartbeat = lambda of: [each["lastHeartbeatTime"] for each in of]
        wait_until(lambda: self.is_ready() and heartbeat(self.readiness()) != heartbeat(before), 120, self.kubelet.log)

    def stop(self):
        """Kubelet, then the containers, then containerd; then what they leave: the machine with its mounts, and cgroups."""
        self.kubelet.kill()
        if self.containerd.child and self.containerd.child.poll() is None:
            for task in self.ctr("tasks", "list", "--quiet").split():
                self.ctr("tasks", "delete", "--force", task)
        self.containerd.stop(15)
        # The shims outlive it; each has the name of its socket among its words.
        for pid in pids_with(str(self.socket)):
            # One may have ended since.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.machine.stop()
        remove_cgroups(self.cgroup)


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
