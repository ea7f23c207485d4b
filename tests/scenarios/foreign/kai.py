"""KAI-Scheduler's tables (`TestTopologyBasic` in pkg/scheduler/actions) as scenarios.

Their time is not ours: all that runs has run for about a minute, the older job a little longer, and all that waits is submitted
at one time, the oldest job first. Memory of GPUs is scaled from MiB to GiB, so that their GPUs of 100 MiB are possible."""

import re

import cases
import go_literals as go

TABLES = "pkg/scheduler/actions"
CONSTANTS = ("pkg/scheduler/constants/priorities.go", "pkg/common/constants/constants.go")
NOW = 100
RUNS = {"Running", "Bound", "Binding", "Allocated", "Pipelined"}
# The action of each directory: what cantle must be allowed to do. KAI's reclaim also moves victims.
POLICIES = {
    "allocate": "",
    "consolidation": "consolidate",
    "preempt": "reclaim",
    "reclaim": "reclaim consolidate",
    "integration_tests": "reclaim consolidate",
}
CANNOT_OF_CASE = {
    "Topologies": "topology: places near each other",
    "TestDRAObjects": "devices by claims (DRA)",
}
CANNOT_OF_NODE = {
    "NumaTopology": "NUMA zones",
    "MaxTaskNum": "a limit of tasks per node",
    "GpuMemorySynced": "a node that has not yet reported its memory",
}
CANNOT_OF_JOB = {
    "StaleDuration": "a gang that has lost members",
    "PerJobStalenessGracePeriod": "a gang that has lost members",
    "DeleteJobInTest": "a job that is deleted while it stops",
    "JobNotReadyForSsn": "a job whose pods do not exist yet",
    "PreemptionDelay": "a delay before a job preempts",
}
CANNOT_OF_TASK = {
    "PodAffinityLabels": "affinity between pods",
    "ResourceClaimNames": "devices by claims (DRA)",
    "ResourceClaimTemplates": "devices by claims (DRA)",
    "PersistentVolumeClaimNames": "volumes",
    "IsLegacyMigTask": "MIG by annotation",
    "Priority": "an order of tasks within a job",
}


class Table:
    """One file of tables."""

    def __init__(self, root, file, constants):
        self.source = go.Source(file)
        self.constants = constants
        self.name = str(file.relative_to(root / TABLES))
        kind = self.name.split("/", 1)[0]
        self.policy = POLICIES.get(kind)

    def cases(self):
        for at in self.source.find("TestTopologyBasic", "{"):
            before, first = self.source.tokens[at - 5][1], self.source.tokens[at - 7][1]
            if ")" in (before, first if before == "]" else ""):
                continue  # The result of a function.
            found = go.Reader(self.source, at - 1).literal("TestTopologyBasic")
            for topology in found.elements() if before == "]" else [found]:
                case = cases.Case(f"{self.name}:{topology.line}")
                yield cases.read(case, lambda case, topology=topology: self.translate(case, topology))

    def translate(self, case, topology):
        if self.policy is None or "stalegangeviction" in self.name:
            raise cases.CannotSay("an action that cantle does not have: eviction of stale gangs")
        case.scenario, case.expected = Scenario(self.plain(topology), self.policy).text_and_expected()

    def plain(self, value):
        """Fields as a dict, elements as a list, constants as numbers and texts; what a table does not say is a go.Call or go.Code."""
        if isinstance(value, go.Literal):
            if not value.type.startswith("[") and all(key is not None for key, _ in value.items):
                keys = [key.text if isinstance(key, go.Name) and "." not in key.text else self.plain(key) for key, _ in value.items]
                return dict(zip(keys, map(self.plain, value.elements())))
            return [self.plain(element) for element in value.elements()]
        if isinstance(value, go.Name):
            return self.named(value)
        if isinstance(value, go.Call) and isinstance(value.of, go.Name):
            name = value.of.text.rsplit(".", 1)[-1]
            if name in ("To", "Int", "Int32", "Int64", "Float64", "Bool", "CreateFloat64Pointer", "int32", "int64", "uint64", "float64", "new"):
                return self.plain(value.arguments[0])
        if isinstance(value, go.Operation):
            left, right = self.plain(value.left), self.plain(value.right)
            if isinstance(left, (int, float)) and isinstance(right, (int, float)):
                return {"-": left - right, "+": left + right, "*": left * right, "/": left / (right or 1)}.get(value.mark)
        return value

    def named(self, name):
        if name.text in ("true", "false", "nil"):
            return {"true": True, "false": False, "nil": None}[name.text]
        last = name.text.rsplit(".", 1)[-1]
        if "." not in name.text:
            assigned = self.source.value_of(name.text, name.at)
            if assigned is not None and not isinstance(assigned, go.Call):
                return self.plain(assigned)
        return self.constants.get(last, last)


class Scenario:
    """The translation of one case."""

    def __init__(self, topology, policy):
        self.topology, self.policy = topology, policy
        refuse(topology, CANNOT_OF_CASE)
        if not all(isinstance(topology.get(key), kind) for key, kind in (("Nodes", dict), ("Jobs", list), ("Queues", list))):
            raise cases.CannotSay("a table that code builds")
        self.nodes, self.queues = topology["Nodes"], topology["Queues"]
        jobs = topology["Jobs"]
        if not all(isinstance(job, dict) and isinstance(job.get("Tasks"), list) for job in jobs):
            raise cases.CannotSay("a table that code builds")
        self.jobs = sorted(jobs, key=lambda job: -number(job.get("Priority", 0)))
        for index, job in enumerate(self.jobs):
            job["age"] = number(job.get("JobAgeInMinutes", 0)) or len(self.jobs) - index
        self.placement = self.configured_placement()
        counted = ("CPUMillis", "CPUMemory", "RequiredCPUsPerTask", "RequiredMemoryPerTask")
        of_queues = ("DeservedCPUs", "DeservedMemory", "MaxAllowedCPUs", "MaxAllowedMemory")
        everything = [*self.nodes.values(), *self.jobs, *self.queues, *self.departments()]
        self.counts_host = any(key in one for one in everything for key in counted + of_queues)
        self.has_affinity = any("NodeAffinityNames" in task for job in self.jobs for task in job["Tasks"])
        if self.has_affinity and "consolidate" in self.policy:
            # Nodes are distinguished by the model of their GPUs, and tasks move between GPUs of one model only.
            raise cases.CannotSay("a choice of nodes, where tasks may move")

    def configured_placement(self):
        mocks = self.topology.get("Mocks")
        if not isinstance(mocks, dict) or "SchedulerConf" not in mocks:
            return "binpack"
        text = repr(mocks["SchedulerConf"])
        spreads_gpus, spreads_nodes = "gpuspread" in text, "SpreadStrategy" in text
        if spreads_gpus != spreads_nodes and len(self.nodes) > 1:
            raise cases.CannotSay("nodes that are packed and GPUs that are spread, or the other way round")
        return "spread" if spreads_gpus else "binpack"

    def departments(self):
        return self.topology.get("Departments") or []

    def text_and_expected(self):
        lines = [*self.node_lines(), "queue gpu=task", "queue cpu=none", *self.project_lines()]
        lines.append(f"policy order=share kai-compat backfill placement={self.placement} {self.policy}")
        running, waiting = [], []
        gpus = Gpus(self.nodes)
        for job in self.jobs:
            self.job_lines(job, gpus, running, waiting)
        lines += [line for _, line in sorted(running, key=lambda at: at[0])]
        lines += [line for _, line in sorted(waiting, key=lambda at: at[0])]
        return "\n".join(lines) + "\n", self.expected()

    def node_lines(self):
        for name, node in sorted(self.nodes.items()):
            refuse(node, CANNOT_OF_NODE)
            gpus, options = number(node.get("GPUs", 0)), ""
            if self.counts_host:
                cpu, memory = number(node.get("CPUMillis", 0)) or 20_000, number(node.get("CPUMemory", 0)) or 20e9
                options = f" cpu={cpu:g} memory={memory:.0f}k"
            if "MigStrategy" in node:
                yield f"node {name} {mig_gpus(node)}{options}"
                continue
            model = f"{name if self.has_affinity else 'A'}-{number(node.get('GPUMemory', 0)) or 100}GB"
            yield f"node {name} {f'{gpus}x{model}' if gpus else 'none'}{options}"

    def project_lines(self):
        queues = [dict(queue) for queue in self.queues]
        names = {department["Name"] for department in self.departments()}
        for department in self.departments():
            department = dict(department, GPUOverQuotaWeight=department.get("DeservedGPUs", 0))
            yield self.project_line(department)
        for queue in queues:
            if not names and not self.topology.get("DisableDefaultDepartment"):
                queue.pop("ParentQueue", None)
            yield self.project_line(queue)

    def project_line(self, queue):
        words = [f"project {queue['Name']}"]
        quota, limit = number(queue.get("DeservedGPUs", 0)), number(queue.get("MaxAllowedGPUs", 0))
        words.append("quota=all" if quota < 0 else f"quota={quota:g}")
        if limit > 0:
            words.append(f"limit={limit:g}")
        weight = number(queue.get("GPUOverQuotaWeight", 0))
        if weight >= 0:
            words.append(f"weight={weight * 1000:.0f}")
        if queue.get("Priority") is not None:
            words.append(f"priority={number(queue['Priority'])}")
        else:
            words.append("priority=100")
        if queue.get("ParentQueue"):
            words.append(f"parent={queue['ParentQueue']}")
        for key, word, unit in (("DeservedCPUs", "cpu", 0.001), ("MaxAllowedCPUs", "cpu-limit", 0.001)):
            if queue.get(key) is not None and number(queue[key]) >= 0:
                words.append(f"{word}={number(queue[key]) * unit:.3f}")
        for key, word in (("DeservedMemory", "memory"), ("MaxAllowedMemory", "memory-limit")):
            if queue.get(key) is not None and number(queue[key]) >= 0:
                words.append(f"{word}={number(queue[key]) * 1e6:.0f}k")
        if "ReclaimMinRuntime" in queue:
            raise cases.CannotSay("a minimum time against other projects only")
        if queue.get("V1"):
            raise cases.CannotSay("a queue of an older version")
        return " ".join(words)

    def job_lines(self, job, gpus, running, waiting):
        refuse(job, CANNOT_OF_JOB)
        tasks = job["Tasks"]
        gang = gang_size(job, len(tasks))
        for index, task in enumerate(tasks):
            refuse(task, CANNOT_OF_TASK)
            state, name = task.get("State", "Pending"), f"{job['Name']}-{index}"
            request, devices = self.request(job, task)
            words = [f"project={job['QueueName']}", f"priority={number(job.get('Priority', 0))}"]
            if is_non_preemptible(job):
                words.append("preemptible=no")
            if gang > 1:
                words += [f"gang={job['Name']}", f"gang-size={gang}"]
            words += [f"model={node}-{number(self.nodes.get(node, {}).get('GPUMemory', 0)) or 100}GB" for node in task.get("NodeAffinityNames", [])]
            if self.counts_host and not job.get("IsBestEffortJob"):
                cpu = number(job.get("RequiredCPUsPerTask", 0)) or 1
                memory = number(job.get("RequiredMemoryPerTask", 0)) or 1e9
                words.append(f"cpu={cpu:g} memory={memory:.0f}k")
            tail = " ".join(["gpu" if request else "cpu", *request, *words])
            if state == "Pending":
                waiting.append((-job["age"], f"at {NOW} submit {name} {tail}"))
            elif state in ("Running", "Bound", "Binding", "Allocated", "Releasing"):
                place = gpus.place(task, request, devices)
                at = NOW - 60 - job["age"] / 1000
                running.append((at, f"at {at:.3f} submit {name} {tail} on={place}"))
                if state == "Releasing":
                    # What it holds is promised to others at once; whether they wait for its end makes no difference here.
                    running.append((NOW, f"at {NOW} end {name}"))
            else:
                raise cases.CannotSay("a task that is only assumed at the beginning")

    def request(self, job, task):
        """Words of `submit`, and the number of GPUs that they take."""
        if task.get("RequiredMigInstances"):
            (profile, count), *others = task["RequiredMigInstances"].items()
            if others or count != 1:
                raise cases.CannotSay("several MIG instances for one task")
            return [f"mig={profile.split('mig-', 1)[1]}"], 0
        devices = number(job.get("RequiredMultiFractionDevicesPerTask") or 1)
        each = [f"devices={devices}"] if devices > 1 else []
        if number(job.get("RequiredGpuMemory", 0)):
            return [f"gpu-memory={number(job['RequiredGpuMemory'])}Gi", *each], devices
        count = number(job.get("RequiredGPUsPerTask", 0))
        if task.get("RequiredGPUs") is not None:
            count = number(task["RequiredGPUs"])
        if count == 0:
            return [], 0
        if count < 1:
            return [f"gpu={count:g}", *each], devices
        if count != int(count):
            raise cases.CannotSay("more than one GPU, and not a whole number")
        return [f"gpus={count:.0f}"], int(count)

    def expected(self):
        found = {}
        of_jobs, of_tasks = self.topology.get("JobExpectedResults") or {}, self.topology.get("TaskExpectedResults") or {}
        for job in self.jobs:
            for index, task in enumerate(job["Tasks"]):
                name = f"{job['Name']}-{index}"
                result = of_tasks.get(name) or of_jobs.get(job["Name"])
                if result and task.get("State") != "Releasing":
                    request = "".join(self.request(job, task)[0])
                    found[name] = as_expected(result, f"{job['Name']} {request}".strip(), task.get("State") == "Running")
        if not found:
            raise cases.CannotSay("a case whose expectation is code")
        return found


def as_expected(result, alike, ran):
    status = result.get("Status", "")
    if status in RUNS:
        return cases.Expected("runs", result.get("NodeName"), alike)
    if status == "Releasing":
        return cases.Expected("stopped", None, alike)
    if status == "Pending":
        return cases.Expected("stopped" if ran else "waits", None, alike)
    raise cases.CannotSay(f"an expectation of the state {status}")


class Gpus:
    """Which GPUs of each node the tasks hold that run at the beginning: a shared one for each group of KAI, whole ones from the end."""

    def __init__(self, nodes):
        self.free = {name: list(range(number(node.get("GPUs", 0)))) for name, node in nodes.items()}
        self.groups = {}

    def place(self, task, request, devices):
        node = task.get("NodeName")
        if node not in self.free:
            raise cases.CannotSay("a task that runs on no node")
        if not request or request[0].startswith("mig="):
            return node
        if request[0].startswith("gpus="):
            taken = [self.free[node].pop() for _ in range(min(devices, len(self.free[node])))]
        else:
            groups = list(task.get("GPUGroups") or [])
            groups += [f"{id(task)}-{more}" for more in range(devices - len(groups))]
            taken = [self.of_group(node, group) for group in groups[:devices]]
        return f"{node}:{','.join(str(gpu) for gpu in sorted(taken))}"

    def of_group(self, node, group):
        if (node, group) not in self.groups and self.free[node]:
            self.groups[node, group] = self.free[node].pop(0)
        return self.groups.get((node, group), 0)


def mig_gpus(node):
    """A GPU with exactly these instances, of a model that has such profiles."""
    if "Mixed" not in node["MigStrategy"]:
        raise cases.CannotSay("a MIG strategy in which an instance counts as a GPU")
    instances = {name.split("mig-", 1)[1]: number(count) for name, count in (node.get("MigInstances") or {}).items() if number(count)}
    parts = ",".join(f"{count}x{profile}" for profile, count in instances.items())
    model = "A100-40GB" if not instances or any(re.fullmatch(r"1g\.5gb|2g\.10gb|3g\.20gb|7g\.40gb", name) for name in instances) else "A100-80GB"
    return f"1x{model} mig={parts}" if parts else "none"


def gang_size(job, tasks):
    """How many tasks of the job start together."""
    root = job.get("RootSubGroupSet")
    if root is None:
        return tasks
    if isinstance(root, go.Call) and isinstance(root.of, go.Name) and root.of.text.endswith("DefaultSubGroup"):
        least = root.arguments[0]
        if least in (1, tasks):
            return least
        raise cases.CannotSay("a gang that starts with some of its tasks")
    raise cases.CannotSay("groups of tasks within a job")


def is_non_preemptible(job):
    preemptibility = str(job.get("Preemptibility") or "")
    if preemptibility:
        return "NonPreemptible" in preemptibility or preemptibility == "non-preemptible"
    return number(job.get("Priority", 0)) >= 100


def refuse(fields, reasons):
    for name, reason in reasons.items():
        if fields.get(name):
            raise cases.CannotSay(reason)


def number(value):
    if not isinstance(value, (int, float)):
        raise cases.CannotSay("a table that code builds")
    return value


def read(root):
    """All cases of a checkout, in the order of files and lines."""
    constants = {name: value for file in CONSTANTS for name, value in go.Source(root / file).constants().items()}
    for file in sorted((root / TABLES).rglob("*_test.go")):
        yield from Table(root, file, constants).cases()
