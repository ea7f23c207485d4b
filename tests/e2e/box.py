"""A shell on a machine of its own, for what a page tells a reader to type: its root is a copy that is thrown away, its network is loopback, and
CANTLE_SIM_GPUS names its GPUs, as docs/guide/one-box.md says. So the reader may be root and write to /etc, /backup and port 8008."""

import os
import re
import shlex
import subprocess
import threading
import time

from machine import ROOT

# The root of the machine below a layer in memory; what it starts ends with it.
PREPARE = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
for each in dev sys; do mount --rbind /$each /mnt/root/$each; done
cd /mnt/root && pivot_root . mnt && umount -l mnt && cd /
mount -t proc proc /proc && mount -t tmpfs tmpfs /run && mkdir -p /var/lib/cantle && mount -t tmpfs tmpfs /var/lib/cantle
"$2/tests/cover.sh" /tmp mode=1777 && hostname "$1" && ip link set lo up && echo "127.0.0.1 localhost $1" >/etc/hosts
mkdir -p "$HOME" && cd "$HOME" && exec sh
"""
# The form of a prompt on a page.
PROMPT = re.compile(r"^(\$ |[a-z]+\d*# )")
# Commands that stay, and what they print as soon as they can be used.
STAYS = re.compile(r"cantle (up|server|daemon)\b")
READY = {"up": "cantle is up", "server": "cantle server is up", "daemon": "serving"}

# No line of a page takes that long, even on a slow machine.
LINE_SECONDS = 300


class Box:
    def __init__(self, gpus="3xA100-40GB", name="box"):
        env = {"PATH": f"{ROOT}/dist/bin:{os.environ['PATH']}", "HOME": "/tmp/home", "CANTLE_SIM_GPUS": gpus}
        words = ["unshare", "--uts", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", PREPARE, "sh", name, ROOT]
        pipe = subprocess.PIPE
        self.shell = subprocess.Popen(words, env=env, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        for name in ("dist", "examples", "tests"):
            self.run(f"ln -s {shlex.quote(str(ROOT / name))} {name}")

    def run(self, line, code=0):
        """The output of a line; its exit code must be `code`. A line that does not end in time ends the box."""
        watch = threading.Timer(LINE_SECONDS, self.shell.kill)
        watch.start()
        try:
            return self.answer(line, code)
        finally:
            watch.cancel()

    def answer(self, line, code):
        # A line of its own, so that what the line exports stays.
        print(f"{{ {line}\n}} </dev/null 2>&1; code=$?; echo; echo END-OF-COMMAND $code", file=self.shell.stdin, flush=True)
        printed = []
        for each in self.shell.stdout:
            if each.startswith("END-OF-COMMAND "):
                assert each.split()[1] == str(code), f"{line}\nended with {each.split()[1]}:\n{''.join(printed)}"
                return "".join(printed).removesuffix("\n")
            printed.append(each)
        raise AssertionError(f"{line}\nended the shell, or did not end in time:\n{''.join(printed)}")

    def start(self, line):
        """Starts a command that stays, and waits until it can be used; what it printed."""
        ready = READY[STAYS.search(line)[1]]
        self.run(f"{line.removesuffix('&').strip()} >stays.log 2>&1 & stays=$!")
        return self.until("cat stays.log; kill -0 $stays || echo ended", ready)

    def stop(self):
        """Ends what was started last."""
        self.run("kill $stays; wait $stays || true")

    def until(self, line, text, seconds=60):
        """Runs a line until it prints the text; what it printed then."""
        end = time.monotonic() + seconds
        while True:
            printed = self.run(f"{line} || true")
            if text in printed:
                return printed
            assert time.monotonic() < end, f"{line}: no {text!r} within {seconds} s:\n{printed}"
            time.sleep(0.2)

    def block(self, text, **filled):
        """Runs the lines of a block, filled in by the reader: `TASK="…"`; what they printed."""
        printed = []
        for line in text.splitlines():
            line = PROMPT.sub("", line)
            for word, value in filled.items():
                line = line.replace(word, value)
            printed.append(self.start(line) if STAYS.search(line) else self.run(line))
        return "\n".join(printed)

    def write(self, path, text):
        self.run(f"mkdir -p {os.path.dirname(path) or '.'}; printf %s {shlex.quote(text)} >{path}")

    def end(self):
        self.shell.kill()
        self.shell.communicate()
