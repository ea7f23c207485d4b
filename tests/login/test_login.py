"""People log in with a real identity provider; the server and the CLI are the real ones, each in a directory of its own."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.parse

import pytest
from browser import Browser

HERE = pathlib.Path(__file__).resolve().parent
CANTLE = HERE.parents[1] / "dist/bin/cantle"
SECRET = "the secret of cantle"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


class House:
    """A provider, a server that uses it, and people's home directories."""

    def __init__(self, home):
        self.home = home
        self.provider_port, self.port = free_port(), free_port()
        self.issuer, self.url = f"http://127.0.0.1:{self.provider_port}", f"http://127.0.0.1:{self.port}"
        self.children = []
        self.people(anna=["research"], boris=["ops", "research"])
        self.new_keys("k1")
        self.provider = self.start_provider()
        (home / "secret").write_text(SECRET + "\n")
        words = ["--oidc-issuer", self.issuer, "--oidc-client-id", "cantle", "--oidc-client-secret-file", home / "secret"]
        self.start([CANTLE, "server", "--state", home / "server", "--listen", f"127.0.0.1:{self.port}", *words], "server.log", "is up")

    def people(self, **groups):
        (self.home / "people.json").write_text(json.dumps({name: {"groups": all} for name, all in groups.items()}))

    def new_keys(self, name):
        made = subprocess.run(["node", HERE / "keys.mjs", name], capture_output=True, text=True, check=True, timeout=180)
        (self.home / "keys.json").write_text(made.stdout)

    def start_provider(self):
        words = [str(self.provider_port), self.home / "people.json", self.home / "keys.json", f"{self.url}/ui/-/login/callback"]
        return self.start(["node", HERE / "provider.mjs", *words], "provider.log", "ready")

    def start(self, argv, log, sign):
        path = self.home / log
        with open(path, "wb") as out:
            env = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
            child = subprocess.Popen(list(map(str, argv)), stdout=out, stderr=subprocess.STDOUT, env=env)
        self.children.append(child)

        def is_up():
            assert child.poll() is None, path.read_text()
            return sign in path.read_text()

        wait_until(is_up, 120, f"{argv[0]}: {sign}")
        return child

    def stop(self):
        for child in self.children:
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            child.wait(90)

    def command(self, person, *words):
        state = self.home / f"of-{person}"
        env = {"PATH": os.environ["PATH"], "HOME": str(state), "CANTLE_STATE_DIR": str(state), "CANTLE_SERVER": self.url}
        return {"args": [str(CANTLE), *words], "env": env, "text": True, "stdin": subprocess.DEVNULL}

    def cli(self, person, *words, code=0):
        done = subprocess.run(**self.command(person, *words), capture_output=True, timeout=180)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def cli_login(self, person):
        """`cantle login`, confirmed in a browser."""
        child = subprocess.Popen(**self.command(person, "login"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        said = ""
        while "or open " not in said:
            line = child.stderr.readline()
            assert line, said + child.stdout.read()
            said += line
        place = re.search(r"or open (\S+)", said).group(1)
        Browser().log_in(place, person, "Sign-in Success")
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0, out + err
        return out

    def login_file(self, person):
        return self.home / f"of-{person}" / "login.json"

    def age(self, person):
        """The token of this person ends now, as far as the CLI knows: it will refresh it."""
        kept = json.loads(self.login_file(person).read_text())
        self.login_file(person).write_text(json.dumps(kept | {"ends_s": 0}))


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.stop()


def session(browser, house):
    status, _, text, _ = browser.get(f"{house.url}/ui/-/session")
    return status, json.loads(text)


def test_a_browser_logs_in_and_comes_back_where_it_wanted_to_go(house):
    browser = Browser()
    assert session(browser, house)[0] == 401
    _, url, _, _ = browser.log_in(f"{house.url}/ui/-/login?next=/ui/queues", "anna", f"{house.url}/ui/")
    assert url == f"{house.url}/ui/queues"
    status, who = session(browser, house)
    assert (status, who["user_name"]) == (200, "anna")
    [cookie] = [cookie for cookie in browser.cookies if cookie.name == "cantle_session"]
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "Strict"
    assert 0 < cookie.expires - time.time() <= 3600


def test_nobody_is_sent_elsewhere(house):
    for other in ["https://evil.example/", "//evil.example", "/ui//evil.example", "/\\evil.example", "/ui/../x"]:
        browser = Browser()
        start = f"{house.url}/ui/-/login?" + urllib.parse.urlencode({"next": other})
        _, url, _, _ = browser.log_in(start, "anna", f"{house.url}/ui")
        assert url == f"{house.url}/ui", other


def test_an_answer_that_belongs_to_no_login_or_to_another_one_is_refused(house):
    callback = f"{house.url}/ui/-/login/callback"
    begun = Browser()
    _, place, _, _ = begun.get(f"{house.url}/ui/-/login", follow=False)
    query = urllib.parse.parse_qs(urllib.parse.urlparse(place).query)
    assert query["code_challenge_method"] == ["S256"] and query["redirect_uri"] == [callback]
    state = query["state"][0]
    stranger = Browser()
    for browser, words in [
        (stranger, {"state": state, "code": "x"}),
        (begun, {"state": "another", "code": "x"}),
        (begun, {"code": "x"}),
        (begun, {}),
    ]:
        status, _, text, _ = browser.get(f"{callback}?{urllib.parse.urlencode(words)}")
        assert status == 401 and "not begun in this browser" in text, (words, text)
    # A refusal ended that login. Another provider's answer, and the provider's own refusal:
    for words, said in [
        ({"iss": "https://evil.example", "code": "x"}, "another provider"),
        ({"error": "access_denied"}, "access_denied"),
        ({"code": "of nobody"}, "invalid_grant"),
    ]:
        browser = Browser()
        _, place, _, _ = browser.get(f"{house.url}/ui/-/login", follow=False)
        state = urllib.parse.parse_qs(urllib.parse.urlparse(place).query)["state"][0]
        status, _, text, _ = browser.get(f"{callback}?{urllib.parse.urlencode(words | {'state': state})}")
        assert status == 401 and said in text, (words, text)
        assert session(browser, house)[0] == 401


def test_the_command_line_logs_in_refreshes_and_is_shut_out(house):
    assert house.cli_login("boris") == f"logged in at {house.url} as boris\n"
    file = house.login_file("boris")
    assert file.stat().st_mode & 0o777 == 0o600
    first = json.loads(file.read_text())
    who = house.cli("boris", "-o", "json", "tasks")
    assert json.loads(who.stdout)["items"] == []
    house.age("boris")
    house.cli("boris", "tasks")
    second = json.loads(file.read_text())
    assert second["token"] != first["token"] and second["ends_s"] > time.time() + 3000
    # A user that the provider removed is shut out at the next refresh.
    house.people(anna=["research"])
    house.age("boris")
    refused = house.cli("boris", "tasks", code=4)
    assert "the login of boris" in refused.stderr and "hint: log in again with cantle login" in refused.stderr
    house.people(anna=["research"], boris=["ops"])
    house.cli("boris", "login", "--forget")
    assert not file.exists()


def test_a_session_is_listed_and_ends_also_for_its_refresh_token(house):
    def listed(person):
        return json.loads(house.cli(person, "-o", "json", "users", "session", "list").stdout)["items"]

    def call(endpoint, body, token=""):
        words = ["curl", "-s", "-X", "POST", f"{house.url}/{endpoint}", "-H", f"Authorization: Bearer {token}", "-d", json.dumps(body)]
        words += ["-H", "Content-Type: application/json"]
        return json.loads(subprocess.run(words, capture_output=True, text=True, timeout=180).stdout)

    house.cli_login("boris")
    Browser().log_in(f"{house.url}/ui/-/login", "boris", f"{house.url}/ui")
    sessions = {session["via"]: session for session in listed("boris") if session["is_own"] or session["via"] == "page"}
    own = sessions["command line"]
    assert own["user"] == "boris" and own["client"] == f"cantle on {os.uname().nodename}"
    # A refresh continues the same session.
    house.age("boris")
    assert [session["id"] for session in listed("boris") if session["is_own"]] == [own["id"]]
    house.cli("boris", "users", "session", "end", sessions["page"]["id"])
    assert sessions["page"]["id"] not in [session["id"] for session in listed("boris")]

    house.cli("boris", "users", "session", "end", own["id"])
    refused = house.cli("boris", "tasks", code=4)
    assert "this login was ended" in refused.stderr and "hint: log in again with cantle login" in refused.stderr
    # The provider would still take the refresh token. The server does not.
    house.age("boris")
    refused = house.cli("boris", "tasks", code=4)
    assert "has ended: it was ended, or not used for 90 days" in refused.stderr

    # A copy of the file is useless after `--forget`.
    house.cli_login("boris")
    kept = json.loads(house.login_file("boris").read_text())
    assert call("users.get_current_user", {}, kept["token"])["meta"]["result_code"] == 200
    assert house.cli("boris", "login", "--forget").stderr == ""
    assert call("users.get_current_user", {}, kept["token"])["meta"]["result_code"] == 401
    assert call("cantle.login_refresh", {"refresh_token": kept["refresh_token"]})["meta"]["result_code"] == 401


def test_a_login_is_for_one_server_and_ends_by_itself(house):
    house.cli_login("anna")
    env = house.command("anna", "tasks")
    other = dict(env, env=env["env"] | {"CANTLE_SERVER": "http://127.0.0.1:9"})
    done = subprocess.run(**other, capture_output=True, timeout=180)
    assert done.returncode == 4 and "no keys for http://127.0.0.1:9" in done.stderr
    token = json.loads(house.login_file("anna").read_text())["token"]
    words = ["curl", "-s", "-X", "POST", f"{house.url}/auth.login", "-H", f"Authorization: Bearer {token}", "-d", "{}"]
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=180).stdout)
    assert answer["meta"]["result_code"] == 401 and "cannot be prolonged" in answer["meta"]["result_msg"]


def test_new_keys_of_the_provider_are_taken_and_old_ones_forgotten(house):
    house.provider.terminate()
    house.provider.wait(90)
    browser = Browser()
    status, _, text, _ = browser.get(f"{house.url}/ui/-/login/callback?state=x&code=y")
    assert status == 401
    house.new_keys("k2")
    house.provider = house.start_provider()
    # Keys are fetched again when a token names one that is not known, but not more often than every 10 s.
    def logs_in():
        try:
            return Browser().log_in(f"{house.url}/ui/-/login", "anna", f"{house.url}/ui")[0] == 200
        except AssertionError:
            return False

    wait_until(logs_in, 120, "a login with the new key")


def test_what_is_wrong_with_a_provider_is_said_at_once(house, tmp_path):
    server = ["server", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s")]
    for words, said in [
        (["--oidc-issuer", "http://login.example", "--oidc-client-id", "c"], "must begin with https://"),
        (["--oidc-issuer", "https://login.example"], "--oidc-client-id"),
        (
            ["--oidc-issuer", "https://login.example", "--oidc-client-id", "c", "--oidc-client-secret-file", "/nonexistent"],
            "/nonexistent: No such file",
        ),
    ]:
        refused = house.cli("carla", *server, *words, code=2)
        assert said in refused.stderr, refused.stderr
    assert not (tmp_path / "s").exists()
