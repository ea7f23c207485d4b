"""Kueue's tables of preemption and of scheduling with fair sharing as scenarios.

Kueue counts quotas and knows no nodes: a cohort becomes one node that holds what its queues have together, an amount of the resource
becomes whole GPUs (divided by what all amounts have in common), a ClusterQueue becomes a project, and a Cohort a project above it.
A policy of Kueue concerns a queue, and cantle has one for all. What a queue may not preempt is therefore marked `preemptible=no`."""

import math
import re
from fractions import Fraction

import cases
import go_literals as go
from kueue_objects import Group, Seconds, Workload

# File, the name of its table, and whether fair sharing is on (None: the case says so).
TABLES = (
    ("pkg/scheduler/preemption/preemption_test.go", "TestPreemption", False),
    ("pkg/scheduler/preemption/preemption_fair_test.go", "TestFairPreemptions", True),
    ("pkg/scheduler/preemption/preemption_hierarchical_test.go", "TestHierarchicalPreemptions", False),
    ("pkg/scheduler/scheduler_fs_test.go", "TestScheduleForFairSharing", None),
    ("pkg/scheduler/scheduler_test.go", "TestSchedule", None),
)
NOW = 1000
MOST_GPUS = 64
MOST_WEIGHT = 4_000_000


class Table:
    """One table of cases, by name."""

    def __init__(self, root, file, test, fair):
        self.source, self.fair = go.Source(root / file), fair
        self.name = file.removeprefix("pkg/scheduler/")
        self.start = self.source.find("func", test, "(")[0]
        ends = [at for at in self.source.find("func") if at > self.start and self.source.tokens[at][1].startswith("Test")]
        self.end = min(ends, default=len(self.source.tokens))

    def cases(self):
        at = next(at for at in self.source.find("cases", ":=") if self.start < at < self.end)
        for name, fields in go.Reader(self.source, at).expression().items:
            case = cases.Case(f"{self.name}:{fields.line}")
            yield cases.read(case, lambda case, fields=fields.fields(): self.translate(case, fields))

    def translate(self, case, fields):
        fair = self.fair
        if fair is None:
            fair = self.is_true(fields.get("enableFairSharing"))
        cohorts = self.chains(fields.get("cohorts"))
        if "incoming" in fields:
            world = World(self.chains(fields["clusterQueues"]), cohorts, fair)
            admitted = [Workload(chain) for chain in self.chains(fields.get("admitted"))]
            target = self.text(fields["targetCQ"])
            incoming = Workload(self.chain(fields["incoming"]), target)
            preempted = self.preempted(fields)
            case.scenario = world.scenario(admitted, [incoming])
            for one in admitted:
                if one.queue in world.queues:
                    case.expected[one.name] = as_expected("stopped" if one.name in preempted else "runs", one)
            if preempted:
                # Else the table says only that nothing is preempted, even if there is room.
                case.expected[incoming.name] = as_expected("runs", incoming)
            return
        queues = [*self.chains(self.shared("clusterQueues")), *self.chains(fields.get("additionalClusterQueues"))]
        self.schedule(case, fields, World(queues, cohorts, fair))

    def schedule(self, case, fields, world):
        """A table of `scheduleTestCase`: the workloads before one cycle, and what the cycle assigns, preempts and leaves."""
        local = {}
        for chain in [*self.chains(self.shared("queues")), *self.chains(fields.get("additionalLocalQueues"))]:
            (_, (name, namespace)), *rest = chain
            local[namespace, name] = dict(rest)["ClusterQueue"][0]
        workloads = [Workload(chain, local=local) for chain in self.chains(fields.get("workloads"))]
        wanted = {"-".join(reversed(one[0][1])): one for one in self.chains(fields.get("wantWorkloads"))}
        assigned = {key.replace("/", "-") for key in self.keys(fields.get("wantAssignments"))}
        inadmissible = {text.replace("/", "-") for text in texts(fields.get("wantInadmissibleLeft"))}
        running = [one for one in workloads if one.is_admitted]
        waiting = [one for one in workloads if not one.is_admitted]
        case.scenario = world.scenario(running, waiting)
        evicted = {name for name, chain in wanted.items() if "kueue.WorkloadPreempted" in repr(chain)}
        pending_preemption = {name for name, chain in wanted.items() if "WaitingForPreemptedWorkloads" in repr(chain)}
        for one in workloads:
            if one.queue not in world.used:
                continue
            if one.is_admitted:
                case.expected[one.name] = as_expected("stopped" if one.name in evicted else "runs", one)
            elif one.name in assigned or one.name in pending_preemption:
                case.expected[one.name] = as_expected("runs", one)
            elif one.name in inadmissible:
                case.expected[one.name] = as_expected("waits", one)
            # Else another cycle decides.
        if not any(not one.is_admitted and one.name in case.expected for one in workloads):
            raise cases.CannotSay("a case of which this cycle decides nothing")

    def preempted(self, fields):
        """Names of the workloads that are to be preempted."""
        if "wantWorkloads" in fields:
            chains = self.chains(fields["wantWorkloads"])
            return {chain[0][1][0] for chain in chains if "kueue.WorkloadPreempted" in repr(chain)}
        return {text.split("/")[-1] for text in texts(fields.get("wantPreempted")) if "/" in text}

    def shared(self, name):
        """What a variable of the test's function is set to."""
        return self.source.value_of(name, self.end)

    def chains(self, value):
        """The elements of a list as chains of calls."""
        if isinstance(value, go.Name):
            value = self.source.value_of(value.text, value.at)
        if value is None:
            return []
        if isinstance(value, go.Literal):
            return [self.chain(element) for element in value.elements()]
        raise cases.CannotSay("a table that code builds")

    def chain(self, value):
        """`Make("a").With(b).Obj()` as [("Make", ["a"]), ("With", [b])], with the chain of a variable in place of its name."""
        if isinstance(value, go.Call):
            if isinstance(value.of, go.Method):
                return [*self.chain(value.of.of), (value.of.name, [self.argument(one) for one in value.arguments])]
            if isinstance(value.of, go.Name):
                head, _, last = value.of.text.rpartition(".")
                if last.startswith("Make"):
                    return [(last, [self.argument(one) for one in value.arguments])]
                base = self.source.value_of(head, value.of.at) if head else None
                if base is not None:
                    return [*self.chain(base), (last, [self.argument(one) for one in value.arguments])]
        if isinstance(value, go.Method):
            return self.chain(value.of)
        if isinstance(value, go.Name):
            base = self.source.value_of(value.text.removesuffix(".Workload"), value.at)
            if base is not None:
                return self.chain(base)
        raise cases.CannotSay("a table that code builds")

    def argument(self, value):
        if isinstance(value, go.Call):
            name = value.of.text if isinstance(value.of, go.Name) else value.of.name
            if name in ("resource.MustParse", "int32", "types.UID"):
                return self.argument(value.arguments[0])
            if name == "now.Add":
                return Seconds(seconds(value.arguments[0]))
            try:
                return self.chain(value)
            except cases.CannotSay:
                return value
        if isinstance(value, go.Operation) and value.mark == "-" and value.left == 0:
            inner = self.argument(value.right)
            return -inner if isinstance(inner, (int, float)) else value
        if isinstance(value, go.Name):
            return Seconds(0) if value.text == "now" else value.text
        return value

    def text(self, value):
        return value if isinstance(value, str) else self.source.value_of(value.text, value.at)

    def is_true(self, value):
        return isinstance(value, go.Name) and value.text == "true"

    def keys(self, value):
        return [key for key, _ in value.items if isinstance(key, str)] if isinstance(value, go.Literal) else []


class World:
    """Queues and cohorts."""

    def __init__(self, queues, cohorts, fair):
        self.fair = fair
        self.queues = {chain[0][1][0]: Group(chain) for chain in queues}
        self.cohorts = {chain[0][1][0]: Group(chain) for chain in cohorts}
        for group in [*self.queues.values(), *self.cohorts.values()]:
            if group.above and group.above not in self.cohorts:
                self.cohorts[group.above] = Group([("MakeCohort", [group.above])])
        self.used = set()

    def root(self, group):
        while group.above:
            group = self.cohorts[group.above]
        return group

    def scenario(self, running, waiting):
        """The text; only the trees of the queues that `waiting` names, which must be one."""
        roots = {self.root(self.group(one)).name for one in waiting}
        if len(roots) != 1:
            raise cases.CannotSay("several cohorts that have nothing to do with each other")
        self.queues = {name: queue for name, queue in self.queues.items() if self.root(queue).name in roots}
        self.cohorts = {name: cohort for name, cohort in self.cohorts.items() if self.root(cohort).name in roots}
        self.used = set(self.queues)
        running = [one for one in running if one.queue in self.queues]
        resources = {resource for one in [*running, *waiting] for resource, amount in one.requests.items() if amount}
        if len(resources) != 1:
            raise cases.CannotSay("several resources, none of which is a GPU" if resources else "a workload without requests")
        (resource,) = resources
        groups = [*self.queues.values(), *self.cohorts.values()]
        flavors = {flavor for group in groups for flavor, of in group.quotas.items() if resource in of}
        if len(flavors) != 1:
            raise cases.CannotSay("a queue that chooses between flavors" if flavors else "a resource that no queue has")
        (flavor,) = flavors
        amounts = [one.requests[resource] for one in [*running, *waiting]]
        amounts += [value for group in groups for value in group.of(flavor, resource)[:2] if value is not None]
        unit = Fraction(math.gcd(*[int(amount * 1000) for amount in amounts]), 1000)
        self.counts = lambda amount: int(amount / unit)
        self.of = lambda group: group.of(flavor, resource)
        lines = [f"node all {self.total(None)}xA-100GB" if self.total(None) else "node all none", "queue q=task"]
        lines += self.project_lines()
        lines.append("policy order=share backfill reclaim placement=binpack")
        for one in sorted(running, key=lambda one: one.at):
            lines.append(self.submit(one, resource, NOW - 300 + one.at, self.is_protected(one, waiting)) + " on=all")
        for one in sorted(waiting, key=lambda one: one.created):
            lines.append(self.submit(one, resource, NOW, False))
        return "\n".join(lines) + "\n"

    def group(self, one):
        if one.queue not in self.queues:
            raise cases.CannotSay("a workload of no queue")
        return self.queues[one.queue]

    def total(self, cohort):
        """The units of a cohort and all below it; of everything if None."""
        groups = [*self.queues.values(), *self.cohorts.values()]
        groups = [group for group in groups if cohort is None or cohort is group or cohort in self.above(group)]
        return sum(self.counts(self.of(group)[0] or 0) for group in groups)

    def above(self, group):
        cohorts = []
        while group.above:
            group = self.cohorts[group.above]
            cohorts.append(group)
        return cohorts

    def project_lines(self):
        for group in [*self.cohorts.values(), *self.queues.values()]:
            is_cohort = self.cohorts.get(group.name) is group
            if not group.above and is_cohort:
                continue  # The whole cluster.
            nominal, borrowing, lending = self.of(group)
            if lending is not None:
                raise cases.CannotSay("a limit of what a queue lends")
            quota = self.total(group) if is_cohort else self.counts(nominal or 0)
            name = f"cohort-{group.name}" if is_cohort else group.name
            words = [f"project {name} quota={quota}"]
            if borrowing is not None or not group.above:
                words.append(f"limit={quota + self.counts(borrowing or 0)}")
            words.append(f"weight={self.weight(group)}")
            if group.above and self.cohorts[group.above].above:
                words.append(f"parent=cohort-{group.above}")
            yield " ".join(words)

    def weight(self, group):
        """Without fair sharing, a queue has a right to its own and to what its cohort has besides the queues, no matter which takes it."""
        if self.fair:
            return min(int(group.weight * 1000), MOST_WEIGHT)
        return 1000 if group.above and self.cohorts[group.above].above and self.of(self.cohorts[group.above])[0] else 0

    def is_protected(self, one, waiting):
        """May none of `waiting` preempt it, by the policy of its queue?"""
        may = {self.may_preempt(incoming, one) for incoming in waiting}
        if len(may) > 1:
            raise cases.CannotSay("policies of preemption that differ between queues")
        return may == {False}

    def may_preempt(self, incoming, one):
        policy = self.group(incoming).policy
        if incoming.queue == one.queue:
            within = policy.get("WithinClusterQueue", "Never")
            if "LowerOrNewerEqual" in within and one.priority == incoming.priority:
                raise cases.CannotSay("preemption among equal priorities")
            return "Lower" in within and one.priority < incoming.priority
        if "BorrowWithinCohort" in policy and not self.fair:
            raise cases.CannotSay("preemption by priority for more than the own quota")
        reclaim = policy.get("ReclaimWithinCohort", "Never")
        return "Any" in reclaim or "Lower" in reclaim and one.priority < incoming.priority

    def submit(self, one, resource, at, is_protected):
        count = self.counts(one.requests[resource])
        if count > MOST_GPUS:
            raise cases.CannotSay(f"a task of more than {MOST_GPUS} GPUs")
        self.group(one)
        kept = " preemptible=no" if is_protected else ""
        return f"at {at} submit {one.name} q gpus={count} project={one.queue} priority={one.priority + 1000}{kept}"


def as_expected(state, one):
    amounts = ",".join(f"{amount}" for amount in one.requests.values())
    alike = f"{one.queue} of {amounts} priority {one.priority} at {one.at}"
    return cases.Expected(state, None, alike if one.is_admitted else one.name)


def seconds(value):
    """Of an expression like `-5 * time.Second`."""
    text = repr(value)
    unit = 60 if "Minute" in text else 1
    numbers = [int(found) for found in re.findall(r"(?:left|right)=(\d+)", text) if found != "0"]
    sign = -1 if "mark='-'" in text else 1
    return sign * unit * (numbers[0] if numbers else 1)


def texts(value):
    """All texts in an expression."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, go.Literal):
        return [text for _, element in value.items for text in texts(element)]
    if isinstance(value, go.Call):
        return [text for argument in value.arguments for text in texts(argument)]
    return []


def read(root):
    """All cases of a checkout, in the order of tables and lines."""
    for file, test, fair in TABLES:
        yield from Table(root, file, test, fair).cases()
