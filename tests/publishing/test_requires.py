"""Skills that require other skills: `[requires.skills]`, the chosen versions, and runs that mount them."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, event, insert

from skillery.backends import Identity, Job, SkillCall, SkillMount
from skillery.database import Database
from skillery.database.tables import skill_versions, skills, version_requires
from skillery.errors import RequiresDraft, RequiresUnknown, RequiresUnsolvable
from skillery.formats.manifest import parse_manifest
from skillery.formats.semver import Version
from skillery.registry import required_choice
from skillery.registry.required_choice import choose, choose_possible
from skillery.runs.cache import Cache
from skillery.runs.declarations import Declarations
from skillery.runs.mounts import Mounts
from skillery.runs.packages import Needing
from tests.cli.test_cli import Ended, skillery
from tests.conftest import IMPORT_CHECK, Rpc, RpcError, Server, manifest, skill_files
from tests.docs.test_shell_blocks import run_page
from tests.importing.test_importing import sent
from tests.proof.test_attestations import statements_of
from tests.support.archives import zipped
from tests.support.needing import create, needing, refused
from tests.support.people import Caller, Who

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
    added = rpc("describe_skill", name=top)["skill"]["permissions_diff"]["added"]
    assert added == {"network": [], "secrets": [], "calls": [mail]}
    run = rpc("execute_skill", name=top)
    assert run["output"] == [["base 1.0.0"], ["base 1.0.0"]]
    [called] = rpc("list_runs", skill=mail)["runs"]
    assert called["parent_run_id"] == run["run_id"]
    code = calling(middle, base)
    mounted = rpc("run_code", language="python", code=code, mount_skills=[middle])
    assert mounted["output"] == [["base 1.1.0"], "base 1.1.0"]
    with pytest.raises(RpcError, match="mounted in two versions"):
        rpc("run_code", language="python", code=code, mount_skills=[middle, f"{base}@2.0.0"])

    diff = rpc("diff_versions", name=top, from_version="1.0.0", to_version="1.1.0")
    assert diff["requires"] == [
        {"name": base, "old": "1.1.0", "new": "1.0.0"},
        {"name": mail, "old": None, "new": "1.0.0"},
    ]
    assert diff["permissions"]["added"]["calls"] == [mail]
    assert f"required skill {base}" in rpc.http.get(f"/s/{top}@1.1.0/diff/1.0.0").text
    printed = skillery("diff", f"{top}@1.0.0", f"{top}@1.1.0", SKILLERY_URL=rpc.url).out
    assert f"  + calls {mail}\n" in printed
    assert f"  - {base} 1.1.0\n" in printed

    dependents = rpc("list_dependents", name=base, version="^1.1 <1.2")["dependents"]
    assert [(each["name"], each["version"], each["direct"], each["runs_30d"]) for each in dependents] == [
        (top, "1.0.0", True, 2),
        (middle, "1.0.0", True, 0),
    ]
    first = rpc("list_dependents", name=base, limit=3)
    following = rpc("list_dependents", name=base, cursor=first["next_cursor"])
    assert [(each["name"], each["requires"]) for each in (*first["dependents"], *following["dependents"])] == [
        (top, "1.1.0"),
        (middle, "1.1.0"),
        (top, "1.0.0"),
        (mail, "1.0.0"),
    ]

    rpc("yank_version", name=base, version="1.1.0", reason="wrong")
    assert rpc("execute_skill", name=middle)["output"] == ["base 1.1.0"]
    [finding] = rpc("describe_skill", name=middle)["skill"]["findings"]
    assert finding["rule"] == "requires_yanked"
    rpc("purge_version", name=base, version="1.1.0", reason="wrong")
    assert rpc("execute_skill", name=middle)["error"]["type"] == "DependencyGone"
    [finding] = rpc("describe_skill", name=middle)["skill"]["findings"]
    assert finding["rule"] == "requires_purged"


@pytest.mark.full
def test_locks_and_installations_have_the_required_skills(sqlite_rpc: Rpc, new_name: str, tmp_path: Path) -> None:
    rpc = sqlite_rpc
    base, top = f"{new_name}.base", f"{new_name}.top"
    for version in ("1.0.0", "1.1.0"):
        rpc("create_skill", **skill(base, version))
    rpc("create_skill", **skill(top, code=calling(base), skills={base: "~1.0"}))
    rpc("create_skill", **skill(top, "2.0.0"))

    def cli(*words: str) -> Ended:
        return skillery(*words, SKILLERY_URL=rpc.url)

    locked = rpc("resolve_skills", skills=[f"{top}@1.0.0"])["lock"]
    assert [(each["name"], each["version"], each.get("requires")) for each in locked] == [
        (top, "1.0.0", [base]),
        (base, "1.0.0", None),
    ]
    assert rpc("verify_lock", lock=locked)["ok"]
    assert len(rpc("resolve_skills", skills=[top + "@1"], required=False)["lock"]) == 1
    chosen = rpc("resolve_skills", skills=[f"{base}@>=1", f"{top}@^1"], required_by=f"{new_name}.new")["lock"]
    assert [(each["name"], each["version"]) for each in chosen] == [(base, "1.0.0"), (top, "1.0.0")]
    assert rpc.error("resolve_skills", skills=[base], required_by=base)["data"]["type"] == "requires_cycle"
    assert "two versions" in rpc.error("resolve_skills", skills=[f"{top}@1", f"{base}@1.1"])["message"]

    page = rpc.http.get(f"/s/{top}@1.0.0").text
    assert f">{base} 1.0.0</a>" in page
    assert f"{base} 1.0.0 (~1.0)" in cli("describe", f"{top}@1.0.0").out

    lock, folder = str(tmp_path / "skillery.lock"), str(tmp_path / "skills")
    assert cli("lock", f"{top}@1.0.0", "-o", lock).code == 0
    assert cli("install", folder, "--locked", "--file", lock).code == 0
    assert (tmp_path / "skills" / base / "SKILL.md").exists()
    archive = str(tmp_path / "skills.tar.gz")
    middle = f"{new_name}.another"
    rpc("create_skill", **skill(middle, code=calling(top), skills={top: "1.0.0"}))
    assert "3 skills" in cli("export", archive, middle).out
    home = str(tmp_path / "home")
    imported = skillery("import", archive, "--namespace", new_name, SKILLERY_HOME=home)
    assert imported.code == 0, imported
    assert 'output: [["base 1.0.0"]]' in skillery("run", middle, SKILLERY_HOME=home).out
    assert f"removed {base}" in cli("install", folder, top).err
    assert cli("install", folder, base).code == 0
    assert cli("install", folder, f"{top}@1.0.0").code == 0
    assert "removed" not in cli("install", folder, top).err


@pytest.mark.full
def test_bump_raises_the_ranges_of_required_skills(sqlite_rpc: Rpc, new_name: str, tmp_path: Path) -> None:
    rpc, base, top, folder = sqlite_rpc, f"{new_name}.base", f"{new_name}.top", tmp_path / "top"
    rpc("create_skill", **skill(base, "1.0.0"))
    assert skillery("new", str(folder), "--name", top).code == 0
    toml = folder / "skill.toml"
    toml.write_text(f'{toml.read_text()}\n[requires.skills]  # of others\n"{base}" = "^1"  # the base\n')

    def bump() -> str:
        return skillery("bump", str(folder), "--requires", SKILLERY_URL=rpc.url).out

    assert skillery("publish", str(folder), SKILLERY_URL=rpc.url).code == 0
    assert bump() == f"{top} 0.1.0: nothing to raise\n"
    rpc("create_skill", **skill(base, "1.1.0"))
    before = toml.read_text()
    assert bump() == f"{top} 0.1.1\n  {base}: 1.0.0 -> 1.1.0\n"
    assert toml.read_text() == before.replace('"0.1.0"', '"0.1.1"')
    rpc("create_skill", **skill(base, "2.0.0"))
    assert bump() == f"{top} 0.1.1\n  {base}: ^1 -> ^2.0.0\n  {base}: 1.0.0 -> 2.0.0\n"
    assert toml.read_text() == before.replace('"0.1.0"', '"0.1.1"').replace('"^1"', '"^2.0.0"')


@pytest.mark.full
def test_the_page_about_required_skills_runs(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    printed = run_page("docs/guide/requires.md", start_server(env=IMPORT_CHECK), folder)

    assert "The text has 6 words." in printed
    assert "team.report\t1.0.0\tpublished\t0.1.0\t^0.1\t1\n" in printed


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
    twins = [f"{a}-x", f"{a}_x"]
    for twin in twins:
        rpc("create_skill", **skill(twin, "1.0.0"))
    assert error(c, skills=dict.fromkeys(twins, "*"))["names"] == twins
    assert error(c, skills={a: "stable"})["problems"][0]["path"] == f"requires.skills.{a}"
    rpc("set_visibility", name=a, visibility="namespace")
    assert error(c, skills={a: "^1"})["type"] == "requires_hidden"
    # A change of visibility neither gives nor keeps what publishing would refuse.
    run = rpc("execute_skill", name=b)
    assert (run["error"]["type"], "is hidden now" in run["error"]["message"]) == ("DependencyGone", True)
    rpc("set_visibility", name=b, visibility="namespace")
    assert rpc("execute_skill", name=b)["status"] == "completed"


@pytest.mark.full
def test_a_malicious_required_version_fails_runs_and_locks(sqlite_rpc: Rpc, new_name: str) -> None:
    base, top = f"{new_name}.base", f"{new_name}.top"
    sqlite_rpc("create_skill", **skill(base))
    sqlite_rpc("create_skill", **skill(top, code=calling(base), skills={base: "*"}))
    sqlite_rpc("yank_version", name=base, version="1.0.0", reason="It sends rows.", severity="malicious")

    error = sqlite_rpc("execute_skill", name=top)["error"]
    assert (error["type"], f"'{base}' 1.0.0 is malicious" in error["message"]) == ("DependencyGone", True)
    locked = sqlite_rpc("resolve_skills", skills=[top])["lock"]
    [problem] = sqlite_rpc("verify_lock", lock=locked)["problems"]
    assert (problem["name"], problem["problem"], problem["severity"]) == (base, "yanked", "malicious")
    sqlite_rpc("purge_version", name=base, version="1.0.0", reason="It sends rows.")
    [problem] = sqlite_rpc("verify_lock", lock=sqlite_rpc("resolve_skills", skills=[top])["lock"])["problems"]
    assert (problem["name"], problem["problem"]) == (base, "purged")


def test_tools_import_required_skills_and_scripts_find_their_files(sqlite_rpc: Rpc, new_name: str) -> None:
    rpc, base, top = sqlite_rpc, f"{new_name}.base", f"{new_name}.top"
    digest = rpc("create_skill", **skill(base))["digest"]
    tool = {"name": "ask", "description": "Asks.", "script": "scripts/ask.py", "parameters": {}}
    files = [
        {"path": "scripts/ask.py", "content": calling(base).replace("def main", "def handler")},
        {"path": "scripts/read.sh", "content": f"cat /skills/{base}/SKILL.md\n"},
        {"path": "tools.json", "content": json.dumps([tool])},
    ]
    described = {"name": top, "version": "1.0.0", "description": "Asks.", "requires": {"skills": {base: "^1"}}}
    rpc("create_skill", manifest=described, skill_md=f"# {top}\n", files=files)

    assert rpc("call_tool", name="ask", skill=top)["result"] == ["base 1.0.0"]
    assert f"# {base}" in rpc("execute_skill", name=top, script="scripts/read.sh")["output"]["stdout"]
    assert statements_of(rpc, top)["publication"]["requires"] == {base: digest}


def test_import_reads_the_required_skills_of_toolhive(sqlite_rpc: Rpc, new_name: str) -> None:
    """ToolHive names skills by their OCI reference. The import publishes them first, in its namespace."""
    rpc = sqlite_rpc
    for name in ("stored", "closed"):
        rpc("create_skill", **skill(f"{new_name}.{name}"))
    rpc("set_visibility", name=f"{new_name}.closed", visibility="private")
    named = ("ghcr.io/acme/base-skill:v1@sha256:aa", "git://git.example/r@main#skills/stored", "x/absent", "x/closed")
    references = "".join(f"\n  - {reference}" for reference in named)
    texts = {
        "a/SKILL.md": f"---\nname: a\ndescription: A.\ntoolhive.requires:{references}\n---\n",
        "base-skill/SKILL.md": "---\nname: base-skill\ndescription: B.\nrequires: jq\n---\n",
        "c/SKILL.md": "---\nname: c\ndescription: C.\nmetadata:\n  toolhive.requires: x/a x/base-skill:v2\n---\n",
    }
    data = zipped({path: text.encode() for path, text in texts.items()})
    skills = {each["name"]: each for each in sent(rpc, data, namespace=new_name)["skills"]}

    def required(name: str) -> set[str]:
        described = rpc("describe_skill", name=f"{new_name}.{name}")["skill"]
        return {each["name"].removeprefix(f"{new_name}.") for each in described.get("requires", ())}

    assert (required("a"), required("c")) == ({"base-skill", "stored"}, {"a", "base-skill", "stored"})
    assert required("base-skill") == set()
    left_out = [each["message"] for each in skills[f"{new_name}.a"]["repairs"] if each["code"] == "left_out_skill"]
    for message, name in zip(left_out, ("absent", "closed"), strict=True):
        assert f"'{new_name}.{name}' is left out" in message


def test_an_imported_skill_that_requires_itself_does_not_block_the_import(sqlite_rpc: Rpc, new_name: str) -> None:
    data = zipped({"a/SKILL.md": b"---\nname: a\ndescription: A.\ntoolhive.requires: ghcr.io/acme/a:v1\n---\n"})
    [skill] = sent(sqlite_rpc, data, namespace=new_name)["skills"]
    [repair] = [each for each in skill["repairs"] if each["code"] == "left_out_skill"]
    assert (skill["outcome"], f"'{new_name}.a' is left out" in repair["message"]) == ("published", True)


def test_an_import_requires_the_skills_that_fit_together(sqlite_rpc: Rpc, new_name: str) -> None:
    rpc, base = sqlite_rpc, f"{new_name}.base"
    for version, name in (("1.0.0", "one"), ("2.0.0", "two")):
        rpc("create_skill", **skill(base, version))
        rpc("create_skill", **skill(f"{new_name}.{name}", skills={base: version}))
    text = "---\nname: a\ndescription: A.\ntoolhive.requires: x/one x/absent x/two x/base\n---\n"
    [imported] = sent(rpc, zipped({"a/SKILL.md": text.encode()}), namespace=new_name)["skills"]

    left_out = [each["message"] for each in imported["repairs"] if each["code"] == "left_out_skill"]
    assert [message.split("'")[1] for message in left_out] == [f"{new_name}.absent", f"{new_name}.two"]
    assert f"'{new_name}.two' 1.0.0 requires '{base}' 2.0.0" in left_out[1]
    required = rpc("describe_skill", name=f"{new_name}.a")["skill"]["requires"]
    assert [(each["name"], each["version"]) for each in required] == [(base, "1.0.0"), (f"{new_name}.one", "1.0.0")]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_required_skills_of_an_import_share_a_time_limit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"w.s{number}" for number in range(64)]
    clock = itertools.count()  # each look at the clock takes a second

    def work(connection: Connection) -> None:
        for name in names:
            insert_version(connection, name)
        monkeypatch.setattr(required_choice, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        chosen, errors = choose_possible(connection, Identity("ann"), "w.top", names, "private")
        monkeypatch.undo()
        assert (chosen, [*errors]) == ([], names)
        assert {error.message for error in errors.values()} == {
            "no versions that satisfy all ranges were found within 5 s"
        }
        assert choose_possible(connection, Identity("ann"), "w.top", names, "private") == (names, {})

    database.write_now(work)
    assert next(clock) < 80


def test_required_skills_need_the_same_version_of_a_package(packages_sqlite: Server, new_name: str) -> None:
    rpc, base, top = packages_sqlite.rpc, f"{new_name}.base", f"{new_name}.top"
    create(rpc, needing(base, "frames==1.0"))
    required = {"requires": {"skills": {base: "*"}}}
    error = refused(rpc, needing(top, "frames==2.0") | required)
    assert (error["data"]["type"], error["data"]["package"]) == ("requires_packages", "frames")
    assert f"'{top}' needs frames 2.0 and '{base}' 1.0.0 needs frames 1.0" in error["message"]
    assert create(rpc, needing(top, "frames==1.0") | required)["status"] == "published"


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_required_skills_have_limits(database: Database) -> None:
    """At most 64 skills on 8 levels, and none of which every version is a draft."""

    def work(connection: Connection) -> None:
        for level in range(9):
            insert_version(connection, f"w.l{level}", requires={f"w.l{level + 1}": "*"} if level < 8 else {})
        leaves = [f"w.a{number}" for number in range(63)]
        for leaf in leaves:
            insert_version(connection, leaf)
        insert_version(connection, "w.hub", requires=dict.fromkeys(leaves, "*"))
        insert_version(connection, "w.draft", status="draft")
        ann = Identity("ann")
        assert [each.depth for each in choose(connection, ann, "w.top", [("w.l1", "*")])] == [*range(1, 9)]
        with pytest.raises(RequiresUnsolvable, match="9 skills on 9 levels; at most 64 skills on 8 levels"):
            choose(connection, ann, "w.top", [("w.l0", "*")])
        assert len(choose(connection, ann, "w.top", [("w.hub", "*")])) == 64
        with pytest.raises(RequiresUnsolvable, match="65 skills on 2 levels"):
            choose(connection, ann, "w.top", [("w.hub", "*"), ("w.l8", "*")])
        with pytest.raises(RequiresDraft, match="of which no version is published yet"):
            choose(connection, ann, "w.top", [("w.draft", "*")])

    database.write_now(work)


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_required_skills_that_the_caller_may_not_see_are_only_counted(org: Server, new_name: str) -> None:
    base, middle, top = (f"{new_name}.{each}" for each in ("base", "middle", "top"))
    ann, bob = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*")), Caller(org.url, Who("bob"))
    ann("create_skill", **skill(base))
    ann("create_skill", **skill(middle, skills={base: "*"}))
    for version in ("1.0.0", "1.1.0"):
        ann("create_skill", **skill(top, version, skills={middle: "*"}))
        ann("create_skill", **skill(middle, "1.0.1", skills={base: "*"}))
    for name in (base, middle, top):
        ann("set_visibility", name=name, visibility="private" if name == base else "public")

    seen = bob("describe_skill", name=top)["skill"]
    assert [each["name"] for each in seen["requires"]] == [middle]
    assert seen["requires_hidden"] == 1
    assert base not in str(seen)
    assert "requires_hidden" not in ann("describe_skill", name=top)["skill"]
    diff = bob("diff_versions", name=top, from_version="1.0.0")
    assert [each["name"] for each in diff["requires"]] == [middle]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_locks_errors_and_calls_do_not_name_hidden_required_skills(org: Server, new_name: str) -> None:
    base, middle, top, absent = (f"{new_name}.{each}" for each in ("base", "middle", "top", "absent"))
    ann, bob = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*")), Caller(org.url, Who("bob"))
    ann("create_skill", **skill(base, permissions=PERMISSIONS))
    ann("create_skill", **skill(middle, skills={base: "*"}))
    ann("create_skill", **skill(top, code=calling(middle), skills={middle: "*"}))
    for name in (base, middle, top):
        ann("set_visibility", name=name, visibility="private" if name == base else "public")

    locked = bob("resolve_skills", skills=[top])
    assert [(each["name"], each.get("requires")) for each in locked["lock"]] == [(top, [middle]), (middle, None)]
    assert locked["requires_hidden"] == 1
    assert bob("resolve_skills", skills=[middle], required=False)["requires_hidden"] == 1
    assert "requires_hidden" not in ann("resolve_skills", skills=[top])

    # `required_by` and `skills` may name any skill: the answers say the same about a hidden one and an absent one.
    def error(name: str, by: str) -> str:
        answer = bob.error("resolve_skills", skills=[name], required_by=by)
        assert base not in answer["data"].pop("near", ())
        told = answer["code"], answer["message"], sorted(answer["data"]), answer["data"]["type"]
        return str(told).replace(base, "X").replace(absent, "X")

    assert error(base, top) == error(absent, top)
    assert error(middle, base) == error(middle, absent)
    hidden = bob.error("resolve_skills", skills=[middle], required_by=top)
    assert (hidden["data"]["type"], base in str(hidden)) == ("requires_hidden", False)

    assert ann("describe_skill", name=top)["skill"]["permissions_diff"]["added"]["calls"] == [base]
    added = bob("describe_skill", name=top)["skill"]["permissions_diff"]["added"]
    assert added == {"network": [], "secrets": [], "calls_hidden": 1}
    assert base not in str(bob("execute_skill", name=top)["error"])


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_errors_of_runs_do_not_name_hidden_required_skills(org: Server, new_name: str) -> None:
    """Two skills that bob sees require a skill that he does not see, in two versions."""
    base, one, two, calls = f"{new_name}.closed.base", *(f"{new_name}.open.{each}" for each in ("one", "two", "calls"))
    ann = Caller(org.url, Who("ann", "read run publish review", f"{new_name}.*"))
    bob = Caller(org.url, Who("bob", "read run review", f"{new_name}.open.*"))
    for version, required in (("1.0.0", one), ("2.0.0", two)):
        made = needing(base, f"frames=={version[:3]}", version=version)
        ann("create_skill", manifest=made, skill_md="# B\n", files=skill_files())
        ann("create_skill", **skill(required, skills={base: version}))
    ann("create_skill", **skill(f"{base}_mail", permissions=PERMISSIONS))
    ann("create_skill", **skill(calls, code=calling(f"{base}_mail"), skills={f"{base}_mail": "*"}))
    for name in (base, f"{base}_mail", one, two, calls):
        ann("set_visibility", name=name, visibility="private")

    def error(*mounted: str, **params: Any) -> str:
        answer = bob.send("run_code", {"language": "python", "code": "", "mount_skills": mounted, **params})
        error = answer.get("error") or answer["result"]["error"]
        assert new_name + ".closed" not in str(error)
        return str(error["message"])

    assert "skill that you may not see: it would be mounted in two versions" in error(one, two)
    assert "(hidden) needs figures 2.0" in error(two, environment="data")
    ann("yank_version", name=f"{base}_mail", version="1.0.0", reason=f"{base} leaks", severity="security")
    assert "that you may not see is not run" in error(calls, code=calling(calls))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
async def test_the_event_loop_does_not_choose_versions(database: Database, tmp_path: Path) -> None:
    """A choice may take seconds, in which the server would answer no other request."""
    threads = set()

    def note(*_: object) -> None:
        threads.add(threading.get_ident())

    top = parse_manifest(skill("a.top", skills={"a.base": "*"})["manifest"])
    job = Job("run", SkillCall("a.top", "main"), b"{}", (SkillMount("a.top", tmp_path),))
    mounts = Mounts(database, cast(Cache, None), cast(Declarations, None))
    event.listen(Engine, "before_cursor_execute", note)
    try:
        with pytest.raises(RequiresUnknown):
            await mounts.required(Identity("ann"), job, [Needing("a.top", top, tmp_path)])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_versions_are_chosen_whenever_a_choice_exists(database: Database) -> None:
    """Compare the choice with all choices, for 6 skills with 3 versions that require each other at random."""
    outcomes: set[bool] = set()
    with pytest.raises(Abandoned):
        database.write_now(lambda connection: compare(connection, outcomes))
    assert outcomes == {True, False}


def insert_skill(connection: Connection, name: str) -> int:
    skill = insert(skills).values(name=name, created_at=NOW, visibility="public")
    skill_id: int = connection.execute(skill.returning(skills.c.id)).scalar_one()
    return skill_id


def insert_version(
    connection: Connection,
    name: str,
    text: str = "1.0.0",
    requires: Mapping[str, str] = MappingProxyType({}),
    skill_id: int | None = None,
    status: str = "published",
) -> None:
    """Insert a version, and its skill if `skill_id` is None."""
    skill_id = insert_skill(connection, name) if skill_id is None else skill_id
    values = {"skill_id": skill_id, "version": text, "precedence": Version.parse(text).precedence, "digest": text}
    version = insert(skill_versions).values(COLUMNS | values | {"status": status})
    version_id = connection.scalar(version.returning(skill_versions.c.id))
    for required, spec in requires.items():
        row = {"version_id": version_id, "name": required, "spec": spec}
        connection.execute(insert(version_requires).values(row))


def compare(connection: Connection, outcomes: set[bool]) -> None:
    for number in range(30):
        chance = random.Random(number)
        names = [f"w{number}.s{each}" for each in range(6)]
        needs: dict[tuple[str, int], dict[str, str]] = {}
        for place, name in enumerate(names):
            skill_id = insert_skill(connection, name)
            for major in (1, 2, 3):
                later = names[place + 1 :]
                chosen = chance.sample(later, min(len(later), chance.choice((0, 1, 2))))
                needs[name, major] = {each: chance.choice(RANGES) for each in chosen}
                insert_version(connection, name, f"{major}.0.0", needs[name, major], skill_id)
        root = {name: chance.choice(RANGES) for name in chance.sample(names, 2)}
        try:
            closure = choose(connection, Identity("ann"), f"w{number}.root", root.items())
        except RequiresUnsolvable:
            closure = None
        choices = itertools.product((None, 1, 2, 3), repeat=len(names))
        exists = any(fits(root, needs, dict(zip(names, choice, strict=True))) for choice in choices)
        assert (closure is not None) == exists
        if closure is not None:
            majors = {each.row.name: int(each.row.version[0]) for each in closure}
            assert fits(root, needs, majors)
            assert closure == sorted(closure, key=lambda each: (each.depth, each.row.name))
        outcomes.add(exists)
    raise Abandoned


def fits(root: Mapping[str, str], needs: Mapping[tuple[str, int], Mapping[str, str]], majors: dict[str, Any]) -> bool:
    """Return whether the versions satisfy all ranges."""
    present = {name: major for name, major in majors.items() if major}
    of_versions = (needs[name, major] for name, major in present.items())
    return all(
        present.get(name, 0) in ALLOWED[spec] for ranges in (root, *of_versions) for name, spec in ranges.items()
    )


class Abandoned(Exception):
    """Raised to undo a transaction."""


NOW = datetime(2026, 11, 30, tzinfo=UTC)
ALLOWED = {"*": (1, 2, 3), "^1": (1,), "^2": (2,), ">=2": (2, 3), "<3": (1, 2), "^1 || ^3": (1, 3)}
RANGES = tuple(ALLOWED)
COLUMNS = {
    "is_release": True,
    "status": "published",
    "kind": "action",
    "namespace": "w",
    "size_bytes": 1,
    **dict.fromkeys(("manifest_json", "frontmatter_json", "names_json", "summary_json"), "{}"),
    "warnings_json": "[]",
    "publisher": "ann",
    "publisher_kind": "person",
    "created_at": NOW,
}
