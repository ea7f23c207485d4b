"""The other two ways in which people of tests/e2e/team.py use the server: ClearML's SDK, unmodified, and the web page in a real browser."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SDK = ROOT / ".venv-clearml/bin/python"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def has_page():
    """tests/ui/run.sh --setup installs both."""
    return (ROOT / "tests/ui/node_modules/playwright-core").is_dir() and os.access(CHROMIUM, os.X_OK) and shutil.which("node")


class Sdk:
    """Programs of people, each with its owner's keys."""

    def __init__(self, team, url, home):
        self.team, self.url, self.home = team, url, home

    def run(self, person, act, *words):
        home = self.home / person.name
        home.mkdir(exist_ok=True)
        hosts = {"CLEARML_API_HOST": self.url, "CLEARML_WEB_HOST": self.url, "CLEARML_FILES_HOST": f"{self.url}/files"}
        env = {"PATH": os.environ["PATH"], "HOME": str(home)} | hosts | person.env()
        begin = time.monotonic()
        # In a home of its own: in a clone, the SDK would look at the whole repository each time.
        program = shutil.copy(ROOT / "tests/e2e/team_sdk.py", home)
        done = subprocess.run([SDK, program, act, *words], env=env, cwd=home, capture_output=True, text=True, timeout=600)
        self.team.tally.note(person.role, f"{act} with the SDK", "sdk", "allowed", time.monotonic() - begin)
        if done.returncode:
            self.team.tally.wrong.append(f"{person.name} ({person.role}) {act} {words}: exit {done.returncode}: {done.stderr[-2000:]}")
            return None
        return json.loads(done.stdout.splitlines()[-1])

    def look(self, person, job, sees):
        found = self.run(person, "look", job.id)
        if found is None:
            return
        if sees != ("absent" not in found) or sees and found["name"] != job.name:
            self.team.tally.wrong.append(f"{person.name} ({person.role}) looks at {job.id}: {found}")
        if sees and not self.team.may(person, "read", job) and found.get("log"):
            self.team.tally.wrong.append(f"{person.name} ({person.role}) reads the log of {job.id}: {found}")
        self.team.judge_log(job, found.get("log"))

    def search(self, person, job, _sees):
        """A project of somebody: its tasks are those that the person sees."""
        found = self.run(person, "search", job.project)
        seen = {other.id for other in self.team.jobs if other.project == job.project and self.team.may(person, "see", other)}
        if found is not None and set(found["ids"]) != seen:
            self.team.tally.wrong.append(f"{person.name} ({person.role}) finds {len(found['ids'])} tasks of {job.project}, not {len(seen)}")

    def train(self, person, word, name):
        """An experiment in the person's own project."""
        made = self.run(person, "train", person.project, name, word)
        if made is None:
            return None
        if (made["status"], made["loss"], made["word"]) != ("completed", 0.25, word):
            self.team.tally.wrong.append(f"{person.name}'s experiment {name} is {made}")
        return made["id"]


class Page:
    """One browser, in which each person is logged in."""

    def __init__(self, team, url):
        self.team, self.url = team, url
        self.browser = subprocess.Popen(["node", ROOT / "tests/ui/team.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, person, act, **more):
        keys = {name: person.keys[name] for name in ("access_key", "secret_key")}
        begin = time.monotonic()
        self.browser.stdin.write(json.dumps({"url": self.url, "keys": keys, "act": act} | more) + "\n")
        self.browser.stdin.flush()
        answer = json.loads(self.browser.stdout.readline())
        self.team.tally.note(person.role, f"page of {'a task' if act == 'task' else 'tasks'}", "page", "allowed", time.monotonic() - begin)
        if "failed" in answer:
            self.team.tally.wrong.append(f"{person.name} ({person.role}) opens {act} {more}: {answer['failed']}")
            return None
        return answer

    def list(self, person, _job, _sees):
        found, seen = self.ask(person, "list"), len(self.team.seen_by(person))
        if found and not re.fullmatch(rf"{seen:,} tasks?", found["count"]):
            self.team.tally.wrong.append(f"the page of {person.name} ({person.role}) has {found['count']}, not {seen}")

    def task(self, person, job, sees):
        found = self.ask(person, "task", task=job.id)
        if found is None:
            return
        reads, changes = self.team.may(person, "read", job), self.team.may(person, "manage", job)
        wrong = sees == found.get("absent", False)
        if sees and not wrong:
            wrong = not found["name"].startswith(job.name) or not changes and {"Stop", "Requeue", "Dequeue"} & set(found["buttons"])
            wrong = wrong or reads == ("lacks it" in found["log"])
            self.team.judge_log(job, found["log"])
        if wrong:
            self.team.tally.wrong.append(f"{person.name} ({person.role}) opens the page of {job.id} ({job.name}): {found}")

    def close(self):
        self.browser.stdin.close()
        self.browser.wait(timeout=60)
