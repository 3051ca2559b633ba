"""Who sees which repositories and objects, with tokens that git gets from a credential helper."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.api.test_access import create_token
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.git.clones import Git, files_of

REFS = "info/refs?service=git-upload-pack"


class Team(NamedTuple):
    """A namespace with a public skill and a skill that only its members see."""

    name: str
    member: str
    other: str
    """Tokens of a member and of another caller."""


@pytest.fixture
def team(tokens_server: Server, new_name: str) -> Team:
    member = create_token(tokens_server, f"{new_name}-m", "--scope", "read,publish", "--namespace", f"{new_name}.*")[
        "token"
    ]
    other = create_token(tokens_server, f"{new_name}-o", "--scope", "read")["token"]
    publisher = Rpc(tokens_server.url, member)
    for skill in ("open.one", "closed.one"):
        publisher(
            "create_skill",
            manifest=manifest(f"{new_name}.{skill}"),
            skill_md=f"# {skill}\n",
            files=skill_files(**{"note.txt": f"{new_name} {skill}"}),
        )
        assert (
            publisher.send("describe_skill", {"name": f"{new_name}.{skill}"})["result"]["skill"]["status"]
            == "published"
        )
    publisher("set_visibility", name=f"{new_name}.closed.one", visibility="namespace")
    return Team(new_name, member, other)


def get(server: Server, path: str, *credentials: str) -> httpx.Response:
    headers = {"authorization": " ".join(credentials)} if credentials else {}
    return httpx.get(f"{server.url}/git/{path}", headers=headers)


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@ON_SQLITE
@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_each_caller_clones_the_skills_that_it_sees(tokens_server: Server, team: Team, tmp_path: Path) -> None:
    member = Git(tmp_path / "member", tokens_server.url, team.member)
    other = Git(tmp_path / "other", tokens_server.url, team.other)

    whole = files_of(member.clone(team.name, "clone"))
    assert {path.split("/")[1] for path in whole if path.startswith("skills/")} == {
        f"{team.name}-open-one",
        f"{team.name}-closed-one",
    }
    seen = files_of(other.clone(team.name, "clone"))
    assert {path.split("/")[1] for path in seen if path.startswith("skills/")} == {f"{team.name}-open-one"}
    assert team.name.encode() + b" closed.one" not in b"".join(seen.values())
    assert not (other.clone("_all", "all", "--depth", "1") / f"skills/{team.name}-closed-one").exists()
    assert member.refs(f"n/{team.name}.closed.one").keys() >= {"refs/tags/v1.0.0"}

    # objects of the hidden skill are not found by their ids either
    hidden = {
        member("rev-parse", f"HEAD:skills/{team.name}-closed-one{below}", cwd="clone") for below in ("", "/note.txt")
    } | {member("rev-parse", "HEAD", cwd="clone"), member.refs(f"n/{team.name}.closed.one")["HEAD"]}
    for repository in (team.name, "_all", f"n/{team.name}.open.one"):
        for sha in hidden:
            for protocol in ("0", "2"):
                refused = other.run(
                    "-c", f"protocol.version={protocol}", "fetch", other.address(repository), sha, cwd="clone"
                )
                assert refused.returncode != 0
                assert f"not our ref {sha}" in refused.stderr or "unadvertised" in refused.stderr, refused.stderr
    shown = other("rev-parse", f"HEAD:skills/{team.name}-open-one/note.txt", cwd="clone")
    other("init", "--quiet", "single")
    other("fetch", "--quiet", other.address(team.name), shown, cwd="single")
    assert shown in other.objects("single")


@pytest.mark.full
def test_the_clone_of_a_namespace_has_the_visible_required_skills(
    tokens_server: Server, team: Team, tmp_path: Path
) -> None:
    publisher, app, lib = Rpc(tokens_server.url, team.member), f"{team.name}.app", f"{team.name}.lib"

    def create(name: str, version: str = "1.0.0", **skills: str) -> None:
        requires = {"requires": {"skills": {f"{lib}.{each}": spec for each, spec in skills.items()}}} if skills else {}
        publisher(
            "create_skill",
            manifest=manifest(name, version, **requires),
            skill_md=f"# {name} {version}\n",
            files=skill_files(),
        )

    for version in ("1.0.0", "1.1.0", "2.0.0"):
        create(f"{lib}.base", version)
    create(f"{lib}.inner")
    create(f"{lib}.twice", inner="*")
    create(f"{app}.old", base="~1.0")
    create(f"{app}.new", base="^1", twice="*")
    publisher("set_visibility", name=f"{lib}.inner", visibility="namespace")
    member, other = (Git(tmp_path / name, tokens_server.url, getattr(team, name)) for name in ("member", "other"))

    def skills_of(git: Git, to: str) -> tuple[dict[str, str], list[str]]:
        """Return the first lines of all SKILL.md of a clone by folder, and the plugins of its marketplace."""
        files = files_of(git.clone(app, to))
        plugins = json.loads(files[".claude-plugin/marketplace.json"])["plugins"]
        texts = {path.split("/")[1]: text for path, text in files.items() if path.endswith("/SKILL.md")}
        titles = {folder: text.decode().partition("# ")[2].strip() for folder, text in texts.items()}
        return titles, [plugin["name"] for plugin in plugins]

    own = {f"{team.name}-app-{each}": f"{app}.{each} 1.0.0" for each in ("new", "old")}
    seen = own | {f"{team.name}-lib-base": f"{lib}.base 1.1.0", f"{team.name}-lib-twice": f"{lib}.twice 1.0.0"}
    assert skills_of(other, "clone") == (seen, [*seen, f"{team.name}-app-all"])
    assert skills_of(member, "clone")[0] == seen | {f"{team.name}-lib-inner": f"{lib}.inner 1.0.0"}
    assert member("log", "-1", "--format=%s", cwd="clone") == f"2 skills of {app}, and 3 that they require"
    assert other.refs(app) == other.refs(app)
    publisher("yank_version", name=f"{lib}.base", version="1.1.0", reason="wrong")
    assert skills_of(other, "later")[0][f"{team.name}-lib-base"] == f"{lib}.base 1.0.0"


def test_hidden_and_unknown_repositories_answer_identically(tokens_server: Server, team: Team) -> None:
    answers = [
        get(tokens_server, f"{path}/{REFS}", "Bearer", team.other)
        for path in (
            f"{team.name}.closed.git",
            f"{team.name}.closed2.git",
            f"n/{team.name}.closed.one.git",
            "n/a.b.git",
        )
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1
    kept = [sorted(answer.headers.keys() - {"x-request-id", "date"}) for answer in answers]
    assert kept[0] == kept[1] == kept[2] == kept[3]


@ON_SQLITE
def test_without_credentials_every_answer_is_401_with_a_challenge_for_git(tokens_server: Server, team: Team) -> None:
    for path in (f"_all.git/{REFS}", f"{team.name}.git/{REFS}", f"{team.name}.closed.git/{REFS}", "x", "_all.git/HEAD"):
        answer = get(tokens_server, path)
        assert answer.status_code == 401
        challenges = answer.headers.get_list("www-authenticate")
        assert any(one.startswith("Basic realm=") for one in challenges)
        assert any(one.startswith("Bearer") for one in challenges)
        assert answer.headers["content-type"].startswith("text/plain")
    posted = httpx.post(f"{tokens_server.url}/git/_all.git/git-upload-pack", content=b"0000")
    assert posted.status_code == 401
    assert "basic" not in tokens_server.rpc.http.get("/skills/a.b/latest.zip").headers["www-authenticate"].lower()


def test_a_token_is_a_password_or_a_bearer_token(tokens_server: Server, team: Team) -> None:
    path = f"{team.name}.git/{REFS}"
    for credentials in (
        ("Basic", basic("any", team.other)),
        ("basic", basic("", team.other)),
        ("Bearer", team.other),
    ):
        assert get(tokens_server, path, *credentials).status_code == 200, credentials
    for credentials in (
        ("Basic", basic(team.other, "")),
        ("Basic", basic("any", "sky_wrong")),
        ("Basic", "%%%"),
        ("Basic", base64.b64encode(b"\xff:\xff").decode()),
        ("Basic", basic("any", f"{team.other}\r\nx")),
    ):
        refused = get(tokens_server, path, *credentials)
        assert refused.status_code == 401, credentials
        assert any(one.startswith("Basic") for one in refused.headers.get_list("www-authenticate"))
    assert Rpc(tokens_server.url).http.get("/skills/a.b/latest.zip", auth=("any", team.other)).status_code == 401


def test_git_fails_without_credentials_and_requires_the_read_scope(
    tokens_server: Server, team: Team, tmp_path: Path, new_name: str
) -> None:
    alone = Git(tmp_path / "alone", tokens_server.url)
    refused = alone.run("clone", alone.address("_all"), "clone")
    assert refused.returncode != 0
    assert "could not read Username" in refused.stderr
    bearer = ("-c", f"http.extraHeader=Authorization: Bearer {team.other}")
    assert "HEAD" in alone.refs(team.name, *bearer)
    runner = create_token(tokens_server, f"{new_name}-run", "--scope", "run")["token"]
    assert get(tokens_server, f"_all.git/{REFS}", "Bearer", runner).status_code == 403
    assert team.other not in tokens_server.log.read_text()
