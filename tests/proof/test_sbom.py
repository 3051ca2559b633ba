"""Bills of materials: `/skills/{name}/{version}.cdx.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from skillery.formats.package_json import license_of
from tests.conftest import Rpc, Server, StartShared
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import CODE, create, needing
from tests.support.people import Caller, Who, people_settings
from tests.support.wheels import make_wheel

Publish = Callable[..., dict[str, Any]]
FREE_TEXT = "License: MIT AND\tGPL"


def sbom_of(rpc: Rpc, name: str, version: str = "latest") -> dict[str, Any]:
    """Return the bill of materials of a version, which the official schema accepts."""
    response = rpc.http.get(f"/skills/{name}/{version}.cdx.json")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.cyclonedx+json"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(response.text) is None
    document: dict[str, Any] = response.json()
    return document


def licences(document: dict[str, Any]) -> dict[str, Any]:
    return {component["name"]: component.get("licenses") for component in document["components"]}


def test_sboms_have_the_locked_packages_and_licences_once_installed(
    packages: Server, wheelhouse: Path, new_name: str
) -> None:
    headers = {
        "expressed": ["License-Expression: mit or Apache-2.0", "Classifier: License :: OSI Approved"],
        "classified": ["License: x", "Classifier: License :: OSI Approved :: MIT License"],
        "worded": [FREE_TEXT],
        "silent": ["License:"],
    }
    names = {f"{kind}{new_name}": lines for kind, lines in headers.items()}
    for name, lines in names.items():
        make_wheel(wheelhouse, name, "1.0", headers=lines)
    created = create(packages.rpc, needing(f"{new_name}.a", *names), CODE)
    before = sbom_of(packages.rpc, f"{new_name}.a", "1.0.0")
    assert packages.rpc("execute_skill", name=f"{new_name}.a", args={})["status"] == "completed"
    after = sbom_of(packages.rpc, f"{new_name}.a", "1.0.0")

    [first, *_] = sorted(before["components"], key=lambda component: str(component["name"]))
    assert first["purl"] == first["bom-ref"] == f"pkg:pypi/classified{new_name}@1.0"
    assert [entry["alg"] for entry in first["hashes"]] == ["SHA-256"]
    skill = before["metadata"]["component"]
    assert (skill["name"], skill["version"]) == (f"{new_name}.a", "1.0.0")
    assert f"sha256:{skill['hashes'][0]['content']}" == created["digest"]
    assert before["serialNumber"] == after["serialNumber"]
    assert licences(after) == {
        f"expressed{new_name}": [{"expression": "MIT OR Apache-2.0"}],
        f"classified{new_name}": [{"license": {"name": "MIT License"}}],
        f"worded{new_name}": [{"license": {"name": "MIT AND\\tGPL"}}],
        f"silent{new_name}": None,
    }


def test_sboms_name_licence_and_source_of_imported_skills(server: Server, new_name: str) -> None:
    files = {f"{new_name}/SKILL.md": skill_md(new_name).replace("---\n", "---\nlicense: MIT\n", 1)}
    sent(server.rpc, zipped(files), source="https://example.org/a b.git")

    skill = sbom_of(server.rpc, new_name)["metadata"]["component"]
    assert skill["licenses"] == [{"expression": "MIT"}]
    assert skill["externalReferences"] == [{"type": "vcs", "url": "https://example.org/a%20b.git"}]
    properties = {entry["name"]: entry["value"] for entry in skill["properties"]}
    assert properties == {"skillery:source": "https://example.org/a b.git", "skillery:path": new_name}


def test_sboms_of_versions_without_packages_have_no_components(server: Server, publish: Publish, new_name: str) -> None:
    publish(new_name)

    assert sbom_of(server.rpc, new_name)["components"] == []
    assert server.rpc.http.get(f"/skills/{new_name}/9.9.9.cdx.json").status_code == 404
    assert server.rpc.http.get("/skills/unknown-skill/latest.cdx.json").status_code == 404


@pytest.mark.full
def test_sboms_show_the_source_only_to_callers_with_credentials(
    shared_server: StartShared, tmp_path_factory: pytest.TempPathFactory, new_name: str
) -> None:
    settings = people_settings(tmp_path_factory.mktemp("people"), SKILLERY_PUBLIC_DOWNLOADS="true")
    server = shared_server("public_downloads", "sqlite", **settings)
    author = Caller(server.url, Who("ann", "read run publish", "*"))
    for name in (f"{new_name}-open", f"{new_name}-team"):
        sent(author, zipped({f"{name}/SKILL.md": skill_md(name)}), source="https://example.org/a.git")
    author("set_visibility", name=f"{new_name}-team", visibility="namespace")
    anonymous = Rpc(server.url)

    assert sbom_of(author, f"{new_name}-open")["metadata"]["component"]["properties"]
    assert "properties" not in sbom_of(anonymous, f"{new_name}-open")["metadata"]["component"]
    assert sbom_of(author, f"{new_name}-team")["components"] == []
    assert anonymous.http.get(f"/skills/{new_name}-team/1.0.0.cdx.json").status_code == 404


@pytest.mark.parametrize(
    ("stated", "names"),
    [
        ('{"license": "MIT"}', ["MIT"]),
        ('{"license": {"type": "ISC", "url": "x"}}', ["ISC"]),
        ('{"licenses": [{"type": "MIT"}, {"type": "BSD"}, 7]}', ["MIT", "BSD"]),
        ('{"license": 7}', []),
        ("[]", []),
        ("{", []),
    ],
)
def test_package_json_states_licences_in_three_forms(stated: str, names: list[str]) -> None:
    assert license_of(stated.encode()) == names
