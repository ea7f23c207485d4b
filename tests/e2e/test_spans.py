"""Spans for a collector of OpenTelemetry: a little one, that keeps what it is sent."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import own_port, wait_until

UP = ["--queue", "half=0.5"]


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as JSON; `spans` are (resource, span), attributes as a dictionary."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.keys = [], set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def named(self, name):
        return [span for _, span in self.spans if span["name"] == name]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
        self.server.keys.add(self.headers["X-Key"])
        for resource in body["resourceSpans"]:
            about = plain(resource["resource"]["attributes"])
            for scope in resource["scopeSpans"]:
                self.server.spans += [(about, span | {"attributes": plain(span["attributes"])}) for span in scope["spans"]]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def plain(attributes):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in attributes}


@pytest.fixture
def collector():
    server = Collector()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_way_of_a_task_is_one_trace(cantle, collector):
    silent = dict(cantle.env)
    cantle.env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=k1",
        "OTEL_SERVICE_NAME": "box",
    }
    cantle.up(*UP)
    cantle.env = silent
    task = cantle.submit("half", "true")
    cantle.wait_state(task, "completed")
    about = lambda: [span for _, span in collector.spans if span["traceId"] == task]
    wait_until(lambda: {"claim", "start", "launch"} <= {span["name"] for span in about()}, 60, "the spans of the task")
    ways = {span["name"]: span for span in about()}
    assert all(span["attributes"]["task"] == task and span["attributes"]["lease"] for span in ways.values())
    times = [int(ways[name][end]) for name in ["claim", "start", "launch"] for end in ["startTimeUnixNano", "endTimeUnixNano"]]
    # A launch begins within the start that orders it, and continues in parallel.
    assert times[0] <= times[1] <= times[2] <= times[3] and times[2] <= times[4] <= times[5]
    wait_until(lambda: any(span["attributes"]["placed"] == "1" for span in collector.named("plan")), 60, "the plan")
    wait_until(lambda: any(span["attributes"]["endpoint"] == "cantle.submit_task" for span in collector.named("request")), 60, "calls")
    created = next(span for span in collector.named("request") if span["attributes"]["endpoint"] == "cantle.submit_task")
    assert created["attributes"]["status"] == "200" and len(created["traceId"]) == 32 and created["traceId"] != task
    assert {about["service.name"] for about, _ in collector.spans} == {"box"} and collector.keys == {"k1"}
    assert "claim{" not in cantle.log("up.log"), "log lines are as they are without spans"


def test_a_collector_that_is_away_is_named_once_and_harms_nothing(cantle):
    cantle.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{own_port()}"}
    cantle.up(*UP)
    wait_until(lambda: "spans are lost" in cantle.log("up.log"), 60, "the warning")
    for _ in range(2):
        cantle.wait_state(cantle.submit("half", "true"), "completed")
    assert cantle.log("up.log").count("spans are lost") == 1
    cantle.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "collector:4318"
    odd = cantle.cli("tasks")
    assert "no spans are sent: OTEL_EXPORTER_OTLP_ENDPOINT is collector:4318" in odd.stderr
