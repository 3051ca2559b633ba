"""The identity of imported skills: source and path. Two sources never share a skill; no skill is published twice."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillery.cli.import_uploads import default_source, normal_remote
from skillery.database import Database, migrate
from skillery.formats.skill_toml import renamed_toml, toml_manifest
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server
from tests.environments.test_undeclared_packages import committed
from tests.formats.test_licences import APACHE
from tests.importing.test_importing import by_path, codes, sent
from tests.support.archives import skill_md, zipped

Tree = Mapping[str, str]


def names(report: dict[str, Any]) -> dict[str, str]:
    return {skill["path"]: skill["name"] for skill in report["skills"] if "name" in skill}


def version_of(rpc: Rpc, name: str) -> str:
    version: str = rpc("describe_skill", name=name)["skill"]["version"]
    return version


def write(root: Path, tree: Tree) -> Path:
    for path, content in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


# -- path ------------------------------------------------------------------------------------------------------------


def test_skills_with_long_similar_paths_keep_their_names(rpc: Rpc, new_name: str) -> None:
    long = "packages/some_long_common_directory_name/" + "deep/" * 40 + "workflows"
    tree = {f"{long}/0{number}/skills/rep/SKILL.md": skill_md("rep", f"Number {number}.") for number in range(4)}
    first = sent(rpc, zipped(tree), namespace=new_name, source="tools")
    again = sent(rpc, zipped(tree), namespace=new_name, source="tools")

    assert sorted(names(first).values()) == [f"{new_name}.rep{ending}" for ending in ("", "-01", "-02", "-03")]
    assert (again["counts"], names(again)) == ({"unchanged": 4}, names(first))
    for skill in first["skills"][1:]:
        [reason] = [repair["message"] for repair in skill["repairs"] if repair["code"] == "name"]
        assert reason.startswith(f"'{new_name}.rep' is another skill of this import")


@pytest.mark.parametrize("source", ["https://ann:s3cret@git.example.com/x.git", "https://git.example.com/x?token=1"])
def test_a_source_with_credentials_is_refused(rpc: Rpc, new_name: str, source: str) -> None:
    """All readers of an imported skill see its source."""
    refused = rpc.http.post(
        "/import", params={"namespace": new_name, "source": source}, content=zipped({"a/SKILL.md": "x"})
    )
    assert refused.status_code == 400
    assert "is an address with a user, password or query" in refused.text
    assert "s3cret" not in refused.text


def test_a_skill_that_moves_in_its_source_keeps_its_name(rpc: Rpc, new_name: str) -> None:
    step = {"namespace": new_name, "source": "tools"}
    before = {"a/pdf/SKILL.md": skill_md("pdf", "One."), "b/pdf/SKILL.md": skill_md("pdf", "Two.")}
    moved = {"x/b/pdf/SKILL.md": skill_md("pdf", "Two."), "x/a/pdf/SKILL.md": skill_md("pdf", "Changed.")}
    first, second = names(sent(rpc, zipped(before), **step)), sent(rpc, zipped(moved), **step)

    assert names(second) == {f"x/{path}": name for path, name in first.items()}
    assert (second["counts"], second["removed"]) == ({"unchanged": 1, "published": 1}, [])
    assert sent(rpc, zipped(moved), **step)["counts"] == {"unchanged": 2}


@ON_SQLITE
@pytest.mark.parametrize("source", ["", "tools"])
def test_skills_at_the_root_of_archives_are_distinguished_by_their_names(rpc: Rpc, new_name: str, source: str) -> None:
    step = {"namespace": new_name} | ({"source": source} if source else {})
    for outcome in ("published", "unchanged"):
        for name in ("pdf", "docx"):
            [skill] = sent(rpc, zipped({"SKILL.md": skill_md(name)}), **step)["skills"]
            assert (skill["outcome"], skill["name"]) == (outcome, f"{new_name}.{name}")
    [changed] = sent(rpc, zipped({"SKILL.md": skill_md("pdf", "New.")}), **step)["skills"]
    assert (changed["name"], changed["version"]) == (f"{new_name}.pdf", "1.0.1")


@ON_SQLITE
def test_a_skill_keeps_its_name_until_its_skill_toml_has_another(rpc: Rpc, new_name: str) -> None:
    step = {"namespace": new_name, "source": "tools"}

    def again(tree: Tree) -> tuple[str, str]:
        [skill] = sent(rpc, zipped(tree), **step)["skills"]
        return skill["name"], skill["version"]

    def toml(name: str) -> str:
        return f'name = "{new_name}.{name}"\nversion = "1.0.0"\ndescription = "x"\n'

    assert again({"a/SKILL.md": skill_md("pdf")}) == (f"{new_name}.pdf", "1.0.0")
    assert again({"a/SKILL.md": skill_md("Pdf tools")}) == (f"{new_name}.pdf", "1.0.1")
    assert again({"a/SKILL.md": "# x", "a/skill.toml": toml("pdf")}) == (f"{new_name}.pdf", "1.0.2")
    assert again({"a/SKILL.md": "# x", "a/skill.toml": toml("other")}) == (f"{new_name}.other", "1.0.0")
    assert again({"a/SKILL.md": "# y", "a/skill.toml": toml("pdf")}) == (f"{new_name}.pdf", "1.0.3")


_SEGMENTS = st.sampled_from(["skills", "a", "b", "pdf", ".claude", "x y"])
_NAMES = st.sampled_from(["pdf", "PDF", "p d f", "pdf-2", "a.b", "", "日本"])
_NUMBERS = itertools.count()


@st.composite
def trees(draw: st.DrawFn) -> dict[str, str]:
    """Return a tree of skills with few names in few folders: equal names, copies, nested skills, some with a
    skill.toml, some broken.
    """
    tree: dict[str, str] = {}
    for path in draw(st.lists(st.lists(_SEGMENTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=6)):
        description = draw(st.sampled_from(["One.", "Two."]))
        tree[f"{path}/SKILL.md"] = skill_md(json.dumps(draw(_NAMES)), description)
        if draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from(["NS.own", "NS.pdf", "no name"]))
            tree[f"{path}/skill.toml"] = f'name = "{name}"\nversion = "1.0.0"\ndescription = "{description}"\n'
    return tree


@pytest.mark.full
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tree=trees(), source=st.sampled_from(["", "tools"]))
def test_a_second_import_of_any_tree_changes_nothing(sqlite_rpc: Rpc, tree: dict[str, str], source: str) -> None:
    namespace = f"again{next(_NUMBERS)}"
    data = zipped({path: text.replace("NS", namespace) for path, text in tree.items()})
    step = {"namespace": namespace} | ({"source": source} if source else {})
    first = sent(sqlite_rpc, data, **step)
    again = sent(sqlite_rpc, data, **step)

    published = [skill["name"] for skill in first["skills"] if skill["outcome"] == "published"]
    assert len(set(published)) == len(published)
    assert names(again) == names(first)
    assert again["removed"] == []
    later = {skill["path"]: skill for skill in again["skills"]}
    assert len(later) == len(first["skills"])
    for before in first["skills"]:
        after = later[before["path"]]
        assert after["outcome"] == {"published": "unchanged"}.get(before["outcome"], before["outcome"])


# -- source ----------------------------------------------------------------------------------------------------------


def test_two_sources_never_share_a_skill_however_often_they_are_imported(rpc: Rpc, new_name: str) -> None:
    ours, theirs = (zipped({"pdf/SKILL.md": skill_md("pdf", text)}) for text in ("Ours.", "Theirs."))
    sent(rpc, ours, namespace=new_name, source="ours")
    [second] = sent(rpc, theirs, namespace=new_name, source="theirs")["skills"]

    assert (second["outcome"], second["name"], second["version"]) == ("published", f"{new_name}.pdf-2", "1.0.0")
    [note] = [repair["message"] for repair in second["repairs"] if repair["code"] == "name_taken"]
    assert "the source 'ours'" in note
    assert "--namespace NS" in note
    assert f"--take-over {new_name}.pdf" in note
    for data, source, name in ((ours, "ours", "pdf"), (theirs, "theirs", "pdf-2"), (ours, "ours", "pdf")):
        [again] = sent(rpc, data, namespace=new_name, source=source)["skills"]
        assert (again["outcome"], again["name"]) == ("unchanged", f"{new_name}.{name}")
    assert version_of(rpc, f"{new_name}.pdf") == "1.0.0"


def test_a_name_is_taken_over_only_if_the_import_says_so(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.pdf"
    ours, theirs = (zipped({"pdf/SKILL.md": skill_md("pdf", text)}) for text in ("Ours.", "Theirs."))
    sent(rpc, ours, namespace=new_name, source="ours")
    sent(rpc, theirs, namespace=new_name, source="theirs")
    taking = {"namespace": new_name, "source": "theirs", "take_over": f"{name},{new_name}.none"}
    report = sent(rpc, theirs, **taking)

    [taken] = report["skills"]
    assert (taken["outcome"], taken["name"], taken["version"]) == ("published", name, "1.0.1")
    assert "taken_over" in codes(taken)
    assert report["not_taken_over"] == [f"{new_name}.none"]
    assert sent(rpc, theirs, **taking)["counts"] == {"unchanged": 1}
    assert sent(rpc, theirs, namespace=new_name, source="theirs")["counts"] == {"unchanged": 1}
    # The other source has lost the skill and cannot take it back.
    [lost] = sent(rpc, zipped({"pdf/SKILL.md": skill_md("pdf", "New.")}), namespace=new_name, source="ours")["skills"]
    assert lost["name"] != name
    assert version_of(rpc, name) == "1.0.1"
    refused = rpc.http.post("/import", params={**taking, "prune": "true"}, content=theirs)
    assert (refused.status_code, refused.json()["error"]["data"]["param"]) == (400, "take_over")


def test_the_same_files_from_another_source_are_a_copy_until_they_change(rpc: Rpc, new_name: str) -> None:
    same = zipped({"pdf/SKILL.md": skill_md("pdf")})
    sent(rpc, same, namespace=new_name, source="one")
    for _ in range(2):
        [copy] = sent(rpc, same, namespace=new_name, source="two")["skills"]
        assert (copy["outcome"], copy["name"]) == ("unchanged", f"{new_name}.pdf")
    # Neither a sync nor a change of the copy touches the skill.
    gone = sent(rpc, zipped({"x/SKILL.md": skill_md("x")}), namespace=new_name, source="two", prune="true")
    assert gone["removed"] == []
    [changed] = sent(rpc, zipped({"pdf/SKILL.md": skill_md("pdf", "New.")}), namespace=new_name, source="two")["skills"]
    assert (changed["outcome"], changed["name"]) == ("published", f"{new_name}.pdf-2")
    assert version_of(rpc, f"{new_name}.pdf") == "1.0.0"


def test_a_skill_that_was_published_by_hand_is_never_taken_over(rpc: Rpc, new_name: str) -> None:
    made = {"name": f"{new_name}.pdf", "version": "1.0.0", "description": "By hand."}
    rpc("create_skill", manifest=made, skill_md="# By hand\n", files=[])
    [skill] = sent(rpc, zipped({"pdf/SKILL.md": skill_md("pdf")}), namespace=new_name, source="one")["skills"]
    toml = f'name = "{new_name}.pdf"\nversion = "1.1.0"\ndescription = "By hand."\n'
    [stated] = sent(rpc, zipped({"x/SKILL.md": "# By hand\n", "x/skill.toml": toml}), source="two")["skills"]

    assert skill["name"] == f"{new_name}.pdf-2"
    assert "published by hand" in str(skill["repairs"])
    # A skill.toml states the registry name, as for `skillery publish`.
    assert (stated["name"], stated["version"]) == (f"{new_name}.pdf", "1.1.0")


@pytest.mark.postgres
def test_two_sources_at_once_share_no_name_either(server: Server, new_name: str) -> None:
    def imported(source: str) -> dict[str, Any]:
        tree = {f"{number:02}/SKILL.md": skill_md(f"s{number}", f"Of {source}.") for number in range(12)}
        return sent(Rpc(server.url), zipped(tree), namespace=new_name, source=source)

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(imported, ("one", "two")))
    assert [report["counts"] for report in reports] == [{"published": 12}] * 2
    assert set(names(reports[0]).values()).isdisjoint(names(reports[1]).values())
    assert [imported(source)["counts"] for source in ("one", "two")] == [{"unchanged": 12}] * 2


@pytest.mark.full
@pytest.mark.parametrize("command", ["import", "sync"])
def test_another_tree_of_a_default_source_stops_before_anything_is_written(
    command: str, sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    one = write(tmp_path / "one/tools", {f"{name}/SKILL.md": skill_md(name) for name in "abc"})
    two = write(tmp_path / "two/tools", {f"{name}/SKILL.md": skill_md(name, "Other.") for name in "cxy"})
    where = ("--namespace", new_name, "--url", sqlite_server.url)
    assert skillery(command, str(one), *where).code == 0

    stopped = skillery(command, str(two), *where)
    assert stopped.code == 3
    assert "1 of the 3 paths that were imported from the source 'tools'" in stopped.err
    assert "--source" in stopped.err
    assert len(sqlite_server.rpc("list_skills", namespace=new_name)["skills"]) == 3
    answer = json.loads(skillery(command, str(two), "--source", "others", "--json", *where).out)[0]
    assert (answer["source"], names(answer)["c"]) == ("others", f"{new_name}.c-2")
    # Half of the earlier paths are enough, and the other half may have disappeared.
    (one / "a/SKILL.md").unlink()
    write(one, {"z/SKILL.md": skill_md("z")})
    assert skillery(command, str(one), *where).code == 0
    both = skillery(command, str(one), str(two), "--source", "others", *where)
    assert (both.code, "--source" in both.err) == (2, True)


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("https://github.com/Anthropics/skills.git", "github.com/Anthropics/skills"),
        ("https://user:secret@GitHub.com/anthropics/skills/", "github.com/anthropics/skills"),
        ("git@github.com:anthropics/skills.git", "github.com/anthropics/skills"),
        ("ssh://git@github.com:22/anthropics/skills", "github.com/anthropics/skills"),
        ("http://127.0.0.1:3000/a/b", "127.0.0.1:3000/a/b"),
        ("/srv/git/skills.git", ""),
        ("../skills", ""),
        ("file:///srv/git/skills", ""),
        ("", ""),
        ("https://[broken", ""),
    ],
)
def test_remote_has_the_same_source_under_every_protocol(url: str, source: str) -> None:
    assert normal_remote(url) == source


def test_the_default_source_is_the_remote_or_the_name(tmp_path: Path) -> None:
    config = (
        '[core]\n\tbare = false\n[remote "up"]\n\turl = https://x.y/up\n[remote "origin"]\n\turl = git@x.y:a/b.git\n'
    )
    write(tmp_path / "clone", {".git/config": config, "skills/pdf/SKILL.md": "x"})
    write(tmp_path / "worktree", {".git": f"gitdir: {tmp_path}/clone/.git/worktrees/w\n"})
    write(tmp_path / "clone", {".git/worktrees/w/commondir": "../..\n"})
    write(tmp_path, {"home/.claude/skills/pdf/SKILL.md": "x", "tools.tar.gz": "x"})

    found = ["clone", "clone/skills", "worktree", "home/.claude/skills", "tools.tar.gz", "home"]
    assert [default_source(tmp_path / path) for path in found] == [
        "x.y/a/b",
        "x.y/a/b/skills",
        "x.y/a/b",
        ".claude/skills",
        "tools",
        "home",
    ]


def test_imports_of_git_folders_send_the_commit_and_licences_above(rpc: Rpc, new_name: str, tmp_path: Path) -> None:
    write(tmp_path, {"LICENSE": APACHE, "x/a/SKILL.md": skill_md("a"), "x/b/SKILL.md": skill_md("b")})
    committed(tmp_path, "2025-03-01")
    write(tmp_path, {"x/b/SKILL.md": skill_md("b", "Changed.")})
    done = skillery("import", str(tmp_path), "--namespace", new_name, "--source", "acme", "--url", rpc.url)
    assert done.code == 0, done.out
    origins = {name: rpc("describe_skill", name=f"{new_name}.{name}")["skill"]["origin"] for name in ("a", "b")}

    head = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, check=True, text=True)
    shared = {"source": "acme", "licence": "Apache-2.0", "licence_path": "LICENSE"}
    of_commit = {"commit": head.stdout.strip(), "committed_at": "2025-03-01T00:00:00Z"}
    assert origins == {"a": {**shared, "path": "x/a", **of_commit}, "b": {**shared, "path": "x/b"}}


def test_a_skill_called_as_the_namespace_stays_below_it(rpc: Rpc, new_name: str) -> None:
    [skill] = sent(rpc, zipped({"x/SKILL.md": skill_md(new_name)}), namespace=new_name)["skills"]

    assert skill["name"] == f"{new_name}.{new_name}"
    assert "name" in codes(skill)


# -- exports ---------------------------------------------------------------------------------------------------------


def exported(rpc: Rpc, name: str, form: str = "zip") -> bytes:
    response = rpc.http.get(f"/skills/{name}/latest.{form}")
    assert response.status_code == 200, response.text
    return response.content


@ON_SQLITE
@pytest.mark.full
@pytest.mark.parametrize("own_namespace", [True, False])
def test_an_export_is_unchanged_here_and_the_second_time_elsewhere(
    own_namespace: bool, rpc: Rpc, new_name: str, tmp_path: Path
) -> None:
    stated = "Odd name" if own_namespace else f"{new_name}-pdf"
    tree = {"pdf/SKILL.md": skill_md(stated, "Use it.", author="me"), "pdf/scripts/a.sh*": "#!/bin/sh\n"}
    params = {"namespace": new_name} if own_namespace else {}
    [skill] = sent(rpc, zipped(tree), source=new_name, **params)["skills"]
    name = skill["name"]
    data = exported(rpc, name)

    for export in (data, exported(rpc, name, "tar.gz")):
        for source in ("", "elsewhere"):
            for within in {"", params.get("namespace", "")}:
                given = {"namespace": within} | ({"source": source} if source else {})
                [again] = sent(rpc, export, name="export", **given)["skills"]
                assert (again["outcome"], again["name"]) == ("unchanged", name), again
    archive = tmp_path / "export.zip"
    archive.write_bytes(data)
    home = ("--home", str(tmp_path / "home"), "--json")
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        opened.extractall(tmp_path / "folder")
    choices: list[tuple[str, ...]] = [(), ("--namespace", "team")]
    for namespace in choices:
        for outcome, path in (("published", archive), ("unchanged", archive), ("unchanged", tmp_path / "folder")):
            ended = skillery("import", str(path), *namespace, *home)
            assert ended.code == 0, ended.out
            [answer] = ended.json
            assert answer["counts"] == {outcome: 1}, answer
            assert answer["skills"][0]["name"] == (f"team.{name}" if namespace else name)


def test_a_skill_toml_is_renamed_line_by_line() -> None:
    toml = b'# Kept.\nname = "a.b" # as ever\nversion = \'1.0.0\'\nnamespace = "a"\ndescription = "x"\n[inputs.name]\n'
    renamed, manifest = renamed_toml(toml, "team.a.b", "1.0.1")

    assert renamed == b'# Kept.\nname = "team.a.b" # as ever\nversion = "1.0.1"\ndescription = "x"\n[inputs.name]\n'
    assert manifest == toml_manifest(renamed)
    odd = b'description = """\nname = "y"\n"""\n"name" = "a"\nversion = "1.0.0"\n'
    assert renamed_toml(odd, "b", "2.0.0")[1] == {"name": "b", "version": "2.0.0", "description": 'name = "y"\n'}
    assert toml_manifest(renamed_toml(odd, "b", "2.0.0")[0]) == renamed_toml(odd, "b", "2.0.0")[1]


# -- sync and upgrades -----------------------------------------------------------------------------------------------


def test_sync_takes_next_free_patch_if_skill_toml_keeps_its_version(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    toml = f'name = "{new_name}.own"\nversion = "1.0.0" # by hand\ndescription = "x"\n'
    folder = write(tmp_path / "tools", {"own/skill.toml": toml, "own/SKILL.md": "# One\n"})
    where = ("--url", sqlite_server.url, "--json")
    for number, outcome in enumerate(("published", "published", "unchanged")):
        (folder / "own/SKILL.md").write_text(f"# Text {min(number, 1)}\n")
        [answer] = skillery("sync", str(folder), *where).json
        [skill] = answer["skills"]
        assert (skill["outcome"], skill["version"]) == (outcome, f"1.0.{min(number, 1)}")
    stored = sqlite_server.rpc("read_skill_file", name=f"{new_name}.own", path="skill.toml")["content"]
    assert stored == toml.replace("1.0.0", "1.0.1")


@pytest.mark.full
def test_aliases_of_an_earlier_database_keep_their_skills(database_kind: str, request: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    if database_kind == "postgres":
        url = request.getfixturevalue("new_postgres_database")()
    tree = {f"{folder}/pdf/SKILL.md": skill_md("pdf", f"In {folder}.") for folder in "ab"}
    tree |= {f"{name}/SKILL.md": skill_md(name) for name in ("one", "two", "three")}
    folder = write(tmp_path / "tools", tree)
    where = ("--home", str(tmp_path / "home"), "--json")
    [first] = skillery("import", str(folder), *where, SKILLERY_DATABASE=url).json
    _go_back(url, {"b/pdf": "pdf (b/pdf)"})

    write(folder, {"one/SKILL.md": skill_md("one", "Changed.")})
    other = write(tmp_path / "others", {"two/SKILL.md": skill_md("two", "Of somebody else.")})
    [theirs] = skillery("import", str(other), *where, SKILLERY_DATABASE=url).json
    assert names(theirs) == {"two": "two-2"}
    [again] = skillery("import", str(folder), *where, SKILLERY_DATABASE=url).json
    assert (again["counts"], names(again)) == ({"unchanged": 4, "published": 1}, names(first))
    assert by_path(again)["one"]["version"] == "1.0.1"


def _go_back(url: str, told_apart: Mapping[str, str]) -> None:
    """Downgrade the database to the previous release, with the key that it used for a second skill of a name, and
    upgrade it.
    """
    database = Database(url)
    with database.engine.begin() as connection:
        for path, stated in told_apart.items():
            change = "UPDATE import_aliases SET stated = %s WHERE path = %s"
            values = (stated, path)
            connection.exec_driver_sql(change if "postgres" in url else change.replace("%s", "?"), values)
    script = ScriptDirectory.from_config(migrate.alembic_config())
    migrate.downgrade(database, str(script.get_revision("0020").down_revision))
    migrate.upgrade(database)
    database.close()
