"""A program that forks after it has called the server: its processes share one connection of ClearML's SDK."""

import http.server
import threading

FORKED = """
import multiprocessing
from clearml.backend_api import Session
from clearml.backend_api.services import tasks
session = Session()
ids = {ids!r}
def wrong(mine):
    count = 0
    for _ in range(5):
        try:
            found = session.send(tasks.GetAllRequest(id=[mine] * 2000, only_fields=['id']))
            count += not found.ok() or [task.id for task in found.response.tasks] != [mine]
        except Exception:
            count += 1
    return count
answer = 0
for _ in range(5):
    # From here on the SDK keeps a connection, unless the server closes it.
    assert wrong(ids[0]) == 0
    with multiprocessing.get_context('fork').Pool(len(ids)) as pool:
        answer += sum(pool.map_async(wrong, ids, chunksize=1).get(timeout=100))
"""

KEPT = """
import multiprocessing, requests
def ask(session, n):
    for _ in range(2):
        try:
            session.post({url!r}, data=str(n).encode() * 100000, timeout=2)
        except Exception:
            pass
session = requests.Session()
session.post({url!r}, data=b'0')
processes = [multiprocessing.get_context('fork').Process(target=ask, args=(session, n)) for n in range(4)]
[process.start() for process in processes]
[process.join() for process in processes]
"""


def test_forked_processes_get_their_own_answers(server):
    """ClearML's own server closes each connection, and so hides that the SDK shares it."""
    ids = [server.api("tasks.create", name=f"{n}", type="training")["id"] for n in range(4)]
    assert server.sdk(FORKED.format(ids=ids)) == 0


def test_it_is_not_the_servers_fault(server):
    """The control: with any server that keeps connections, requests of forked processes arrive mixed."""
    mixed = []

    class Plain(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if len(set(body)) != 1:
                mixed.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_error(self, *_):
            mixed.append(self.raw_requestline)
            self.close_connection = True

        def log_message(self, *_):
            pass

    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    for _ in range(20):
        server.sdk(KEPT.format(url=f"http://127.0.0.1:{plain.server_port}/"))
        if mixed:
            break
    plain.shutdown()
    assert mixed
