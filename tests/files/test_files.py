"""The doors of `/files` answer the same, whether objects are in a directory or in a bucket.

The S3 server is the Versity S3 Gateway over a directory, a real one: what it keeps can be read without it, as a witness."""

import base64
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANTLE = ROOT / "dist/bin/cantle"
ACCESS, SECRET = "tester", "secret-of-the-tester"
MIB = 1 << 20


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(true, seconds, what):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def listens(port):
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


class S3:
    """A real S3 server over a directory."""

    def __init__(self, home):
        self.root, self.side = home / "buckets", home / "sidecar"
        (self.root / "models").mkdir(parents=True)
        self.side.mkdir()
        self.port, self.child = free_port(), None
        self.start()

    def start(self):
        words = [os.environ["VERSITYGW"], "--port", f"127.0.0.1:{self.port}", "--access", ACCESS, "--secret", SECRET, "--quiet"]
        words += ["posix", "--sidecar", str(self.side), str(self.root)]
        self.child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), 60, "the S3 server listens")

    def stop(self):
        self.child.kill()
        self.child.wait()

    def environment(self, access=ACCESS, secret=SECRET):
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
        }

    def objects(self):
        """The contents of the bucket, as its server stores them."""
        bucket = self.root / "models"
        found = [path for path in bucket.rglob("*") if path.is_file()]
        return {str(path.relative_to(bucket)): path for path in found if ".sgwtmp" not in path.parts}

    def parts(self):
        """Parts of objects that are not complete."""
        return [path for path in self.root.rglob("*") if path.is_file() and ".sgwtmp" in path.parts]


class Server:
    """`cantle server` with a state directory of its own."""

    def __init__(self, home, *words, environment=None):
        self.state, self.words = home / "state", words
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1"} | (environment or {})
        self.log = home / "server.log"
        self.child = None

    def command(self, *words):
        return [str(CANTLE), "--state", str(self.state), *words]

    def start(self):
        self.child = subprocess.Popen(
            self.command("server", "--listen", "127.0.0.1:0", *self.words), env=self.env, stdout=subprocess.PIPE, text=True,
            stderr=open(self.log, "a"),
        )
        line = self.child.stdout.readline()
        assert "is up" in line, self.log.read_text()
        self.host = re.search(r"http://(\S+)", line)[1]
        keys = json.loads((self.state / "server/credentials.json").read_text())
        pair = f"{keys['access_key']}:{keys['secret_key']}"
        self.auth = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        return self

    def run(self, *words, code=0):
        done = subprocess.run(self.command(*words), env=self.env, capture_output=True, text=True, timeout=180)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr

    def stop(self):
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            # A server that was up for a moment only dies of the signal itself.
            assert self.child.wait(timeout=90) in (0, -signal.SIGTERM)
        if self.child:
            self.child.stdout.close()

    def call(self, method, path, body=None, **headers):
        """Status, headers and body."""
        there = http.client.HTTPConnection(self.host, timeout=180)
        there.request(method, urllib.parse.quote(path), body, self.auth | {k.replace("_", "-"): v for k, v in headers.items()})
        answer = there.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        there.close()
        return found

    def upload(self, name, pieces, cut=False):
        """Uploads as clients do, piece by piece; `cut`: the connection ends before the object does."""
        there = http.client.HTTPConnection(self.host, timeout=180)
        there.putrequest("POST", "/files")
        for header in [*self.auth.items(), ("Content-Type", "multipart/form-data; boundary=limit"), ("Transfer-Encoding", "chunked")]:
            there.putheader(*header)
        there.endheaders()

        def send(data):
            there.send(b"%x\r\n%s\r\n" % (len(data), data))

        send(f'--limit\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'.encode())
        for piece in pieces:
            send(piece)
        if cut:
            there.close()
            return None
        send(b"\r\n--limit--\r\n")
        there.send(b"0\r\n\r\n")
        answer = there.getresponse()
        found = answer.status, answer.read()
        there.close()
        return found

    def peak_mib(self):
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.child.pid}/status").read_text())[1]) // 1024

    def api(self, endpoint, **fields):
        status, _, body = self.call("POST", f"/{endpoint}", json.dumps(fields), Content_Type="application/json")
        return status, json.loads(body)["data"]


@pytest.fixture
def s3(tmp_path):
    found = S3(tmp_path)
    yield found
    found.stop()


# In the gate one of each kind.
KINDS = ["state", "directory", "bucket", "prefix"] if os.environ.get("CANTLE_TEST_ALL") else ["directory", "prefix"]


@pytest.fixture(params=KINDS)
def server(request, tmp_path):
    """A server with each kind of store; `server.kept()` is what lies in it, read without the server."""
    if request.param in ("state", "directory"):
        home = tmp_path / ("state/server/files" if request.param == "state" else "elsewhere")
        words = [] if request.param == "state" else ["--files", str(home)]
        found = Server(tmp_path, *words)
        found.kept = lambda: {str(p.relative_to(home)): p for p in home.rglob("*") if p.is_file()}
        found.parts = list
        others = []
    else:
        s3 = S3(tmp_path)
        at, below = ("s3://models", "") if request.param == "bucket" else ("s3://models/team a/files", "team a/files/")
        found = Server(tmp_path, "--files", at, environment=s3.environment())
        found.kept = lambda: {name.removeprefix(below): path for name, path in s3.objects().items() if name.startswith(below)}
        found.parts = s3.parts
        others = [s3]
    found.start()
    yield found
    found.stop()
    for other in others:
        other.stop()


def test_an_object_comes_back_whole_in_part_and_not_at_all(server):
    name, data = "My project/train.0a1b/artifacts/it's 100%/ü.bin", bytes(range(256)) * 1000
    assert server.upload(name, [data]) == (200, json.dumps([name], ensure_ascii=False).encode())
    assert {where: path.read_bytes() for where, path in server.kept().items()} == {name: data}
    at = f"/files/{name}"
    status, headers, body = server.call("GET", at)
    assert (status, body) == (200, data)
    assert (headers["content-length"], headers["accept-ranges"]) == ("256000", "bytes")
    for asked, got in [("bytes=0-9", data[:10]), ("bytes=255990-", data[-10:]), ("bytes=-7", data[-7:]), ("bytes=5-999999", data[5:])]:
        status, headers, body = server.call("GET", at, Range=asked)
        assert (status, body) == (206, got), asked
        assert headers["content-range"].endswith("/256000") and headers["content-length"] == str(len(got))
    status, headers, _ = server.call("GET", at, Range="bytes=256000-")
    assert (status, headers["content-range"]) == (416, "bytes */256000")
    assert server.call("GET", at, Range="bytes=0-1,4-5")[::2] == (200, data)
    assert server.call("GET", at, Range="bytes=0-1", If_Range='"x"')[::2] == (200, data)
    status, headers, body = server.call("HEAD", at)
    assert (status, headers["content-length"], body) == (200, "256000", b"")
    # Written over as one: never a mix of both.
    server.upload(name, [b"short"])
    assert server.call("GET", at)[::2] == (200, b"short")
    assert server.upload("empty", [])[0] == 200
    assert server.call("GET", "/files/empty")[::2] == (200, b"")
    assert server.call("DELETE", at)[0] == 200
    # To delete it again is no error: ClearML's SDK does, after the server has deleted the files of a task.
    for method, code in (("GET", 404), ("HEAD", 404), ("DELETE", 200)):
        assert server.call(method, at)[0] == code, method
    assert set(server.kept()) == {"empty"}


def test_names_that_lead_elsewhere_are_refused(server):
    for bad in ["../x", ".hidden", "a/../../x", ""]:
        assert server.upload(bad, [b"x"])[0] == 400, bad
    there = http.client.HTTPConnection(server.host, timeout=180)
    there.request("GET", "/files/..%2f..%2fcredentials.json", headers=server.auth)
    assert there.getresponse().status == 400
    there.close()
    assert server.kept() == {}


def test_a_large_object_takes_little_memory(server):
    piece = os.urandom(MIB)
    before = server.peak_mib()
    count = int(os.environ.get("CANTLE_TEST_FILE_MIB", "100"))
    assert server.upload("large", (piece for _ in range(count)))[0] == 200
    there = http.client.HTTPConnection(server.host, timeout=180)
    there.request("GET", "/files/large", headers=server.auth)
    answer, size = there.getresponse(), 0
    while data := answer.read(MIB):
        assert data == piece[size % MIB :][: len(data)] + piece[: max(0, len(data) - (MIB - size % MIB))]
        size += len(data)
    there.close()
    assert size == count * MIB
    used = server.peak_mib() - before
    print(f"{count} MiB in and out: the server's memory grew by {used} MiB")
    # Two parts of 8 MiB, what they are made of, and the connections' own.
    assert used < 64, f"{used} MiB"


def test_an_upload_that_is_cut_off_leaves_nothing(server):
    server.upload("cut", (b"x" * MIB for _ in range(20)), cut=True)
    server.upload("small", [b"x"], cut=True)
    server.upload("after", [b"x"])
    wait_until(lambda: not server.parts() and set(server.kept()) == {"after"}, 90, "nothing is left of it")
    for name in ("cut", "small"):
        assert server.call("GET", f"/files/{name}")[0] == 404


def test_files_go_with_their_task(server):
    status, task = server.api("tasks.create", name="train", type="training")
    assert status == 200
    mine, other = f"P/train.{task['id']}/artifacts/a/x", "P/other.ffff/artifacts/a/x"
    for name in (mine, other):
        assert server.upload(name, [b"x"])[0] == 200
    artifacts = [{"key": k, "type": "custom", "uri": f"http://{server.host}/files/{n}"} for k, n in (("a", mine), ("b", other))]
    assert server.api("tasks.edit", task=task["id"], execution={"artifacts": artifacts})[0] == 200
    status, answer = server.api("tasks.delete", task=task["id"], delete_external_artifacts=True)
    assert (status, answer["deleted_files"]) == (200, 1)
    assert set(server.kept()) == {other}


def test_a_backup_says_where_the_files_are(server, tmp_path):
    assert server.upload("P/x", [b"kept"])[0] == 200
    told = server.run("backup", str(tmp_path / "backup"))
    server.stop()
    restored = Server(tmp_path / "second", *[word for word in server.words if "elsewhere" not in word and word != "--files" or "s3:" in word])
    in_bucket = any(word.startswith("s3:") for word in server.words)
    back = restored.run("restore", str(tmp_path / "backup"))
    if in_bucket:
        at = server.words[1]
        assert f"are not in it: back up {at} itself" in told
        assert f"its files are in {at}: start it with --files {at}" in back
        restored.words, restored.env = server.words, server.env
    else:
        assert "1 tasks" not in told and "not in it" not in told
    restored.state.parent.mkdir(exist_ok=True)
    restored.start()
    assert restored.call("GET", "/files/P/x")[::2] == (200, b"kept")
    restored.stop()


def test_a_store_that_is_away_is_no_end(s3, tmp_path):
    s3.stop()
    server = Server(tmp_path, "--files", "s3://models", environment=s3.environment()).start()
    assert "s3://models does not answer yet" in server.log.read_text()
    for method in ("GET", "DELETE"):
        status, _, text = server.call(method, "/files/x")
        assert (status, text) == (503, b"s3://models does not answer; this call was not carried out, try again later")
    assert server.upload("x", [b"x"])[0] == 503
    # All else continues.
    assert server.api("tasks.get_all")[0] == 200 and server.call("GET", "/healthz")[0] == 200
    s3.start()
    assert server.upload("x", [b"x" * MIB] * 9)[0] == 200
    assert server.call("GET", "/files/x", Range="bytes=0-0")[::2] == (206, b"x")
    server.stop()


def test_what_cannot_be_used_is_refused_at_the_start(s3, tmp_path):
    def refused(at, environment, code=1):
        server = Server(tmp_path, environment=environment)
        return server.run("server", "--listen", "127.0.0.1:0", "--files", at, code=code)

    assert "--files s3://nosuch does not exist\nhint: set AWS_ENDPOINT_URL" in refused("s3://nosuch", s3.environment())
    assert "--files s3://models refuses these keys\nhint: " in refused("s3://models", s3.environment(secret="wrong"))
    for bad in ("gs://models", "s3://", "s3://Models", "http://x/y", ""):
        text = refused(bad, s3.environment(), code=2)
        assert f"--files {bad} is neither a directory nor s3://BUCKET[/PREFIX]\nhint: " in text


def test_files_that_stay_behind_are_named(s3, tmp_path):
    server = Server(tmp_path).start()
    server.upload("x", [b"x"])
    server.stop()
    server.words, server.env = ["--files", "s3://models"], server.env | s3.environment()
    server.start()
    assert f"the files were in {server.state}/server/files until now; copy them to s3://models" in server.log.read_text()
    server.stop()
