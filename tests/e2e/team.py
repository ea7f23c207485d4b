"""A team of forty people and what each of them may do: written down here once more, so that the server's answers can be judged by something
that is not the server. The judge keeps its own books: who owns which task, and where it is in its life."""

import base64
import dataclasses
import http.client
import json
import random
import time

PROJECTS = ("vision", "speech", "robots")
# Of each project: its managers, members without the right to read, members with it, and viewers.
OF_EACH = {"manager": 1, "member": 6, "reader": 4, "viewer": 1}
RIGHTS = {
    "admin": {"see", "read", "submit", "manage"},
    "manager": {"see", "read", "submit", "manage"},
    "member": {"see", "submit"},
    "reader": {"see", "submit", "read"},
    "viewer": {"see", "read"},
    # In all projects.
    "auditor": {"see", "read"},
}
ENDED = ("completed", "failed", "stopped")


@dataclasses.dataclass
class Person:
    name: str
    role: str
    project: str
    keys: dict

    def env(self):
        """The keys as ClearML's clients and cantle's take them."""
        return {"CLEARML_API_ACCESS_KEY": self.keys["access_key"], "CLEARML_API_SECRET_KEY": self.keys["secret_key"]}

    def has(self, right, project):
        return right in RIGHTS[self.role] and (self.role in ("admin", "auditor") or project == self.project)


@dataclasses.dataclass
class Job:
    """A task as the team knows it."""

    id: str
    name: str
    owner: Person
    project: str
    word: str
    code: int
    # An experiment on somebody's laptop: no agent runs it.
    is_own: bool = False


class Tally:
    """How often each role asked for what, and how the answers were."""

    def __init__(self):
        self.rows, self.wrong = {}, []

    def note(self, role, act, way, outcome, seconds):
        row = self.rows.setdefault((act, way), {"allowed": 0, "refused": 0, "roles": set(), "seconds": []})
        row[outcome] += 1
        row["roles"].add(role)
        row["seconds"].append(seconds)

    def table(self):
        lines = [f"{'act':24} {'by':5} {'roles':>5} {'allowed':>8} {'refused':>8} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}"]
        for (act, way), row in sorted(self.rows.items()):
            took = sorted(row["seconds"])
            at = lambda part, took=took: f"{took[min(len(took) - 1, int(len(took) * part))] * 1000:8.0f}"  # noqa: E731
            counts = f"{len(row['roles']):5} {row['allowed']:8} {row['refused']:8}"
            lines.append(f"{act:24} {way:5} {counts} {at(0.5)} {at(0.95)} {at(1)}")
        return "\n".join(lines)


class Api:
    """The HTTP API as a program without cantle's own client calls it."""

    def __init__(self, address):
        self.address = address

    def call(self, person, endpoint, body):
        pair = f"{person.keys['access_key']}:{person.keys['secret_key']}"
        headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request("POST", f"/{endpoint}", json.dumps(body), headers)
            answer = connection.getresponse()
            envelope = json.loads(answer.read())
        finally:
            connection.close()
        assert answer.status == envelope["meta"]["result_code"], envelope["meta"]
        return answer.status, envelope["data"], envelope["meta"]["result_msg"]


class Team:
    """Asks as each person, by HTTP and by the command line, and judges each answer."""

    def __init__(self, cli, address, admin, seed=1):
        self.cli, self.api, self.dice = cli, Api(address), random.Random(seed)
        self.admin = Person("admin", "admin", "", admin)
        self.people, self.jobs, self.tally = [self.admin], [], Tally()
        self.ids = {}
        # With a client of the SDK and a browser, people use these, too.
        self.sdk = self.page = None

    def ask(self, person, act, endpoint, body, allowed, hidden=False):
        """One call by HTTP. A refusal is 403, or an answer as about nothing if the object is hidden."""
        begin = time.monotonic()
        status, data, said = self.api.call(person, endpoint, body)
        self.tally.note(person.role, act, "http", "allowed" if allowed else "refused", time.monotonic() - begin)
        expected = (200,) if allowed else (400,) if hidden else (403,)
        if status not in expected:
            self.tally.wrong.append(f"{person.name} ({person.role}) {act} {body}: {status} {said}, expected {expected}")
        return data if status == 200 else None

    def command(self, person, act, words, codes, allowed):
        """One command, as on the laptop of this person."""
        begin = time.monotonic()
        done = self.cli(person, *words)
        self.tally.note(person.role, act, "cli", "allowed" if allowed else "refused", time.monotonic() - begin)
        if done.returncode not in codes:
            self.tally.wrong.append(f"{person.name} ({person.role}) {words}: exit {done.returncode}, expected {codes}: {done.stderr}")
        return done.stdout if done.returncode == 0 else None

    def hire(self):
        keys = self.ask(self.admin, "add a person", "cantle.add_user", {"name": "auditor", "role": "viewer"}, True)
        self.people.append(Person("auditor", "auditor", "", keys))
        for project in PROJECTS:
            made = self.ask(self.admin, "make a project", "projects.create", {"name": project, "description": ""}, True)
            self.ids[project] = made["id"]
        for project in PROJECTS:
            for role, count in OF_EACH.items():
                for number in range(count):
                    name = f"{project}-{role}-{number}"
                    server_role = "member" if role == "reader" else role
                    new = {"name": name, "role": server_role, "project": project}
                    keys = self.ask(self.admin, "add a person", "cantle.add_user", new, True)
                    self.people.append(Person(name, role, project, keys))
                    if role == "reader":
                        also = {"who": name, "role": "viewer", "project": project}
                        self.ask(self.admin, "give a role", "cantle.set_role", also, True)

    def submit(self, queue, queue_id, runs):
        """A task of somebody, by one of the two ways. It writes down each of its runs itself."""
        number = len(self.jobs)
        person = self.dice.choice([person for person in self.people if person.has("submit", person.project) and person.project])
        code = 3 if number % 10 == 7 else 0
        word = f"output-of-{number}-{self.dice.randrange(1 << 30):x}"
        script = f"echo {word}; echo {word} >>{runs}/{number}; sleep {0.2 + number % 5 / 10}; exit {code}"
        if number % 4:
            command = {"name": "command", "section": "cantle", "value": json.dumps(["sh", "-c", script])}
            hyperparams = {"cantle": {"command": command}}
            task = {"name": f"t{number}", "type": "training", "project": self.ids[person.project], "hyperparams": hyperparams}
            made = self.ask(person, "submit", "tasks.create", task, True)
            job = Job(made["id"], f"t{number}", person, person.project, word, code)
            self.ask(person, "submit", "tasks.enqueue", {"task": job.id, "queue": queue_id}, True)
        else:
            words = ["submit", "--queue", queue, "--project", person.project, "--name", f"t{number}", "--", "sh", "-c", script]
            made = self.command(person, "submit", words, (0,), True)
            job = Job(made.strip(), f"t{number}", person, person.project, word, code)
        self.jobs.append(job)

    def train(self):
        """An experiment of somebody, on the own laptop."""
        person = self.dice.choice([person for person in self.people if person.has("submit", person.project) and person.project])
        word, name = f"output-of-an-experiment-{self.dice.randrange(1 << 30):x}", f"experiment {len(self.jobs)}"
        made = self.sdk.train(person, word, name)
        if made:
            self.jobs.append(Job(made, name, person, person.project, word, 0, is_own=True))

    def may(self, person, right, job):
        return person is job.owner or person.has(right, job.project)

    def step(self):
        """One act of one person about one task; its answer is known before it is asked."""
        person = self.dice.choice(self.people)
        # Often about the work of the person's own project, where more is allowed.
        near = [job for job in self.jobs if job.project == person.project]
        job = self.dice.choice(near if near and self.dice.random() < 0.5 else self.jobs)
        sees = self.may(person, "see", job)
        acts = [self.look, self.read, self.read_by_command, self.list, self.list_by_command, self.other_place, self.raise_priority]
        acts += [self.administer, self.write_events, self.set_quota, self.tag, self.change_queue]
        # A program of the SDK takes seconds to start, and a browser one to show a page.
        if self.sdk and self.dice.random() < 0.01:
            return self.dice.choice([self.sdk.look, self.sdk.search, lambda *_: self.train()])(person, job, sees)
        if self.page and self.dice.random() < 0.05:
            return self.dice.choice([self.page.list, self.page.task])(person, job, sees)
        self.dice.choice(acts)(person, job, sees)

    def look(self, person, job, sees):
        found = self.ask(person, "see a task", "tasks.get_by_id", {"task": job.id}, sees, hidden=not sees)
        if found and (found["task"]["user"] != self.user(job.owner) or found["task"]["project"] != self.ids[job.project]):
            self.tally.wrong.append(f"{job.id} is another one's: {found['task']}")

    def user(self, person):
        if person.name not in self.ids:
            data = self.ask(person, "who am I", "users.get_current_user", {}, True)
            self.ids[person.name] = data["user"]["id"]
        return self.ids[person.name]

    def read(self, person, job, sees):
        may = self.may(person, "read", job)
        found = self.ask(person, "read a log", "events.get_task_log", {"task": job.id}, may, hidden=not sees)
        self.judge_log(job, "".join(line["msg"] for line in found["events"]) if found else None)

    def read_by_command(self, person, job, sees):
        may = self.may(person, "read", job)
        codes = (0,) if may else (4,) if sees else (3,)
        self.judge_log(job, self.command(person, "read a log", ["logs", job.id], codes, may))

    def judge_log(self, job, text):
        """A log has the words of its own task and of no other."""
        others = [other for other in self.jobs if other is not job and text and other.word in text]
        if others or text and "output-of-" in text and job.word not in text:
            self.tally.wrong.append(f"the log of {job.id} is of another task: {text}")

    def seen_by(self, person):
        return {job.id for job in self.jobs if self.may(person, "see", job)}

    def judge_list(self, person, found):
        found = set(found)
        if found != self.seen_by(person):
            lacks, more = self.seen_by(person) - found, found - self.seen_by(person)
            self.tally.wrong.append(f"the list of {person.name} lacks {sorted(lacks)[:3]} and has {sorted(more)[:3]} besides")

    def list(self, person, _job, _sees):
        found = self.ask(person, "list tasks", "tasks.get_all_ex", {"only_fields": ["id"], "page": 0, "page_size": 500}, True)
        self.judge_list(person, [task["id"] for task in found["tasks"]] if found else [])

    def list_by_command(self, person, _job, _sees):
        text = self.command(person, "list tasks", ["-o", "json", "tasks", "--limit", "500"], (0,), True)
        self.judge_list(person, [task["id"] for task in json.loads(text)["items"]] if text else [])

    def other_place(self, person, job, _sees):
        """A task in a project of the caller's choice: made as a draft, and not kept."""
        may = person.has("submit", job.project)
        task = {"name": "draft", "type": "training", "project": self.ids[job.project]}
        made = self.ask(person, "make a draft", "tasks.create", task, may)
        if made:
            self.ask(person, "delete an own draft", "tasks.delete", {"task": made["id"], "force": True}, True)

    def raise_priority(self, person, job, sees):
        may = person.has("manage", job.project)
        first = {"section": "cantle", "name": "priority", "value": "5"}
        body = {"task": {"name": "x", "type": "training", "project": self.ids[job.project], "hyperparams": {"cantle": {"priority": first}}}}
        made = self.ask(person, "submit before others", "tasks.create", body["task"], may)
        if made:
            self.ask(person, "delete an own draft", "tasks.delete", {"task": made["id"], "force": True}, True)

    def administer(self, person, _job, _sees):
        is_admin = person.role == "admin"
        self.ask(person, "list users", "cantle.get_users", {}, is_admin)
        self.ask(person, "read the audit", "cantle.get_audit", {"limit": 5}, is_admin)
        if not is_admin:
            self.ask(person, "make oneself admin", "cantle.set_role", {"who": person.name, "role": "admin"}, False)

    def write_events(self, person, job, sees):
        event = {"type": "training_stats_scalar", "task": job.id, "metric": "m", "variant": "v", "iter": 1, "value": 1.0}
        self.ask(person, "report a scalar", "events.add", event, self.may(person, "manage", job), hidden=not sees)

    def set_quota(self, person, job, _sees):
        body = {"project": f"{job.project}/team", "quota": {"gpu": {"deserved": 1000}}}
        self.ask(person, "set a quota below", "cantle.set_quota", body, person.has("manage", job.project))

    def tag(self, person, job, sees):
        body = {"ids": [job.id], "add_tags": [person.role]}
        self.ask(person, "tag a task", "tasks.update_tags", body, self.may(person, "manage", job), hidden=not sees)

    def change_queue(self, person, _job, _sees):
        body = {"queue": "team", "max_time_s": 3600}
        self.ask(person, "change a queue", "cantle.set_queue_times", body, person.role == "admin")
