"""The images of the tests, as archives that containerd imports: a Debian with Python, once with a shell and once as the
pod's sandbox that only sleeps, both the same layer; and programs alone, as Kubernetes' own images are."""

import hashlib
import io
import json
import tarfile

IMAGES = {"test": "localhost/cantle-test:1", "pause": "localhost/cantle-pause:1"}
SLEEP = ["/bin/sleep", "2147483647"]
OCI = "application/vnd.oci.image"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def program(file, path, reference, place="usr/bin/"):
    """Writes an image of that name with this program in it to `path`; a `place` that ends with / keeps the program's name."""
    layer = path.with_suffix(".layer.tar")
    with tarfile.open(layer, "w") as out:
        out.add(file, place + file.name if place.endswith("/") else place)
    archive(layer, path, {"program": reference})
    layer.unlink()


def archive(rootfs, path, images=IMAGES, added=(), env=()):
    """Writes the images made of the archive `rootfs`, with more layers and variables if there are any, to `path`."""
    layer_of = lambda file: {"mediaType": f"{OCI}.layer.v1.tar", "digest": f"sha256:{sha256(file)}", "size": file.stat().st_size}
    layers = {file: layer_of(file) for file in [rootfs, *added]}
    with tarfile.open(path, "w") as out:

        def add(name, data):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))

        def blob(value, kind):
            data = json.dumps(value).encode()
            digest = hashlib.sha256(data).hexdigest()
            add(f"blobs/sha256/{digest}", data)
            return {"mediaType": f"{OCI}.{kind}.v1+json", "digest": f"sha256:{digest}", "size": len(data)}

        for file, layer in layers.items():
            out.add(file, f"blobs/sha256/{layer['digest'].removeprefix('sha256:')}")
        manifests = []
        for name, reference in images.items():
            config = {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Entrypoint": SLEEP} if name == "pause" else {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *env]},
                "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers.values()]},
            }
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": blob(config, "config"),
                "layers": list(layers.values()),
            }
            described = blob(manifest, "manifest")
            manifests.append({**described, "annotations": {"io.containerd.image.name": reference}})
        index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": manifests}
        add("index.json", json.dumps(index).encode())
        add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
