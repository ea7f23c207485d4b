#!/usr/bin/env python3
"""Receivers of notices for tests: `receivers.py hook PORT FILE [STATUS]` writes each request as a line of JSON and answers with the status
(0: never answers), `receivers.py smtp PORT FILE` does the same with mail, as a relay without TLS."""

import http.server
import json
import socketserver
import sys
import time


def keep(path, record):
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def hook(path, status):
    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            keep(path, {"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}, "body": body})
            while not status:
                time.sleep(1)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    return Hook


def smtp(path):
    class Smtp(socketserver.StreamRequestHandler):
        def say(self, text):
            self.wfile.write(text.encode() + b"\r\n")

        def handle(self):
            self.say("220 relay")
            found = {"from": "", "to": [], "text": ""}
            while line := self.rfile.readline().decode().strip():
                word = line.split(":")[0].upper()
                if word.startswith("EHLO"):
                    self.wfile.write(b"250-relay\r\n250 8BITMIME\r\n")
                    continue
                if word == "QUIT":
                    return self.say("221 bye")
                if word == "DATA":
                    self.say("354 go on")
                    lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                    found["text"] = "\n".join(lines)
                    keep(path, found)
                elif word == "MAIL FROM":
                    found["from"] = line.split("<")[1].split(">")[0]
                elif word == "RCPT TO":
                    found["to"].append(line.split("<")[1].split(">")[0])
                self.say("250 ok")

    return Smtp


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    kind, port, path, *status = sys.argv[1:]
    handler = smtp(path) if kind == "smtp" else hook(path, int(status[0]) if status else 200)
    with Server(("127.0.0.1", int(port)), handler) as server:
        server.serve_forever()
