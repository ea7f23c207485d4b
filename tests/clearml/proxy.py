"""A proxy between ClearML's clients and a server: it counts each request by its endpoint and the status of its answer."""

import collections
import http.client
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}

# Refusals that ClearML's own server gives as well, as the facts about its API say: endpoint, status and what the message says.
THEIRS = [
    # The SDK takes the name of a queue for an id first.
    ("queues.get_by_id", 400, b"Invalid queue id"),
]


def endpoint(path):
    """`/v2.23/tasks.get_all?x` is `tasks.get_all`, and every object of the file store is `/files`."""
    path = urllib.parse.urlsplit(path).path
    return "/files" if path.startswith("/files") else re.sub(r"^/(api/)?(v[\d.]+/)?", "", path)


class Proxy:
    """Listens at `url` and forwards to the server at `target`."""

    def __init__(self, target):
        self.counts = collections.Counter()
        self.refusals = []
        # Requests that the server has not answered yet.
        self.unanswered = 0
        lock = threading.Lock()
        host = urllib.parse.urlsplit(target).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def body(self):
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def answer(self):
                body = self.body()
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                server = http.client.HTTPConnection(host, timeout=60)
                with lock:
                    proxy.unanswered += 1
                try:
                    server.request(self.command, self.path, body, headers)
                    answer = server.getresponse()
                    text = answer.read()
                finally:
                    server.close()
                    with lock:
                        proxy.unanswered -= 1
                with lock:
                    proxy.counts[endpoint(self.path), answer.status] += 1
                    if answer.status >= 400:
                        proxy.refusals.append((endpoint(self.path), answer.status, body[:500], text[:500]))
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else text)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def is_theirs(refusal):
    name, status, _, text = refusal
    return any((name, status) == (known, code) and said in text for known, code, said in THEIRS)


def no_refusal(proxy):
    ours = [refusal for refusal in proxy.refusals if not is_theirs(refusal)]
    assert ours == [], ours
