"""`cantle up --docker`: the agent's tasks in containers, with the driver and docker's own client as witnesses."""

import base64
import json
import pathlib
import re
import time
import urllib.request

import pytest
import registry
from conftest import IMAGE, ROOT, driver, installation

GIB = 1 << 30
# A little less than CALL_LIMIT of crates/node/runtime/src/container/calls.rs.
PATIENCE_S = 25
# The machine's GPU whose instances can be asked for.
MIG = 3
EXAMPLES = ["-v", f"{ROOT}/examples:/examples:ro"]
FILL = ["python3", "/examples/fill_slice.py"]
wait_until = installation.wait_until


def hold(seconds):
    return [*FILL, "--hold", str(seconds)]


def held_until(file):
    """Fills its slice, holds it until the file exists, and reports that."""
    return ["sh", "-c", f"{' '.join(hold(600))} & while [ ! -e {file} ]; do sleep 0.1; done; kill $!; echo let go"]


def wait_reason(cantle, task, begins):
    """The reason of a decision that was made on an earlier state may be there first."""
    reason = lambda: cantle.task(task)["reason"] or ""  # noqa: E731
    wait_until(lambda: reason().startswith(begins), 60, reason)


def agents_lines(cantle, task, begin):
    """The agent's own lines in a task's log, which may come after the task's; there is at least one."""
    found = lambda: [line for line in cantle.output(task).splitlines() if line.startswith(begin)]  # noqa: E731
    wait_until(found, 60, lambda: cantle.output(task))
    return found()


def call(cantle, endpoint, **fields):
    """Acts as ClearML's SDK: one request to the server; returns the answer's data."""
    (keys,) = cantle.json("credentials")
    basic = base64.b64encode(f"{keys['access_key']}:{keys['secret_key']}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {basic}"}
    request = urllib.request.Request(f"{keys['url']}/{endpoint}", json.dumps(fields).encode(), headers)
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    assert answer["meta"]["result_code"] == 200
    return answer["data"]


def container_in(cantle, task):
    return call(cantle, "tasks.get_by_id", task=task)["task"]["container"]


def test_four_queues_on_three_gpus(make_cantle, engine):
    """The example of the documentation, as ClearML's users type it."""
    cantle = make_cantle([0, 1, 2])
    queues = installation.FOUR_QUEUES
    cantle.up("--gpus", "0-2", "--docker", IMAGE, *EXAMPLES, "--ipc=host", "--queue", *queues)
    dual = cantle.submit("dual_gpus", *held_until("/tmp/go"))
    quarter, half = (cantle.submit(f"{part}_gpu", *hold(600)) for part in ("quarter", "half"))
    single = cantle.submit("single_gpu", *hold(0))

    for task, limits in ((dual, [40 * GIB] * 2), (quarter, [10 * GIB]), (half, [20 * GIB])):
        cantle.wait_state(task, "in_progress", seconds=180)
        wait_until(lambda t=task, n=len(limits): len(cantle.filled(t)) == n, 180, lambda t=task: cantle.output(t))
        for record, limit in zip(cantle.filled(task), limits, strict=True):
            assert (record["refused_code"], record["total_bytes"], record["free_bytes"]) == (2, limit, 0)
    assert cantle.used() == [40 * GIB, 40 * GIB, 30 * GIB]
    wait_reason(cantle, single, "needs 1 GPU, free 0.25 of GPU 2")
    # The witness: each is a container of its own, with its own slice and the daemon's options.
    host = engine.inspect(engine.container_of(half))["HostConfig"]
    assert host["IpcMode"] == "host" and host["PidMode"] == "" and not host["Privileged"]
    assert len(engine.containers()) == 3
    # ClearML's labels: each says which worker its task is, and whose.
    labels = [engine.inspect(engine.container_of(task))["Config"]["Labels"] for task in (dual, quarter, half)]
    children = [label["clearml-worker-id"].partition(":")[2] for label in labels]
    assert children == ["gpu0,1", "gpu2.25a", "gpu2.5a"]
    assert {label["clearml-parent-worker-id"].partition(":")[2] for label in labels} == {"dgpu0-2"}
    (command,) = agents_lines(cantle, half, "cantle: docker run ")
    assert f"--volume={ROOT}/examples:/examples:ro --ipc=host" in command and f"{IMAGE} python3" in command
    (keys,) = cantle.json("credentials")
    assert "CLEARML_AUTH_TOKEN=***" in command and keys["secret_key"] not in cantle.output(half)

    engine.client("exec", engine.container_of(dual), "touch", "/tmp/go")
    cantle.wait_state(dual, "completed", seconds=180)
    assert cantle.wait_state(single, "completed", seconds=180)["exit_code"] == 0
    wait_until(lambda: cantle.used() == [0, 0, 30 * GIB], 60, cantle.used)


def test_four_halves_on_two_gpus(make_cantle, engine):
    """A fifth gets the slice of one whose container was taken away from outside."""
    cantle = make_cantle([0, 1])
    cantle.up("--gpus", "0,", "1", "--queue", "half_gpu=0.5", "--docker", IMAGE, *EXAMPLES)
    tasks = [cantle.submit("half_gpu", *hold(600)) for _ in range(5)]
    for task in tasks[:4]:
        cantle.wait_state(task, "in_progress", seconds=180)
    wait_until(lambda: cantle.used() == [40 * GIB, 40 * GIB], 180, cantle.used)
    wait_reason(cantle, tasks[4], "needs 0.5 GPU, nothing free")
    assert len(engine.containers()) == 4

    engine.client("rm", "--force", engine.container_of(tasks[1]))

    cantle.wait_state(tasks[1], "failed", seconds=180)
    cantle.wait_state(tasks[4], "in_progress", seconds=180)
    cantle.cli("stop", tasks[2])
    cantle.wait_state(tasks[2], "stopped", seconds=180)
    wait_until(lambda: len(engine.containers()) == 3, 120, engine.containers)


def test_a_tasks_own_container(make_cantle, engine):
    """Image, arguments and set-up script of the task go before the daemon's, as with ClearML's agent."""
    cantle = make_cantle([0])
    engine.client("tag", IMAGE, "cantle-test:own")
    cantle.env["CLEARML_AGENT_EXTRA_DOCKER_ARGS"] = "-e FOR_ALL='of the daemon'"
    cantle.up("--queue", "q=0.5", "--docker", IMAGE, "-e", "DEFAULT=yes")
    say = 'echo "${DEFAULT-none}, ${OWN-none}, ${SET_UP-none}, $FOR_ALL"'
    plain = cantle.submit("q", "sh", "-c", say)
    own = cantle.submit("q", "sh", "-c", say, flags=["--image", "cantle-test:own", "-e", "OWN=two words"])
    for task, said in ((plain, "yes, none, none"), (own, "none, two words, none")):
        cantle.wait_state(task, "completed", seconds=180)
        assert cantle.said(task)[-1] == f"{said}, of the daemon"
    assert " cantle-test:own sh -c " in agents_lines(cantle, own, "cantle: docker run ")[0]

    # A task that waits is edited: behind one that takes the whole queue.
    first = cantle.submit("q", *["sleep", "600"], flags=["--image", IMAGE])
    second = cantle.submit("q", *["sleep", "600"], flags=["--image", IMAGE])
    edited = cantle.submit("q", "sh", "-c", say)
    container = {"image": "cantle-test:own", "arguments": "-e OWN=edited", "setup_shell_script": "export SET_UP=done"}
    call(cantle, "tasks.edit", task=edited, force=True, container=container)
    for task in (first, second):
        cantle.wait_state(task, "in_progress", seconds=180)
        cantle.cli("stop", task)
    cantle.wait_state(edited, "completed", seconds=240)
    assert cantle.said(edited)[-1] == "none, edited, done, of the daemon"

    lifting = cantle.submit("q", "true", flags=["--image", IMAGE, "--privileged"])
    cantle.wait_state(lifting, "failed", seconds=180)
    assert "container option --privileged is refused" in cantle.cli("why", lifting).stdout
    engine.client("rmi", "cantle-test:own")


def test_a_container_has_its_part_of_the_node_whatever_its_own_options_say(make_cantle, engine):
    cantle = make_cantle([0, 1])
    cantle.up("--queue", "half=0.5", "--docker", IMAGE)
    flags = ["--cpu", "auto", "--image", IMAGE, "--cpus", "64", "--memory", "64m"]
    task = cantle.submit("half", "sh", "-c", "echo up; sleep 3600", flags=flags)
    wait_until(lambda: cantle.said(task) == ["up"], 180, lambda: cantle.output(task))
    host = engine.inspect(engine.container_of(task))["HostConfig"]
    part = cantle.task(task)["host"]
    assert host["NanoCpus"] == part["cpu_milli"] * 1_000_000 and 0 < part["cpu_milli"] < 64_000
    assert host["Memory"] == part["memory_bytes"] == 64 << 20
    cantle.cli("stop", task)


def test_the_daemons_image_is_written_into_tasks_of_the_sdk(make_cantle):
    """ClearML's agent does so. This image has no Python packages, so that such a task fails; its container is recorded before."""
    cantle = make_cantle([0])
    cantle.up("--queue", "q=0.5", "--docker", IMAGE, "-e", "A=two words")
    script = {"entry_point": "train.py", "diff": "print(1)", "binary": "python3"}
    sdk = call(cantle, "tasks.create", name="train", type="training", script=script)["id"]
    call(cantle, "tasks.enqueue", task=sdk, queue_name="q")
    plain = cantle.submit("q", "sh", "-c", "exit 3")

    assert cantle.wait_state(sdk, "failed", seconds=180)["exit_code"] == 127
    assert cantle.wait_state(plain, "failed", seconds=180)["exit_code"] == 3
    container = container_in(cantle, sdk)
    assert (container["image"], container["arguments"]) == (IMAGE, "-e 'A=two words'")
    assert not container_in(cantle, plain).get("image"), "it can run without an image elsewhere"


def test_an_engine_that_hangs_holds_up_nobody_else(make_cantle, engine, tmp_path):
    """The next task waits for the engine; the one on the other GPU continues, and the agent watches it."""
    cantle = make_cantle([0, 1])
    go = tmp_path / "go"
    go.mkdir()
    cantle.up("--queue", "one=1", "--docker", IMAGE, *EXAMPLES, "-v", f"{go}:/go:ro")
    first = cantle.submit("one", "sh", "-c", f"echo up; while [ ! -e /go/go ]; do sleep 0.1; done; {' '.join(hold(600))}")
    wait_until(lambda: cantle.task(first)["state"] == "in_progress" and cantle.said(first) == ["up"], 180, "the first is up")

    begin = time.monotonic()
    with engine.hanging():
        second = cantle.submit("one", *hold(0))
        cantle.wait_state(second, "in_progress", seconds=180)
        (go / "go").touch()
        wait_until(lambda: cantle.used() == [40 * GIB, 0], 180, cantle.used)
        refusals = lambda: [event["task"] for event in cantle.json("events") if event["kind"] == "refuse"]
        wait_until(lambda: refusals() == [first], 180, refusals)
        assert cantle.filled(second) == []

    away_s = time.monotonic() - begin
    ended = cantle.wait_state(second, "completed", "failed", seconds=240)
    if away_s > PATIENCE_S and ended["state"] == "failed":
        pytest.skip(f"on this machine the engine was away for {away_s:.0f} s, longer than an agent waits for it")
    assert ended["exit_code"] == 0
    cantle.cli("stop", first)
    cantle.wait_state(first, "stopped", seconds=180)


def test_the_engine_dies_and_comes_back(make_cantle, engine):
    cantle = make_cantle([0])
    cantle.up("--queue", "half_gpu=0.5", "--docker", IMAGE, *EXAMPLES)
    task = cantle.submit("half_gpu", *held_until("/tmp/go"))
    wait_until(lambda: cantle.used() == [20 * GIB], 180, cantle.used)

    engine.restart()

    assert cantle.used() == [20 * GIB], "the container goes on under its limit"
    assert cantle.task(task)["state"] == "in_progress"
    after = cantle.submit("half_gpu", *hold(0))
    cantle.wait_state(after, "completed", seconds=240)
    engine.client("exec", engine.container_of(task), "touch", "/tmp/go")
    assert cantle.wait_state(task, "completed", seconds=240)["exit_code"] == 0
    assert cantle.said(task)[-1] == "let go"
    wait_until(lambda: engine.containers() == [] and cantle.used() == [0], 120, engine.containers)


def test_the_agent_dies_and_comes_back(make_cantle, engine):
    cantle = make_cantle([0])
    words = ["--queue", "half_gpu=0.5", "--docker", IMAGE, *EXAMPLES]
    agent = cantle.up(*words)
    task = cantle.submit("half_gpu", *held_until("/tmp/go"))
    wait_until(lambda: cantle.used() == [20 * GIB], 180, cantle.used)
    container = engine.container_of(task)
    port = re.search(r"cantle is up: http://127.0.0.1:(\d+)", cantle.log()).group(1)
    agent.kill()
    agent.wait()

    # While no agent watches it, a process that enters the container still gets nothing.
    (record,) = (json.loads(line) for line in engine.client("exec", container, *FILL, code=None).stdout.splitlines() or ["{}"])
    assert record.get("allocated_bytes", 0) == 0 and cantle.used() == [20 * GIB]
    cantle.up(*words, port=port)

    assert cantle.task(task)["state"] == "in_progress" and engine.container_of(task) == container
    engine.client("exec", container, "touch", "/tmp/go")
    assert cantle.wait_state(task, "completed", seconds=240)["exit_code"] == 0
    assert [line for line in cantle.said(task) if line == "let go"] == ["let go"]
    wait_until(lambda: engine.containers() == [] and cantle.used() == [0], 120, engine.containers)


def test_twenty_at_once(make_cantle, engine, tmp_path):
    cantle = make_cantle([0, 1, 2])
    go = tmp_path / "go"
    go.mkdir()
    cantle.up("--queue", "eighth=0.125", "--docker", IMAGE, *EXAMPLES, "-v", f"{go}:/go:ro")
    tasks = [cantle.submit("eighth", *held_until("/go/go")) for _ in range(20)]
    wait_until(lambda: sum(cantle.used()) == 20 * 5 * GIB, 480, cantle.used)
    assert len(engine.containers()) == 20

    (go / "go").touch()

    for task in tasks:
        assert cantle.wait_state(task, "completed", seconds=240)["exit_code"] == 0
    wait_until(lambda: engine.containers() == [] and cantle.used() == [0, 0, 0], 180, engine.containers)


def test_a_container_opens_its_own_mig_instance_and_no_other(make_cantle, engine):
    """Around the filter, at the driver itself: it admits processes that have the instance's device nodes."""
    cantle = make_cantle([MIG])
    cantle.up("--queue", "q=task", "--docker", IMAGE)
    tasks = [cantle.submit("q", "sh", "-c", "echo up; sleep 600", flags=["--mig-profile", "1g.5gb"]) for _ in range(2)]
    for task in tasks:
        wait_until(lambda t=task: cantle.said(t) == ["up"], 180, lambda t=task: cantle.output(t))
    uuids = lambda: {piece["task"]: piece["mig"]["uuid"] for piece in cantle.json("gpus")[0]["slices"]}  # noqa: E731
    wait_until(lambda: sorted(filter(None, map(uuids().get, tasks))) == sorted(i["uuid"] for i in cantle.truth()[MIG]["mig"]), 60, uuids)
    held = uuids()
    init = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuInit(0))"
    nodes = {}
    for own, other in (tasks, tasks[::-1]):
        container = engine.container_of(own)
        opened = [
            engine.client(
                "exec", "-e", f"CUDA_VISIBLE_DEVICES={held[task]}", container, "python3", "-c", init, "/run/cantle/real/libcuda.so.1"
            ).stdout.strip()
            for task in (own, other)
        ]
        assert opened == ["0", "100"], "CUDA_ERROR_NO_DEVICE for the neighbor's"
        nodes[own] = engine.client("exec", container, "ls", "/dev/nvidia-caps").stdout.split()
    assert len(nodes[tasks[0]]) == len(nodes[tasks[1]]) == 2, "of the GPU instance and of its compute instance"
    assert not set(nodes[tasks[0]]) & set(nodes[tasks[1]])
    # The negative control: with all nodes both are there for everybody.
    options = ["--network", "none", *driver(MIG, caps=sorted(pathlib.Path("/dev/nvidia-caps").iterdir()))]
    for task in tasks:
        words = [*options, "-e", f"CUDA_VISIBLE_DEVICES={held[task]}", IMAGE, "python3", "-c", init, "libcuda.so.1"]
        assert engine.client("run", "--rm", *words).stdout.strip() == "0"


def test_people_are_told_that_an_image_is_fetched(make_cantle, engine, tmp_path):
    """An image that is not here comes from a registry; `run` reports it on stderr, a task of the daemon in its log."""
    cantle = make_cantle([0])
    engine.client("save", "--output", tmp_path / "image.tar", IMAGE)
    with registry.serving(tmp_path / "image.tar") as image:
        said = cantle.cli("run", "--gpu", "0.5", "--image", image, "--", "echo", "from afar")
        assert said.stdout == "from afar\n"
        assert f"cantle: fetching image {image}\n" in said.stderr and f"cantle: image {image} is here after " in said.stderr
        again = cantle.cli("run", "--gpu", "0.5", "--image", image, "--", "true")
        assert "fetching" not in again.stderr, "negative control: it is here"
        engine.client("rmi", "--force", image)
        cantle.up("--docker", "--queue", "half=0.5")
        task = cantle.submit("half", "echo", "from afar", flags=["--image", image])
        cantle.wait_state(task, "completed", seconds=180)
        agents_lines(cantle, task, "cantle: fetching image ")
        told = cantle.output(task)
        assert told.index(f"cantle: fetching image {image}\n") < told.index("from afar\n")
        assert cantle.said(task)[-1] == "from afar"
    engine.client("rmi", "--force", image)
