"""Runs the command blocks of the README and the guides, block by block in the order of the page. A page whose blocks all run
has a test of its own; ELSEWHERE names the tests that run the other blocks, or the reason why none does.
docs/guide/first-card.md is test_first_card.py's."""

import json
import os
import re
import sys

import pytest

from box import PROMPT, STAYS, Box
from conftest import ROOT

sys.path.append(str(ROOT / "tests/cluster"))
from page import Page, blocks  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a machine of its own needs root")
FILL = (ROOT / "examples/fill_slice.py").read_text()

# Pages whose blocks this file runs, in their order; the end of each test says that none is left out.
HERE = {
    "README.md", "docs/compute.md", "docs/metrics.md", "docs/simulated-gpus.md", "docs/guide/clearml.md", "docs/guide/day.md", "docs/guide/notices.md", "docs/guide/one-box.md", "docs/guide/quotas.md",
    "docs/guide/suspend.md", "docs/guide/team.md", "docs/guide/tls-and-login.md",
}
# The tests that run the blocks of the other pages. An entry that is a reason has no path in front.
ELSEWHERE = {
    "docs/guide/usage.md": "tests/e2e/test_usage.py: the command with each option; crates/cli/src/cmd/people/usage/prices.rs: the price sheet",
    "docs/guide/first-card.md": "tests/e2e/test_first_card.py: all",
    "docs/guide/install.md": "tests/packages/test_install.py: dpkg, rpm and pip in place of apt and dnf, which need a download site",
    "docs/guide/fleet.md": "tests/postgres/test_page.py: all on machines of their own, but copy (crates/service/store/tests/copy.rs); tests/chart has the values; make bench",
    "docs/kubernetes.md": "tests/cluster/test_page.py: all",
    "docs/kubernetes-queues.md": "tests/cluster/test_page.py: all",
    "docs/kubernetes-classic.md": "tests/cluster/test_chart_as_pods.py: all",
    "docs/containers.md": "tests/docker/run.sh: the forms of run, daemon and submit; chcon and ausearch need SELinux, which no machine here has",
    "docs/images.md": "tests/docker/test_images.py: the same script on Debian; NVIDIA's base images cannot be fetched by the tests",
    "docs/amd.md": "tests/e2e/test_amd.py: doctor, run and a machine with other commands; no program for ROCm is here",
    "docs/mig.md": "tests/e2e/test_mig.py: run and daemon on instances; tests/gpu/mig_verify.py is for a real card",
    "docs/scheduling.md": "tests/e2e/test_simulate.py: the command with a short trace",
    "docs/troubleshooting.md": "a message, no command",
    "docs/reference/layout.md": "a list of files, and file formats",
    "docs/reference/cli.md": "tests/e2e/test_manual.py: made from the program",
    "CONTRIBUTING.md": "the gate runs these commands, or is one of them; the fault of the first change is not put into this tree",
}


@pytest.fixture
def box():
    found = Box()
    yield found
    found.end()


def assert_printed(printed, expected):
    """All lines of the page, in their order; `…` is what differs, and others may stand between."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        assert any(re.search(pattern, re.sub(" +", " ", each)) or re.search(pattern, each) for each in lines), f"no line «{line}» in order:\n{printed}"


def console(block):
    """The command of a block with a prompt, and what it prints."""
    command, _, printed = block.partition("\n")
    assert PROMPT.match(command), block
    return PROMPT.sub("", command), printed


def test_the_readme(box):
    page = Page("../README.md")
    page.next("queue (priority order)")
    targets = re.findall(r"^make ([a-z-]+)", page.next("make build") + "\n" + page.next("make demo"), re.M)
    assert targets == ["build", "packages", "demo", "test"] and all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)
    # The example brings its own GPUs.
    box.run("unset CANTLE_SIM_GPUS")
    command, printed = console(page.next("$ dist/bin/cantle run"))
    assert_printed(box.run(command), printed)
    command, printed = console(page.next("$ dist/bin/cantle up"))
    assert_printed(box.start(command), printed)
    submit, *looks = page.next("dist/bin/cantle submit").splitlines()
    task = box.run(submit).strip()
    assert "half_gpu" in box.run(looks[0])
    box.block("\n".join(looks), TASK=task)
    box.stop()
    box.start("cantle server")
    box.run("export CANTLE_SIM_GPUS=3xA100-40GB")
    box.block(page.next("cantle daemon"))
    page.end()


def test_one_box(box):
    page = Page("guide/one-box.md")
    for name in ("train", "serve", "eval"):
        box.write(f"{name}.py", FILL)
    printed = box.block(page.next("cantle run"))
    assert "20 GiB limit" in printed and printed.count(" limit, enforced") == 2
    box.block(page.next("cantle up"))
    submit, tasks, logs, top = page.next("cantle submit").splitlines()
    task = box.run(submit).strip()
    assert "small" in box.run(tasks)
    assert '"refused_code": 2' in box.run(logs.replace("TASK", task))
    # As printed it needs a terminal.
    assert "GPU" in box.run(top.replace("cantle top", "cantle top --once"))
    page.end()


def test_a_days_work(box):
    page = Page("guide/day.md")
    box.block(page.next("cantle up"))
    shell, submit, enter = page.next("cantle shell").splitlines()
    assert "yes" in box.run(shell)
    box.run(submit)
    box.until("cantle tasks look", "in_progress")
    assert "yes" in box.run(enter)
    box.run("cantle stop look")
    # JupyterLab is test_notebook.py's; the address is there before the notebook is.
    notebook = box.run(page.next("cantle notebook")).strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:8008/ui/-/notebook/[0-9a-f]{32}", notebook)
    box.run(f"cantle stop {notebook[-32:]} || true")
    submit, tasks, run = page.next("cantle submit").splitlines()
    box.run(submit)
    assert "2h" in box.run(tasks).split()
    box.run(run)
    assert "1h, at most 8h" in box.block(page.next("cantle queues set"))
    project, user = page.next("cantle quota set").splitlines()
    assert "at most 12h" in box.run(project)
    box.run("cantle users add anna --role member --project vision")
    assert "8h for each task" in box.run(user)
    more, less = page.next("cantle extend").splitlines()
    assert "may run 3h from its start" in box.run(more)
    assert "may run 2h30m from its start" in box.run(less)
    assert "BASIS" in box.run(page.next("cantle tasks --start"))
    submit, more, queue = page.next("cantle submit --queue small --idle").splitlines()
    box.run(submit)
    assert "may be idle for 3h" in box.run(more)
    assert "tasks run 1h, at most 8h, and may be idle for 1h, at most 8h" in box.run(queue)
    submit, tasks = page.next("cantle submit --queue small --cpu auto").splitlines()
    box.run(submit)
    assert "MAIN MEMORY" in box.run(tasks)
    box.run("cantle stop part")
    submit, wait, tasks, logs = page.next("cantle submit --queue small --name sweep").splitlines()
    box.run(submit)
    box.run(wait)
    assert box.run(tasks).count("sweep[") == 10
    assert "index 3" in box.run(logs)
    *submits, wait, why = page.next("cantle submit --queue small --name prepare").splitlines()
    for line in submits:
        box.run(line)
    box.run(wait)
    assert "completed" in box.run(why)
    set_it, submit, logs, listed = page.next("echo hf_example").splitlines()
    box.run(set_it)
    box.run(submit)
    box.run("cantle wait download")
    assert "its token has 10 letters" in box.run(logs)
    assert "hf_example" not in (names := box.run(listed)) and names.splitlines()[1].split()[0] == "HF_TOKEN"
    page.end()


def test_suspend_move_and_resize(box):
    page = Page("guide/suspend.md")
    run, ps, suspend, resume = page.next("cantle run").splitlines()
    box.write("train.py", FILL.replace("default=0,", "default=3600,").replace("default=1 << 60", "default=1 << 30"))
    box.run(f"{run} >train.log 2>&1 &")
    box.until("cat train.log", "refused_code")
    task = box.run("cantle -o name ps").strip()
    assert "0.5" in box.run(ps)
    assert "is suspended" in box.run(suspend.replace("TASK", task)) and "0.5, suspended" in box.run(ps)
    assert "runs again" in box.run(resume.replace("TASK", task))
    assert "has moved" in box.run(page.next("cantle move").strip().replace("TASK", task))
    smaller, larger = page.next("cantle resize").splitlines()
    assert "has now 0.25 of GPU 1" in box.run(smaller.replace("TASK", task))
    assert "20 GiB limit" in box.run(larger.replace("TASK", task))
    lent, submitted = page.next("cantle run --gpu-memory-request").splitlines()
    box.write("serve.py", box.run("cat train.py"))
    box.run(f"{lent} >serve.log 2>&1 &")
    box.until("cat serve.log", "(up to 24 GiB where free)")
    # The first task has the rest of that GPU.
    box.until("cantle ps | grep -c '/ 20 GiB'", "2")
    box.start("cantle up --queue small=0.25")
    assert len(box.run(submitted.replace("Q", "small", 1)).strip()) == 32
    for line in page.next("cantle queues set").splitlines():
        assert "room" in box.run(line.replace("QUEUE", "small").replace("PROJECT", "vision"))
    box.stop()
    page.end()


def test_notices(box):
    page = Page("guide/notices.md")
    up, *lines = page.next("cantle up").splitlines()
    box.run("python3 tests/e2e/receivers.py hook 9000 got.jsonl >/dev/null 2>&1 &")
    box.start(up)
    secret, _, listed = (box.run(line) for line in lines)
    assert secret.startswith("whsec_") and "http://127.0.0.1:9000/…" in listed and "/hook" not in listed
    submit, always = page.next("cantle submit").splitlines()
    task = box.run(submit).strip()
    assert "task.completed" in box.until(f"grep {task} got.jsonl", task)
    box.run(always)
    # The line that a user sees of a receiver that is gone.
    assert page.next("lab   json").split()[0] == "lab"
    box.stop()
    box.write("cantle.toml", page.next("[server]"))
    box.run("mkdir -p /etc/cantle; echo x >/etc/cantle/smtp-password")
    box.start("CANTLE_CONFIG=cantle.toml cantle server")
    assert "gpu-duty@example.org" in box.run("cantle notify list")
    page.end()


def test_quotas(box):
    page = Page("guide/quotas.md")
    page_quotas = page.next("cantle quota set vision").splitlines()
    # The tasks run until the box ends: the page's seconds are too few to look at all of this where other suites use the cores.
    up, *block = re.sub(r"-- sleep \d+;", "-- sleep 3600;", page.next("cantle up")).splitlines()
    assert sum("sleep 3600" in line for line in block) == 2, block
    box.run("unset CANTLE_SIM_GPUS")
    box.start(up)
    box.block("\n".join(page_quotas))
    # The example that follows has no limit.
    box.run("cantle quota set speech --limit none")
    end = block.index("")
    *submits, projects = block[:end]
    table, (later, events) = block[end + 1 : -3], block[-2:]
    box.block("\n".join(submits))
    # Shares are those of the last plan.
    box.until(f"{projects} | tr -s ' '", re.sub(" +", " ", table[-1]))
    box.run(later)
    box.until(events, "task s1 runs")
    # The page leaves out two columns, the time and the task. Which task gives way to which depends on when each started.
    shown = re.sub(r"^\S+ +(\w+ +)\S+ +", r"\1", box.run(events), flags=re.M)
    for line in page.next("reclaim").splitlines():
        assert_printed(re.sub(" +", " ", shown), re.sub(r"\b[sv]\d\b", "…", re.sub(" +", " ", line)))
    first = page.next("v4 (").splitlines()[0]
    waits = "for each in $(cantle -o name tasks); do cantle why $each; done"
    assert_printed(box.until(waits, "first in q"), first.replace("v4", "…"))
    shown = box.block(page.next("cantle pools set"))
    assert "fast 2 (limit 3); only fast,lab" in shown and "GPUs in it now: 3" in shown
    shown = box.block(page.next("cantle budget set"))
    # What was used, and the month, differ.
    expected = re.sub(r"961.*-11", "…", page.next("PROJECT  GPU-HOURS"))
    assert_printed(re.sub(" +", " ", shown), re.sub(" +", " ", expected))
    page.end()


def test_compute_shares(box):
    page = Page("compute.md")
    for name in ("train", "serve"):
        box.write(f"{name}.py", FILL)
    run, submit = page.next("cantle run").splitlines()
    assert "10 GiB limit" in box.run(run)
    box.start("cantle up --queue default=task")
    task = box.run(submit).strip()
    assert '"refused_code": 2' in box.run(f"cantle logs -f {task}")
    page.end()


def test_simulated_gpus(box):
    page = Page("simulated-gpus.md")
    box.run("unset CANTLE_SIM_GPUS")
    box.run(page.next("cantle sim machine"))
    run, up = page.next("cantle run").splitlines()
    assert "10 GiB limit" in box.run(run)
    box.start(up)
    box.stop()
    box.write("train.py", "import ctypes; print(ctypes.CDLL(None).cudaGetDeviceCount is not None)")
    assert box.block(page.next("cantle sim machine")).count("True") == 2
    page.end()


def test_a_server_and_an_agent_for_clearml(box):
    page = Page("guide/clearml.md")
    server, credentials = page.next("cantle server").splitlines()
    box.start(server)
    assert "access_key" in box.run(f"{credentials} -o conf")
    box.run(credentials)
    shown = re.findall(r"^ +(\w+):? ", page.next("api {"), re.M)
    printed = box.run("cantle credentials -o conf")
    assert shown and all(name in printed for name in shown), printed
    daemon = page.next("cantle daemon")
    # The queues, once.
    box.start(f"{daemon} --create-queue")
    box.stop()
    box.block(daemon)
    page.next("pip wheel")
    page.end()


def test_metrics_of_an_agent_and_spans(box):
    page = Page("metrics.md")
    page.next("scrape_configs")
    page.next("DCGM_FI_DEV_GPU_UTIL")
    box.start("cantle server")
    daemon = page.next("cantle daemon")
    box.block(f"{daemon} --create-queue")
    read = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:9401/metrics\").read().decode())'"
    assert "cantle_agent" in box.run(read)
    page.next("cantle_agent_slice_memory_used_bytes")
    page.next("OTEL_EXPORTER_OTLP_ENDPOINT")
    page.next("ceil(sum by (product) (cantle_webhook_waiting_gpus")
    page.next("DCGM_FI_DEV_GPU_UTIL")
    page.end()


def test_tls_and_a_team():
    """Two pages of one server: the certificate of the first is that of the second. gpu2 and gpu3 are this box too, one after the other."""
    box = Box(name="gpu1")
    try:
        tls, team = Page("guide/tls-and-login.md"), Page("guide/team.md")
        box.block(tls.next("openssl req"))
        server = tls.next("cantle server")
        serving, *keys = team.next("gpu1# cantle server").splitlines()
        assert PROMPT.sub("", serving) == server
        box.start(server)
        box.block("\n".join(keys))
        pair = box.run("cantle credentials -o json")
        access, secret = (re.search(f'"{name}": *"([^"]+)"', pair)[1] for name in ("access_key", "secret_key"))
        box.block(tls.next("export CANTLE_SERVER"))
        box.run("mkdir -p /etc/cantle && cp ca.crt /etc/cantle/")
        box.block(tls.next("cat /etc/ssl/certs"))
        box.block(tls.next("install -D -m 600").replace('"access_key": "…"', f'"access_key": "{access}"').replace('"secret_key": "…"', f'"secret_key": "{secret}"').replace("cantle daemon", "cantle daemon --create-queue"))
        box.stop()
        tls.next("[Service]")
        # test_keys.py has an agent that works meanwhile.
        tls.next("gpu1# cantle users key add gpu2")
        # test_notebook.py has another address.
        tls.next("cantle server … --notebook-listen")
        tls.next("cantle server …")
        the_team(box, team, access, secret)
        box.block(tls.next("cantle users role"))
        tls.next("cantle login")
        # tests/cluster/test_kubernetes_tokens.py has a cluster.
        tls.next("cantle server … --kubernetes-tokens")
        box.block(tls.next("cantle users role group:system"))
        tls.next("cantle submit --server")
        tls.next("CLEARML_AUTH_TOKEN=$(kubectl create token")
        listed, ended = tls.next("cantle users session").splitlines()
        assert "page" not in box.run(listed)
        on_the_page(box, access, secret)
        session, *_ = next(line for line in box.run(listed).splitlines() if " page " in line).split()
        box.block(ended, SESSION=session)
        assert session not in box.run(listed)
        tls.end()
    finally:
        box.end()


def on_the_page(box, access, secret):
    """Logs in on the page, by the request that the page sends: a browser is in tests/ui."""
    keys = json.dumps({"access_key": access, "secret_key": secret})
    box.run(f"curl -sSf --cacert $CANTLE_CA_FILE -H 'Content-Type: application/json' -d '{keys}' $CANTLE_SERVER/ui/-/session")


def the_team(box, page, access, secret):
    box.block(page.next("gpu1# cantle quota"))
    box.block(page.next("gpu1# cantle users set"))
    box.run("mkdir /backup")
    box.block(page.next("gpu1# cantle backup"))
    # On a machine that takes the place of this one.
    box.block(f"{page.next('gpu1# cantle restore')}-of-another")
    page.next("gpu1# export AWS_ENDPOINT_URL")
    box.run("cantle quota set experiments --gpu 1")
    dry, real = page.next("gpu1# cantle tasks delete").splitlines()
    box.block(dry)
    box.block(f"{real} --yes")
    server_and_ca, keys = page.next("export CANTLE_SERVER").splitlines()
    box.block(server_and_ca)
    box.block(keys.replace("ACCESS_KEY=…", f"ACCESS_KEY={access}").replace("SECRET_KEY=…", f"SECRET_KEY={secret}"))
    agents = page.next("gpu1# cantle daemon").splitlines()
    for agent in agents[1:]:
        box.block(agent)
        box.stop()
    box.block(agents[0])
    page.next("[Unit]")
    box.write("/shared/run_eval.sh", "#!/bin/sh\necho evaluated\n")
    box.run("chmod +x /shared/run_eval.sh")
    submit, *asks = page.next("cantle submit").splitlines()
    assert "evaluated" in box.run(submit)
    # It waits behind one task for each GPU.
    waits = box.run("for each in 1 2 3 4; do cantle submit --queue big -- sleep 600; done").splitlines()[-1]
    box.block("\n".join(asks), TASK=waits)
    box.block(page.next("gpu1# cantle queues"))
    ended = box.run("cantle -o name tasks --status completed").split()[0]
    box.block(page.next("gpu1# cantle tasks runs"), TASK=ended)
    box.block(page.next("gpu1# cantle backup"))
    page.end()


def test_each_page_with_blocks_has_somebody_who_runs_them():
    pages = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "adr" not in page.parts)]
    shown = {str(page.relative_to(ROOT)) for page in pages if any(re.search(r"^(\$ |gpu\d# )?(cantle|dist|make|kubectl|helm|pip|apt|cargo|docker) ", block, re.M) for block in blocks(page.read_text()))}
    assert shown - HERE - set(ELSEWHERE) == set(), "who runs them?"
    named = [text.split(":")[0] for text in ELSEWHERE.values() if text.startswith("tests/")]
    assert all((ROOT / path).exists() for path in named), named
