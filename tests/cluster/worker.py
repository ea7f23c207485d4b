"""A worker node: container runtime and kubelet, as they are, on a machine of their own."""

import json
import os
import pathlib
import time

import crio
from containerd import Containerd
from control_plane import GATES
from image import IMAGES
from processes import Program, free_ports, wait_until
from worker_machine import WorkerMachine

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBELET_DIR = pathlib.Path("/var/lib/kubelet")
RUNTIME = crio.Crio if crio.FOLDER else Containerd
CDI_DIR = pathlib.Path("/run/cdi")
# With cgroups of version 1 there is one directory for each controller.
CGROUPS = [path for path in pathlib.Path("/sys/fs/cgroup").iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]
IS_VERSION_2 = pathlib.Path("/sys/fs/cgroup/cgroup.procs").exists()
if IS_VERSION_2:
    CGROUPS = [pathlib.Path("/sys/fs/cgroup")]


class Worker:
    def __init__(self, folder, programs, control_plane, name="worker"):
        self.folder, self.programs, self.plane, self.name = folder, programs, control_plane, name
        self.machine = WorkerMachine()
        self.port, self.health_port = free_ports(2)
        self.cgroup = f"cantle-test-{os.getpid()}-{name}"
        for folder in CGROUPS:
            (folder / self.cgroup).mkdir(exist_ok=True)
        if IS_VERSION_2:
            # A kubelet demands controllers that systemd enables for none.
            names = (CGROUPS[0] / "cgroup.controllers").read_text().split()
            (CGROUPS[0] / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in names))
        self.runtime = self.make_runtime()
        self.kubelet = self.make_kubelet()

    def make_runtime(self):
        here, folder = ROOT / "tests/cluster", self.folder / "runtime"
        (folder / "cni").mkdir(parents=True)
        # Pods of all nodes are in one network.
        plugin = {"type": "pods", "addresses": str(self.plane.folder / "pod-addresses")}
        pods = {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        (folder / "cni/pods.conflist").write_text(json.dumps(pods))
        fields = {"cdi": CDI_DIR, "pause": IMAGES["pause"], "cni": here / "cni", "runtime": here / "runtime.sh"}
        return RUNTIME(folder, self.programs, self.machine, fields)

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
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
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
        program = self.runtime.program
        program.start()
        wait_until(self.runtime.socket.exists, 60, lambda: "no container runtime:\n" + program.log()[-2000:])
        self.runtime.load(images)
        there = self.runtime.images()
        assert all(image in there for image in IMAGES.values()), there + program.log()[-2000:]
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

    def is_ready(self):
        return any(each["status"] == "True" for each in self.readiness())

    def readiness(self):
        """What the node says of it: one condition, or none yet."""
        self.runtime.program.check()
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
        """Kubelet, then the containers and their runtime; then what they leave: the machine with its mounts, and cgroups."""
        self.kubelet.kill()
        self.runtime.stop()
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
