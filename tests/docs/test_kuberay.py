"""packaging/kuberay.yaml: the parts fit together, and Skillery reads its settings. No Kubernetes runs here."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skillery_ray.settings import RaySettings
from tests.cli.test_cli import skillery

FILE = Path(__file__).parents[2] / "packaging" / "kuberay.yaml"
VALUES = {"SKILLERY_DATABASE": "postgresql://skillery@db.example.org/skillery"}


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text("utf-8"))}


def containers(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    mounted = {one["name"] for one in container.get("volumeMounts", ())}
    assert mounted == {one["name"] for one in pod["spec"].get("volumes", ())}
    found: dict[str, Any] = container
    return found


def test_the_manifest_has_a_cluster_a_server_and_a_service() -> None:
    cluster, server, service = (documents()[kind] for kind in ("RayCluster", "Deployment", "Service"))

    spec = cluster["spec"]
    pods = [spec["headGroupSpec"]["template"], *(one["template"] for one in spec["workerGroupSpecs"])]
    pods.append(server["spec"]["template"])
    assert len({containers(pod)["image"] for pod in pods}) == 1, "all pods need the same versions"
    assert server["spec"]["selector"]["matchLabels"] == server["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == server["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["targetPort"] in [one["name"] for one in containers(pods[-1])["ports"]]


def test_the_server_reads_the_settings_and_finds_the_nodes(tmp_path: Path) -> None:
    cluster, server, text = documents()["RayCluster"], documents()["Deployment"], settings()
    container = containers(server["spec"]["template"])
    (tmp_path / "skillery.toml").write_text(text)
    environment = {one["name"]: one.get("value", VALUES.get(one["name"], "x")) for one in container["env"]}

    shown = skillery("config", "show", "--json", "--config", str(tmp_path / "skillery.toml"), **environment)

    assert shown.code == 0, shown.err
    assert shown.json["sandbox"]["value"] == "ray"
    assert shown.json["database"]["value"].startswith("postgresql://")
    ray = tomllib.loads(text)["backends"]["sandbox"]["ray"]
    checked = msgspec.convert(ray, RaySettings)
    assert checked.address == f"{cluster['metadata']['name']}-head-svc:6379"
    assert f"--address={checked.address}" in container["args"][0]
    assert "--config /etc/skillery/skillery.toml" in container["args"][0]
    [workers] = cluster["spec"]["workerGroupSpecs"]
    label, value = workers["rayStartParams"]["labels"].split("=")
    assert checked.labels == {label: value}


def settings() -> str:
    text: str = documents()["ConfigMap"]["data"]["skillery.toml"]
    return text
