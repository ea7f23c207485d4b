"""The servers of a fleet, as the chart makes them of examples/fleet-values.yaml."""

import pytest
import yaml
from conftest import ROOT

LABELS = {"app.kubernetes.io/name": "cantle", "app.kubernetes.io/instance": "cantle", "app.kubernetes.io/component": "server"}


@pytest.fixture
def values():
    return yaml.safe_load((ROOT / "examples/fleet-values.yaml").read_text())


@pytest.fixture
def server(render):
    """The objects of the servers, by kind."""

    def server(values):
        things = [thing for thing in render(values) if thing["metadata"]["name"] == "cantle-server"]
        return {thing["kind"]: thing["spec"] for thing in things if "spec" in thing}

    return server


def test_the_example_is_taken_and_its_names_fit_together(chart, server, values):
    chart.validate_schema(values)
    made = server(values)
    assert made.keys() == {"Deployment", "PodDisruptionBudget", "Service"}
    pod = made["Deployment"]["template"]
    assert made["Deployment"]["replicas"] == 3
    assert made["Deployment"]["selector"]["matchLabels"] == LABELS and LABELS.items() <= pod["metadata"]["labels"].items()
    assert made["Service"]["selector"] == LABELS
    assert made["PodDisruptionBudget"]["selector"]["matchLabels"] == LABELS
    spread = pod["spec"]["topologySpreadConstraints"]
    assert [s["topologyKey"] for s in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(s["labelSelector"]["matchLabels"] == LABELS for s in spread)
    [container] = pod["spec"]["containers"]
    assert container["args"][0] == "server" and "--files=s3://cantle" in container["args"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    for one in (container, *pod["spec"]["initContainers"]):
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
        assert one["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_database_is_the_operators(server, values):
    """The names of CloudNativePG's Secrets follow the Cluster's: https://cloudnative-pg.io/docs/ (Applications, Certificates)."""
    cluster = yaml.safe_load((ROOT / "examples/fleet-postgres.yaml").read_text())
    name = cluster["metadata"]["name"]
    pod = server(values)["Deployment"]["template"]["spec"]
    [container] = pod["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["CANTLE_DATABASE"]["valueFrom"]["secretKeyRef"] == {"name": f"{name}-app", "key": "uri"}
    assert env["PGSSLMODE"]["value"] == "verify-full"
    [ca] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "database-ca"]
    assert ca == {"secretName": f"{name}-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert "postgres://" not in yaml.safe_dump(pod), "a URL with a password is in a Secret only"
    # A server more during an upgrade, and what the operator needs itself.
    allowed = int(cluster["spec"]["postgresql"]["parameters"]["max_connections"])
    assert (values["server"]["replicas"] + 1) * 17 + 20 <= allowed


def test_only_a_server_that_takes_tokens_of_the_cluster_may_ask_about_them(server, values):
    made = server({**values, "server": {**values["server"], "kubernetesTokens": "cantle"}})
    pod = made["Deployment"]["template"]["spec"]
    assert "--kubernetes-tokens=cantle" in pod["containers"][0]["args"]
    assert pod["serviceAccountName"] == "cantle-server" and "automountServiceAccountToken" not in pod
    pod = server(values)["Deployment"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod


def test_a_database_that_is_away_restarts_no_server(server, values):
    [container] = server(values)["Deployment"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "api", "scheme": "HTTPS"}
    assert container["livenessProbe"] == {"tcpSocket": {"port": "api"}}


def test_plain_http_only_without_a_certificate(server, values):
    def container():
        [container] = server(values)["Deployment"]["template"]["spec"]["containers"]
        return container

    assert "--insecure-http" not in container()["args"]
    values["server"]["tlsSecret"] = ""
    assert "--insecure-http" in container()["args"]
    assert container()["readinessProbe"]["httpGet"]["scheme"] == "HTTP"


def with_notebooks(values, **notebooks):
    server = {**values["server"], "replicas": 1, "notebooks": {"enabled": True, **notebooks}}
    return {**values, "server": server}


def test_notebooks_have_a_port_of_the_server_and_of_its_service(chart, server, values):
    def ports(made):
        [container] = made["Deployment"]["template"]["spec"]["containers"]
        options = [arg for arg in container["args"] if arg.startswith("--notebook")]
        of_pod = {port["name"]: port["containerPort"] for port in container["ports"]}
        of_service = {port["name"]: (port["port"], port["targetPort"]) for port in made["Service"]["ports"]}
        return options, of_pod, of_service

    assert ports(server(values)) == ([], {"api": 8008}, {"api": (8008, "api")})
    assert ports(server(with_notebooks(values))) == (
        ["--notebook-listen=0.0.0.0:8009"],
        {"api": 8008, "notebooks": 8009},
        {"api": (8008, "api"), "notebooks": (8009, "notebooks")},
    )
    given = with_notebooks(values, port=9443, url="https://*.notebooks.example")
    chart.validate_schema(given)
    options, of_pod, of_service = ports(server(given))
    assert options == ["--notebook-listen=0.0.0.0:9443", "--notebook-url=https://*.notebooks.example"]
    assert (of_pod["notebooks"], of_service["notebooks"]) == (9443, (9443, "notebooks"))


@pytest.mark.parametrize("change, said", [
    ({"replicas": 3, "notebooks": {"enabled": True}}, "server.notebooks.enabled needs server.replicas: 1"),
    ({"notebooks": {"url": "https://notebooks.example"}}, "server.notebooks.url needs server.notebooks.enabled: true"),
])
def test_notebooks_that_nobody_could_open_are_refused(render, values, change, said):
    import helm_python

    with pytest.raises(helm_python.HelmError) as error:
        render({**values, "server": {**values["server"], **change}})
    assert said in str(error.value)


@pytest.mark.parametrize("notebooks", [{"port": 8008}, {"port": 80}, {"port": "8009"}, {"url": "notebooks.example"}])
def test_an_address_of_notebooks_that_is_none_is_named(chart, values, notebooks):
    import helm_python

    with pytest.raises(helm_python.HelmValuesError) as error:
        chart.validate_schema(with_notebooks(values, **notebooks))
    assert "/server/notebooks" in str(error.value)


@pytest.mark.parametrize("path, said", [
    (["database", "secret"], "server.database.secret is needed"),
    (["keysSecret"], "server.keysSecret is needed"),
    (["files"], "server.files is needed: s3://BUCKET"),
    (["url"], "server.url is needed"),
])
def test_what_is_missing_is_named(render, values, path, said):
    import helm_python

    *outer, last = path
    inner = values["server"]
    for key in outer:
        inner = inner[key]
    inner[last] = ""
    with pytest.raises(helm_python.HelmError) as error:
        render(values)
    assert said in str(error.value)


def test_files_of_several_servers_are_not_on_a_disk(chart, values):
    import helm_python

    values["server"]["files"] = "/var/files"
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)
