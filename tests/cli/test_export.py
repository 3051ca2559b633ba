"""`skillery export`: an archive of many skills that another server imports without a change."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, publisher


@pytest.fixture
def here(rpc: Rpc, new_name: str) -> dict[str, str]:
    """Publish skills, and return their digests by name."""
    publish = publisher(rpc)
    for name, version in (("greet", "1.0.0"), ("greet", "1.1.0"), ("text.count", "2.0.0")):
        publish(f"{new_name}.{name}", version)
    described = [rpc("describe_skill", name=f"{new_name}.{name}")["skill"] for name in ("greet", "text.count")]
    return {skill["name"]: skill["digest"] for skill in described}


@ON_SQLITE
@pytest.mark.full
def test_an_export_has_the_same_digests_on_another_server(
    server: Server, here: dict[str, str], new_name: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "skills.tar.gz"
    done = skillery("export", str(file), "--all", "--namespace", new_name, "--url", server.url)
    assert done.code == 0, done.err
    assert "2 skills" in done.out
    there = start_server(home="home")

    imported = skillery("import", str(file), "--source", "office", "--url", there.url, "--json")
    again = skillery("import", str(file), "--source", "office", "--url", there.url, "--json")

    assert imported.json[0]["counts"] == {"published": 2}
    assert again.json[0]["counts"] == {"unchanged": 2}
    described = [there.rpc("describe_skill", name=name)["skill"] for name in here]
    assert {skill["name"]: skill["digest"] for skill in described} == here
    with tarfile.open(file) as tar:
        for name in (".skillery.lock", ".skillery.lock.proofs"):
            tar.extract(name, tmp_path, filter="data")
    assert skillery("lock", "--check", "--file", str(tmp_path / ".skillery.lock"), "--url", there.url).code == 0


def test_chosen_versions_are_exported(server: Server, here: dict[str, str], new_name: str, tmp_path: Path) -> None:
    file = tmp_path / "skills.tar.gz"
    done = skillery("export", str(file), f"{new_name}.greet@1.0.0", "--url", server.url, "--json")

    assert [(entry["name"], entry["version"]) for entry in done.json["lock"]] == [(f"{new_name}.greet", "1.0.0")]
    with tarfile.open(file) as tar:
        assert f"{new_name}.greet/skill.toml" in tar.getnames()


EMPTY = ((), ("--all", "some.skill"), ("no.such.skill",), ("--all", "--namespace", "no.such"))


@pytest.mark.parametrize("words", EMPTY)
def test_an_empty_export_writes_nothing(words: tuple[str, ...], server: Server, tmp_path: Path) -> None:
    file = tmp_path / "skills.tar.gz"

    done = skillery("export", str(file), *words, "--url", server.url)

    assert done.code != 0
    assert "Error" in done.err or "error" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_keeps_the_former_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "none" / "skills.tar.gz"
    assert "cannot write" in skillery("export", str(file), "text.csv.profile", "--url", server.url).err
    file = tmp_path / "skills.tar.gz"
    file.write_text("former")
    assert skillery("export", str(file), "no.such.skill", "--url", server.url).code != 0
    assert file.read_text() == "former"
