"""Each package in plugins/ can be used alone: it has a README with all of its settings, and a changelog."""

from __future__ import annotations

import tomllib
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from skillery.plugins import load_plugins

PACKAGES = sorted(path.parent for path in (Path(__file__).parents[2] / "plugins").glob("*/pyproject.toml"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_plugin_package_describes_itself(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text())
    packed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]

    assert f"## {project['project']['version']}\n" in (package / "CHANGELOG.md").read_text()
    assert {"/README.md", "/CHANGELOG.md", "/tests"} <= set(packed)
    assert project["project"]["readme"] == "README.md"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_setting_is_in_the_readme(package: Path) -> None:
    plugins, module = load_plugins(), package.name.replace("-", "_")
    offers = [*chain.from_iterable(of_kind.values() for of_kind in plugins.offers.values()), *plugins.objects.values()]
    own = [offer for offer in offers if offer.open.__module__.partition(".")[0] == module]
    readme = (package / "README.md").read_text()
    fields = [field.encode_name for offer in own for field in msgspec.structs.fields(offer.settings)]

    assert own
    assert [name for name in fields if f"`{name}`" not in readme] == []
