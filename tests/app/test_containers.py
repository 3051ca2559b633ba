"""packaging/: the images, the compose file and the chart fit together. Nothing is built or started here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from skillery_ray.settings import RaySettings
from tests.cli.test_cli import skillery
from tests.support import chart

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
CONTAINERFILE = (PACKAGING / "Containerfile").read_text("utf-8")
PROJECTS = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
EXTRAS = ("packages", "node", "otel")


def pins(path: str) -> dict[str, str]:
    """Return the versions of a lock by the names of packages."""
    return dict(re.findall(r"^([a-z][\w.-]*)==(\S+)", (ROOT / path).read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_lock_of_images_has_the_dependencies_of(project: Path) -> None:
    table = tomllib.loads(project.read_text("utf-8"))["project"]
    extras = table.get("optional-dependencies", {})
    needed = [*table["dependencies"], *(line for name in EXTRAS for line in extras.get(name, ()))]
    names = {re.split(r"[\[<>=;~ ]", line)[0] for line in needed} - {"skillery", "cellblock"}

    assert names - pins("requirements-container.lock").keys() == set()


def test_images_have_the_versions_that_the_tests_have() -> None:
    tested = pins("requirements.lock")
    for plugin in ("ray", "semantic"):
        tested |= pins(f"plugins/skillery-{plugin}/tests/requirements-{plugin}.txt")

    assert {name: tested.get(name, version) for name, version in pins("requirements-container.lock").items()} == pins(
        "requirements-container.lock"
    )


def test_each_image_runs_as_an_ordinary_user_with_a_health_check() -> None:
    stages = {stage.split()[2]: stage for stage in re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)[1:]}

    assert list(stages) == ["build", "slim", "full"], "the last image is the default"
    assert stages["slim"].count("HEALTHCHECK") == 1
    assert [re.findall(r"^USER (.+)$", stages[name], re.MULTILINE)[-1] for name in ("slim", "full")] == [
        "1000:1000"
    ] * 2


# -- compose.yaml ------------------------------------------------------------------------------------------------------

ANSWERS = {
    "SKILLERY_NAME": "skills.example.org",
    "POSTGRES_PASSWORD": "pass",
    "S3_KEY": "key",
    "S3_SECRET": "secret",
    "TLS_CERTIFICATE": "./tls.crt",
    "TLS_KEY": "./tls.key",
}


def services() -> dict[str, Any]:
    """Return the services of compose.yaml with ANSWERS in place of variables."""
    text = (PACKAGING / "compose.yaml").read_text("utf-8")
    listed: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+):\?\}", lambda match: ANSWERS[match[1]], text))[
        "services"
    ]
    return listed


def test_server_of_compose_reads_its_settings() -> None:
    server = services()["server"]

    shown = skillery("config", "show", "--json", **server["environment"])

    assert shown.code == 0, shown.err
    values = {name: shown.json[name]["value"] for name in ("storage", "allowed_hosts", "trusted_proxies")}
    assert values == {"storage": "s3", "allowed_hosts": ["skills.example.org"], "trusted_proxies": ["127.0.0.1"]}
    assert shown.json["database"]["value"].endswith("@postgres/skillery")


def test_services_of_compose_fit_together() -> None:
    server, nginx, objects = (services()[name] for name in ("server", "nginx", "objects"))

    assert server["build"]["args"]["PLUGINS"] == "s3"
    assert (PACKAGING / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    [profile] = [option[8:] for option in server["security_opt"] if option.startswith("seccomp=")]
    assert (PACKAGING / profile).is_file()
    # nginx.conf sends requests to 127.0.0.1:8080, and reads the certificate below these names.
    configuration = (PACKAGING / "nginx.conf").read_text("utf-8")
    assert nginx["network_mode"] == "service:server"
    mounted = [volume.split(":")[:2] for volume in nginx["volumes"]]
    assert (PACKAGING / mounted[0][0]).is_file()
    assert all(f" {target};" in configuration for _, target in mounted[1:])
    assert objects["environment"].items() <= server["environment"].items()
    assert server["environment"]["SKILLERY_BACKENDS_STORAGE_S3_ENDPOINT"] == "http://objects:8333"


# -- chart/ ------------------------------------------------------------------------------------------------------------

SECRETS = {
    "SKILLERY_DATABASE": "postgresql://skillery@db.example.org/skillery",
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "SKILLERY_SECRET_SIGNING"), "x"),
}
VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text("utf-8"))
with_helm = pytest.mark.skipif(not (chart.HELM / ".installed").exists(), reason="make .tools/helm/.installed (360 MB)")


def shown_settings(text: str, folder: Path, **variables: str) -> dict[str, Any]:
    """Return what a server with this skillery.toml and the secrets of the chart shows of its settings."""
    (folder / "skillery.toml").write_text(text)
    command = ("config", "show", "--json", "--config", str(folder / "skillery.toml"))
    environment: dict[str, Any] = SECRETS | variables
    shown = skillery(*command, **environment)
    assert shown.code == 0, shown.err
    listed: dict[str, Any] = shown.json
    return listed


@pytest.mark.full
def test_server_reads_the_settings_of_the_chart(tmp_path: Path) -> None:
    shown = shown_settings(VALUES["settings"], tmp_path, SKILLERY_HOME=str(tmp_path))

    assert shown["storage"]["value"] == "s3"
    assert shown["allowed_hosts"]["value"] == [VALUES["ingress"]["host"]]
    assert (PACKAGING / "seccomp.json").is_file()


@with_helm
@pytest.mark.full
@pytest.mark.parametrize("with_ray", [False, True], ids=["sandbox", "ray"])
def test_chart_becomes_documents_of_kubernetes(*, with_ray: bool) -> None:
    page = chart.rendered({"ray": {"enabled": with_ray}, "ingress": {"enabled": True}, "apparmor": "skillery"})

    assert page["problems"] == page["schemas"] == []
    parts = {document["kind"]: document for document in page["documents"]}
    assert ("RayCluster" in parts) is with_ray
    server, service, ingress = (parts[kind]["spec"] for kind in ("Deployment", "Service", "Ingress"))
    assert server["selector"]["matchLabels"] == server["template"]["metadata"]["labels"] == service["selector"]
    [container] = containers(server["template"])
    assert service["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": parts["Service"]["metadata"]["name"], "port": {"name": service["ports"][0]["name"]}}
    # One pod needs the rights of the sandbox: the server, or a worker of Ray.
    pods = [server["template"]]
    if with_ray:
        ray = parts["RayCluster"]["spec"]
        pods += [ray["headGroupSpec"]["template"], ray["workerGroupSpecs"][0]["template"]]
    of_sandbox = [pod for pod in pods if containers(pod)[0]["securityContext"].get("procMount") == "Unmasked"]
    assert of_sandbox == [pods[-1]]
    assert pods[-1]["spec"]["hostUsers"] is False
    profile = {"type": "Localhost", "localhostProfile": "skillery.json"}
    assert containers(pods[-1])[0]["securityContext"]["seccompProfile"] == profile
    assert len({containers(pod)[0]["image"] for pod in pods}) == 1, "all pods need the same versions"


@with_helm
@pytest.mark.full
def test_only_pods_of_the_chart_reach_its_nodes_of_ray() -> None:
    documents = chart.rendered({"ray": {"enabled": True}})["documents"]
    parts = {document["kind"]: document for document in documents}
    of_server = parts["Deployment"]["spec"]["selector"]
    of_ray = {"matchLabels": {"ray.io/cluster": parts["RayCluster"]["metadata"]["name"]}}
    policies = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]

    both = {"from": [{"podSelector": of_ray}, {"podSelector": of_server}]}
    assert [(policy["podSelector"], policy["ingress"]) for policy in policies] == [
        (of_ray, [both]),
        (of_server, [{"ports": [{"port": "http"}]}, both]),
    ]


@with_helm
@pytest.mark.full
def test_server_of_the_chart_finds_the_nodes_of_ray(tmp_path: Path) -> None:
    parts = {document["kind"]: document for document in chart.rendered({"ray": {"enabled": True}})["documents"]}
    text = parts["ConfigMap"]["data"]["skillery.toml"]
    [container] = containers(parts["Deployment"]["spec"]["template"])
    variables = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}

    shown = shown_settings(text, tmp_path, **variables | {"SKILLERY_HOME": str(tmp_path)})

    assert shown["sandbox"]["value"] == "ray"
    settings = msgspec.convert(tomllib.loads(text)["backends"]["sandbox"]["ray"], RaySettings)
    assert settings.address == f"{parts['RayCluster']['metadata']['name']}-head-svc:6379"
    assert f"--address={settings.address}" in container["args"][-1]
    [workers] = parts["RayCluster"]["spec"]["workerGroupSpecs"]
    label, value = workers["rayStartParams"]["labels"].split("=")
    assert settings.labels == {label: value}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod. Each of their mounts must be a volume of the pod."""
    listed: list[dict[str, Any]] = pod["spec"]["containers"]
    mounted = {mount["name"] for container in listed for mount in container.get("volumeMounts", ())}
    assert mounted == {volume["name"] for volume in pod["spec"].get("volumes", ())}
    return listed
