"""ClearML's real SDK, and our agent with its keys in a file, over TLS. Nobody but the agent has its keys."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import CANTLE, Server, wait_until
from test_agent import agent, submit

SHOW = "import os, time; print('token', bool(os.environ.get('CLEARML_AUTH_TOKEN')), flush=True); time.sleep(600)"


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """As docs/guide/tls-and-login.md makes them."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(folder, "req", "-x509", *key, "-days", "3650", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=Example CA")
    openssl(folder, "req", "-new", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "365", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", "tls.csr", *signed, "-out", "tls.crt")
    return folder


class TlsServer(Server):
    def __init__(self, home, certificates):
        self.ca = str(certificates / "ca.crt")
        # For this process's own calls, and for all that the server's environment is given to.
        os.environ["REQUESTS_CA_BUNDLE"] = self.ca
        super().__init__(home, "--tls-cert", str(certificates / "tls.crt"), "--tls-key", str(certificates / "tls.key"))
        self.env |= {"REQUESTS_CA_BUNDLE": self.ca, "CANTLE_CA_FILE": self.ca}


@pytest.fixture(scope="module")
def tls(tmp_path_factory, certificates):
    home = tmp_path_factory.mktemp("tls")
    home.chmod(0o755)
    server = TlsServer(home, certificates)
    yield server
    server.close()
    del os.environ["REQUESTS_CA_BUNDLE"]


def test_the_sdk_works_over_tls(tls):
    assert tls.url.startswith("https://")
    answer = tls.sdk(
        """
from clearml import Task
task = Task.init(project_name="tls", task_name="sdk", auto_connect_frameworks=False, auto_resource_monitoring=False)
task.get_logger().report_text("over TLS")
task.upload_artifact("numbers", {"one": 1})
task.close()
answer = task.id
"""
    )
    assert tls.status(answer) == "completed"
    assert "over TLS" in tls.log_of(answer)


def holders(secret):
    """Processes of this machine whose command line or environment has it."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for name in ["cmdline", "environ"]:
            try:
                if secret.encode() in (process / name).read_bytes():
                    found.append((process.name, name, (process / "cmdline").read_bytes()))
            except OSError:
                pass  # It ended.
    return found


def test_only_the_agent_has_its_keys(tls):
    keys = {name: tls.env.pop(name) for name in ["CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"]}
    secret = keys["CLEARML_API_SECRET_KEY"]
    file = tls.home / "agent.json"
    file.write_text(f'{{"url": "{tls.url}", "access_key": "{keys["CLEARML_API_ACCESS_KEY"]}", "secret_key": "{secret}"}}')
    try:
        file.chmod(0o644)
        words = ["daemon", "--keys", str(file), "--dynamic-gpus", "--create-queue", "--queue", "keys=0.25"]
        refused = subprocess.run(tls.command([CANTLE, *words]), env=tls.env, capture_output=True, text=True, timeout=180)
        assert refused.returncode == 2 and "other users can read it (mode 644)" in refused.stderr
        assert "hint: chmod 600" in refused.stderr
        file.chmod(0o600)
        tls.start([CANTLE, *words], "agent.log")
        show = ["--keys", str(file), "submit", "--queue", "keys", "--", "python3", "-c", SHOW]
        wait_until(lambda: "serving" in (tls.home / "agent.log").read_text(), 120, "the agent")
        task = tls.run([CANTLE, *show]).strip()
        tls.env |= keys
        wait_until(lambda: tls.status(task) == "in_progress" and "token True" in tls.log_of(task), 120, "the task")
        assert holders(secret) == []
    finally:
        tls.env |= keys
    tls.api("tasks.stop", task=task)
    wait_until(lambda: tls.status(task) == "stopped", 60, "the end of the task")


def test_keys_from_the_environment_stay_there(tls):
    """An agent that was started the old way has its keys in its own environment, and its tasks do not."""
    secret = tls.env["CLEARML_API_SECRET_KEY"]
    agent = tls.start([CANTLE, "daemon", "--dynamic-gpus", "--create-queue", "--queue", "env=0.25"], "agent2.log", tls.another())
    wait_until(lambda: "serving" in (tls.home / "agent2.log").read_text(), 120, "the agent")
    task = tls.run([CANTLE, "submit", "--queue", "env", "--", "python3", "-c", SHOW]).strip()
    wait_until(lambda: "token True" in tls.log_of(task), 120, "the task")
    assert [name for _, name, words in holders(secret) if b"token" in words or b"task-init" in words] == []
    assert agent.poll() is None
    tls.api("tasks.stop", task=task)


REPORT = """
from clearml import Task
task = Task.init(output_uri=True, auto_connect_frameworks=False, auto_resource_monitoring=False)
task.upload_artifact('weights', {'a': 1}, wait_on_upload=True)
print('reported from inside', flush=True)
"""


@pytest.mark.parametrize("variable", [None, "CLEARML__API__VERIFY_CERTIFICATE"])
def test_a_task_trusts_the_authority_of_its_agent(tls, variable):
    """The agent knows it by --ca only. ClearML's SDK reads no variables of the form CLEARML__…, as its agent does."""
    env = {name: value for name, value in tls.env.items() if name not in ("REQUESTS_CA_BUNDLE", "CLEARML_CONFIG_FILE")}
    if variable:
        env[variable] = tls.ca
    queue = f"trust-{variable}"
    out = open(tls.home / f"{queue}.log", "wb")
    words = ["daemon", "--ca", tls.ca, "--dynamic-gpus", "--create-queue", "--queue", f"{queue}=0.25"]
    child = subprocess.Popen(tls.command([CANTLE, *words], tls.another()), env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until(lambda: "serving" in tls.text(f"{queue}.log"), 120, "the agent")
        (tls.home / "report.py").write_text(REPORT)
        task = tls.run([CANTLE, "submit", "--queue", queue, "--", sys.executable, str(tls.home / "report.py")]).strip()
        wait_until(lambda: tls.status(task) in ("completed", "failed"), 240, "the end of the task")
        assert tls.status(task) == "completed", tls.log_of(task)
        wait_until(lambda: "reported from inside" in tls.log_of(task), 60, "the log")
    finally:
        tls.stop(child)


def test_clearmls_own_agent_works_over_tls(tls):
    tls.queue("stock")
    task = submit(tls, "print('step', 6 * 7)\n", "stock")
    child = agent(tls, "--queue", "stock", "--cpu-only")
    wait_until(lambda: tls.status(task) in ("completed", "failed"), 240, "the task's end")
    assert tls.status(task) == "completed", tls.log_of(task)
    wait_until(lambda: "step 42" in tls.log_of(task), 60, "the log")
    tls.stop(child)
