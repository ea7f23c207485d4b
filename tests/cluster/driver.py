"""cantle's DRA driver of a node, as a user starts it, and the outside witness of its GPUs."""

import json
import os
import pathlib
import subprocess

from api import RESOURCE
from chart import NODE
from processes import Program, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = ROOT / "dist/bin/cantle"


class Driver:
    def __init__(self, plane, home, node, sim_gpus, flags, kubelet_dir, cdi_dir, sim_dir):
        self.plane, self.home, self.node, self.cdi_dir, self.sim_dir = plane, home, node, cdi_dir, sim_dir
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CANTLE_STATE_DIR": str(home / "state"),
            "CANTLE_SIM_DIR": str(sim_dir),
            "CANTLE_SIM_GPUS": sim_gpus,
        }
        words = ["controller", "node", "--kubeconfig", self.kubeconfig(), "--node", node]
        words += ["--kubelet-dir", kubelet_dir, "--cdi-dir", cdi_dir, *flags]
        self.program = Program("driver", home, [CANTLE, *words], self.env)

    def kubeconfig(self):
        """Of the chart's service account on this node, as a pod of the DaemonSet has it."""
        node = self.plane.api.get(f"/api/v1/nodes/{self.node}")
        bound = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node["metadata"]["uid"]}
        return self.plane.account_kubeconfig(NODE, self.home / "driver.kubeconfig", bound)

    def start(self):
        self.program.start()

        def serves():
            self.program.check()
            return self.slices()

        wait_until(serves, 60, lambda: "no devices published:\n" + self.log())
        return self

    def slices(self):
        of_node = lambda each: each["spec"].get("nodeName") == self.node
        return [each for each in self.plane.api.items(f"{RESOURCE}/resourceslices") if of_node(each)]

    def devices(self):
        return {device["name"]: device for each in self.slices() for device in each["spec"].get("devices", [])}

    def cli(self, *words):
        return subprocess.run([CANTLE, *words], env=self.env, check=True, capture_output=True, text=True, timeout=60).stdout

    def truth(self):
        """What the simulated GPUs themselves hold."""
        return json.loads(self.cli("sim", "truth", "-o", "json"))["gpus"]

    def leases(self):
        return sorted((self.sim_dir / "node/leases").glob("*.json"))

    def faults(self, script):
        (self.sim_dir / "faults").write_text(script)

    def log(self):
        return self.program.log()

    def stop(self):
        self.program.stop()

    def remove(self):
        """Its devices too: they stay when a driver stops, for the next one."""
        self.stop()
        for each in self.slices():
            self.plane.api.delete(f"{RESOURCE}/resourceslices/{each['metadata']['name']}")
