"""Checks of `describe_skill`, `read_skill_file` and the guide."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from skills_protocol_conformance.samples import SAMPLES
from skills_protocol_conformance.session import GUIDE, METHODS, Session
from skills_protocol_conformance.statement import Check, Skipped, at, expect

ESCAPES = (
    "../SKILL.md",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "code/../../SKILL.md",
    "resources/../../../../../../../etc/passwd",
    "..\\..\\..\\etc\\passwd",
    "./../../etc/passwd",
)
"""Paths out of a skill's directory."""


def described(session: Session) -> Any:
    """The description of a skill."""
    return at(session.result("describe_skill", name=session.skill("probe")), "skill")


def summary(session: Session) -> Any:
    """The description with `detail`: "summary"."""
    return at(session.result("describe_skill", name=session.skill("probe"), detail="summary"), "skill")


def manifest_only(session: Session) -> Any:
    """The description with `detail`: "manifest"."""
    return at(session.result("describe_skill", name=session.skill("probe"), detail="manifest"), "skill")


def full(session: Session) -> Any:
    """The description with `detail`: "full"."""
    return at(session.result("describe_skill", name=session.skill("probe"), detail="full"), "skill")


def notes(session: Session) -> Any:
    """The description of an instruction skill."""
    return at(session.result("describe_skill", name=session.skill("notes")), "skill")


def declared(session: Session) -> Any:
    """The description of a skill with inputs and permissions."""
    return at(session.result("describe_skill", name=session.skill("declared")), "skill")


def guide(session: Session) -> Any:
    """The description of the canonical guide."""
    return at(session.result("describe_skill", name=GUIDE), "skill")


def guide_content(session: Session) -> Any:
    """The answer of `load_skills_protocol_guide`."""
    return session.result("load_skills_protocol_guide")


def skill_md(session: Session) -> Any:
    """The answer of `read_skill_file` for SKILL.md."""
    return session.result("read_skill_file", name=session.skill("probe"), path="SKILL.md")


def manifest_is_the_published_one(session: Session) -> None:
    """The manifest has the declared name, version, description, kind, tags and runtime."""
    manifest = at(summary(session), "manifest")
    sample = SAMPLES["probe"].full_manifest(session.namespace)
    wrong = {key: manifest.get(key) for key, value in sample.items() if manifest.get(key) != value}
    expect(not wrong, "fields of the manifest are not those of skill.toml", wrong)


def frontmatter_is_parsed(session: Session) -> None:
    """`skill_md_frontmatter` has the parsed fields of SKILL.md, lists as arrays."""
    frontmatter = at(summary(session), "skill_md_frontmatter")
    wanted = {
        "name": "Conformance Probe",
        "short_description": "A sample of the conformance suite.",
        "tags": ["conformance", "probe"],
    }
    wrong = {key: frontmatter.get(key) for key, value in wanted.items() if frontmatter.get(key) != value}
    expect(not wrong, "fields of the frontmatter are not those of SKILL.md", wrong)


def frontmatter_keeps_types(session: Session) -> None:
    """Numbers and booleans of the YAML frontmatter are numbers and booleans in `skill_md_frontmatter`."""
    frontmatter = at(summary(session), "skill_md_frontmatter")
    wanted = {"priority": 3, "ratio": 0.5, "reviewed": True}
    wrong = {key: frontmatter.get(key) for key, value in wanted.items() if frontmatter.get(key) != value}
    expect(not wrong, "values of the frontmatter have other types", wrong)


def default_detail_is_summary(session: Session) -> None:
    """Without `detail`, the description is that of `detail`: "summary"."""
    shared = ("manifest", "skill_md_frontmatter")
    default, explicit = described(session), summary(session)
    expect(
        [default.get(key) for key in shared] == [explicit.get(key) for key in shared],
        'the description without `detail` is not that of "summary"',
        default,
    )
    expect(default.keys() == explicit.keys(), 'the fields without `detail` are not those of "summary"', default)


def latest_is_described(session: Session) -> None:
    """Without `version`, the description is that of the latest version."""
    version = at(described(session), "manifest.version")
    expect(version == "0.2.0", f"the version is {version}, and the latest one is 0.2.0")


def version_is_described(session: Session) -> None:
    """With `version`, the description is that of this version."""
    result = session.result("describe_skill", name=session.skill("probe"), version="0.1.0")
    version = at(result, "skill.manifest.version")
    expect(version == "0.1.0", f"the version is {version}, not 0.1.0")


def full_has_the_manifest(session: Session) -> None:
    """`detail`: "full" has the manifest, with or without the content of SKILL.md."""
    expect(at(full(session), "manifest.name") == session.skill("probe"), "the manifest has another name", full(session))


def full_may_have_the_body(session: Session) -> None:
    """`detail`: "full" has the content of SKILL.md."""
    if "Überprüft mit 3 €" not in json.dumps(full(session), ensure_ascii=False):
        raise Skipped("not offered")


def instruction_has_no_runtime(session: Session) -> None:
    """The manifest of an instruction skill has the kind "instruction", and no runtime."""
    manifest = at(notes(session), "manifest")
    expect(manifest.get("kind") == "instruction", '`kind` is not "instruction"', manifest)
    expect(not manifest.get("runtime"), "the manifest has a runtime", manifest)


# -- files -------------------------------------------------------------------------------------------------------------


def file_is_read(key: str, path: str) -> Check:
    """Make a check: `read_skill_file` returns the content of this file of a sample."""

    def check(session: Session) -> None:
        result = session.result("read_skill_file", name=session.skill(key), path=path)
        expect(at(result, "content") == SAMPLES[key].files[path], "`content` is not that of the file", result)

    check.__doc__ = f"`read_skill_file` returns the content of `{path}`."
    return check


def skill_md_is_read(session: Session) -> None:
    """`read_skill_file` returns SKILL.md with frontmatter, body and non-ASCII characters."""
    wanted = SAMPLES["probe"].skill_md(session.namespace)
    expect(at(skill_md(session), "content").strip() == wanted.strip(), "`content` is not SKILL.md", skill_md(session))


def skill_toml_is_read(session: Session) -> None:
    """`read_skill_file` returns skill.toml, which is TOML with name, version and description."""
    content = at(session.result("read_skill_file", name=session.skill("probe"), path="skill.toml"), "content")
    try:
        manifest = tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        manifest = {}
    wanted = SAMPLES["probe"].full_manifest(session.namespace)
    wrong = [key for key in ("name", "version", "description", "kind") if manifest.get(key) != wanted[key]]
    expect(not wrong, f"skill.toml does not have the {', '.join(wrong)} of the skill", content)


def version_of_file_is_read(session: Session) -> None:
    """With `version`, the file of this version is read; without it, the latest one."""
    name = session.skill("probe")
    for version, more in (("0.1.0", {"version": "0.1.0"}), ("0.2.0", {})):
        content = at(session.result("read_skill_file", name=name, path="code/main.py", **more), "content")
        expect(f'VERSION = "{version}"' in content, f"the file is not that of version {version}", content)


def escapes_are_refused(session: Session) -> None:
    """`read_skill_file` refuses paths out of the skill's directory."""
    name, served = session.skill("probe"), {}
    for path in (*ESCAPES, f"../{session.skill('notes')}/SKILL.md"):
        reply = session.ask("read_skill_file", {"name": name, "path": path})
        if not isinstance(reply.error, dict):
            served[path] = reply.result
    expect(not served, f"the server does not refuse {', '.join(served)}", served)


def bare_skill_is_valid(session: Session) -> None:
    """A skill without code/ and resources/ is valid."""
    manifest = at(session.result("describe_skill", name=session.skill("bare")), "skill.manifest")
    expect(manifest.get("name") == session.skill("bare"), "the skill has another name", manifest)


# -- guide -------------------------------------------------------------------------------------------------------------


def guide_is_its_skill_md(session: Session) -> None:
    """`load_skills_protocol_guide` returns the SKILL.md of skills.protocol.guide, with or without frontmatter."""
    stored = at(session.result("read_skill_file", name=GUIDE, path="SKILL.md"), "content").strip()
    content = at(guide_content(session), "content")
    body = stored.partition("\n---\n")[2].strip()
    expect(content.strip() in {stored, body}, "the guide is not the SKILL.md of skills.protocol.guide", content)


def guide_names_every_tool(session: Session) -> None:
    """The guide names the eight tools."""
    content = at(guide_content(session), "content")
    missing = [method for method in METHODS if method not in content]
    expect(not missing, f"the guide does not name {', '.join(missing)}", content)


def guide_has(text: str) -> Check:
    """Make a check: the guide has this heading or text."""

    def check(session: Session) -> None:
        content = at(guide_content(session), "content")
        expect(text in content, f"the guide does not have {text!r}", content)

    check.__doc__ = f"The guide has {text!r}."
    return check


def guide_has_its_first_version(session: Session) -> None:
    """The guide has the version 0.1.0."""
    version = at(session.result("describe_skill", name=GUIDE, version="0.1.0"), "skill.manifest.version")
    expect(version == "0.1.0", f"the version is {version}")


def guide_is_listed(session: Session) -> None:
    """The complete list has skills.protocol.guide."""
    names = {row.get("name") for row in session.walk(200)}
    expect(GUIDE in names, f"the list does not have {GUIDE}")
