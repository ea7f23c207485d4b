"""cantle's chart, as objects."""

import pathlib

import yaml

from api import ApiError
from processes import wait_until

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
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
DEFINITION = "CustomResourceDefinition"


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
    things = rendered()
    return [thing for thing in things if thing["kind"] == "DeviceClass"] + of_node_drivers(things)


def of_node_drivers(things):
    """Their rights, and the definition of what they write."""
    rights = lambda thing: thing["metadata"]["name"] in (NODE, f"{NODE}-gpus") and thing["kind"] != "DaemonSet"
    return [thing for thing in things if thing["kind"] == DEFINITION or rights(thing)]


def create(api, things):
    for thing in things:
        if thing["kind"] == DEFINITION:
            # Of a removed release it goes after its objects.
            wait_gone(api, thing)
        api.create(place(thing), thing)
    wait_served(api, things)


def delete(api, things):
    for thing in things:
        api.delete(f"{place(thing)}/{thing['metadata']['name']}")
    for thing in things:
        if thing["kind"] == DEFINITION:
            wait_gone(api, thing)


def wait_gone(api, thing):
    path = f"{place(thing)}/{thing['metadata']['name']}"
    wait_until(lambda: api.find(path) is None, 60, f"the end of {path}")


def wait_served(api, things):
    """Until the API server serves the objects of each definition."""
    for thing in things:
        if thing["kind"] == DEFINITION:
            of = thing["spec"]
            served = f"/apis/{of['group']}/{of['versions'][0]['name']}/{of['names']['plural']}"
            wait_until(lambda: is_served(api, served), 60, lambda: api.get(f"{place(thing)}/{thing['metadata']['name']}"))


def is_served(api, path):
    try:
        return api.find(path)
    except ApiError as error:
        # "storage is (re)initializing"
        if error.code != 429:
            raise
        return None


def wait_denied(dry_run, words):
    """Until a policy denies the call with these words. The API server looks for new policies once a second."""
    def is_denied():
        try:
            dry_run()
        except ApiError as error:
            return words in str(error)
        return False

    wait_until(is_denied, 60, f"a policy that says: {words}")


def remove_devices(api):
    """The slices that a former driver has published. The kubelet removes that half a minute later, for which one test waits."""
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for each in api.items(slices):
        api.delete(f"{slices}/{each['metadata']['name']}")
