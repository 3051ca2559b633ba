"""Bills of materials: `/skills/{name}/{version}.cdx.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from skillery.attestations.policies import is_permitted
from skillery.formats.package_json import license_of
from tests.conftest import Rpc, Server, StartShared, skill_files
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


@pytest.mark.full
def test_a_policy_permits_licences(
    database_kind: str,
    shared_server: StartShared,
    tmp_path_factory: pytest.TempPathFactory,
    wheelhouse: Path,
    new_name: str,
) -> None:
    folder = tmp_path_factory.mktemp("licences")
    (folder / "skillery.toml").write_text('[policy."free.*"]\nlicences = ["MIT", "Apache-2.0", "MIT License"]\n')
    more = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_CONFIG": str(folder / "skillery.toml")}
    rpc = shared_server("licences", database_kind, **more).rpc
    headers = {
        "either": ["License-Expression: mit OR GPL-3.0-only"],
        "classified": ["Classifier: License :: OSI Approved :: MIT License"],
        "both": ["License-Expression: MIT AND GPL-3.0-only"],
        "long": [f"License-Expression: {'MIT AND ' * 20}GPL-3.0-only"],
        "silent": [],
    }
    for kind, lines in headers.items():
        make_wheel(wheelhouse, f"{kind}{new_name}", "1.0", headers=lines)

    def created(part: str, *packages: str, licence: str = "MIT") -> tuple[str, str]:
        name = f"free.{new_name}.{part}"
        skill_md = f"---\nlicense: {licence}\n---\n# A\n" if licence else "# A\n"
        packages = tuple(f"{package}{new_name}" for package in packages)
        bundle = {"manifest": needing(name, *packages), "skill_md": skill_md, "files": skill_files(CODE)}
        checked = rpc("check_skill", **bundle)
        version = rpc("create_skill", **bundle)
        assert checked["status"] == version["status"]
        [need] = rpc("explain_policy", name=name, version="1.0.0")["needs"]
        assert need["need"] == "licences"
        return version["status"], need["missing"]

    assert created("a", "either", "classified") == ("published", "")
    for part, licence, text in (("b", "", "unknown"), ("c", "GPL-3.0-only", "GPL-3.0-only")):
        refused = f"other licences of skillery:free.{new_name}.{part}@1.0.0 ({text})"
        assert created(part, licence=licence) == ("in_review", refused)
    status, missing = created("d", "either", "both", "long", "silent")
    assert status == "in_review"
    for package, text in (("both", "MIT AND GPL-3.0-only"), ("long", "MIT AND MIT"), ("silent", "unknown")):
        assert f"pkg:pypi/{package}{new_name}@1.0 ({text}" in missing
    assert "either" not in missing


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("mit", True),
        ("(MIT)", True),
        ("GPL-3.0-only OR (BSD-3-Clause AND MIT)", False),
        ("GPL-3.0-only AND BSD-3-Clause OR MIT", True),
        ("(GPL-3.0-only OR MIT) AND MIT", True),
        ("GPL-3.0-only AND (MIT OR MIT)", False),
        ("(MIT OR GPL-3.0-only) AND GPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0 AND MIT", True),
        ("GPL-2.0-only", False),
        ("MIT AND", False),
        ("MIT Licence", False),
        ("(" * 500 + "MIT" + ")" * 500, False),
    ],
)
def test_expressions_permit_a_choice(text: str, is_met: bool) -> None:
    assert is_permitted(text, frozenset({"mit", "gpl-2.0-only with classpath-exception-2.0"})) == is_met


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
