"""A registry on loopback with one image, which `docker save` wrote, served as the distribution protocol has it."""

import contextlib
import hashlib
import http.server
import json
import re
import tarfile
import threading

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        blobs, image = self.server.blobs, self.server.image
        manifest = re.fullmatch(r"/v2/[^/]+/manifests/(.+)", self.path)
        blob = re.fullmatch(r"/v2/[^/]+/blobs/sha256:([0-9a-f]{64})", self.path)
        if manifest:
            name = manifest[1].removeprefix("sha256:")
            self.answer(blobs.get(name if name in blobs else image), MANIFEST)
        elif blob:
            self.answer(blobs.get(blob[1]), "application/octet-stream")
        else:
            self.answer(b"{}" if self.path == "/v2/" else None, "application/json")

    do_HEAD = do_GET

    def answer(self, body, kind):
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        if kind == MANIFEST and body is not None:
            self.send_header("Docker-Content-Digest", f"sha256:{self.server.image}")
        self.end_headers()
        if self.command == "GET" and body:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(saved):
    """The name that an engine can pull the image of the archive `saved` by."""
    with tarfile.open(saved) as archive:
        read = lambda name: archive.extractfile(name).read()
        (image,) = json.loads(read("manifest.json"))
        config, layers = read(image["Config"]), [read(layer) for layer in image["Layers"]]
    named = lambda body: hashlib.sha256(body).hexdigest()
    part = lambda kind, body: {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{named(body)}", "size": len(body)}
    parts = {"config": part("config.v1+json", config), "layers": [part("layer.v1.tar", layer) for layer in layers]}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **parts}).encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.blobs = {named(body): body for body in (manifest, config, *layers)}
    server.image = named(manifest)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}/far:1"
    finally:
        server.shutdown()
        server.server_close()
