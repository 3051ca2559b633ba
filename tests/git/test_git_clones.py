"""Repositories of skills, read by the program `git`."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.git.clones import Git, files_of

PROTOCOLS = ("0", "1", "2")


@pytest.fixture
def git(server: Server, tmp_path: Path) -> Git:
    return Git(tmp_path / "git", server.url)


@pytest.fixture
def create(rpc: Rpc) -> Callable[..., Any]:
    """Return a function that publishes a version of a skill with given files."""

    def make(name: str, version: str = "1.0.0", **files: str) -> Any:
        return rpc(
            "create_skill",
            manifest=manifest(name, version),
            skill_md=f"# {name} {version}\n",
            files=skill_files(**files),
        )

    return make


def exported(rpc: Rpc, name: str, version: str = "latest") -> dict[str, tuple[bytes, int]]:
    archive = rpc.http.get(f"/skills/{name}/{version}.tar.gz").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = [(one, opened.extractfile(one)) for one in opened]
        return {one.name: (file.read(), one.mode) for one, file in files if file is not None}


def test_a_clone_has_the_files_of_the_exports(git: Git, rpc: Rpc, create: Callable[..., Any], new_name: str) -> None:
    rpc(
        "create_skill",
        manifest=manifest(f"{new_name}.a_b"),
        skill_md="# Not conforming\n",
        files=[
            *skill_files(
                **{"big/ä ö.txt": "größer " * 30_000, ".git/config": "no", "x/.GiT/y": "no", ".gitignore": "*"}
            ),
            {"path": "run.sh", "content": "#!/bin/sh\n", "executable": True},
        ],
    )
    create(f"{new_name}.c")

    clone = git.clone(new_name, "whole")

    found = files_of(clone)
    wanted = {
        f"skills/{new_name}-{folder}/{path}": content
        for folder, name in (("a-b", "a_b"), ("c", "c"))
        for path, (content, _) in exported(rpc, f"{new_name}.{name}").items()
        if not path.startswith((".git/", "x/"))
    }
    assert {path: found[path] for path in found if path.startswith("skills/")} == wanted
    listed = git("ls-tree", "-r", "HEAD", f"skills/{new_name}-a-b/", cwd="whole").splitlines()
    assert {line.split()[0] for line in listed if line.endswith("run.sh")} == {"100755"}
    assert {line.split()[0] for line in listed if not line.endswith("run.sh")} == {"100644"}
    git("fsck", "--strict", cwd="whole")
    assert git("rev-list", "--count", "HEAD", cwd="whole") == "1"
    assert git("log", "--format=%an %s", cwd="whole") == f"Skillery 2 skills of {new_name}"


@ON_SQLITE
@pytest.mark.full
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shallow_and_partial_clones_fetch_the_rest_later(
    git: Git, create: Callable[..., Any], new_name: str, protocol: str
) -> None:
    create(f"{new_name}.one", **{"notes/a.txt": "a" * 5000, "b.txt": "b"})
    create(f"{new_name}.two")
    version = ("-c", f"protocol.version={protocol}")
    whole = files_of(git.clone(new_name, "whole", *version))

    assert files_of(git.clone(new_name, "depth", "--depth", "1", *version)) == whole
    git.clone(new_name, "sparse", "--filter=blob:none", "--sparse", "--depth", "1", *version)
    assert not (git.folder / "sparse/skills").exists()
    git("sparse-checkout", "set", f"skills/{new_name}-one", cwd="sparse")
    assert {path for path in files_of(git.folder / "sparse") if path.startswith("skills/")} == {
        path for path in whole if f"{new_name}-one/" in path
    }
    git("sparse-checkout", "disable", cwd="sparse")
    assert files_of(git.folder / "sparse") == whole
    git.clone(new_name, "trees", "--filter=tree:0", "--no-checkout", *version)
    assert len(git.objects("trees")) == 1
    git("checkout", "--quiet", "latest", cwd="trees")
    assert files_of(git.folder / "trees") == whole
    git.clone(new_name, "limit", "--filter=blob:limit=1k", "--no-checkout", *version)
    kinds = git("cat-file", "--batch-all-objects", "--batch-check", cwd="limit")
    assert " 5000" not in kinds
    assert " blob " in kinds
    git("checkout", "--quiet", "latest", cwd="limit")
    assert files_of(git.folder / "limit") == whole


@ON_SQLITE
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.full(after=1)
def test_a_fetch_after_a_change_brings_the_new_state(
    git: Git, rpc: Rpc, create: Callable[..., Any], new_name: str, protocol: str
) -> None:
    create(f"{new_name}.one")
    git.clone(new_name, "clone", "--depth", "1", "-c", f"protocol.version={protocol}")
    git("fetch", "--quiet", cwd="clone")
    create(f"{new_name}.two")

    git("fetch", "--quiet", "--depth", "1", cwd="clone")
    git("reset", "--quiet", "--hard", "origin/latest", cwd="clone")
    assert (git.folder / f"clone/skills/{new_name}-two/SKILL.md").exists()
    rpc("yank_version", name=f"{new_name}.one", version="1.0.0", reason="wrong")
    git("fetch", "--quiet", cwd="clone")
    git("reset", "--quiet", "--hard", "origin/latest", cwd="clone")
    assert {path.name for path in (git.folder / "clone/skills").iterdir()} == {f"{new_name}-two"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("database_kind", "protocol"),
    [*(("sqlite", protocol) for protocol in PROTOCOLS), ("postgres", PROTOCOLS[-1])],
    indirect=["database_kind"],
)
def test_the_history_of_a_skill_has_a_tag_for_each_version(
    git: Git, rpc: Rpc, create: Callable[..., Any], new_name: str, protocol: str
) -> None:
    name = f"{new_name}.one"
    version = ("-c", f"protocol.version={protocol}")
    for number in ("1.0.0", "1.1.0", "2.0.0-rc.1", "1.0.1"):
        create(name, number, **{"same.txt": "same", "new.txt": number})
    rpc("set_label", name=name, label="stable", version="1.0.0")
    refs = git.refs(f"n/{name}", *version)

    assert set(refs) == {
        "HEAD",
        "refs/heads/latest",
        "refs/heads/stable",
        *(f"refs/tags/v{number}" for number in ("1.0.0", "1.1.0", "2.0.0-rc.1", "1.0.1")),
    }
    assert refs["HEAD"] == refs["refs/heads/latest"] == refs["refs/tags/v1.1.0"]
    assert refs["refs/heads/stable"] == refs["refs/tags/v1.0.0"]
    git.clone(f"n/{name}", "full", *version)
    git("fsck", "--strict", cwd="full")
    subjects = git("log", "--format=%s", "v1.0.1", cwd="full").splitlines()
    assert subjects == [f"{name} {number}" for number in ("1.0.1", "2.0.0-rc.1", "1.1.0", "1.0.0")]
    folder = f"skills/{new_name}-one"
    for number in ("1.0.0", "1.1.0", "2.0.0-rc.1", "1.0.1"):
        for path, (content, _) in exported(rpc, name, number).items():
            assert git("show", f"v{number}:{folder}/{path}", cwd="full") == content.decode().strip()

    # parts of the history
    git.clone(f"n/{name}", "part", "--depth", "2", "--branch", "v1.0.1", *version)
    assert git("rev-list", "--count", "HEAD", cwd="part") == "2"
    git("fetch", "--quiet", "--deepen", "1", cwd="part")
    assert git("rev-list", "--count", "HEAD", cwd="part") == "3"
    git("fetch", "--quiet", "--unshallow", cwd="part")
    assert git("rev-list", "--count", "HEAD", cwd="part") == "4"
    git("fsck", "--strict", cwd="part")
    git("init", "--quiet", "pin")
    git(*version, "fetch", "--quiet", "--depth", "1", git.address(f"n/{name}"), refs["refs/tags/v1.0.0"], cwd="pin")
    assert git("show", f"FETCH_HEAD:{folder}/new.txt", cwd="pin") == "1.0.0"
    git.clone(f"n/{name}", "without", "--shallow-exclude", "v1.1.0", "--branch", "v1.0.1", *version)
    assert git("log", "--format=%s", cwd="without").splitlines() == subjects[:2]
    # git takes a date of the distant future for a mistake.
    soon = (datetime.now(UTC) + timedelta(days=5)).isoformat()
    none = git.run("clone", "--shallow-since", soon, *version, git.address(f"n/{name}"), "none")
    assert "no commits selected" in none.stderr
    # a clone that has a part fetches only the rest
    git.clone(f"n/{name}", "grow", "--branch", "stable", "--single-branch", "--no-tags", *version)
    assert git("rev-list", "--count", "HEAD", cwd="grow") == "1"
    git("fetch", "--quiet", "origin", "refs/tags/v1.0.1:refs/tags/v1.0.1", cwd="grow")
    git("fsck", "--strict", "--connectivity-only", cwd="grow")
    assert git("rev-list", "--count", "v1.0.1", cwd="grow") == "4"


@ON_SQLITE
@pytest.mark.full
def test_yanked_versions_keep_their_tags_and_purged_versions_vanish(
    git: Git, rpc: Rpc, create: Callable[..., Any], new_name: str
) -> None:
    name, other = f"{new_name}.one", f"{new_name}.other"
    create(other)
    for number in ("1.0.0", "1.1.0", "1.2.0"):
        create(name, number, **{"only.txt": f"secret of {number}"})
    rpc("set_label", name=name, label="stable", version="1.1.0")
    before = git.refs(f"n/{name}")
    stable = git.refs(new_name)["refs/heads/stable"]
    git.clone(f"n/{name}", "before")
    secret = git("rev-parse", f"v1.1.0:skills/{new_name}-one/only.txt", cwd="before")

    rpc("yank_version", name=name, version="1.2.0", reason="wrong")
    yanked = git.refs(f"n/{name}")
    assert yanked == before | {"HEAD": before["refs/tags/v1.1.0"], "refs/heads/latest": before["refs/tags/v1.1.0"]}
    latest = files_of(git.clone(new_name, "yanked"))
    assert latest[f"skills/{new_name}-one/only.txt"] == b"secret of 1.1.0"
    assert git.refs(new_name)["refs/heads/stable"] == stable

    rpc("unyank_version", name=name, version="1.2.0")
    assert git.refs(f"n/{name}") == before
    rpc("yank_version", name=name, version="1.2.0", reason="leaks", severity="security", fixed="1.2.1")
    revoked = git.refs(f"n/{name}")
    assert revoked == yanked | {"refs/tags/v1.2.0": revoked["refs/tags/v1.2.0"]}
    git.clone(f"n/{name}", "revoked", "--branch", "v1.2.0")
    [advisory] = json.loads(git("show", "v1.2.0:ADVISORIES.json", cwd="revoked"))["advisories"]
    assert advisory.items() >= {"version": "1.2.0", "severity": "security", "fixed": "1.2.1"}.items()
    rpc("unyank_version", name=name, version="1.2.0")
    rpc("yank_version", name=name, version="1.2.0", reason="steals", severity="malicious")
    assert git.refs(f"n/{name}") == {ref: sha for ref, sha in yanked.items() if ref != "refs/tags/v1.2.0"}
    rpc("unyank_version", name=name, version="1.2.0")
    rpc("yank_version", name=name, version="1.2.0", reason="wrong")

    rpc("purge_version", name=name, version="1.1.0", reason="a key")
    purged = git.refs(f"n/{name}")
    assert purged["refs/tags/v1.0.0"] == before["refs/tags/v1.0.0"]
    assert "refs/tags/v1.1.0" not in purged
    assert purged["refs/tags/v1.2.0"] != before["refs/tags/v1.2.0"]
    assert "refs/heads/stable" not in purged | git.refs(new_name)
    git.clone(f"n/{name}", "after")
    assert git("log", "--format=%s", "v1.2.0", cwd="after").splitlines() == [f"{name} 1.2.0", f"{name} 1.0.0"]
    assert secret not in git.objects("after")
    for repository in (f"n/{name}", new_name, "_all"):
        for old in (secret, before["refs/tags/v1.1.0"], before["refs/tags/v1.2.0"]):
            refused = git.run("fetch", git.address(repository), old, cwd="after")
            assert f"not our ref {old}" in refused.stderr


def test_a_label_is_a_branch_with_the_labelled_versions(
    git: Git, rpc: Rpc, create: Callable[..., Any], new_name: str
) -> None:
    for name in ("one", "two", "three"):
        create(f"{new_name}.{name}", "1.0.0")
        create(f"{new_name}.{name}", "2.0.0")
    for name, version in (("one", "1.0.0"), ("two", "2.0.0")):
        rpc("set_label", name=f"{new_name}.{name}", label="stable", version=version)
    for label in ("my.lock", "a..b"):
        rpc("set_label", name=f"{new_name}.one", label=label, version="1.0.0")

    assert set(git.refs(new_name)) == {"HEAD", "refs/heads/latest", "refs/heads/stable"}
    stable = files_of(git.clone(new_name, "stable", "--branch", "stable", "--depth", "1"))
    assert {path.split("/")[1] for path in stable if path.startswith("skills/")} == {
        f"{new_name}-one",
        f"{new_name}-two",
    }
    assert b'version = "1.0.0"' in stable[f"skills/{new_name}-one/skill.toml"]
    assert b'version = "2.0.0"' in stable[f"skills/{new_name}-two/skill.toml"]


@pytest.mark.full
def test_commit_ids_depend_on_content_and_clones_include_nested_skills(
    git: Git, create: Callable[..., Any], new_name: str
) -> None:
    create(f"{new_name}.deep.one")
    first = git.refs(new_name)

    assert git.refs(new_name) == first
    assert (git.clone("_all", "all", "--depth", "1") / f"skills/{new_name}-deep-one/SKILL.md").exists()
    assert (git.clone(f"{new_name}.deep", "deep") / f"skills/{new_name}-deep-one/SKILL.md").exists()
    create(f"{new_name}.deep.two")
    assert git.refs(new_name) != first


@pytest.mark.postgres
def test_clones_at_the_same_time_get_the_same_state(git: Git, create: Callable[..., Any], new_name: str) -> None:
    for number in range(3):
        create(f"{new_name}.s{number}", **{"data.txt": str(number) * 100_000})

    with ThreadPoolExecutor(6) as threads:
        clones = list(threads.map(lambda number: files_of(git.clone(new_name, f"clone{number}")), range(6)))
    assert clones == [clones[0]] * 6
    assert len({git("rev-parse", "HEAD", cwd=f"clone{number}") for number in range(6)}) == 1


@ON_SQLITE
def test_a_push_is_refused_and_unknown_filters_are_named(git: Git, create: Callable[..., Any], new_name: str) -> None:
    create(f"{new_name}.one")
    git.clone(new_name, "clone")
    git("commit", "--quiet", "--allow-empty", "-m", "mine", cwd="clone")

    pushed = git.run("push", cwd="clone")
    assert pushed.returncode != 0
    assert "remote: this repository is read-only" in pushed.stderr
    for wanted in ("sparse:oid=latest", "tree:3", "object:type=blob"):
        refused = git.run("clone", f"--filter={wanted}", git.address(new_name), "filtered")
        assert refused.returncode != 0
        assert "fatal: remote error: the filter" in refused.stderr
        assert wanted in refused.stderr
    missing = git.run("clone", git.address(f"{new_name}.none"), "missing")
    assert "remote: this repository does not exist" in missing.stderr
