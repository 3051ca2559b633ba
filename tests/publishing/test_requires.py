"""Skills that require other skills: `[requires.skills]`, the chosen versions, and runs that mount them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Rpc, RpcError, manifest, skill_files

PERMISSIONS = {"network": ["https://mail.example.com"]}


def skill(name: str, version: str = "1.0.0", code: str = "", **more: Any) -> dict[str, Any]:
    """Return the params of create_skill for a skill whose result names its version."""
    code = code or f"def main(args):\n    return '{name.rpartition('.')[2]} {version}'\n"
    requires = {"requires": {"skills": more.pop("skills")}} if "skills" in more else {}
    return {
        "manifest": manifest(name, version, **requires, **more),
        "skill_md": f"# {name}\n",
        "files": skill_files(code),
    }


def calling(*names: str) -> str:
    """Return code that returns the results of these skills."""
    imports = [f"from skills.{name} import main as f{number}\n" for number, name in enumerate(names)]
    calls = ", ".join(f"f{number}({{}})" for number in range(len(names)))
    return f"{''.join(imports)}\ndef main(args):\n    return [{calls}]\n"


@pytest.mark.full
def test_runs_mount_the_versions_that_publishing_chose(rpc: Rpc, new_name: str) -> None:
    base, mail, middle, top = (f"{new_name}.{each}" for each in ("base", "mail", "middle", "top"))
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        rpc("create_skill", **skill(base, version))
    rpc("create_skill", **skill(mail, code=calling(base), permissions=PERMISSIONS, skills={base: "~1.0"}))
    rpc("create_skill", **skill(middle, code=calling(base), skills={base: "^1"}))
    both = skill(top, code=calling(middle, base), skills={middle: "*", base: ">=1"})
    assert rpc("create_skill", **both)["warnings"] == []
    assert rpc("execute_skill", name=top)["output"] == [["base 1.1.0"], "base 1.1.0"]

    rpc("create_skill", **skill(base, "1.2.0"))
    assert rpc("execute_skill", name=top)["output"] == [["base 1.1.0"], "base 1.1.0"]
    required = rpc("describe_skill", name=top)["skill"]["requires"]
    assert [(each["name"], each["version"], each["range"]) for each in required] == [
        (base, "1.1.0", ">=1"),
        (middle, "1.0.0", "*"),
    ]

    # A required skill with permissions is a run of its own, which mounts what it requires itself.
    skills = {mail: "^1", middle: "^1", base: "1.0.0"}
    rpc("create_skill", **skill(top, "1.1.0", code=calling(mail, middle), skills=skills))
    run = rpc("execute_skill", name=top)
    assert run["output"] == [["base 1.0.0"], ["base 1.0.0"]]
    [called] = rpc("list_runs", skill=mail)["runs"]
    assert called["parent_run_id"] == run["run_id"]
    code = calling(middle, base)
    mounted = rpc("run_code", language="python", code=code, mount_skills=[middle])
    assert mounted["output"] == [["base 1.1.0"], "base 1.1.0"]
    with pytest.raises(RpcError, match="mounted in two versions"):
        rpc("run_code", language="python", code=code, mount_skills=[middle, f"{base}@2.0.0"])

    rpc("yank_version", name=base, version="1.1.0", reason="wrong")
    assert rpc("execute_skill", name=middle)["output"] == ["base 1.1.0"]
    rpc("purge_version", name=base, version="1.1.0", reason="wrong")
    assert rpc("execute_skill", name=middle)["error"]["type"] == "DependencyGone"


def test_publishing_says_why_required_versions_cannot_be_chosen(sqlite_rpc: Rpc, new_name: str) -> None:
    rpc = sqlite_rpc
    a, b, c = (f"{new_name}.{each}" for each in "abc")
    rpc("create_skill", **skill(a, "1.0.0"))
    rpc("create_skill", **skill(b, skills={a: "^1"}))

    def error(name: str, **more: Any) -> dict[str, Any]:
        problem = rpc.error("create_skill", **skill(name, "1.1.0", **more))
        assert problem["code"] == -32602
        return dict(problem["data"])

    assert b in error(c, skills={f"{new_name}.bb": "*"})["near"]
    unsolvable = error(c, skills={b: "*", a: "^2"})
    assert unsolvable["type"] == "requires_unsolvable"
    assert {(need["by"], need["spec"]) for need in unsolvable["required"]} >= {(f"'{c}'", "^2")}
    assert error(a, skills={b: "*"})["path"] == [a, b, a]
    assert error(c, skills={a: "stable"})["problems"][0]["path"] == f"requires.skills.{a}"
    rpc("set_visibility", name=a, visibility="namespace")
    assert error(c, skills={a: "^1"})["type"] == "requires_hidden"
