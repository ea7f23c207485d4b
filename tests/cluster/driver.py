"""cantle's DRA driver of a node, as a user starts it, and the outside witness of its GPUs."""

import os
import pathlib

from api import RESOURCE
from chart import NODE
from processes import Program, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = ROOT / "dist/bin/cantle"


class Driver:
    def __init__(self, plane, home, node, machine, flags, kubelet_dir):
        self.plane, self.home, self.node, self.machine = plane, home, node, machine
        # Its default path, seen from here.
        self.cdi_dir = machine.path("/run/cdi")
        words = ["controller", "node", "--kubeconfig", self.kubeconfig(), "--node", node, "--kubelet-dir", kubelet_dir, *flags]
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **self.env()}
        self.program = Program("driver", home, machine.command(CANTLE, *words), env)

    def env(self):
        """More variables."""
        return {}

    def kubeconfig(self):
        """Of the chart's service account on this node, as a pod of the DaemonSet has it."""
        node = self.plane.api.get(f"/api/v1/nodes/{self.node}")
        bound = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node["metadata"]["uid"]}
        return self.plane.account_kubeconfig(NODE, self.home / "driver.kubeconfig", bound)

    def start(self):
        self.program.start()

        def serves():
            self.program.check()
            return self.published()

        wait_until(serves, 60, lambda: "no devices published:\n" + self.log())
        return self

    def slices(self):
        of_node = lambda each: each["spec"].get("nodeName") == self.node
        return [each for each in self.plane.api.items(f"{RESOURCE}/resourceslices") if of_node(each)]

    def published(self):
        """All slices of the node, or nothing while it writes them one by one."""
        slices = self.slices()
        pools = {(each["spec"]["pool"]["generation"], each["spec"]["pool"]["resourceSliceCount"]) for each in slices}
        return slices if [count for _, count in pools] == [len(slices)] else None

    def devices(self):
        return {device["name"]: device for each in self.slices() for device in each["spec"].get("devices", [])}

    def truth(self):
        """The memory that the GPUs themselves report."""
        return self.machine.truth()

    def leases(self):
        return leases(self.machine)

    def faults(self, script):
        self.machine.faults(script)

    def log(self):
        return self.program.log()

    def stop(self):
        self.program.stop()

    def remove(self):
        """Its devices too: they stay when a driver stops, for the next one."""
        self.stop()
        for each in self.slices():
            self.plane.api.delete(f"{RESOURCE}/resourceslices/{each['metadata']['name']}")


def leases(machine):
    return sorted(machine.path("/run/cantle/node/leases").glob("*.json"))
