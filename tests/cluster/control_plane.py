"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as they are, on the loopback."""

import json
import os
import pathlib

import rights
from api import Api, ApiError
from certificates import Certificates
from chart import NAMESPACE
from processes import Program, free_ports, wait_until


# Where the cluster has a network of its own (run.sh), pods and API server find each other as in every cluster: the server has
# the address of its service, and calls webhooks at their pods, because the addresses of other services are not forwarded.
OWN_NODE = bool(os.environ.get("CANTLE_TEST_OWN_NODE"))
# Feature gates that are off by default, for other versions of Kubernetes: `DRAConsumableCapacity=true,…`.
GATES = os.environ.get("CANTLE_TEST_FEATURE_GATES", "")
# A directory for what cantle's parts have called, in a whole run (test_rights.py).
CALLS = os.environ.get("CANTLE_TEST_CALLS")


class ControlPlane:
    def __init__(self, folder, programs, gates=GATES, apis="", fixed_port=OWN_NODE):
        """`gates`: feature gates; `apis`: versions of APIs that are off by default, as in `--runtime-config`."""
        self.folder, self.programs, self.gates, self.apis = folder, programs, gates, apis
        self.audit_log = folder / "audit.log"
        self.etcd_port, self.peer_port, self.port, self.kcm_port, self.scheduler_port = free_ports(5)
        self.port = 443 if fixed_port else self.port
        self.certificates = Certificates(folder / "certificates", f"https://127.0.0.1:{self.port}")
        crt, key = self.certificates.crt, self.certificates.key
        self.api = Api(self.certificates.url, crt("ca"), crt("admin"), key("admin"))
        self.etcd = Program("etcd", folder, [programs / "etcd", *self.etcd_flags()])
        self.server = Program("kube-apiserver", folder, [programs / "kube-apiserver", *self.server_flags()])
        self.others = [
            Program("kube-controller-manager", folder, [programs / "kube-controller-manager", *self.kcm_flags()]),
            Program("kube-scheduler", folder, [programs / "kube-scheduler", *self.scheduler_flags()]),
        ]

    def etcd_flags(self):
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        flags = ["--name=t", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync"]
        flags += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        flags += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=t={peer}"]
        return flags

    def server_flags(self):
        crt, key, folder = self.certificates.crt, self.certificates.key, self.certificates.folder
        return [
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            *(["--bind-address=0.0.0.0", "--enable-aggregator-routing=true"] if OWN_NODE else ["--bind-address=127.0.0.1"]),
            f"--secure-port={self.port}",
            "--advertise-address=127.0.0.1",
            # A loopback address is refused as an endpoint otherwise.
            "--endpoint-reconciler-type=none",
            f"--client-ca-file={crt('ca')}",
            f"--tls-cert-file={crt('apiserver')}",
            f"--tls-private-key-file={key('apiserver')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'sa.pub'}",
            f"--service-account-signing-key-file={key('sa')}",
            f"--requestheader-client-ca-file={crt('ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--kubelet-client-certificate={crt('kubelet-client')}",
            f"--kubelet-client-key={key('kubelet-client')}",
            # Logs and exec would look the node's name up in DNS.
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--feature-gates={self.gates}",
            f"--runtime-config={self.apis}",
            *self.audit_flags(),
        ]

    def audit_flags(self):
        policy = self.folder / "audit.json"
        policy.write_text(json.dumps(rights.POLICY))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}", "--audit-log-maxsize=4000"]

    def client_flags(self, name, port):
        config = self.certificates.kubeconfig(name)
        flags = [f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}"]
        return [*flags, "--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false", f"--feature-gates={self.gates}"]

    def kcm_flags(self):
        crt, key = self.certificates.crt, self.certificates.key
        return [
            *self.client_flags("controller-manager", self.kcm_port),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={key('sa')}",
            f"--root-ca-file={crt('ca')}",
            f"--cluster-signing-cert-file={crt('ca')}",
            f"--cluster-signing-key-file={key('ca')}",
            # Hand-made nodes have no heartbeat.
            "--node-monitor-grace-period=100000h",
        ]

    def scheduler_flags(self):
        return self.client_flags("scheduler", self.scheduler_port)

    def start(self):
        self.etcd.start()
        self.start_server()
        for each in self.others:
            each.start()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(lambda: self.answers(account), 120, lambda: "no service account:\n" + self.others[0].log()[-2000:])
        return self

    def start_server(self):
        self.server.start()
        wait_until(lambda: self.answers("/readyz"), 120, lambda: "no API server:\n" + self.server.log()[-2000:])

    def answers(self, path):
        for program in [self.etcd, self.server]:
            program.check()
        try:
            return self.api.find(path)
        except (ApiError, OSError):
            return None

    def kubeconfig(self):
        return self.certificates.kubeconfig("admin")

    def account_kubeconfig(self, account, path, bound=None):
        """For a service account of cantle's, so that its rights are what is tested; `bound` as a pod's token is to its node."""
        asked = {"expirationSeconds": 7200, **({"boundObjectRef": bound} if bound else {})}
        token = self.api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", {"spec": asked})
        config = json.loads(pathlib.Path(self.kubeconfig()).read_text())
        config["users"][0]["user"] = {"token": token["status"]["token"]}
        path.write_text(json.dumps(config))
        return path

    def stop(self):
        for each in [*reversed(self.others), self.server, self.etcd]:
            each.stop(15)
        if CALLS and self.audit_log.exists():
            rights.save(self.audit_log, CALLS)
