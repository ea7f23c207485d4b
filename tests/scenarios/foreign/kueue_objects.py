"""Workloads, ClusterQueues and Cohorts as chains of calls build them in Kueue's tests: [("MakeWorkload", ["a", "ns"]), ("Priority", [1])]."""

import re
from fractions import Fraction

import cases

SUFFIXES = {"": 1, "m": Fraction(1, 1000), "k": 1000, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
CANNOT_OF_WORKLOAD = {
    "Condition": "a workload that is already being evicted",
    "Active": "a workload that is not active",
    "AdmissionChecks": "checks before admission",
    "AdmissionCheck": "checks before admission",
    "PreemptionGates": "gates of preemption",
    "ReclaimablePods": "a workload that gives back a part",
    "Toleration": "taints",
}
CANNOT_OF_QUEUE = {"AdmissionChecks": "checks before admission", "StopPolicy": "a queue that is stopped"}


class Seconds(int):
    """A time, in seconds from `now`."""


class Workload:
    """A workload in Kueue's words."""

    def __init__(self, chain, queue=None, local=None):
        # Workloads of several namespaces may have one name.
        self.name, self.priority, self.at = "-".join(reversed([part for part in chain[0][1] if part])), 0, 0
        self.created, self.requests, self.is_admitted = 0, {}, False
        namespace, queue_name = chain[0][1][1] if len(chain[0][1]) > 1 else "", None
        self.flavors, self.queue = set(), queue
        for word, arguments in chain[1:]:
            if word in CANNOT_OF_WORKLOAD and not (word == "Condition" and queue):
                raise cases.CannotSay(CANNOT_OF_WORKLOAD[word])
            if word == "Name":
                self.name = arguments[0]
            elif word == "Priority":
                self.priority = arguments[0]
            elif word == "Request":
                self.requests[arguments[0]] = quantity(arguments[1])
            elif word == "PodSets":
                self.pod_sets(arguments)
            elif word == "Queue":
                queue_name = arguments[0]
            elif word == "Creation":
                self.created = arguments[0]
            elif word == "SimpleReserveQuota" and queue is None:
                self.admit(arguments[0], arguments[2])
                self.flavors.add(arguments[1])
            elif word == "ReserveQuotaAt" and queue is None:
                self.reserved(*arguments)
        if local is not None and self.queue is None:
            self.queue = local.get((namespace, queue_name))
        if not isinstance(self.priority, int):
            raise cases.CannotSay("a table that code builds")

    def admit(self, queue, at):
        self.queue, self.at, self.is_admitted = queue, int(at) if isinstance(at, int) else 0, True

    def reserved(self, admission, at):
        if not isinstance(admission, list):
            raise cases.CannotSay("a table that code builds")
        (_, (queue, *_)), *words = admission
        self.admit(queue, at)
        for word, sets in words:
            for pod_set in sets if word == "PodSets" else ():
                self.flavors |= {arguments[1] for name, arguments in pod_set if name == "Assignment"}

    def pod_sets(self, sets):
        for chain in sets:
            if not isinstance(chain, list) or not isinstance(chain[0][1][1], int):
                raise cases.CannotSay("a table that code builds")
            (_, (_, count)), *words = chain
            for word, arguments in words:
                if word == "SetMinimumCount":
                    raise cases.CannotSay("a workload that may start with some of its pods")
                if word == "Request":
                    self.requests[arguments[0]] = self.requests.get(arguments[0], 0) + count * quantity(arguments[1])


class Group:
    """A ClusterQueue or a Cohort."""

    def __init__(self, chain):
        self.name, self.above, self.quotas, self.weight, self.policy = chain[0][1][0], "", {}, Fraction(1), {}
        for word, arguments in chain[1:]:
            if word in CANNOT_OF_QUEUE:
                raise cases.CannotSay(CANNOT_OF_QUEUE[word])
            if word in ("Cohort", "Parent"):
                self.above = arguments[0]
            elif word == "FairWeight":
                self.weight = quantity(arguments[0])
            elif word == "Preemption":
                self.policy = {name: getattr(value, "text", "set") for name, value in arguments[0].fields().items()}
            elif word == "ResourceGroup":
                for flavor in arguments:
                    self.flavor(flavor)

    def flavor(self, chain):
        of = self.quotas.setdefault(chain[0][1][0], {})
        for word, arguments in chain[1:]:
            if word == "Resource":
                name, *amounts = arguments
                of[name] = [quantity(amount) if amount != "" else None for amount in amounts]

    def of(self, flavor, resource):
        """Nominal quota, and limits of borrowing and of lending; None where there is none."""
        found = self.quotas.get(flavor, {}).get(resource, [])
        return (found + [None] * 3)[:3]


def quantity(text):
    found = re.fullmatch(r"(-?[\d.]+)([a-zA-Z]*)", str(text))
    if not found or found[2] not in SUFFIXES:
        raise cases.CannotSay("a table that code builds")
    return Fraction(found[1]) * SUFFIXES[found[2]]
