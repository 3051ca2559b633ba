"""Exports of skills as Agent Skills: archives, files and indexes, for callers that may see them."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from skillery.backends import Identity
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.database import Database
from skillery.database.tables import exports
from skillery.exports import Exports, Index
from skillery.exports.facts import MAKER
from skillery.exports.skill_exports import PREPARED_AT_ONCE
from skillery.formats.agent_skill import agent_skill
from skillery.formats.bundle import BundleFile
from skillery.formats.names import index_name
from skillery.identity.quotas import Quotas
from skillery.versions.new_versions import insert_version
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.bundles import make_bundle
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

Publish = Callable[..., dict[str, Any]]
CONFORMING = "---\nname: {name}\ndescription: What it does, as it says itself.\n---\n# Use it\n"
AUTHOR = Who("author", "read run publish", "*")
ADMIN = Who("admin", "admin")
OUTSIDER = Who("outsider", "read", "elsewhere.*")


@pytest.fixture
def http(server: Server) -> httpx.Client:
    return server.rpc.http


def get(http: httpx.Client, path: str, **headers: str) -> httpx.Response:
    found = http.get(path, headers=headers)
    assert found.status_code == 200, found.text
    return found


def index_of(http: httpx.Client, namespace: str = "", kind: str = "agent-skills") -> dict[str, dict[str, Any]]:
    above = f"/n/{namespace}" if namespace else ""
    return {one["name"]: one for one in get(http, f"{above}/.well-known/{kind}/index.json").json()["skills"]}


def untarred(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def unzipped(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return {one: opened.read(one) for one in opened.namelist()}


# -- archives ----------------------------------------------------------------------------------------------------------


def test_archives_contain_the_stored_files_if_skill_md_conforms(rpc: Rpc, http: httpx.Client, new_name: str) -> None:
    name = f"{new_name}.b_c"
    big = "x" * 200_000
    files = [*skill_files(**{"big.txt": big}), {"path": "run.sh", "content": "#!/bin/sh\n", "executable": True}]
    skill_md = CONFORMING.format(name=f"{new_name}-b-c")
    created = rpc("create_skill", manifest=manifest(name), skill_md=skill_md, files=files)

    tar, zipped = (get(http, f"/skills/{name}/1.0.0.{form}") for form in ("tar.gz", "zip"))
    found = untarred(tar.content)
    assert found == unzipped(zipped.content)
    assert (found["SKILL.md"].decode(), found["big.txt"].decode()) == (skill_md, big)
    assert set(found) == {"SKILL.md", "skill.toml", "code/main.py", "big.txt", "run.sh"}
    with tarfile.open(fileobj=io.BytesIO(tar.content)) as opened:
        assert {one.name for one in opened if one.mode & 0o111} == {"run.sh"}
    for answer, kind in ((tar, "application/gzip"), (zipped, "application/zip")):
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-skillery-digest"] == created["digest"]
        assert answer.headers["x-skillery-skill-md"] == "stored"
        assert answer.headers["content-length"] == str(len(answer.content))
        sha256 = hashlib.sha256(answer.content)
        assert answer.headers["etag"] == f'"{sha256.hexdigest()}"'
        assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(sha256.digest()).decode()}:"
    assert tar.headers["content-disposition"] == f'attachment; filename="{new_name}-b-c-1.0.0.tar.gz"'


def test_archive_converts_nonconforming_skill_md_and_keeps_the_stored_digest(
    publish: Publish, http: httpx.Client, rpc: Rpc, new_name: str
) -> None:
    created = publish(f"{new_name}.greet")
    answer = get(http, f"/skills/{new_name}.greet/1.0.0.zip")

    found = unzipped(answer.content)
    assert not agent_skill(found["SKILL.md"], name=f"{new_name}-greet", description="").is_generated
    assert found["SKILL.md"].endswith(f"---\n# {new_name}.greet\n".encode())
    assert answer.headers["x-skillery-skill-md"] == "generated"
    assert answer.headers["x-skillery-digest"] == created["digest"]
    stored = rpc("read_skill_file", name=f"{new_name}.greet", path="SKILL.md")["content"]
    assert stored == f"# {new_name}.greet\n"
    assert get(http, f"/skills/{new_name}.greet/1.0.0/SKILL.md").content == found["SKILL.md"]
    assert get(http, f"/skills/{new_name}.greet/1.0.0/code/main.py").content == found["code/main.py"]


def test_archives_accept_every_version_spec_and_report_the_version(
    publish: Publish, rpc: Rpc, http: httpx.Client, new_name: str
) -> None:
    name = f"{new_name}.greet"
    for version in ("1.0.0", "1.1.0", "2.0.0-rc.1+b.7"):
        publish(name, version)
    rpc("set_label", name=name, label="stable", version="1.0.0")
    digest = rpc("describe_skill", name=name, version="1.0.0")["skill"]["digest"]

    expected = {
        "1.0.0": "1.0.0",
        "latest": "1.1.0",
        "stable": "1.0.0",
        "%5E1.0": "1.1.0",
        ">=1 <2": "1.1.0",
        digest: "1.0.0",
        "2.0.0-rc.1+b.7": "2.0.0-rc.1+b.7",
        "2.0.0-rc.1": "2.0.0-rc.1+b.7",
    }
    for spec, version in expected.items():
        answer = get(http, f"/skills/{name}/{spec}.tar.gz")
        assert answer.headers["x-skillery-version"] == version
        place = answer.headers["content-location"]
        assert place == f"/skills/{name}/{version.replace('+', '%2B')}.tar.gz"
        assert get(http, place).headers["etag"] == answer.headers["etag"]
        is_settled = spec in ("1.0.0", digest, "2.0.0-rc.1+b.7")
        assert ("immutable" in answer.headers["cache-control"]) is is_settled, spec


def test_files_of_a_revoked_version_name_its_advisory(
    publish: Publish, rpc: Rpc, http: httpx.Client, new_name: str
) -> None:
    for version in ("1.0.0", "1.1.0"):
        publish(new_name, version)
    rpc("yank_version", name=new_name, version="1.0.0", reason="leaks", severity="security")
    advisory = rpc("describe_skill", name=new_name, version="1.0.0")["skill"]["yanked"]["advisory"]

    for suffix in ("tar.gz", "zip"):
        revoked = get(http, f"/skills/{new_name}/1.0.0.{suffix}")
        assert revoked.headers["X-Skillery-Advisory"] == advisory
        assert "immutable" not in revoked.headers["cache-control"]
        assert "x-skillery-advisory" not in get(http, f"/skills/{new_name}/1.1.0.{suffix}").headers


def test_a_known_etag_gets_304_and_head_matches_get(publish: Publish, http: httpx.Client, new_name: str) -> None:
    publish(f"{new_name}.greet")
    for path in (
        f"/skills/{new_name}.greet/latest.tar.gz",
        f"/skills/{new_name}.greet/latest/skill.toml",
        f"/n/{new_name}/.well-known/agent-skills/index.json",
        f"/n/{new_name}/.well-known/skills/{new_name}-greet/SKILL.md",
    ):
        whole = get(http, path)
        tag = whole.headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = http.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        get(http, path, **{"if-none-match": '"other"'})
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        varying = ("date", "x-request-id")
        assert {k: v for k, v in head.headers.items() if k not in varying} == {
            k: v for k, v in whole.headers.items() if k not in varying
        }


@pytest.mark.full
def test_a_bundle_of_many_files_comes_out_whole(sqlite_rpc: Rpc, new_name: str) -> None:
    # The archive is larger than one read returns, with small and large pieces in turn.
    more = {f"d/{number:03}.txt": f"{number}\n" * (2_000 if number % 5 else 40_000) for number in range(300)}
    sqlite_rpc("create_skill", manifest=manifest(f"{new_name}.a"), skill_md="# x\n", files=skill_files(**more))

    for form, opened in (("tar.gz", untarred), ("zip", unzipped)):
        answer = get(sqlite_rpc.http, f"/skills/{new_name}.a/1.0.0.{form}")
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
        found = opened(answer.content)
        assert {path: found[path].decode() for path in more} == more
        assert len(found) == len(more) + 3


def test_a_large_skill_md_that_is_made_keeps_its_body(sqlite_rpc: Rpc, new_name: str) -> None:
    """The file is never held in memory: the generated head precedes the stored body, which is read in pieces."""
    body = "".join(f"{number}\n" for number in range(300_000))
    skill_md = f"---\nname: another\n{'k: ' + 'v' * 50_000}\n---\n{body}"
    sqlite_rpc("create_skill", manifest=manifest(new_name), skill_md=skill_md, files=skill_files())
    file, zipped = (get(sqlite_rpc.http, f"/skills/{new_name}/1.0.0{end}") for end in ("/SKILL.md", ".zip"))
    assert file.headers["x-skillery-skill-md"] == "generated"
    assert file.text.startswith(f"---\nname: {new_name}\n")
    assert file.text.endswith(f"---\n{body}")
    assert hashlib.sha256(file.content).hexdigest() == file.headers["etag"].strip('"')
    assert unzipped(zipped.content)["SKILL.md"] == file.content


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/skills", 404),
        ("/skills/none", 404),
        ("/skills/none/1.0.0.tar.gz", 404),
        ("/skills/none/.tar.gz", 404),
        ("/skills/none/1.0.0.rar", 404),
        ("/skills/none/1.0.0/SKILL.md", 404),
        ("/skills/skills.protocol.guide/latest/nothing", 404),
        ("/skills/skills.protocol.guide/latest/", 404),
        ("/skills/skills.protocol.guide/latest/..%2FSKILL.md", 404),
        ("/skills/skills.protocol.guide/9.0.0.zip", 404),
        ("/skills/skills.protocol.guide/not a version.zip", 400),
        ("/skills/%ff/1.zip", 404),
        ("/skills/Bad/latest.zip", 400),
        ("/.well-known/agent-skills/none/SKILL.md", 404),
        ("/.well-known/skills/skills-protocol-guide/nothing", 404),
        ("/.well-known/other/index.json", 404),
        ("/n/Bad/.well-known/skills/index.json", 404),
        ("/n/a/skills/index.json", 404),
        ("/notes", 404),
    ],
)
def test_unknown_export_paths_return_an_error_object(sqlite_server: Server, path: str, status: int) -> None:
    answer = sqlite_server.rpc.http.get(path)

    assert answer.status_code == status
    assert answer.json()["error"]["data"]["type"]
    assert sqlite_server.rpc.http.post(path).status_code in (404, 405)


# -- indexes -----------------------------------------------------------------------------------------------------------


def test_index_lists_skills_with_correct_urls_files_and_digests(rpc: Rpc, http: httpx.Client, new_name: str) -> None:
    rpc("create_skill", manifest=manifest(f"{new_name}.act"), skill_md="# x\n", files=skill_files())
    lone = manifest(f"{new_name}.read_me", kind="instruction")
    rpc("create_skill", manifest=lone, skill_md="# y\n", files=[])

    document = get(http, "/.well-known/agent-skills/index.json").json()
    assert document["$schema"] == "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
    found = index_of(http)
    act, read_me = found[f"{new_name}-act"], found[f"{new_name}-read-me"]
    assert set(act) == {"name", "type", "description", "url", "digest"}
    assert (act["type"], act["url"]) == ("archive", f"/skills/{new_name}.act/1.0.0.tar.gz")
    assert (read_me["type"], read_me["url"]) == ("skill-md", f"/skills/{new_name}.read_me/1.0.0/SKILL.md")
    for entry in (act, read_me):
        content = get(http, entry["url"]).content
        assert entry["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert entry["description"]

    older = index_of(http, kind="skills")[f"{new_name}-act"]
    assert older["files"][0] == "SKILL.md"
    assert set(older["files"]) == {"SKILL.md", "skill.toml", "code/main.py"}
    archive = untarred(get(http, act["url"]).content)
    for kind in ("skills", "agent-skills"):
        for above in ("", f"/n/{new_name}"):
            for path in older["files"]:
                assert get(http, f"{above}/.well-known/{kind}/{new_name}-act/{path}").content == archive[path]


def test_an_index_has_the_latest_version_and_nothing_that_does_not_resolve(
    publish: Publish, rpc: Rpc, http: httpx.Client, new_name: str
) -> None:
    path = f"/n/{new_name}/.well-known/agent-skills/index.json"
    publish(f"{new_name}.greet")
    first = get(http, path)
    publish(f"{new_name}.greet", "1.1.0", code="def main(args):\n    return 2\n")
    second = get(http, path)
    assert "/1.1.0.tar.gz" in second.text
    assert second.headers["etag"] != first.headers["etag"]
    rpc("yank_version", name=f"{new_name}.greet", version="1.1.0", reason="x")
    assert get(http, path).content == first.content
    rpc("yank_version", name=f"{new_name}.greet", version="1.0.0", reason="x")
    assert get(http, path).json()["skills"] == []
    assert get(http, f"/skills/{new_name}.greet/1.0.0.zip").headers["x-skillery-version"] == "1.0.0"
    assert http.get(f"/skills/{new_name}.greet/latest.zip").status_code == 404


def test_namespace_index_lists_skills_below_it_and_the_skill_itself(
    publish: Publish, http: httpx.Client, new_name: str
) -> None:
    for name in ("a.one", "a.b.two", "ab.three", "a"):
        publish(f"{new_name}.{name}")

    def names(namespace: str) -> set[str]:
        return {name.removeprefix(f"{new_name}-") for name in index_of(http, namespace)}

    assert names(new_name) == {"a-one", "a-b-two", "ab-three", "a"}
    assert names(f"{new_name}.a") == {"a-one", "a-b-two", "a"}
    assert names(f"{new_name}.a.b.two") == {"a-b-two"}
    assert names(f"{new_name}.none") == set()


def test_colliding_index_name_lists_first_skill_except_in_the_other_skills_namespace(
    publish: Publish, rpc: Rpc, http: httpx.Client, new_name: str
) -> None:
    first, later, twin = f"{new_name}.x.b.c", f"{new_name}.x.b_c", f"{new_name}.x.b-c"
    wanted = f"{new_name}-x-b-c"
    publish(first)
    assert rpc("describe_skill", name=first)["skill"]["warnings"] == []
    checked = rpc("check_skill", manifest=manifest(later), skill_md="# x\n", files=skill_files())
    publish(later)
    publish(twin)
    assert checked["warnings"] == rpc("describe_skill", name=later)["skill"]["warnings"]

    def skill_of(namespace: str) -> str | None:
        entry = index_of(http, namespace).get(wanted)
        return entry["url"].split("/")[2] if entry else None

    assert skill_of("") == first
    assert skill_of(new_name) == first
    assert skill_of(f"{new_name}.x") == later
    assert skill_of(f"{new_name}.x.b") == first
    assert [skill_of(name) for name in (first, later, twin)] == [first, later, twin]
    served = get(http, f"/n/{new_name}.x/.well-known/skills/{wanted}/SKILL.md")
    assert served.headers["x-skillery-skill"] == later
    assert get(http, f"/.well-known/skills/{wanted}/SKILL.md").headers["x-skillery-skill"] == first
    for name in (later, twin):
        (warning,) = rpc("describe_skill", name=name)["skill"]["warnings"]
        assert wanted in warning
        assert f"'{first}'" in warning
        assert f"/n/{name}/.well-known" in warning
        # The warning names this index only if the skill is listed there: of two skills in one namespace, the first is.
        assert (f"/n/{new_name}.x/.well-known" in warning) == (name == later)

    # A published name never refers to another skill.
    rpc("yank_version", name=first, version="1.0.0", reason="x")
    assert skill_of("") is None
    assert http.get(f"/.well-known/skills/{wanted}/SKILL.md").status_code == 404


def test_older_index_omits_skills_with_unsupported_paths(rpc: Rpc, http: httpx.Client, new_name: str) -> None:
    for name, path in (("odd", "what#?.txt"), ("dots", "a..b"), ("plain", "a b.txt")):
        files = skill_files(**{path: "x"})
        rpc("create_skill", manifest=manifest(f"{new_name}.{name}"), skill_md="# x\n", files=files)

    assert set(index_of(http, new_name, "skills")) == {f"{new_name}-plain"}
    assert set(index_of(http, new_name)) == {f"{new_name}-{name}" for name in ("odd", "dots", "plain")}
    assert get(http, f"/skills/{new_name}.odd/1.0.0/what%23%3F.txt").content == b"x"


def test_a_description_is_as_short_in_an_index_as_its_clients_count(
    rpc: Rpc, http: httpx.Client, new_name: str
) -> None:
    skill_md = f"---\nname: {new_name}-a\ndescription: {'🙂' * 1024}\n---\n"
    rpc("create_skill", manifest=manifest(f"{new_name}.a"), skill_md=skill_md, files=skill_files())

    (entry,) = index_of(http, new_name).values()
    assert len(entry["description"].encode("utf-16-le")) // 2 <= 1024
    assert get(http, f"/skills/{new_name}.a/1.0.0/SKILL.md").text == skill_md


def test_index_links_a_zip_if_a_path_exceeds_plain_tar_limits(rpc: Rpc, http: httpx.Client, new_name: str) -> None:
    path = "x" * 200
    rpc("create_skill", manifest=manifest(f"{new_name}.a"), skill_md="# x\n", files=skill_files(**{path: "x"}))

    (entry,) = index_of(http, new_name).values()
    content = get(http, entry["url"]).content
    assert entry["url"].endswith(".zip")
    assert entry["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert unzipped(content)[path] == b"x"
    assert untarred(get(http, f"/skills/{new_name}.a/1.0.0.tar.gz").content)[path] == b"x"


# -- visibility --------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_(org: Server) -> Callable[[Who], Caller]:
    return lambda who: Caller(org.url, who)


@pytest.mark.full
def test_invisible_skills_are_absent_from_exports_and_indexes(as_: Callable[[Who], Caller], new_name: str) -> None:
    for name, visibility in (("open", "public"), ("team", "namespace"), ("own", "private")):
        as_(AUTHOR).create(f"{new_name}.{name}")
        as_(AUTHOR)("set_visibility", name=f"{new_name}.{name}", visibility=visibility)
    seen = {
        AUTHOR: {"open", "team", "own"},
        ADMIN: {"open", "team", "own"},
        OUTSIDER: {"open"},
        Who("colleague", "read", f"{new_name}.*"): {"open", "team"},
    }
    for who, names in seen.items():
        http = as_(who).http
        for kind in ("agent-skills", "skills"):
            assert set(index_of(http, new_name, kind)) == {f"{new_name}-{name}" for name in names}
            assert {name for name in index_of(http, "", kind) if name.startswith(f"{new_name}-")} == {
                f"{new_name}-{name}" for name in names
            }
        for name in ("open", "team", "own"):
            for path in (
                f"/skills/{new_name}.{name}/1.0.0.tar.gz",
                f"/skills/{new_name}.{name}/1.0.0/SKILL.md",
                f"/.well-known/skills/{new_name}-{name}/SKILL.md",
                f"/n/{new_name}/.well-known/agent-skills/{new_name}-{name}/SKILL.md",
            ):
                answer = http.get(path)
                assert answer.status_code == (200 if name in names else 404), (who, path)
                if name not in names:
                    of_none = path.replace(f"{new_name}.{name}", f"{new_name}.zzzz")
                    of_none = of_none.replace(f"{new_name}-{name}", f"{new_name}-zzzz")
                    unknown = http.get(of_none).json()["error"]
                    assert answer.json()["error"]["data"]["type"] == unknown["data"]["type"] == "skill_not_found"
                    assert answer.json()["error"]["message"].replace(name, "zzzz") == unknown["message"]


def test_draft_is_exported_only_to_authorised_callers_by_exact_version(
    as_: Callable[[Who], Caller], new_name: str
) -> None:
    name = f"{new_name}.greet"
    agent = Who("bot", "read run publish", "*", "agent")
    as_(agent).create(name)

    def status(who: Who, spec: str) -> int:
        return as_(who).http.get(f"/skills/{name}/{spec}.tar.gz").status_code

    assert [status(agent, "1.0.0"), status(agent, "latest")] == [200, 404]
    assert [status(ADMIN, "1.0.0"), status(OUTSIDER, "1.0.0"), status(AUTHOR, "1.0.0")] == [200, 404, 404]
    assert "immutable" not in as_(agent).http.head(f"/skills/{name}/1.0.0.tar.gz").headers["cache-control"]
    assert index_of(as_(ADMIN).http, new_name) == {}


def test_index_name_stays_with_first_published_skill_and_hides_invisible_holder(
    as_: Callable[[Who], Caller], new_name: str
) -> None:
    draft, holder = f"{new_name}.b.c", f"{new_name}.b_c"
    as_(Who("bot", "read run publish", "*", "agent")).create(draft)
    as_(AUTHOR).create(holder)
    as_(AUTHOR)("set_visibility", name=holder, visibility="private")
    as_(Who("bot", "read run publish", "*", "agent"))("submit_version", name=draft, version="1.0.0")
    as_(ADMIN)("approve_version", name=draft, version="1.0.0")

    bot = as_(Who("bot", "read run publish", "*", "agent"))
    (warning,) = bot("describe_skill", name=draft)["skill"]["warnings"]
    assert holder not in warning
    assert "another skill" in warning
    assert holder in as_(ADMIN)("describe_skill", name=draft)["skill"]["warnings"][0]
    assert index_name(draft) not in index_of(bot.http)
    assert set(index_of(bot.http, f"{new_name}.b")) == {index_name(draft)}


def test_public_downloads_need_no_token(
    shared_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory, new_name: str
) -> None:
    settings = people_settings(tmp_path_factory.mktemp("people"), SKILLERY_PUBLIC_DOWNLOADS="true")
    server = shared_server("public_downloads", "sqlite", **settings)
    author = Caller(server.url, AUTHOR)
    for name in ("open", "team"):
        author.create(f"{new_name}.{name}")
    author("set_visibility", name=f"{new_name}.team", visibility="namespace")

    nobody = Rpc(server.url).http
    assert set(index_of(nobody, new_name)) == {f"{new_name}-open"}
    answer = get(nobody, f"/skills/{new_name}.open/1.0.0.zip")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert nobody.get(f"/skills/{new_name}.team/1.0.0.zip").status_code == 404
    assert nobody.get("/skills/x/1.0.0.zip", headers={"authorization": "Bearer no"}).status_code == 401
    assert nobody.get("/tools").status_code == 401
    assert set(index_of(author.http, new_name)) == {f"{new_name}-open", f"{new_name}-team"}


# -- large indexes -----------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_large_index_is_complete_or_marked_as_truncated(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillery.exports.skill_exports.ROWS_AT_ONCE", 40)
    count = 90
    me = Identity("me", scopes=frozenset({"admin"}))

    def fill(connection: Any) -> None:
        for number in range(count):
            made = manifest(f"many.n{number % 7}.s{number:05}", kind="instruction")
            bundle = make_bundle(made, "# x\n", [BundleFile("data.txt", f"{number}".encode())])
            insert_version(connection, bundle, me, {one.sha256: one.content for one in bundle.files}, quotas=Quotas())

    database.write_now(fill)
    storage = DirectoryStorage(tmp_path / "storage")
    exports = Exports(database, storage, most_listed=10_000)

    whole = await exports.index(me, "", "agent-skills")
    assert len(skills_of(whole)) == count
    assert "truncated" not in whole.content[:200].decode()
    assert await exports.index(me, "", "agent-skills") == whole
    assert len(skills_of(await exports.index(me, "many.n3", "skills"))) == len(range(3, count, 7))

    some = await Exports(database, storage, most_listed=50).index(me, "", "agent-skills")
    assert skills_of(some) == skills_of(whole)[:50]
    assert b'"truncated":true' in some.content
    just = await Exports(database, storage, most_listed=count).index(me, "", "agent-skills")
    assert just == whole


def skills_of(index: Index) -> list[dict[str, Any]]:
    import msgspec

    found: list[dict[str, Any]] = msgspec.json.decode(index.content)["skills"]
    return found


# -- preparation of the index ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_index_is_prepared_before_anybody_asks_and_again_after_an_upgrade(
    database_kind: str, start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str]
) -> None:
    env = {"SKILLERY_DATABASE": migrated_postgres_database() if database_kind == "postgres" else ""}
    server, count = start_server(env=env), PREPARED_AT_ONCE + 5
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        for number in range(count):
            made.writestr(f"skills/s{number:03}/SKILL.md", f"---\nname: s{number:03}\ndescription: Some.\n---\nx\n")
    answer = server.rpc.http.post("/import?namespace=many", content=archive.getvalue(), timeout=300)
    assert answer.status_code == 200, answer.text
    database = Database(env["SKILLERY_DATABASE"] or f"sqlite:///{server.home / 'skillery.db'}")

    def makers() -> list[int]:
        return list(database.read_now(lambda connection: connection.scalars(select(exports.c.maker)).all()))

    eventually(lambda: makers().count(MAKER) >= count)

    server.stop()
    database.write_now(lambda connection: connection.execute(update(exports).values(maker=MAKER - 1)))
    start_server(env=env)
    eventually(lambda: set(makers()) == {MAKER})
    database.close()
