"""Our server, and the controller that makes pods of its queues' tasks as the chart runs it."""

import json
import os
import pathlib
import random
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

from api import ApiError
from chart import NAMESPACE, create, place, rendered
from processes import Program, pids_with, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = ROOT / "dist/bin/cantle"
NAME = "cantle-queues"
FINAL = ("completed", "failed", "stopped")
# The settings of pods on this cluster: the only image is here already.
BASE = {
    "imagePullPolicy": "Never",
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 1,
}


class Server:
    """`cantle server`, spoken to as ClearML's clients do."""

    def __init__(self, home, *flags, ca=None):
        """`flags` in place of plain HTTP; `ca`: the authority of its certificate."""
        self.home, self.context = home, ssl.create_default_context(cafile=ca)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "CANTLE_STATE_DIR": str(home / "state")}
        # Where pods reach it: the address of the API server.
        words = ["server", "--listen", "10.96.0.1:0", *(flags or ["--insecure-http"])]
        self.program = Program("server", home, [CANTLE, *words], self.env).start()
        file = home / "state/server/credentials.json"
        wait_until(lambda: file.exists() and self.answers(file), 60, self.program.log)

    def answers(self, file):
        self.program.check()
        try:
            keys = json.loads(file.read_text())
            urllib.request.urlopen(keys["url"] + "/healthz", timeout=5, context=self.context).read()
        except (ValueError, OSError):
            return False
        self.keys = {"access_key": keys["access_key"], "secret_key": keys["secret_key"]}
        self.url = keys["url"]
        login = urllib.request.HTTPPasswordMgrWithPriorAuth()
        login.add_password(None, self.url, keys["access_key"], keys["secret_key"], is_authenticated=True)
        tls = urllib.request.HTTPSHandler(context=self.context)
        self.opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(login), tls)
        return True

    def client_env(self):
        keys = {"CLEARML_API_ACCESS_KEY": self.keys["access_key"], "CLEARML_API_SECRET_KEY": self.keys["secret_key"]}
        hosts = {"CLEARML_API_HOST": self.url, "CLEARML_WEB_HOST": self.url, "CLEARML_FILES_HOST": f"{self.url}/files"}
        return {**self.env, **keys, **hosts}

    def api(self, endpoint, **body):
        request = urllib.request.Request(f"{self.url}/{endpoint}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with self.opener.open(request, timeout=60) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{endpoint}: {error.read().decode(errors='replace')}") from None

    def submit(self, queue, *argv, name="task", cantle=None, **fields):
        """A task that is a plain command, as `cantle submit` makes it, in a queue; its id. `cantle`: more parameters of that section."""
        words = {"command": json.dumps(argv), **(cantle or {})}
        param = lambda word: {"section": "cantle", "name": word, "value": words[word], "type": "str", "description": ""}
        hyperparams = {"cantle": {word: param(word) for word in words}}
        task = self.api("tasks.create", name=name, type="training", hyperparams=hyperparams, **fields)["id"]
        self.api("tasks.enqueue", task=task, queue_name=queue)
        return task

    def sdk(self, code):
        """Runs a piece of Python with ClearML's SDK; what it puts into `answer` comes back."""
        script, answer = self.home / "user.py", self.home / "answer.json"
        script.write_text(f"import json\n{code}\njson.dump(answer, open({str(answer)!r}, 'w'))\n")
        python = ROOT / ".venv-clearml/bin/python"
        env = {**self.client_env(), "CLEARML_CONFIG_FILE": str(self.home / "no.conf")}
        done = subprocess.run([python, script], env=env, cwd=self.home, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(answer.read_text())

    def usage(self, by):
        """The lines of `cantle usage`."""
        done = subprocess.run([CANTLE, "-o", "json", "usage", "--by", by], env=self.client_env(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["items"]

    def task(self, task):
        return self.api("tasks.get_by_id", task=task)["task"]

    def status(self, task):
        return self.task(task)["status"]

    def message(self, task):
        return self.task(task).get("status_message", "")

    def log_of(self, task):
        """The output of all runs."""
        runs = [{"run": run["run"]} for run in self.api("cantle.get_runs", task=task)["runs"]] or [{}]
        logs = [self.api("events.get_task_log", task=task, batch_size=10000, after=0, **run)["events"] for run in runs]
        return "".join(event["msg"] for events in logs for event in events)

    def wait(self, task, *statuses, seconds=240):
        seen = lambda: f"{self.task(task)['status']}: {self.message(task)}\n{self.log_of(task)}"
        wait_until(lambda: self.status(task) in (statuses or FINAL), seconds, seen)
        return self.status(task)

    def close(self):
        self.program.stop()


class Queues:
    """The chart's own Deployment, from the image that users build. The server has to listen where pods reach it."""

    def __init__(self, plane, server, namespace, glue, replicas=1, lease="15s", is_awaited=True, **values):
        """A controller that can't renew its Lease within a third of `lease` does nothing meanwhile."""
        self.plane, self.server, self.namespace = plane, server, namespace
        controller = {"enabled": True, "namespace": namespace, "url": server.url, "secret": "keys", **values}
        # The hand-made nodes have no kubelet.
        controller |= {"replicas": replicas, "lease": lease, "imageGrace": "5s", "nodeSelector": {"kubernetes.io/hostname": "worker"}}
        things = [thing for thing in rendered({"queueController": controller, "agentk8sglue": with_base(glue)}) if thing["metadata"]["name"] == NAME]
        for where in [NAMESPACE, namespace]:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": where}, "stringData": server.keys}
            things.insert(0, secret)
        create(plane.api, things)
        self.things = [f"{place(thing)}/{thing['metadata']['name']}" for thing in things]
        ready = lambda: sum(is_ready(pod) for pod in self.controllers())
        if is_awaited:
            wait_until(lambda: ready() == replicas, 180, self.log)

    def pods(self):
        return self.plane.api.items(f"/api/v1/namespaces/{self.namespace}/pods")

    def pod_of(self, task):
        return self.plane.api.find(f"/api/v1/namespaces/{self.namespace}/pods/clearml-id-{task}")

    def controllers(self):
        selector = "labelSelector=app.kubernetes.io/component%3Dqueues"
        return self.plane.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")

    def pids(self):
        """The controllers' own, seen from here."""
        return pids_with(f"--namespace={self.namespace}")

    def log(self):
        said = []
        for pod in self.controllers():
            try:
                said.append(self.plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log?tailLines=40"))
            except ApiError as error:
                # Its container is not there yet, or gone.
                said.append(str(error))
        return "\n".join([*map(str, said), *(str(pod["status"]) for pod in self.controllers())])

    def kill(self, names):
        """Without any grace; the Deployment makes others."""
        for name in names:
            self.plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", 0)

    def ready(self):
        return [pod["metadata"]["name"] for pod in self.controllers() if is_ready(pod)]

    def stop(self):
        (deployment,) = [path for path in self.things if "/deployments/" in path]
        self.plane.api.delete(deployment)
        for pod in self.controllers():
            self.plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}", 1)
        wait_until(lambda: not self.controllers(), 180, self.log)

    def remove(self):
        """Without the controller a pod with its finalizer stays forever."""
        self.stop()
        for pod in self.pods():
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
            try:
                self.plane.api.merge(path, {"metadata": {"finalizers": None}})
            except ApiError as error:
                # It was about to go.
                if error.code != 404:
                    raise
        # A controller that was killed before it could release the Lease would keep the next one waiting.
        for path in [*self.things, f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"]:
            self.plane.api.delete(path)


def is_ready(pod):
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def with_base(glue):
    glue = {"createQueueIfNotExists": True, "defaultContainerImage": "localhost/cantle-test:1", **glue}
    return {**glue, "basePodTemplate": {**BASE, **glue.get("basePodTemplate", {})}}


def occupied(pod):
    """Is it let go, and not over?"""
    return not pod["spec"].get("schedulingGates") and pod["status"]["phase"] not in ("Succeeded", "Failed")


class Witness:
    """Counts pods from outside during a test, and kills replicas at random; once all of them at the same time, while
    `all_at` pods run."""

    def __init__(self, queues, seed=None, every_s=0, all_at=0):
        self.queues, self.most, self.uids, self.kills = queues, 0, {}, 0
        self.all_at, self.all_killed = all_at, 0
        self.random, self.every_s, self.over = random.Random(seed), every_s, threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.failure:
            raise self.failure

    def watch(self):
        try:
            next_kill = time.monotonic() + self.every_s
            while not self.over.wait(0.05):
                running = self.look()
                if self.all_at and not self.all_killed and running >= self.all_at:
                    self.kill_all()
                elif self.every_s and time.monotonic() > next_kill:
                    self.kill_one()
                    next_kill = time.monotonic() + self.every_s * self.random.uniform(0.5, 1.5)
        except Exception as error:
            self.failure = error

    def look(self):
        pods = [pod for pod in self.queues.pods() if occupied(pod)]
        self.most = max(self.most, len(pods))
        for pod in pods:
            task = pod["metadata"]["labels"]["clearml-task-id"]
            self.uids.setdefault(task, set()).add(pod["metadata"]["uid"])
        return len(pods)

    def kill_all(self):
        killed = set()
        # One that another kill has made may get ready in between. In the end nobody is there for a while.
        while alive := self.queues.ready():
            self.queues.kill(alive)
            killed |= set(alive)
        self.all_killed = len(killed)

    def kill_one(self):
        # On a machine that is so busy that pods start more slowly than they die, nothing would advance: of one that is alone
        # only `kill_all` makes an end, once.
        alive = self.queues.ready()
        if len(alive) > 1:
            self.queues.kill([self.random.choice(alive)])
            self.kills += 1
