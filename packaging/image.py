"""The container image of cantle as an archive: what `docker load`, `podman load`, `ctr image import` and `skopeo` read.

In addition to cantle, it contains only the packages of Debian that cantle needs: the C library and the certificates of authorities. There is no
shell. The packages come from the distribution of the building system, and apt checks their checksums. The image lists them where scanners search.
Packages of another architecture come from lists that apt keeps next to the system's own, which stay as they are.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

PACKAGES = ("base-files", "libc6", "ca-certificates")
OCI = "application/vnd.oci.image"
USER = 65532
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\ncantle:x:{USER}:{USER}:cantle:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnogroup:x:65534:\ncantle:x:{USER}:\n",
}
# They are not read in an image.
LEFT_OUT = ("usr/share/man/", "usr/share/lintian/", "usr/share/locale/", "usr/share/info/", "usr/share/zoneinfo/")
# In Debian they are links, which a package's paths may go through.
MERGED = ("bin", "sbin", "lib", "lib64")


def apt_get(folder, *words):
    done = subprocess.run(["apt-get", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"packages: apt-get {' '.join(words)} failed: {done.stderr.strip()}")


def apt_options(folder, architecture):
    """For packages of `architecture`; `folder` gets the lists of another one than this machine's."""
    if architecture.is_own:
        return []
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    settings = {
        "APT::Architecture": architecture.debian,
        "APT::Architectures::": architecture.debian,
        "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
    }
    options = [f"--option={name}={value}" for name, value in settings.items()]
    apt_get(folder, *options, "update")
    return options


def download(folder, architecture):
    """The packages, from apt's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.deb"):
        old.unlink()
    apt_get(folder, *apt_options(folder, architecture), "download", *PACKAGES)
    return sorted(folder.glob("*.deb"))


def output(*words):
    return subprocess.run(words, capture_output=True, check=True).stdout


class Layer:
    """An archive of files by path, without anything of the machine that makes it."""

    def __init__(self, date):
        self.date, self.members = date, {}

    def file(self, path, content, mode=0o644):
        member = tarfile.TarInfo(path)
        member.size, member.mode, member.mtime = len(content), mode, self.date
        self.members[path] = (member, content)

    def link(self, path, target):
        member = tarfile.TarInfo(path)
        member.type, member.linkname, member.mtime = tarfile.SYMTYPE, target, self.date
        self.members[path] = (member, b"")

    def add(self, archive):
        """The files of a package."""
        for member in archive:
            path = member.name.removeprefix(".").strip("/")
            if path.split("/")[0] in MERGED:
                path = f"usr/{path}"
            if not path or f"{path}/".startswith(LEFT_OUT) or (path in self.members and member.isdir()):
                continue
            content = archive.extractfile(member).read() if member.isfile() else b""
            member.name, member.uname, member.gname = path, "", ""
            member.pax_headers = {}
            self.members[path] = (member, content)

    def bytes(self):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for _, (member, content) in sorted(self.members.items()):
                archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()


def base_layer(debs, date):
    layer = Layer(date)
    for deb in debs:
        layer.add(tarfile.open(fileobj=io.BytesIO(output("dpkg-deb", "--fsys-tarfile", deb))))
        control = output("dpkg-deb", "--field", deb)
        name = output("dpkg-deb", "--field", deb, "Package").decode().strip()
        layer.file(f"var/lib/dpkg/status.d/{name}", control.replace(b"\n", b"\nStatus: install ok installed\n", 1))
    for name in MERGED:
        # Only some architectures have a lib64.
        if f"usr/{name}" in layer.members:
            layer.link(name, f"usr/{name}")
    certificates = [content for path, (_, content) in sorted(layer.members.items()) if path.startswith("usr/share/ca-certificates/")]
    layer.file("etc/ssl/certs/ca-certificates.crt", b"".join(certificates))
    for path, text in ACCOUNTS.items():
        layer.file(path, text.encode())
    return layer.bytes()


def cantle_layer(tree, date):
    layer = Layer(date)
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        if path.relative_to(tree).parts[0] in ("bin", "lib") or path.name == "copyright":
            layer.file(f"usr/local/{path.relative_to(tree)}", path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    return layer.bytes()


def write_image(out, tree, version, date, architecture, homepage):
    """Writes `cantle-VERSION-ARCHITECTURE-image.tar`: an OCI image layout, with the list that older engines look for next to it."""
    reference = f"cantle/cantle:{version}"
    created = subprocess.run(["date", "-u", "-d", f"@{date}", "+%Y-%m-%dT%H:%M:%SZ"], capture_output=True, text=True, check=True).stdout.strip()
    blobs = {}

    def blob(content, kind, **more):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)} | more

    def document(value, kind, **more):
        return blob(json.dumps(value, sort_keys=True).encode(), f"{kind}.v1+json", **more)

    layers = [base_layer(download(tree.parent / architecture.directory("image-packages"), architecture), date), cantle_layer(tree, date)]
    labels = {"org.opencontainers.image.version": version, "org.opencontainers.image.source": homepage}
    config = document(
        {
            "architecture": architecture.debian,
            "os": "linux",
            "created": created,
            "config": {
                "User": f"{USER}:{USER}",
                "Env": ["PATH=/usr/local/bin:/usr/bin"],
                "Entrypoint": ["cantle"],
                "Labels": labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
        },
        "config",
    )
    packed = [blob(gzip.compress(layer, compresslevel=6, mtime=0), "layer.v1.tar+gzip") for layer in layers]
    manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": packed}
    names = {"io.containerd.image.name": f"docker.io/{reference}", "org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "manifests": [document(manifest, "manifest", annotations=names)]}

    def path(descriptor):
        return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"

    # Docker before 25 reads this list instead of the index.
    older = [{"Config": path(config), "RepoTags": [reference], "Layers": [path(layer) for layer in packed]}]
    archive = Layer(date)
    contents = {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": index, "manifest.json": older}
    for name, content in ({name: json.dumps(value).encode() for name, value in contents.items()} | blobs).items():
        archive.file(name, content)
    pathlib.Path(out / f"cantle-{version}-{architecture.name}-image.tar").write_bytes(archive.bytes())
