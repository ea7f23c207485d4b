"""A way to the API server on which answers about allocated claims are late, as on a busy machine. Watches are not."""

import json
import re
import socket
import ssl
import threading
import time
import urllib.parse

ALLOCATES = re.compile(rb"(PUT|PATCH) /apis/resource\.k8s\.io/[^ ]*/resourceclaims/[^ ]*/status")


class SlowAnswers:
    """Listens on the loopback, without TLS: one request at a time on each connection."""

    def __init__(self, plane, account, seconds):
        """Everything that comes is called with the certificate of `account`."""
        certificates = plane.certificates
        self.address = urllib.parse.urlsplit(certificates.url).netloc.rsplit(":", 1)
        self.context = ssl.create_default_context(cafile=str(certificates.crt("ca")))
        self.context.load_cert_chain(str(certificates.crt(account)), str(certificates.key(account)))
        self.seconds, self.late = seconds, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def kubeconfig(self, path):
        cluster = {"server": f"http://127.0.0.1:{self.listener.getsockname()[1]}"}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [context]}
        path.write_text(json.dumps({**config, "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}]}))
        return path

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = self.context.wrap_socket(socket.create_connection((self.address[0], int(self.address[1]))), server_hostname=self.address[0])
            except OSError:
                return
            Connection(self, client, server)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Connection:
    def __init__(self, way, client, server):
        self.way, self.is_late = way, False
        threading.Thread(target=self.copy, args=(client, server, self.request), daemon=True).start()
        threading.Thread(target=self.copy, args=(server, client, self.answer), daemon=True).start()

    def request(self, data):
        self.is_late = self.is_late or bool(ALLOCATES.match(data))

    def answer(self, _):
        if self.is_late:
            self.is_late = False
            self.way.late += 1
            time.sleep(self.way.seconds)

    @staticmethod
    def copy(source, target, see):
        try:
            while data := source.recv(1 << 16):
                see(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
