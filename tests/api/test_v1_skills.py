"""/v1/skills: requests of the clients that define its format, and malformed requests."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.test_access import create_token
from tests.conftest import Rpc, Server
from tests.support.people import Caller, Who

AUTHOR = Who("author", "read run publish", "*")
OUTSIDER = Who("outsider", "read", "elsewhere.*")
FIELD = b"--x\r\nContent-Disposition: form-data; name=%s\r\n\r\na\r\n--x--"
As = Callable[[Who], Caller]


def skill_md(name: str, body: str = "Use it.") -> bytes:
    return f"---\nname: {name}\ndescription: What {name} does.\n---\n# {name}\n{body}\n".encode()


def folder(name: str, body: str = "Use it.") -> list[tuple[str, bytes]]:
    files = {"SKILL.md": skill_md(name, body), "notes/a.md": b"A note.\n"}
    return [(f"{name}/{path}", content) for path, content in files.items()]


def zipped(files: list[tuple[str, bytes]]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for path, content in files:
            made.writestr(path, content)
    return held.getvalue()


def unzipped(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def sent(http: httpx.Client, path: str, files: list[tuple[str, bytes]], **query: str) -> httpx.Response:
    parts = [("files[]", (name, content, "application/octet-stream")) for name, content in files]
    return http.post(path, files=parts, params=query)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.fixture
def http(server: Server) -> httpx.Client:
    return server.rpc.http


@pytest.fixture
def as_(org: Server) -> As:
    return lambda who: Caller(org.url, who)


# -- the clients of the providers ----------------------------------------------


def test_the_client_of_openai_goes_all_the_way(server: Server, rpc: Rpc, new_name: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    made = client.skills.create(files=folder(new_name))

    assert (made.id, made.name, made.object) == (new_name, new_name, "skill")
    assert made.description == f"What {new_name} does."
    assert made.latest_version == made.default_version == "1.0.0"
    assert made.created_at > 1_700_000_000
    assert rpc("read_skill_file", name=new_name, path="notes/a.md")["content"] == "A note.\n"

    # The archive is in a list because this client sends a single file as JSON, without its content.
    archive = ("skill.zip", zipped(folder(new_name, "Use it well.")))
    second = client.skills.versions.create(new_name, files=[archive])
    assert (second.id, second.version, second.skill_id) == (f"{new_name}@1.0.1", "1.0.1", new_name)
    assert [one.version for one in client.skills.versions.list(new_name)] == ["1.0.1", "1.0.0"]
    assert [one.version for one in client.skills.versions.list(new_name, limit=1)] == ["1.0.1", "1.0.0"]
    assert client.skills.retrieve(new_name).latest_version == "1.0.1"
    assert client.skills.versions.retrieve("1.0.0", skill_id=new_name).object == "skill.version"

    files = unzipped(client.skills.content.retrieve(new_name).read())
    assert files["SKILL.md"] == skill_md(new_name, "Use it well.")
    files = unzipped(client.skills.versions.content.retrieve("1.0.0", skill_id=new_name).read())
    assert files["SKILL.md"] == skill_md(new_name)

    deleted = client.skills.versions.delete("1.0.1", skill_id=new_name)
    assert (deleted.deleted, deleted.object, deleted.version) == (True, "skill.version.deleted", "1.0.1")
    assert client.skills.retrieve(new_name).latest_version == "1.0.0"
    assert client.skills.delete(new_name).deleted
    with pytest.raises(openai.NotFoundError):
        client.skills.retrieve(new_name)
    with pytest.raises(openai.ConflictError):
        client.skills.delete(new_name)


def test_the_client_of_openai_turns_pages(server: Server, new_name: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    names = {f"{new_name}{letter}" for letter in "abcde"}
    for name in names:
        client.skills.create(files=folder(name))

    ids = [one.id for one in client.skills.list(limit=2)]
    assert names <= set(ids)
    assert len(ids) == len(set(ids))


def test_the_client_of_anthropic_goes_all_the_way(tokens_server: Server, new_name: str) -> None:
    import anthropic

    options = ("--scope", "read,publish", "--namespace", "*")
    token = create_token(tokens_server, f"{new_name}a", *options)["token"]
    client = anthropic.Anthropic(base_url=tokens_server.url, api_key=token, max_retries=0)
    skills = client.beta.skills
    made = skills.create(files=folder(new_name), display_title="A title")

    assert (made.id, made.type, made.source, made.latest_version) == (new_name, "skill", "custom", "1.0.0")
    assert made.created_at.startswith("20")
    assert made.created_at.endswith("Z")
    second = skills.versions.create(new_name, files=folder(new_name, "Use it well."))
    assert (second.version, second.type, second.directory) == ("1.0.1", "skill_version", new_name)
    assert [one.version for one in skills.versions.list(new_name, limit=1)] == ["1.0.1", "1.0.0"]
    assert new_name in [one.id for one in skills.list(limit=1)]
    assert list(skills.list(source="anthropic")) == []
    assert skills.versions.retrieve("1.0.0", skill_id=new_name).description == f"What {new_name} does."
    assert skills.versions.delete("1.0.1", skill_id=new_name).id == "1.0.1"
    assert skills.retrieve(new_name).latest_version == "1.0.0"
    assert skills.delete(new_name).type == "skill_deleted"
    with pytest.raises(anthropic.NotFoundError):
        skills.retrieve(new_name)
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=tokens_server.url, api_key="sky_none", max_retries=0).beta.skills.list()


# -- semantics -----------------------------------------------------------------


def test_a_skill_that_is_there_is_not_made_again_unless_it_is_the_same(http: httpx.Client, new_name: str) -> None:
    first = sent(http, "/v1/skills", folder(new_name))
    again = sent(http, "/v1/skills", folder(new_name))
    other = error_of(sent(http, "/v1/skills", folder(new_name, "Otherwise.")), 409)

    assert again.json() == first.json()
    assert other["data"]["type"] == "name_taken"
    assert "version" in other["data"]["hint"]


def test_a_zip_may_be_the_only_file(http: httpx.Client, new_name: str) -> None:
    made = http.post("/v1/skills", files={"files": ("any.name", zipped(folder(new_name)), "application/zip")})

    assert made.json()["id"] == new_name


def test_a_skill_goes_below_a_namespace(http: httpx.Client, new_name: str) -> None:
    made = sent(http, "/v1/skills", folder("pdf"), namespace=new_name).json()
    version = sent(http, f"/v1/skills/{new_name}.pdf/versions", folder("pdf", "Better.")).json()

    assert made["id"] == version["skill_id"] == f"{new_name}.pdf"
    assert version["version"] == "1.0.1"


def test_a_version_that_is_sent_again_is_the_one_that_is_there(http: httpx.Client, new_name: str) -> None:
    sent(http, "/v1/skills", folder(new_name))
    versions = [sent(http, f"/v1/skills/{new_name}/versions", folder(new_name, "Two.")).json() for _ in range(2)]

    assert versions[0] == versions[1]
    assert versions[0]["version"] == "1.0.1"


def test_a_skill_toml_of_another_name_is_no_version_of_this_one(http: httpx.Client, new_name: str) -> None:
    toml = f'name = "{new_name}.other"\nversion = "1.0.0"\ndescription = "x"\n'.encode()
    sent(http, "/v1/skills", folder(new_name))
    error = error_of(
        sent(http, f"/v1/skills/{new_name}/versions", [*folder(new_name), (f"{new_name}/skill.toml", toml)]), 400
    )

    assert error["data"]["type"] == "invalid_bundle"
    assert f"{new_name}.other" in error["message"]


def test_an_invisible_skill_is_reported_as_not_found(as_: As, new_name: str) -> None:
    author, outsider = as_(AUTHOR), as_(OUTSIDER)
    assert sent(author.http, "/v1/skills", folder(new_name)).status_code == 200
    author("set_visibility", name=new_name, visibility="private")

    for path in ("", "/versions", "/versions/1.0.0", "/content", "/versions/1.0.0/content"):
        assert author.http.get(f"/v1/skills/{new_name}{path}").status_code == 200, path
        there = error_of(outsider.http.get(f"/v1/skills/{new_name}{path}"), 404)
        nowhere = error_of(outsider.http.get(f"/v1/skills/{new_name[:-1]}{new_name[-1]}q{path}"), 404)
        assert (there["code"], there["data"]["type"]) == (nowhere["code"], nowhere["data"]["type"])
    listed = outsider.http.get("/v1/skills", params={"limit": 100}).json()["data"]
    assert new_name not in [one["id"] for one in listed]
    other = as_(Who("other", "read publish", "*"))
    for path in ("", "/versions/1.0.0"):
        assert other.http.delete(f"/v1/skills/{new_name}{path}").status_code == 404
    assert sent(other.http, f"/v1/skills/{new_name}/versions", folder(new_name, "Mine.")).status_code == 404


def test_an_agents_skill_waits_and_is_there_for_who_made_it(as_: As, new_name: str) -> None:
    agent = as_(Who("robot", "read publish", "*", "agent"))
    made = sent(agent.http, "/v1/skills", folder(new_name)).json()

    assert made["latest_version"] == "1.0.0"
    assert agent.http.get(f"/v1/skills/{new_name}").json()["id"] == new_name
    assert agent.http.get(f"/v1/skills/{new_name}/versions").json()["data"][0]["status"] == "draft"
    assert as_(OUTSIDER).http.get(f"/v1/skills/{new_name}").status_code == 404
    assert error_of(agent.http.delete(f"/v1/skills/{new_name}"), 409)["data"]["type"] == "not_published"


def test_a_grant_is_needed_and_every_change_is_in_the_audit_trail(as_: As, new_name: str) -> None:
    author, admin = as_(AUTHOR), as_(Who("admin", "admin"))
    poor = as_(Who("poor", "read publish", "elsewhere.*"))
    assert error_of(sent(poor.http, "/v1/skills", folder(new_name)), 403)["data"]["grant"]
    sent(author.http, "/v1/skills", folder(new_name))
    assert poor.http.delete(f"/v1/skills/{new_name}").status_code == 403
    assert author.http.delete(f"/v1/skills/{new_name}").status_code == 200

    entries = admin("list_audit", subject=new_name)["entries"]
    done = [(one["identity"]["name"], one["action"], one["outcome"]) for one in entries]
    assert ("author", "create_skill", "done") in done
    assert ("author", "yank_version", "done") in done
    assert ("poor", "yank_version", "refused") in done


# -- malformed requests --------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ([("../SKILL.md", b"x")], ".."),
        ([("/etc/SKILL.md", b"x")], "absolute"),
        ([("a/SKILL.md", b"x"), ("b/SKILL.md", b"y")], "2 skills"),
        ([("a/README.md", b"x")], "0 skills"),
        ([("a.zip", b"PK\x03\x04 and nothing more")], "archive"),
        ([("a/SKILL.md", b"x"), ("a/X.md", b"1"), ("a/x.md", b"2")], "X.md"),
    ],
)
def test_bad_files_are_refused_by_name(http: httpx.Client, files: list[tuple[str, bytes]], word: str) -> None:
    error = error_of(sent(http, "/v1/skills", files), 400)

    assert word.lower() in (error["message"] + str(error["data"])).lower()
    assert error["code"] == -32602


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data", b"", 415),
        ("multipart/form-data; boundary=x", b"", 400),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nnothing", 400),
        (
            "multipart/form-data; boundary=x",
            FIELD % b"files",
            400,
        ),
        ("multipart/form-data; boundary=x", FIELD % b"q", 400),
        ("multipart/form-data; boundary=" + "x" * 4000, b"--x--", 400),
    ],
)
def test_what_is_no_form_of_files_is_refused(http: httpx.Client, kind: str, body: bytes, status: int) -> None:
    error_of(http.post("/v1/skills", content=body, headers={"content-type": kind}), status)


def test_more_files_than_may_be_are_refused(http: httpx.Client, new_name: str) -> None:
    many = [(f"{new_name}/{number}.md", b"x") for number in range(2100)]
    error = error_of(sent(http, "/v1/skills", many), 400)
    assert "form" in error["message"]

    bundle = [*folder(new_name), *many[:600]]
    assert error_of(sent(http, "/v1/skills", bundle), 413)["data"]["type"] == "bundle_too_large"
    assert http.get(f"/v1/skills/{new_name}").status_code == 404


def test_other_methods_parameters_and_addresses_are_refused(http: httpx.Client) -> None:
    for path in ("/v1/skills", "/v1/skills/text.csv.profile", "/v1/skills/text.csv.profile/content"):
        assert error_of(http.put(path), 405)["data"]["type"] == "method_not_allowed"
    for query in ("limit=0", "limit=x", "limit=101", "order=asc", "page=none", "color=red"):
        error_of(http.get(f"/v1/skills?{query}"), 400)
    for path in ("/v1", "/v1/skills/a/b", "/v1/skills/none/versions/1.0.0/x", "/v1/skills/%2e%2e%2fx"):
        assert http.get(path).status_code in {400, 404}, path


def test_cross_origin_browser_requests_are_refused(http: httpx.Client, new_name: str) -> None:
    parts = [("files[]", (name, content)) for name, content in folder(new_name)]
    refused = http.post("/v1/skills", files=parts, headers={"origin": "https://evil.example"})

    assert error_of(refused, 403)["data"]["type"] == "origin_not_allowed"
    assert http.get(f"/v1/skills/{new_name}").status_code == 404
