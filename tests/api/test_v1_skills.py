"""/v1/skills: its rules, and malformed requests. tests/api/test_v1_sdks.py has the clients that define the format."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.conftest import Server, manifest
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


# -- semantics -----------------------------------------------------------------


def test_creating_a_skill_again_succeeds_only_if_it_is_identical(http: httpx.Client, new_name: str) -> None:
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


def test_sending_a_version_again_returns_the_same_version(http: httpx.Client, new_name: str) -> None:
    sent(http, "/v1/skills", folder(new_name))
    versions = [sent(http, f"/v1/skills/{new_name}/versions", folder(new_name, "Two.")).json() for _ in range(2)]

    assert versions[0] == versions[1]
    assert versions[0]["version"] == "1.0.1"


def test_the_id_of_a_version_selects_no_version_of_another_skill(http: httpx.Client, new_name: str) -> None:
    names = (f"{new_name}a", f"{new_name}b")
    first, second = (f"{name}@{sent(http, '/v1/skills', folder(name)).json()['latest_version']}" for name in names)
    versions = f"/v1/skills/{names[0]}/versions"

    assert http.get(f"{versions}/{first}").status_code == 200
    assert error_of(http.get(f"{versions}/{second}"), 404)["data"]["type"] == "version_not_found"


def test_a_skill_toml_of_another_name_is_refused(http: httpx.Client, new_name: str) -> None:
    toml = f'name = "{new_name}.other"\nversion = "1.0.0"\ndescription = "x"\n'.encode()
    sent(http, "/v1/skills", folder(new_name))
    error = error_of(
        sent(http, f"/v1/skills/{new_name}/versions", [*folder(new_name), (f"{new_name}/skill.toml", toml)]), 400
    )

    assert error["data"]["type"] == "invalid_bundle"
    assert f"{new_name}.other" in error["message"]


def test_an_invisible_skill_answers_404_like_an_absent_skill(as_: As, new_name: str) -> None:
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


def test_an_agents_skill_is_a_draft_visible_only_to_its_author(as_: As, new_name: str) -> None:
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


def test_the_default_version_needs_a_published_version_and_a_grant(as_: As, new_name: str) -> None:
    author, poor = as_(AUTHOR), as_(Who("poor", "read publish", "elsewhere.*"))
    agent = as_(Who("robot", "read publish", "*", "agent"))
    sent(author.http, "/v1/skills", folder(new_name))
    draft = _sent_as_default(agent.http, new_name)

    assert (draft["version"], draft["status"]) == ("1.0.1", "draft")
    assert author.http.get(f"/v1/skills/{new_name}").json()["default_version"] == "1.0.0"
    assert error_of(_defaulted(agent.http, new_name, "1.0.1"), 409)["data"]["type"] == "not_published"
    assert error_of(_defaulted(poor.http, new_name, "1.0.0"), 403)["data"]["grant"]
    assert _defaulted(author.http, new_name, "1.0.0").json()["default_version"] == "1.0.0"
    entries = as_(Who("admin", "admin"))("list_audit", subject=f"{new_name}@default")["entries"]
    assert [(one["identity"]["name"], one["outcome"]) for one in entries] == [
        ("author", "done"),
        ("poor", "refused"),
        ("robot", "refused"),
    ]


def _sent_as_default(http: httpx.Client, name: str) -> dict[str, Any]:
    parts = [("files[]", (path, content)) for path, content in folder(name, "Two.")]
    answer: dict[str, Any] = http.post(f"/v1/skills/{name}/versions", files=parts, data={"default": "true"}).json()
    return answer


def _defaulted(http: httpx.Client, name: str, version: str) -> httpx.Response:
    return http.post(f"/v1/skills/{name}", json={"default_version": version})


def test_the_order_of_creation_has_no_hidden_skills(as_: As, new_name: str) -> None:
    author, outsider = as_(AUTHOR), as_(OUTSIDER)
    names = [f"{new_name}{letter}" for letter in "bac"]
    for name in names:
        sent(author.http, "/v1/skills", folder(name))
    author("set_visibility", name=names[1], visibility="private")

    def listed(caller: Caller, **query: str) -> list[str]:
        return [one["id"] for one in caller.http.get("/v1/skills", params=query).json()["data"]]

    assert listed(author, order="desc", limit="3") == names[::-1]
    assert listed(outsider, order="desc", limit="2") == [names[2], names[0]]
    assert listed(outsider, order="asc", after=names[0]) == [names[2]]
    assert outsider.http.get("/v1/skills", params={"order": "asc", "after": names[1]}).status_code == 404
    cursor = author.http.get("/v1/skills", params={"order": "desc", "limit": "1"}).json()["next_page"]
    assert author.http.get("/v1/skills", params={"order": "asc", "page": cursor}).status_code == 400


def test_the_list_takes_the_filters_of_list_skills(server: Server, new_name: str) -> None:
    http, (first, other, last) = server.rpc.http, (f"{new_name}.{letter}" for letter in "bcd")
    for name, licence in ((first, "MIT"), (other, "own terms"), (last, "MIT")):
        text = f"---\nname: {name[-1]}\ndescription: Notes of {name}.\nlicense: {licence}\n---\n# {name}\n"
        server.rpc("create_skill", manifest=manifest(name, kind="instruction"), skill_md=text)

    def listed(**query: str) -> tuple[list[str], str]:
        page = http.get("/v1/skills", params={"contains": "instructions", "reviewed": "false", **query}).json()
        return [skill["id"] for skill in page["data"]], page["next_page"]

    assert listed(licence="MIT", after=f"{new_name}.a", limit="2")[0] == [first, last]
    assert listed(licence="MIT", after=first, limit="1")[0] == [last]
    names, cursor = listed(licence="MIT", after=f"{new_name}.a", limit="1")
    assert (names, listed(licence="MIT", page=cursor, limit="1")[0]) == ([first], [last])
    assert listed(licence="other", after=f"{new_name}.a", limit="1")[0] == [other]
    for query, word in (
        ({"reviewed": "maybe"}, "reviewed"),
        ({"contains": "nothing"}, "action, instructions, scripts"),
        ({"order": "asc", "verified": "true"}, "order"),
        ({"licence": "MIT", "page": "x"}, "cursor"),
    ):
        error = error_of(http.get("/v1/skills", params=query), 400)
        assert word in error["message"] + error["data"]["hint"], error


def test_a_purged_version_is_listed_without_its_description(as_: As, new_name: str) -> None:
    author = as_(AUTHOR)
    sent(author.http, "/v1/skills", folder(new_name))
    sent(author.http, f"/v1/skills/{new_name}/versions", folder(new_name, "Two."))
    as_(Who("admin", "admin"))("purge_version", name=new_name, version="1.0.0", reason="a key")

    listed = author.http.get(f"/v1/skills/{new_name}/versions").json()["data"]

    assert [(one["version"], one["status"], one["description"]) for one in listed] == [
        ("1.0.1", "published", f"What {new_name} does."),
        ("1.0.0", "purged", ""),
    ]


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
def test_malformed_file_forms_are_refused(http: httpx.Client, kind: str, body: bytes, status: int) -> None:
    error_of(http.post("/v1/skills", content=body, headers={"content-type": kind}), status)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", b'{"default_version": "1.0.0"}', 415),
        ("application/json", b'{"default_version": 1}', 400),
        ("application/json", b'{"default_version": "1.0.0", "name": "x"}', 400),
        ("application/json", b"[", 400),
        ("application/json", b'{"default_version": "-"}', 400),
        ("application/json", b" " * 70_000, 413),
    ],
)
def test_bad_requests_for_a_default_version_are_refused(
    http: httpx.Client, kind: str, body: bytes, status: int
) -> None:
    error_of(http.post("/v1/skills/text.csv.profile", content=body, headers={"content-type": kind}), status)


@pytest.mark.parametrize("value", ["", "yes", "1", "true" * 1000, "tru\xe9"])
def test_the_field_default_is_true_or_false(http: httpx.Client, new_name: str, value: str) -> None:
    sent(http, "/v1/skills", folder(new_name))
    parts = [("files[]", (path, content)) for path, content in folder(new_name, "Two.")]
    refused = http.post(f"/v1/skills/{new_name}/versions", files=parts, data={"default": value})

    assert "default" in error_of(refused, 400)["message"]
    assert len(http.get(f"/v1/skills/{new_name}/versions").json()["data"]) == 1


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
    for query in ("limit=0", "limit=x", "limit=1001", "order=up", "page=none", "color=red"):
        error_of(http.get(f"/v1/skills?{query}"), 400)
    for path in ("/v1", "/v1/skills/a/b", "/v1/skills/none/versions/1.0.0/x", "/v1/skills/%2e%2e%2fx"):
        assert http.get(path).status_code in {400, 404}, path


def test_cross_origin_browser_requests_are_refused(http: httpx.Client, new_name: str) -> None:
    parts = [("files[]", (name, content)) for name, content in folder(new_name)]
    refused = http.post("/v1/skills", files=parts, headers={"origin": "https://evil.example"})

    assert error_of(refused, 403)["data"]["type"] == "origin_not_allowed"
    assert http.get(f"/v1/skills/{new_name}").status_code == 404
