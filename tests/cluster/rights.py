"""What the chart's roles permit, and what of it was used: from the audit log of the API server."""

import json
import pathlib
from typing import NamedTuple

from chart import NAMESPACE, rendered

ACCOUNTS = f"system:serviceaccount:{NAMESPACE}:"
OURS = {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}
# Of each call of cantle's service accounts who, what and whether it was permitted: a watch when it begins, all others at their end.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {**OURS, "verbs": ["watch"], "omitStages": ["ResponseComplete"]},
        {**OURS, "omitStages": ["ResponseStarted"]},
        {"level": "None"},
    ],
}
QUEUES = {"queueController": {"enabled": True, "url": "http://server:8008", "secret": "keys"}, "agentk8sglue": {"queue": "q"}}
SERVER = {"server": {"enabled": True, "url": "https://s", "database": {"secret": "d"}, "keysSecret": "k", "files": "s3://b", "kubernetesTokens": "cantle"}}
# Ways to install the chart: together they have all of its rules.
VARIANTS = [{}, {"path": "classic", "reservation": {"enabled": True}}, QUEUES, SERVER]


class Right(NamedTuple):
    """One verb of one rule. `name` and `namespace` are empty where they do not matter."""

    account: str
    verb: str
    group: str
    resource: str
    name: str
    namespace: str

    def __str__(self):
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.account} {self.verb} {what} {self.name} {self.namespace}".strip()

    def covers(self, call):
        narrow = [(self.name, call.name), (self.namespace, call.namespace)]
        return self[:4] == call[:4] and all(mine in ("", given) for mine, given in narrow)


def granted(variants=None):
    """The rights of all roles that the chart makes itself."""
    rights = set()
    for values in VARIANTS if variants is None else variants:
        things = rendered(values)
        roles = {(role["kind"], role["metadata"]["name"], role["metadata"].get("namespace", "")): role for role in things if role["kind"] in ("Role", "ClusterRole")}
        for binding in things:
            if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
                continue
            namespace, role = binding["metadata"].get("namespace", ""), binding["roleRef"]
            found = roles.get((role["kind"], role["name"], namespace if role["kind"] == "Role" else ""))
            # Kubernetes' own roles are not ours to narrow.
            for rule in found["rules"] if found else []:
                rights |= {Right(subject["name"], *each, "" if is_of_test(namespace) else namespace) for subject in binding["subjects"] for each in single(rule)}
    return rights


def is_of_test(namespace):
    """Pods of queues: their namespace is another one in each test."""
    return namespace == "cantle-tasks"


def single(rule):
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield verb, group, resource, name


def read(log):
    """What was called in an audit log, and what of it was refused."""
    calls, refused = set(), set()
    with open(log) as lines:
        for line in lines:
            event = json.loads(line)
            account, what = event["user"]["username"].removeprefix(ACCOUNTS), event.get("objectRef")
            if not what:
                # /version, /api and the like: everybody may.
                continue
            resource = "/".join(filter(None, [what["resource"], what.get("subresource")]))
            call = Right(account, event["verb"], what.get("apiGroup", ""), resource, what.get("name", ""), what.get("namespace", ""))
            decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
            (refused if decision == "forbid" else calls).add(call)
    return calls, refused


def save(log, folder):
    """What other processes need to know of a log: sets, so that a long run is a short file."""
    calls, refused = read(log)
    path = pathlib.Path(folder) / f"calls-{pathlib.Path(log).parent.name}.json"
    path.write_text(json.dumps({"calls": sorted(calls), "refused": sorted(refused)}))


def saved(folder):
    calls, refused = set(), set()
    for path in pathlib.Path(folder).glob("calls-*.json"):
        said = json.loads(path.read_text())
        calls |= {Right(*each) for each in said["calls"]}
        refused |= {Right(*each) for each in said["refused"]}
    return calls, refused


def unused(rights, calls):
    return {right for right in rights if not any(right.covers(call) for call in calls)}
