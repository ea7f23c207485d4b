"""The classic path as its chart starts it: the scheduler with its extender, and the device plugin of a node."""

import contextlib
import json
import os
import threading
import urllib.request

import yaml

import chart
from chart import NAMESPACE
from driver import CANTLE, Driver
from injector import Injector, pod
from processes import Program, free_ports, wait_until
from test_documented_pods import Documented
from test_pods import FILL

SCHEDULER = "cantle-scheduler"
RESERVATIONS = "cantle-reservation"
VALUES = {"path": "classic"}
GPUS, PLACEMENTS, RESERVED = "cantle.dev/gpus", "cantle.dev/placements", "cantle.dev/reservations"
LABEL = "clearml-injector/fraction"
# As the claim templates of an 80 GB GPU, by their names.
FRACTIONS = {"half": "0.500", "quarter": "0.250", "whole": "1.000"}
# The components that the harness starts itself.
RUNNING = ("Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "MutatingWebhookConfiguration", "ConfigMap")


def apply(api, things):
    for thing in things:
        path = f"{chart.place(thing)}/{thing['metadata']['name']}?fieldManager=test&force=true&fieldValidation=Strict"
        api.call("PATCH", path, thing, "application/apply-patch+yaml")


@contextlib.contextmanager
def rights(api, values=VALUES):
    """Those of the chart on the classic path, in place of the other's, no device classes either; and all that reservations have."""
    rendered = chart.rendered(values)
    reservations = [thing for thing in rendered if thing["metadata"]["name"] == RESERVATIONS]
    things = [thing for thing in rendered if thing["kind"] not in RUNNING]
    nodes = chart.of_node_drivers
    others = [thing for thing in things if thing["metadata"]["name"].startswith(SCHEDULER)]
    chart.delete(api, chart.standing())
    apply(api, nodes(things) + others + reservations)
    chart.wait_served(api, things)
    try:
        yield
    finally:
        # The objects in the reservations' namespace are deleted with it.
        chart.delete(api, nodes(things) + others + [thing for thing in reservations if thing["kind"] in ("Namespace", "PriorityClass")])
        chart.create(api, chart.standing())


@contextlib.contextmanager
def running(plane, folder, values=VALUES, *flags):
    """Injector and scheduler; the flags are the extender's."""
    with rights(plane.api, values):
        injector = Injector(plane, folder, "--path", "classic", "--mig-resources", values=VALUES)
        scheduler = Scheduler(plane, folder, *flags)
        try:
            injector.start()
            yield scheduler.start()
        finally:
            scheduler.stop()
            injector.remove()


class Extender:
    def __init__(self, plane, folder, *flags, name="extender"):
        self.port, self.observe_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.kubeconfig = plane.account_kubeconfig(SCHEDULER, folder / f"{name}.kubeconfig")
        words = ["controller", "extender", "--kubeconfig", self.kubeconfig, "--listen", f"127.0.0.1:{self.port}"]
        words += ["--observe-listen", f"127.0.0.1:{self.observe_port}", *flags]
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.program = Program(name, folder, [CANTLE, *words], env)


    def start(self):
        self.program.start()
        wait_until(lambda: "the extender is ready" in self.program.log(), 60, self.program.log)
        return self

    def call(self, verb, body):
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{verb}", data, kind), timeout=60) as answer:
            return json.load(answer)

    def bind(self, pod, node):
        """Why not, or nothing."""
        meta = pod["metadata"]
        return self.call("bind", {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node})["Error"]


class Scheduler:
    """The chart's own configuration, with an address of the loopback that is free here."""

    def __init__(self, plane, folder, *flags):
        self.extender = Extender(plane, folder, *flags)
        (map,) = [thing for thing in chart.rendered(VALUES) if thing["kind"] == "ConfigMap"]
        config = yaml.safe_load(map["data"]["scheduler.yaml"])
        config["clientConnection"] = {"kubeconfig": str(self.extender.kubeconfig)}
        config["extenders"][0]["urlPrefix"] = self.extender.url
        self.config, self.config_path = config, folder / "scheduler.json"
        self.config_path.write_text(json.dumps(config))
        (port,) = free_ports(1)
        words = [f"--config={self.config_path}", "--bind-address=127.0.0.1", f"--secure-port={port}"]
        self.program = Program("cantle-scheduler", folder, [plane.programs / "kube-scheduler", *words])
        self.over, self.keeper = threading.Event(), threading.Thread(target=self.keep, daemon=True)

    def start(self):
        self.extender.start()
        self.program.start()
        self.keeper.start()
        return self

    def keep(self):
        """As a kubelet does: kube-scheduler ends when a machine is so busy that it cannot renew its Lease within ten seconds."""
        while not self.over.wait(0.5):
            if self.program.child.poll() is not None:
                self.program.start()

    @contextlib.contextmanager
    def without_preference(self):
        """Of the nodes with room, kube-scheduler's own scores choose one."""
        (extender,) = self.config["extenders"]
        others = {name: value for name, value in extender.items() if name != "prioritizeVerb"}
        try:
            self.restart({**self.config, "extenders": [others]})
            yield
        finally:
            self.restart(self.config)

    def restart(self, config):
        self.config_path.write_text(json.dumps(config))
        # The keeper starts it again.
        self.program.stop()

    def stop(self):
        self.over.set()
        if self.keeper.is_alive():
            self.keeper.join()
        self.program.stop()
        self.extender.program.stop()


def annotations(api, node):
    return api.get(f"/api/v1/nodes/{node}")["metadata"].get("annotations", {})


def placements(api, node):
    return json.loads(annotations(api, node).get(PLACEMENTS, "{}"))


def give_slots(api, node):
    """To a hand-made node, as its kubelet does once the plugin has registered."""
    slots = {"cantle.dev/slice": "256"}
    api.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": slots, "allocatable": slots}})


def forget(api, node):
    """The record of a node's device plugin stays when it stops, for the next one."""
    if api.find(f"/api/v1/nodes/{node}"):
        names = (GPUS, PLACEMENTS, RESERVED, "cantle.dev/freed")
        api.merge(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {name: None for name in names}}})


class ClassicNode(Driver):
    """The device plugin of a node."""

    def __init__(self, plane, home, node, machine, flags, kubelet_dir):
        plugins = ["--path", "classic", "--device-plugin-dir", kubelet_dir / "device-plugins", *flags]
        super().__init__(plane, home, node, machine, plugins, kubelet_dir)

    def annotations(self):
        return annotations(self.plane.api, self.node)

    def placements(self):
        return placements(self.plane.api, self.node)

    def reservations(self):
        return json.loads(self.annotations().get(RESERVED, "{}"))

    def gpus(self):
        return json.loads(self.annotations().get(GPUS, "[]"))

    def slices(self):
        return self.annotations().get(GPUS)

    def published(self):
        return self.slices()

    def registrations(self):
        return self.log().count("registered with the kubelet")

    def wait_registered(self, times=1):
        wait_until(lambda: self.registrations() >= times, 60, self.log)
        self.wait_slots("256")

    def wait_slots(self, count):
        self.wait_allocatable("cantle.dev/slice", count)

    def wait_allocatable(self, resource, count):
        allocatable = lambda: self.plane.api.get(f"/api/v1/nodes/{self.node}")["status"]["allocatable"]
        wait_until(lambda: allocatable().get(resource) == count, 60, lambda: f"{allocatable()}\n{self.log()}")

    def remove(self):
        self.stop()
        forget(self.plane.api, self.node)


class ClassicPods(Documented):
    def create(self, name, template=None, limits=None, command=("python3", "-c", FILL)):
        """As on the DRA path, for tests of both."""
        self.ask(name, FRACTIONS.get(template), command, limits=limits)

    def ask(self, name, fraction=None, command=("python3", "-c", FILL), annotations=None, limits=None, node=None, **spec):
        thing = pod({LABEL: fraction} if fraction else {}, annotations, limits, name=name)
        thing["spec"]["containers"][0]["command"] = list(command)
        thing["spec"] |= {"terminationGracePeriodSeconds": 1, **spec}
        if node:
            thing["spec"]["nodeName"] = node
        return self.api.create(self.path, thing)

    def waits_for(self, name):
        states = self.get(name)["status"].get("containerStatuses", [])
        return "".join(each["state"].get("waiting", {}).get("message", "") for each in states)
