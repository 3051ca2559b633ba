"""packaging/: the images, the compose file and the chart fit together. Nothing is built or started here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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
