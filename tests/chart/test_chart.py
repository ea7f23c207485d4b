"""The manifests that the chart renders from its values."""

import json
import re

import pytest
import yaml
from conftest import CHART, ROOT

CERTIFICATES = {
    "own": {"mode": "own"},
    "cert-manager": {"mode": "cert-manager"},
    "secret": {"mode": "secret", "secret": {"name": "mine", "caBundle": "Q0E="}},
}


def of_kind(things, kind):
    return [thing for thing in things if thing["kind"] == kind]


def one(things, kind, name):
    [thing] = [thing for thing in of_kind(things, kind) if thing["metadata"]["name"] == name]
    return thing


def test_helm_has_nothing_to_say(chart):
    import helm_python

    said = helm_python.lint(CHART, strict=True)
    assert said["errors"] == [] and all(m["error"] == "icon is recommended" for m in said["messages"])


@pytest.mark.parametrize("values, said", [
    ({"webhok": {}}, "'webhok' not allowed"),
    ({"webhook": {"replicas": "two"}}, "at '/webhook/replicas': got string, want integer"),
    ({"webhook": {"failurePolicy": "Maybe"}}, "at '/webhook/failurePolicy'"),
    ({"webhook": {"certificates": {"mode": "magic"}}}, "must be one of 'own', 'cert-manager', 'secret'"),
    ({"webhook": {"certificates": {"own": {"settle": "5 minutes"}}}}, "at '/webhook/certificates/own/settle'"),
    ({"deviceClasses": {"extraMigProfiles": ["1g"]}}, "at '/deviceClasses/extraMigProfiles/0'"),
])
def test_wrong_values_are_named(chart, values, said):
    import helm_python

    with pytest.raises(helm_python.HelmValuesError) as error:
        chart.validate_schema(values)
    assert said in str(error.value)


def test_every_value_is_in_the_schema(chart):
    def check(values, schema, path):
        assert schema.get("additionalProperties") is not None or path in ("/global",), f"{path} takes anything"
        for name, value in values.items():
            here = f"{path}/{name}"
            assert name in schema["properties"], f"{here} is not in the schema"
            inner = schema["properties"][name]
            if isinstance(value, dict) and "properties" in inner:
                check(value, inner, here)

    check(chart.values, json.loads((CHART / "values.schema.json").read_text()), "")


@pytest.mark.parametrize("mode", CERTIFICATES)
def test_names_fit_together(render, mode):
    things = render({"webhook": {"certificates": CERTIFICATES[mode]}}, name="blue", namespace="gpus")
    namespaced = [t for t in things if "namespace" in t["metadata"]]
    assert {t["metadata"]["namespace"] for t in namespaced} == {"gpus"}
    service = one(things, "Service", "blue-cantle-webhook")
    deployment = one(things, "Deployment", "blue-cantle-webhook")
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    flags = dict(arg[2:].split("=", 1) for arg in container["args"] if arg.startswith("--"))
    assert (flags["namespace"], flags["service"]) == ("gpus", "blue-cantle-webhook")
    configuration = one(things, "MutatingWebhookConfiguration", "blue-cantle-webhook")
    for webhook in configuration["webhooks"]:
        assert webhook["clientConfig"]["service"]["name"] == "blue-cantle-webhook"
        assert ("caBundle" in webhook["clientConfig"]) == (mode == "secret")
        [excluded] = webhook["namespaceSelector"]["matchExpressions"]
        assert excluded["values"] == ["kube-system", "gpus"]
    if mode == "own":
        one(things, "Secret", flags["secret"])
        assert flags["configuration"] == "blue-cantle-webhook"
    else:
        [volume] = pod["spec"]["volumes"]
        made = [c["spec"]["secretName"] for c in of_kind(things, "Certificate")]
        assert volume["secret"]["secretName"] == (made[0] if made else "mine")
        rules = [rule for role in of_kind(things, "Role") for rule in role["rules"]]
        assert all(rule["resources"] == ["leases"] for rule in rules), "only its own authority needs to write a Secret"


def test_only_pods_that_ask_are_sent(render):
    """A webhook that fails closed must not see any other pod."""
    [configuration] = of_kind(render(), "MutatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        assert webhook["failurePolicy"] == "Fail" and webhook["sideEffects"] == "None"
        assert webhook.get("objectSelector") or webhook.get("matchConditions"), webhook["name"]


def test_service_accounts_may_do_little(render):
    things = render()
    rules = [rule for role in of_kind(things, "ClusterRole") + of_kind(things, "Role") for rule in role["rules"]]
    assert all("*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in rules)
    writers = {verb for rule in rules if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert writers == {"get", "update"}
    assert all(rule.get("resourceNames") for rule in rules if "secrets" in rule["resources"])
    assert of_kind(things, "ClusterRole") and all(r["kind"] != "ClusterRole" for r in things if "secrets" in str(r.get("rules")))


def test_device_classes_are_those_of_the_table(render):
    table = json.loads((ROOT / "crates/sim/simgpu/data/mig_profiles.json").read_text())
    real = [gpu for gpu in table["gpus"].values() if gpu["architecture"] != "invented"]
    known = sorted({p["profile"] for gpu in real for p in gpu["profiles"]})
    assert (CHART / "files/mig-profiles.txt").read_text().split() == known, "charts/cantle/files/mig-profiles.txt is old"
    classes = {c["metadata"]["name"]: c["spec"] for c in of_kind(render(), "DeviceClass")}
    assert len(classes) == len(known) + 2
    media = classes["mig-1g.10gb.me.gpu.cantle.dev"]
    assert media["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"
    assert "profile == '1g.10gb+me'" in media["selectors"][0]["cel"]["expression"]
    assert "extendedResourceName" not in classes["whole.gpu.cantle.dev"]
    values = {"migResources": False, "gpuResource": True, "extraMigProfiles": ["9g.99gb"]}
    classes = {c["metadata"]["name"]: c["spec"] for c in of_kind(render({"deviceClasses": values}), "DeviceClass")}
    named = [name for name, spec in classes.items() if "extendedResourceName" in spec]
    assert named == ["whole.gpu.cantle.dev"] and "mig-9g.99gb.gpu.cantle.dev" in classes


def test_parts_can_be_left_out(render):
    nothing = {"webhook": {"enabled": False}, "node": {"enabled": False}, "deviceClasses": {"enabled": False}}
    assert render(nothing) == []
    alone = render({"webhook": {"replicas": 1}})
    assert of_kind(alone, "PodDisruptionBudget") == [], "one replica must be allowed to move"


def test_no_look_into_a_cluster():
    """Argo CD and others render without one."""
    templates = [*(CHART / "templates").iterdir()]
    assert len(templates) > 5 and not [t.name for t in templates if "lookup" in t.read_text()]


@pytest.mark.parametrize("path", ["dra", "classic"])
def test_gpu_objects_come_with_all_they_need_or_not_at_all(chart, render, path):
    def parts(node):
        things = render({"path": path, "node": node})
        [container] = one(things, "DaemonSet", "cantle-node")["spec"]["template"]["spec"]["containers"]
        rules = [rule for role in of_kind(things, "ClusterRole") for rule in role["rules"]]
        verbs = sorted(sorted(rule["verbs"]) for rule in rules if "gpus" in rule["resources"])
        policies = [thing["metadata"]["name"] for thing in of_kind(things, "ValidatingAdmissionPolicy")]
        return bool(of_kind(things, "CustomResourceDefinition")), "--gpu-objects" in container["args"], verbs, "cantle-node-gpus" in policies

    views, writes = ["get", "list", "watch"], ["create", "delete", "list", "patch"]
    assert parts({}) == (True, True, [writes, views], True)
    assert parts({"gpuObjects": False}) == (False, False, [], False)


def test_the_definition_of_gpu_objects_is_upgraded_and_removed_with_the_release(render):
    """Helm does neither with what is in crds/."""
    assert not (CHART / "crds").exists()
    definition = one(render(), "CustomResourceDefinition", "gpus.cantle.dev")
    assert definition["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert "helm.sh/resource-policy" not in definition["metadata"].get("annotations", {})
    [version] = definition["spec"]["versions"]
    names = [column["name"].upper() for column in version["additionalPrinterColumns"] if not column.get("priority")]
    page = (ROOT / "docs/kubernetes.md").read_text()
    [documented] = re.findall(r"^ +NAME +(NODE .*)$", page, re.MULTILINE)
    assert names == documented.split()


def test_queues_are_given_to_the_controller_as_they_are(render):
    glue = {
        "queue": "default0500",
        "basePodTemplate": {"env": [{"name": "A", "value": "1"}]},
        "queues": {
            "default0500": {
                "templateOverrides": {"labels": {"required-resources": "0.5", "clearml-injector/fraction": "0.500"}},
                "queueSettings": {"maxPods": 10},
            },
        },
    }
    values = {"queueController": {"enabled": True, "url": "http://server:8008", "secret": "keys", "namespace": "jobs"}}
    things = render({**values, "agentk8sglue": glue})
    assert yaml.safe_load(one(things, "ConfigMap", "cantle-queues")["data"]["queues.yaml"]) == {"agentk8sglue": glue}
    role = one(things, "Role", "cantle-queues")
    assert role["metadata"]["namespace"] == "jobs", "no rights in other namespaces"
    [container] = one(things, "Deployment", "cantle-queues")["spec"]["template"]["spec"]["containers"]
    assert "--namespace=jobs" in container["args"] and "--task-secret=keys" in container["args"]


@pytest.mark.parametrize("values, source", [
    ({"caSecret": "authority"}, {"secret": {"secretName": "authority", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}),
    ({"caConfigMap": "all", "caKey": "bundle.pem"}, {"configMap": {"name": "all", "items": [{"key": "bundle.pem", "path": "ca.crt"}]}}),
    ({}, None),
])
def test_the_controller_trusts_the_servers_authority(render, values, source):
    things = render({"queueController": {**QUEUES, **values}, "agentk8sglue": {"queue": "q"}})
    pod = one(things, "Deployment", "cantle-queues")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = [{key: value for key, value in volume.items() if key != "name"} for volume in pod["volumes"] if volume["name"] == "ca"]
    assert given == ([source] if source else [])
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "ca"]
    flags = [arg.removeprefix("--ca=") for arg in container["args"] if arg.startswith("--ca")]
    assert (mounts, flags) == ((["/ca"], ["/ca/ca.crt"]) if source else ([], []))


def test_the_controller_shows_a_certificate(render):
    def controller(**values):
        things = render({"queueController": {**QUEUES, **values}, "agentk8sglue": {"queue": "q"}})
        pod = one(things, "Deployment", "cantle-queues")["spec"]["template"]["spec"]
        [container] = pod["containers"]
        secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        return secrets, [arg for arg in container["args"] if arg.startswith("--client-")]

    flags = ["--client-cert=/client-tls/tls.crt", "--client-key=/client-tls/tls.key"]
    assert controller(clientTlsSecret="own") == (["own"], flags)
    assert controller() == ([], [])


def test_one_place_for_the_servers_authority(render):
    import helm_python

    both = {"caSecret": "one", "caConfigMap": "other"}
    with pytest.raises(helm_python.HelmError, match="two places for one file"):
        render({"queueController": {**QUEUES, **both}, "agentk8sglue": {"queue": "q"}})


def test_the_controller_shows_a_token_in_place_of_keys(render):
    def controller(**values):
        things = render({"queueController": {**QUEUES, **values}, "agentk8sglue": {"queue": "q"}})
        pod = one(things, "Deployment", "cantle-queues")["spec"]["template"]["spec"]
        [container] = pod["containers"]
        names = {each["name"] for each in container["env"]}
        tokens = [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", [])]
        return names & {"CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"}, tokens, "--token-file=/token/token" in container["args"]

    token = {"serviceAccountToken": {"audience": "cantle", "expirationSeconds": 3600, "path": "token"}}
    assert controller(tokenAudience="cantle") == (set(), [token], True)
    assert controller() == ({"CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"}, [], False)


def settings(command):
    """The values of a documented `helm install`, as helm reads `--set`: words and numbers that YAML has for others become such."""
    values = {}
    for path, value in re.findall(r"--set (\S+?)=(\S+)", command):
        *keys, last = [key.replace("\\.", ".") for key in re.split(r"(?<!\\)\.", path.replace('"', ""))]
        inner = values
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = yaml.safe_load(value)
    return values


def test_the_documented_install_is_taken(chart, render):
    page = (ROOT / "docs/kubernetes.md").read_text()
    [command] = re.findall(r"helm install cantle charts/cantle(?:.*\\\n)*.*", page)
    values = settings(command)
    assert values["node"]["nodeSelector"] == {"nvidia.com/gpu.present": True}, "what a shell makes of it"
    chart.validate_schema(values)
    pod = one(render(values), "DaemonSet", "cantle-node")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}, "labels are text"


def test_labels_of_nodes_are_text_everywhere(render):
    where = {"a.b/c": True, "n": 3, "t": "x: 'y'"}
    values = {part: {"nodeSelector": where} for part in ("webhook", "node")}
    values |= {"queueController": {**QUEUES, "nodeSelector": where}, "agentk8sglue": {"queue": "q"}}
    classic = render({**values, "path": "classic", "scheduler": {"nodeSelector": where}})
    found = [thing for thing in classic if thing["kind"] in ("Deployment", "DaemonSet")]
    assert len(found) == 4
    for thing in found:
        selector = thing["spec"]["template"]["spec"]["nodeSelector"]
        assert selector == {"a.b/c": "true", "n": "3", "t": "x: 'y'"}, thing["metadata"]["name"]


QUEUES = {"enabled": True, "url": "http://server:8008", "secret": "keys"}


# The keys of ClearML's own agent chart (clearml-agent 5.3), with values of the kinds that it has.
THEIRS = {
    "global": {"imageRegistry": "docker.io"},
    "imageCredentials": {"enabled": False, "registry": "docker.io", "username": "u", "password": "p", "email": "e"},
    "clearml": {"agentk8sglueKey": "A", "agentk8sglueSecret": "S", "clearmlConfig": "sdk {}"},
    "sessions": {"portModeEnabled": False, "svcType": "NodePort", "startingPort": 30000, "maxServices": 20},
}
OF_THEIR_AGENT = """image replicaCount resources initContainers serviceAccountAnnotations
serviceExistingAccountName clearmlcheckCertificate labels annotations extraEnvs
podSecurityContext containerSecurityContext additionalClusterRoleBindings additionalRoleBindings nodeSelector
tolerations affinity volumes volumeMounts fileMounts""".split()
EMPTY_LISTS = {"extraEnvs", "additionalClusterRoleBindings", "additionalRoleBindings", "tolerations", "volumes", "volumeMounts", "fileMounts"}


def theirs():
    given = {key: [] if key in EMPTY_LISTS else {} for key in OF_THEIR_AGENT}
    given |= {"replicaCount": 1, "clearmlcheckCertificate": True, "serviceExistingAccountName": "", "image": {"registry": "", "tag": "1"}}
    template = dict.fromkeys(["labels", "annotations", "resources", "nodeSelector", "affinity", "podSecurityContext", "containerSecurityContext"], {})
    template |= dict.fromkeys(["initContainers", "volumes", "volumeMounts", "fileMounts", "env", "tolerations", "hostAliases"], [])
    template |= {"schedulerName": "", "priorityClassName": ""}
    used = {"apiServerUrlReference": "https://api.clear.ml", "fileServerUrlReference": "https://files.clear.ml", "webServerUrlReference": "https://app.clear.ml"}
    used |= {"defaultContainerImage": "ubuntu:24.04", "queue": "default", "createQueueIfNotExists": False}
    return {**THEIRS, "agentk8sglue": {**given, **used, "basePodTemplate": template}}


def test_a_file_of_clearmls_agent_chart_is_taken_and_what_has_no_effect_is_named(chart, render):
    values = {**theirs(), "queueController": {"enabled": True, "secret": "keys"}}
    chart.validate_schema(values)
    [container] = one(render(values), "Deployment", "cantle-queues")["spec"]["template"]["spec"]["containers"]
    assert {"name": "CLEARML_API_HOST", "value": "https://api.clear.ml"} in container["env"], "their address is ours"
    [notes] = [text for path, text in chart.render(values, name="cantle", namespace="n").items() if path.endswith("NOTES.txt")]
    for key in ["clearml", "imageCredentials", "sessions", *(f"agentk8sglue.{key}" for key in OF_THEIR_AGENT)]:
        assert re.search(rf"[ ,]{re.escape(key)}(,|$)", notes, re.MULTILINE), (key, notes)
    assert "agentk8sglue.queue," not in notes and "agentk8sglue.basePodTemplate" not in notes
    [plain] = [text for path, text in chart.render(name="cantle", namespace="n").items() if path.endswith("NOTES.txt")]
    assert "no effect" not in plain


def test_pods_of_queues_have_a_namespace_that_the_injector_sees(render):
    """In an excluded namespace they would get whole GPUs, without a warning."""
    import helm_python

    things = render({"queueController": QUEUES, "agentk8sglue": {"queue": "q"}})
    namespace = one(things, "Role", "cantle-queues")["metadata"]["namespace"]
    [configuration] = of_kind(things, "MutatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        [excluded] = webhook["namespaceSelector"]["matchExpressions"]
        assert namespace not in excluded["values"]
    for values, said in [
        ({"namespace": ""}, "queueController.namespace is needed"),
        ({"namespace": "cantle-system"}, "is cantle-system, which the injector leaves out"),
        ({"namespace": "kube-system"}, "is kube-system, which the injector leaves out"),
        ({"namespace": "left-out"}, "is left-out, which the injector leaves out"),
    ]:
        with pytest.raises(helm_python.HelmError, match=said):
            render({"queueController": {**QUEUES, **values}, "agentk8sglue": {"queue": "q"}, "webhook": {"excludedNamespaces": ["left-out"]}})


@pytest.mark.parametrize("values, said", [
    ({"queues": {"default": {"default025": {}}}}, "'default025' not allowed"),
    ({"queues": {"q": {"templateOverrides": {"labels": {"required-resources": 0.5}}}}}, "want string"),
    ({"queues": {"q": {"queueSettings": {"maxPods": "two"}}}}, "got string, want integer"),
])
def test_wrong_queues_are_named(chart, values, said):
    import helm_python

    with pytest.raises(helm_python.HelmValuesError) as error:
        chart.validate_schema({"agentk8sglue": values})
    assert said in str(error.value)


def test_the_classic_path_needs_no_claims(render):
    things = render({"path": "classic", "scheduler": {"name": "gpus"}})
    assert not of_kind(things, "DeviceClass")
    groups = {group for role in of_kind(things, "ClusterRole") for rule in role["rules"] for group in rule["apiGroups"]}
    assert "resource.k8s.io" not in groups
    config = yaml.safe_load(one(things, "ConfigMap", "cantle-scheduler")["data"]["scheduler.yaml"])
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["gpus"]
    pods = {kind: one(things, kind, name)["spec"]["template"]["spec"] for kind, name in [("Deployment", "cantle-webhook"), ("DaemonSet", "cantle-node")]}
    assert {"--path=classic", "--scheduler=gpus", "--mig-resources"} <= set(pods["Deployment"]["containers"][0]["args"])
    assert "--path=classic" in pods["DaemonSet"]["containers"][0]["args"]
    paths = {volume["hostPath"]["path"] for volume in pods["DaemonSet"]["volumes"]}
    assert {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"} <= paths
    scheduler = one(things, "Deployment", "cantle-scheduler")["spec"]["template"]["spec"]
    [listen] = [arg for arg in scheduler["containers"][1]["args"] if arg.startswith("--listen=")]
    assert config["extenders"][0]["urlPrefix"].endswith(listen.removeprefix("--listen="))
    assert not of_kind(things, "Namespace") and "--reservation" not in pods["DaemonSet"]["containers"][0]["args"]


def test_nvidias_runtime_shows_the_node_driver_all_of_the_machine(render):
    """Without its last two variables, libnvidia-container covers /proc/driver/nvidia/capabilities, which makes and lists MIG instances."""
    [container] = one(render(), "DaemonSet", "cantle-node")["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    wanted = ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"]
    assert [env.get(name) for name in wanted] == ["all"] * 3
    # The runtime honors them for privileged containers only.
    assert container["securityContext"]["privileged"] is True


def test_packing_can_be_turned_off(render):
    def parts(values):
        things = render(values)
        [container] = one(things, "Deployment", "cantle-webhook")["spec"]["template"]["spec"]["containers"]
        rules = [rule for role in of_kind(things, "ClusterRole") for rule in role["rules"]]
        policies = [thing["metadata"]["name"] for thing in of_kind(things, "ValidatingAdmissionPolicy")]
        return "--no-packing" in container["args"], any("pods/status" in rule["resources"] for rule in rules), "cantle-webhook-packing" in policies

    assert parts({}) == (False, True, True)
    assert parts({"webhook": {"packing": False}}) == (True, False, False)


@pytest.mark.parametrize("webhook, evicts", [({}, True), ({"preemption": False}, False), ({"packing": False}, False)])
def test_preemption_can_be_turned_off(render, webhook, evicts):
    things = render({"webhook": webhook})
    [container] = one(things, "Deployment", "cantle-webhook")["spec"]["template"]["spec"]["containers"]
    resources = {name for role in of_kind(things, "ClusterRole") for rule in role["rules"] for name in rule["resources"]}
    assert {"pods/eviction", "poddisruptionbudgets"} <= resources if evicts else not resources & {"pods/eviction", "poddisruptionbudgets"}
    assert ("--no-preemption" in container["args"] or "--no-packing" in container["args"]) != evicts


@pytest.mark.parametrize("values, taken", [
    ({"path": "classic"}, True),
    ({"path": "classic", "webhook": {"migResources": False}}, False),
    # There they are device classes.
    ({"path": "dra"}, False),
])
def test_mig_resources_are_taken_on_the_classic_path_unless_another_gives_them_out(render, values, taken):
    things = render(values)
    (container,) = one(things, "Deployment", "cantle-webhook")["spec"]["template"]["spec"]["containers"]
    conditions = [each for hook in one(things, "MutatingWebhookConfiguration", "cantle-webhook")["webhooks"] for each in hook.get("matchConditions", [])]
    (asks,) = [each["expression"] for each in conditions if each["name"] == "asks"]
    assert ("--mig-resources" in container["args"], "nvidia.com/mig-" in asks) == (taken, taken)


def test_reservations_are_for_the_classic_path(render):
    import helm_python

    things = render({"path": "classic", "reservation": {"enabled": True}})
    node = one(things, "DaemonSet", "cantle-node")["spec"]["template"]["spec"]["containers"][0]
    assert "--reservation" in node["args"]
    extender = one(things, "Deployment", "cantle-scheduler")["spec"]["template"]["spec"]["containers"][1]
    assert f"--reservation-image={extender['image']}" in extender["args"]
    inside = {thing["kind"] for thing in things if thing["metadata"].get("namespace") == "cantle-reservation"}
    assert inside == {"Role", "RoleBinding", "PodDisruptionBudget"}
    assert one(things, "PriorityClass", "cantle-reservation")["preemptionPolicy"] == "Never"
    with pytest.raises(helm_python.HelmError, match="reservation.enabled needs path=classic"):
        render({"reservation": {"enabled": True}})


def test_monitoring_is_opt_in_and_each_alert_has_a_runbook(render):
    """Rendered and read; Prometheus and its operator are not run."""
    kinds = ("PodMonitor", "PrometheusRule")
    assert not [thing for thing in render() if thing["kind"] in kinds]
    things = render({"monitoring": {"podMonitor": True, "rules": True, "interval": "15s", "labels": {"release": "stack"}}})
    monitor, rules = (one(things, kind, "cantle") for kind in kinds)
    assert all(thing["metadata"]["labels"]["release"] == "stack" for thing in (monitor, rules))
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "observe", "honorLabels": True, "interval": "15s"}
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    parts = of_kind(things, "Deployment") + of_kind(things, "DaemonSet")
    for part in parts:
        template = part["spec"]["template"]
        assert selected <= template["metadata"]["labels"].items()
        assert "observe" in [port["name"] for c in template["spec"]["containers"] for port in c.get("ports", [])]
    runbooks, metrics = ((ROOT / "docs" / name).read_text() for name in ("alerts.md", "metrics.md"))
    [group] = rules["spec"]["groups"]
    for rule in group["rules"]:
        assert f"\n## {rule['alert']}\n" in runbooks, rule["alert"]
        assert rule["annotations"]["runbook_url"].endswith(f"docs/alerts.md#{rule['alert'].lower()}")
        used = re.findall(r"cantle_[a-z_]+", rule["expr"])
        assert used and all(f"`{name}`" in metrics for name in used), used


def test_the_page_has_the_cases_of_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/cluster")
    import cases

    assert cases.PAGE.read_text() == cases.page(), "run: python3 tests/cluster/cases.py"
    assert set(cases.ABSENT) <= {(case, path) for case in cases.marked() for path in cases.PATHS}
