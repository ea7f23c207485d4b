"""cantle's chart, as objects."""

import pathlib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACE = "cantle-system"
NODE = "cantle-node"
# Kinds of the chart that stand in the path of their own name.
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
}


def place(thing):
    return PLACES[thing["kind"]].format(thing["metadata"].get("namespace", NAMESPACE))


def rendered(values=None):
    import helm_python

    with helm_python.Chart.load(ROOT / "charts/cantle") as chart:
        files = chart.render(values, name="cantle", namespace=NAMESPACE)
    texts = (text for path, text in sorted(files.items()) if path.endswith(".yaml"))
    return [thing for text in texts for thing in yaml.safe_load_all(text) if thing]


def standing():
    """The objects that all tests share: the device classes, and the rights of node drivers."""
    rights = lambda thing: thing["metadata"]["name"] == NODE and thing["kind"] != "DaemonSet"
    return [thing for thing in rendered() if thing["kind"] == "DeviceClass" or rights(thing)]


def create(api, things):
    for thing in things:
        api.create(place(thing), thing)


def delete(api, things):
    for thing in things:
        api.delete(f"{place(thing)}/{thing['metadata']['name']}")


def remove_devices(api):
    """The slices that a former driver has published. The kubelet removes that half a minute later, for which one test waits."""
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for each in api.items(slices):
        api.delete(f"{slices}/{each['metadata']['name']}")
