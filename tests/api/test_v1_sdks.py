"""/v1/skills with the SDKs that define its format: current and former major versions of openai and anthropic."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.api.test_access import create_token
from tests.api.test_v1_skills import folder, skill_md, unzipped, zipped
from tests.conftest import Rpc, Server
from tests.support.sdks import CURRENT, Sdks, former_sdks, refused


@pytest.fixture(scope="session")
def former() -> Iterator[Sdks]:
    with former_sdks() as sdks:
        yield sdks


@pytest.fixture(params=["current", "former"])
def sdks(request: pytest.FixtureRequest) -> Sdks:
    return CURRENT if request.param == "current" else request.getfixturevalue("former")


@pytest.fixture
def token(tokens_server: Server, new_name: str) -> str:
    options = ("--scope", "read,publish", "--namespace", "*")
    made: str = create_token(tokens_server, f"{new_name}a", *options)["token"]
    return made


# -- openai ------------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_openai_creates_reads_and_deletes_skills(sdks: Sdks, server: Server, rpc: Rpc, new_name: str) -> None:
    skills = sdks.openai(server.url).skills
    made = skills.create(files=folder(new_name))

    assert (made.id, made.name, made.object) == (new_name, new_name, "skill")
    assert made.description == f"What {new_name} does."
    assert made.latest_version == made.default_version == "1.0.0"
    assert made.created_at > 1_700_000_000
    assert rpc("read_skill_file", name=new_name, path="notes/a.md")["content"] == "A note.\n"

    second = skills.versions.create(new_name, files=[("skill.zip", zipped(folder(new_name, "Use it well.")))])
    assert (second.id, second.version, second.skill_id) == (f"{new_name}@1.0.1", "1.0.1", new_name)
    assert skills.retrieve(new_name).latest_version == "1.0.1"
    for version in ("1.0.0", f"{new_name}@1.0.0"):
        found = skills.versions.retrieve(version, skill_id=new_name)
        assert (found.object, found.version, found.description) == (
            "skill.version",
            "1.0.0",
            f"What {new_name} does.",
        )

    files = unzipped(skills.content.retrieve(new_name).read())
    assert files["SKILL.md"] == skill_md(new_name, "Use it well.")
    files = unzipped(skills.versions.content.retrieve("1.0.0", skill_id=new_name).read())
    assert files["SKILL.md"] == skill_md(new_name)

    deleted = skills.versions.delete("1.0.1", skill_id=new_name)
    assert (deleted.deleted, deleted.object, deleted.version) == (True, "skill.version.deleted", "1.0.1")
    assert skills.retrieve(new_name).latest_version == "1.0.0"
    gone = skills.delete(new_name)
    assert (gone.id, gone.deleted, gone.object) == (new_name, True, "skill.deleted")
    with refused(404):
        skills.retrieve(new_name)
    with refused(409):
        skills.delete(new_name)


@pytest.mark.full
def test_openai_uploads_a_single_zip_without_a_list(sdks: Sdks, sqlite_server: Server, new_name: str) -> None:
    skills = sdks.openai(sqlite_server.url).skills

    archive = ("skill.zip", zipped(folder(new_name)))

    if not sdks.are_current:  # this client sends JSON without the file
        with refused(415):
            skills.create(files=archive)
    assert skills.create(files=archive if sdks.are_current else [archive]).id == new_name


@pytest.mark.full(after=1)
def test_openai_sets_the_default_version(sdks: Sdks, server: Server, rpc: Rpc, new_name: str) -> None:
    skills = sdks.openai(server.url).skills
    skills.create(files=folder(new_name))
    skills.versions.create(new_name, files=folder(new_name, "Two."))
    assert skills.retrieve(new_name).default_version == "1.0.1"

    changed = skills.update(new_name, default_version="1.0.0")

    assert (changed.id, changed.default_version, changed.latest_version) == (new_name, "1.0.0", "1.0.1")
    assert rpc("describe_skill", name=new_name, version="default")["skill"]["version"] == "1.0.0"
    listed = {one.id: one.default_version for one in skills.list(order="desc", limit=20)}
    assert listed[new_name] == "1.0.0"
    assert unzipped(skills.content.retrieve(new_name).read())["SKILL.md"] == skill_md(new_name)
    assert skills.update(new_name, default_version=f"{new_name}@1.0.1").default_version == "1.0.1"
    with refused(404):
        skills.update(new_name, default_version="7.0.0")
    with refused(404):
        skills.update(f"{new_name}q", default_version="1.0.0")

    # A yanked version is no default.
    skills.versions.delete("1.0.1", skill_id=new_name)
    assert skills.retrieve(new_name).default_version == "1.0.0"


@pytest.mark.full(after=1)
def test_openai_uploads_a_new_default_version(sdks: Sdks, sqlite_server: Server, new_name: str) -> None:
    skills = sdks.openai(sqlite_server.url).skills
    skills.create(files=folder(new_name))
    skills.versions.create(new_name, files=folder(new_name, "Two."), default=True)
    assert skills.retrieve(new_name).default_version == "1.0.1"

    skills.versions.create(new_name, files=folder(new_name, "Three."), default=False)

    found = skills.retrieve(new_name)
    assert (found.default_version, found.latest_version) == ("1.0.1", "1.0.2")


@pytest.mark.full
def test_openai_lists_in_both_orders(sdks: Sdks, server: Server, new_name: str) -> None:
    skills = sdks.openai(server.url).skills
    # The order of creation is neither the order of names nor its opposite.
    names = [f"{new_name}{letter}" for letter in "bca"]
    for name in names:
        skills.create(files=folder(name))
    for body in ("Two.", "Three."):
        skills.versions.create(names[0], files=folder(names[0], body))

    assert [one.id for one in skills.list(limit=1000) if one.id in names] == sorted(names)
    assert [one.id for one in islice(skills.list(limit=2, order="desc"), 3)] == names[::-1]
    assert [one.id for one in skills.list(limit=1, order="asc", after=names[0])] == names[1:]
    with refused(404):
        skills.list(order="asc", after=f"{new_name}q")
    versions = ["1.0.0", "1.0.1", "1.0.2"]
    for limit in (1, 1000):
        assert [one.version for one in skills.versions.list(names[0], limit=limit, order="asc")] == versions
        assert [one.version for one in skills.versions.list(names[0], limit=limit, order="desc")] == versions[::-1]
        assert [one.version for one in skills.versions.list(names[0], limit=limit)] == versions[::-1]


def test_openai_accepts_ids_and_versions_in_references(server: Server, new_name: str) -> None:
    from openai.types.responses import SkillReference

    skills = CURRENT.openai(server.url).skills
    made = skills.create(files=folder(new_name))

    reference = SkillReference.model_validate(
        {"type": "skill_reference", "skill_id": made.id, "version": made.latest_version}, strict=True
    )

    assert reference.version is not None
    assert skills.versions.retrieve(reference.version, skill_id=reference.skill_id).version == "1.0.0"
    assert skills.versions.retrieve("latest", skill_id=reference.skill_id).version == "1.0.0"


def test_openai_accepts_inline_skills(server: Server, rpc: Rpc, new_name: str) -> None:
    from openai.types.responses import InlineSkill

    name = f"{new_name}.pdf_forms"
    skills = CURRENT.openai(server.url).skills
    skills.create(files=folder("pdf-forms"), extra_query={"namespace": new_name})
    named = rpc("list_skills", namespace=new_name)["skills"][0]["name"]
    skills.versions.create(named, files=folder("pdf-forms", "Two."))
    http = server.rpc.http

    answer = http.get(f"/v1/skills/{named}/inline")
    found = InlineSkill.model_validate(answer.json(), strict=True)

    assert name.replace("_", "-") == named
    assert found.name == f"{new_name}-pdf-forms"
    assert found.description == "What pdf-forms does."
    assert found.source.media_type == "application/zip"
    archive = base64.b64decode(found.source.data, validate=True)
    assert archive == http.get(f"/v1/skills/{named}/content").content
    assert b"Two." in unzipped(archive)["SKILL.md"]
    assert int(answer.headers["content-length"]) == len(answer.content)
    first = http.get(f"/v1/skills/{named}/versions/1.0.0/inline").json()["source"]["data"]
    assert b"Two." not in unzipped(base64.b64decode(first))["SKILL.md"]
    unchanged = http.get(f"/v1/skills/{named}/inline", headers={"if-none-match": answer.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert http.get(f"/v1/skills/{named}q/inline").status_code == 404


# -- anthropic ---------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_anthropic_creates_reads_and_deletes_skills(tokens_server: Server, token: str, new_name: str) -> None:
    client = CURRENT.anthropic(tokens_server.url, token)
    for letter, skills in (("a", client.skills), ("b", client.beta.skills)):
        name = f"{new_name}{letter}"
        made = skills.create(files=folder(name), display_name="A title", workspace_id="wrkspc_01")

        assert (made.id, made.type, made.source.type) == (name, "skill", "custom")
        assert made.latest_version_id == f"{name}@1.0.0"
        assert made.display_name == name  # the field of the form is ignored
        assert made.created_at.year > 2020
        assert made.updated_at.tzinfo is not None
        second = skills.versions.create(name, files=[("a.zip", zipped(folder(name, "Use it well.")))])
        assert (second.id, second.type, second.skill_id) == (f"{name}@1.0.1", "skill_version", name)
        assert second.description == f"What {name} does."
        assert [one.id for one in skills.versions.list(name, limit=1)] == [f"{name}@1.0.1", f"{name}@1.0.0"]
        assert name in [one.id for one in skills.list(limit=1000)]
        assert list(skills.list(source="anthropic")) == []
        for version, number in ((second.id, "1.0.1"), (f"{name}@1.0.0", "1.0.0"), ("latest", "1.0.1")):
            assert skills.versions.retrieve(version, skill_id=name).id == f"{name}@{number}"
        deleted = skills.versions.delete(second.id, skill_id=name)
        assert (deleted.id, deleted.type) == (second.id, "skill_version_deleted")
        assert skills.retrieve(name).latest_version_id == f"{name}@1.0.0"
        gone = skills.delete(name)
        assert (gone.id, gone.type) == (name, "skill_deleted")
        with refused(404):
            skills.retrieve(name)
    with refused(401):
        CURRENT.anthropic(tokens_server.url, "sky_none").skills.list()


@pytest.mark.full
def test_the_former_anthropic_creates_reads_and_deletes_skills(
    former: Sdks, tokens_server: Server, token: str, new_name: str
) -> None:
    skills = former.anthropic(tokens_server.url, token).beta.skills
    made = skills.create(files=folder(new_name), display_title="A title")

    assert (made.id, made.type, made.source, made.latest_version) == (new_name, "skill", "custom", "1.0.0")
    assert made.display_title == new_name  # the field of the form is ignored
    assert made.created_at.startswith("20")
    assert made.created_at.endswith("Z")
    second = skills.versions.create(new_name, files=[("a.zip", zipped(folder(new_name, "Use it well.")))])
    assert (second.version, second.type, second.directory) == ("1.0.1", "skill_version", new_name)
    assert [one.version for one in skills.versions.list(new_name, limit=1)] == ["1.0.1", "1.0.0"]
    assert new_name in [one.id for one in skills.list(limit=1)]
    assert list(skills.list(source="anthropic")) == []
    assert skills.versions.retrieve("1.0.0", skill_id=new_name).description == f"What {new_name} does."
    assert unzipped(skills.versions.download("1.0.0", skill_id=new_name).read())["SKILL.md"] == skill_md(new_name)
    deleted = skills.versions.delete("1.0.1", skill_id=new_name)
    assert (deleted.id, deleted.type) == ("1.0.1", "skill_version_deleted")
    assert skills.retrieve(new_name).latest_version == "1.0.0"
    assert skills.delete(new_name).type == "skill_deleted"
    with refused(404):
        skills.retrieve(new_name)
    with refused(401):
        former.anthropic(tokens_server.url, "sky_none").beta.skills.list()


def test_the_current_anthropic_may_ask_for_the_first_interface(
    tokens_server: Server, token: str, new_name: str
) -> None:
    skills = CURRENT.anthropic(tokens_server.url, token).beta.skills
    betas = ["other-2026-01-01", "skills-2025-10-02"]

    made = skills.create(files=folder(new_name), betas=betas)

    assert made.source == "custom"
    assert skills.versions.delete("1.0.0", skill_id=new_name, betas=betas).id == "1.0.0"
    assert skills.create(files=folder(f"{new_name}b"), betas=betas[:1]).source.type == "custom"


def test_versions_of_other_skills_answer_404(tokens_server: Server, token: str, new_name: str) -> None:
    skills = CURRENT.anthropic(tokens_server.url, token).skills
    other = f"{new_name}b"
    for name in (new_name, other):
        skills.create(files=folder(name))

    with refused(404):
        skills.versions.retrieve(f"{other}@1.0.0", skill_id=new_name)
    with refused(404):
        skills.versions.delete(f"{other}@1.0.0", skill_id=new_name)
    assert skills.retrieve(other).latest_version_id == f"{other}@1.0.0"


@pytest.mark.full
def test_the_current_anthropic_keeps_the_name_of_a_skill(
    former: Sdks, tokens_server: Server, token: str, new_name: str
) -> None:
    skills = CURRENT.anthropic(tokens_server.url, token).skills
    name = f"{new_name}.pdf"
    skills.create(files=folder("pdf"), extra_query={"namespace": new_name})

    with refused(400):
        skills.versions.create(name, files=folder("spreadsheets", "Another skill."))
    for stated in ("pdf", name, f"{new_name}-pdf"):
        assert skills.versions.create(name, files=folder(stated, f"As {stated}.")).skill_id == name
    # Other clients name the skill only in the address.
    earlier = former.anthropic(tokens_server.url, token).beta.skills
    assert earlier.versions.create(name, files=folder("spreadsheets", "Renamed.")).skill_id == name
    openai = CURRENT.openai(tokens_server.url, token).skills
    assert openai.versions.create(name, files=folder("tables", "Renamed.")).skill_id == name
