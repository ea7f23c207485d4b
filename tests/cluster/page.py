"""The documentation's blocks, in their order, and a shell that runs them with the real helm and kubectl."""

import os
import pathlib
import re
import shutil
import subprocess
import textwrap

import pytest

from chart import ROOT

# The programs of a user that are not cantle's (assets/build.sh).
CLIENTS = ("helm", "kubectl")
# The state of the cluster that is shown after a failed command.
STATE = """
kubectl get pods,resourceclaims,resourceslices --all-namespaces --output wide
kubectl get events --all-namespaces --sort-by .lastTimestamp | tail -40
kubectl logs --namespace cantle-system --selector app.kubernetes.io/name=cantle --prefix --tail 30
"""


def blocks(text):
    """Everything that the page shows as code: fenced, or indented by four columns and more."""
    lines, at, found = text.splitlines(), 0, []
    while at < len(lines):
        fence = re.match(r" *```", lines[at])
        begin = at + 1 if fence else at
        is_indented = lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip())
        if not fence and not is_indented:
            at += 1
            continue
        at = begin
        goes_on = (lambda line: not line.strip().startswith("```")) if fence else (lambda line: line.startswith("    ") or not line.strip())
        while at < len(lines) and goes_on(lines[at]):
            at += 1
        found.append(textwrap.dedent("\n".join(lines[begin:at])).strip("\n"))
        at += 1
    return found


class Page:
    """A page whose blocks are taken one after the other: none is left out unnoticed, none comes too early."""

    def __init__(self, name):
        self.name, self.left = name, blocks((ROOT / "docs" / name).read_text())

    def next(self, begins):
        """The next block, which begins with these words."""
        assert self.left, f"{self.name} has no more blocks, but was to have one that begins with: {begins}"
        block = self.left.pop(0)
        assert block.startswith(begins), f"the next block of {self.name} was to begin with {begins!r}, and is:\n{block}"
        return block

    def end(self):
        assert not self.left, f"blocks of {self.name} that nobody has run:\n" + "\n---\n".join(self.left)


class Shell:
    """A user's shell in the directory of the sources, whose kubectl has this cluster."""

    def __init__(self, plane, programs, home):
        self.home = home
        for name in CLIENTS:
            if not (programs / name).exists() and not shutil.which(name):
                pytest.skip(f"no {name} next to Kubernetes' programs or in PATH")
        (home / "charts").symlink_to(ROOT / "charts")
        self.env = {
            "PATH": f"{programs}:{ROOT / 'dist/bin'}:{os.environ['PATH']}",
            "HOME": str(home),
            "KUBECONFIG": str(plane.kubeconfig()),
        }

    def run(self, text, code=0, **placeholders):
        """The output of a block; `placeholders` are the values that a user has to fill in."""
        text = fill(text, placeholders)
        done = self.call(text)
        assert done.returncode == code, f"{text}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n{self.call(STATE).stdout}"
        return done.stdout

    def call(self, text):
        how = {"cwd": self.home, "env": self.env, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        return subprocess.run(["sh", "-euc", text], timeout=400, **how)

    def write(self, name, text, **placeholders):
        pathlib.Path(self.home / name).write_text(fill(text, placeholders) + "\n")


def fill(text, placeholders):
    for word, given in placeholders.items():
        assert re.search(rf"\b{word}\b", text), f"no {word} in:\n{text}"
        text = re.sub(rf"\b{word}\b", lambda _: str(given), text)
    return text
