"""ClearML's own `clearml-session`, unmodified: a shell by SSH inside a slice. Jupyter and VS Code are left out, they are downloads of the session's
own. The server of SSH is Debian's, which the session would install; it is there before, and only for this machine."""

import subprocess

import pexpect
import pytest
from conftest import ROOT, Server, wait_until
from ours import daemon, ended
from proxy import no_refusal

PACKAGES = ROOT / ".cache/openssh"
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader"
WITH_SSHD = ROOT / "tests/clearml/with_sshd.sh"


@pytest.fixture
def server(tmp_path):
    made = subprocess.run([WITH_SSHD, PACKAGES], capture_output=True, text=True)
    if made.returncode == 77:
        pytest.skip(made.stdout.strip())
    assert made.returncode == 0, made.stderr
    found = Server(tmp_path, under=[WITH_SSHD, PACKAGES])
    yield found
    found.close()


def test_a_shell_in_half_a_gpu(server, proxy):
    server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5")
    words = ["clearml-session", "--queue", "half_gpu", "--jupyter-lab", "false", "--vscode-server", "false", "--password", "slice", "--randomize", "false"]
    command, *words = server.command([*words, "--disable-fingerprint-check", "--yes", "--verbose"])
    with open(server.home / "session.log", "w") as log:
        client = pexpect.spawn(command, words, env=server.env, timeout=400, encoding="utf-8", logfile=log)
        client.expect("Connection is up and running")
        client.sendline("s")
        client.expect("[#] ")
        assert typed(client, MEMORY) == "20480 MiB"
        assert server.run(MEMORY.split()).splitlines()[0] == "40960 MiB", "outside of the slice"
        session = server.api("tasks.get_all", status=["in_progress"], only_fields=["id"])["tasks"][0]["id"]
        client.sendline("exit")
        client.expect("Shutdown")
        client.sendline("Shutdown")
        client.expect(pexpect.EOF)
    assert ended(server, session) == ["stopped"]
    wait_until(lambda: not server.leases(), 60, "a free GPU")
    no_refusal(proxy)


def typed(client, line):
    """The output of a line in the shell."""
    client.sendline(f"{line}; echo ended $?")
    client.expect(r"([^\r]*)\r\nended 0\r\n")
    return client.match[1].strip()
