"""The certificates of a cluster, made by openssl: one authority, and a leaf for everybody."""

import base64
import json
import subprocess

# name: (subject, names it is reached by)
LEAVES = {
    "apiserver": (
        "/CN=kube-apiserver",
        "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc",
    ),
    "admin": ("/O=system:masters/CN=admin", None),
    "controller-manager": ("/CN=system:kube-controller-manager", None),
    "scheduler": ("/CN=system:kube-scheduler", None),
    "kubelet-client": ("/O=system:masters/CN=kube-apiserver-kubelet-client", None),
}


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


class Certificates:
    """A directory with `<name>.crt` and `<name>.key`."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        folder.mkdir()
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *curve, "-days", "2", "-subj", "/CN=cantle-test", "-keyout", self.key("ca"), "-out", self.crt("ca"))
        for name, (subject, names) in LEAVES.items():
            self.leaf(name, subject, names)
        # Service accounts' tokens are signed with a key of their own.
        openssl("genrsa", "-out", self.key("sa"), "2048")
        openssl("rsa", "-in", self.key("sa"), "-pubout", "-out", folder / "sa.pub")

    def crt(self, name):
        return self.folder / f"{name}.crt"

    def key(self, name):
        return self.folder / f"{name}.key"

    def leaf(self, name, subject, names=None):
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-new", *curve, "-subj", subject, "-keyout", self.key(name), "-out", request)
        lines = ["keyUsage=digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
        extensions.write_text("\n".join(lines + ([f"subjectAltName={names}"] if names else [])) + "\n")
        signed = ["-CA", self.crt("ca"), "-CAkey", self.key("ca"), "-CAcreateserial", "-days", "2", "-extfile", extensions]
        openssl("x509", "-req", "-in", request, *signed, "-out", self.crt(name))

    def kubeconfig(self, name):
        """A file for the user whose leaf this is (JSON is YAML)."""
        path = self.folder / f"{name}.kubeconfig"
        text = lambda file: base64.b64encode(file.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": self.url, "certificate-authority-data": text(self.crt("ca"))}}
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate-data": text(self.crt(name)),
                        "client-key-data": text(self.key(name)),
                    },
                }
            ],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path
