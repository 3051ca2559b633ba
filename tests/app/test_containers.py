"""packaging/: the images, the compose file and the chart fit together. Nothing is built or started here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.test_cli import skillery

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
