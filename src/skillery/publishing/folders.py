"""Read a skill folder. `skillery publish DIR` and the publication of bundled skills use this module."""

from __future__ import annotations

import base64
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skillery.errors import BundleTooLarge, InvalidBundle, InvalidManifest
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, BundleFile
from skillery.formats.foreign_skill import read_foreign_skill, registry_name
from skillery.formats.json_values import join
from skillery.formats.lenient_skill_md import read_skill_md
from skillery.formats.manifest import misspelt_keys, toml_manifest
from skillery.formats.repairs import Repairs
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd, text_of
from skillery.formats.toml_lines import span_of, with_toml
from skillery.formats.wording import raise_problems

# Folders that interpreters create and that are never meant to be published. Names that begin with a dot are skipped
# too, because a published .env cannot be withdrawn.
IGNORED = frozenset({"__pycache__", "node_modules"})
# Higher than the limits of servers. It only prevents that a wrong folder is read completely.
MOST_BYTES = 256 * 1024 * 1024


_NO_SKILL = "Name the folder of a skill, with skill.toml and SKILL.md; `skillery new DIR` makes one."


class SkillFolder(NamedTuple):
    """The parts of a skill in a folder: manifest, SKILL.md and the other files."""

    manifest: dict[str, Any]
    skill_md: str
    files: list[BundleFile]
    """The files of the folder that are not skipped, including skill.toml and SKILL.md."""
    skipped: list[str]
    """Names of the skipped files and folders."""


def read_skill_folder(folder: Path) -> SkillFolder:
    """Return the skill in a folder.

    Raise InvalidBundle if `folder` is not a folder, if skill.toml or SKILL.md is missing, if SKILL.md is not UTF-8, or
    if there is a link or a device. Raise InvalidManifest if skill.toml is not valid TOML. Raise BundleTooLarge if the
    files are too large.
    """
    _check_parts(folder)
    skipped: list[str] = []
    files = list(_read_files(folder, skipped))
    by_path = {file.path: file for file in files}
    try:
        skill_md = by_path["SKILL.md"].content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidBundle("SKILL.md is not UTF-8 text", file="SKILL.md") from None
    return SkillFolder(toml_manifest(by_path["skill.toml"].content), skill_md, files, skipped)


def refuse_misspelt(skill: SkillFolder) -> None:
    """Raise InvalidManifest if an unknown key in skill.toml is similar to a known one, or belongs to another table.

    A server keeps unknown keys, because they may come from a later release. In the author's own folder, such a key is a
    mistake that has no effect.
    """
    text = next(file.content.decode("utf-8-sig") for file in skill.files if file.path == SKILL_TOML)
    if problems := with_toml(misspelt_keys(skill.manifest), text):
        raise_problems(InvalidManifest, problems, hint="--allow-unknown keeps unknown keys.")


def read_plain_folder(folder: Path) -> tuple[SkillFolder, SkillMd, list[str]]:
    """Return a plain Agent Skill, which has SKILL.md and no skill.toml, as an import reads it: its parts, the parsed
    SKILL.md, and a text for each repair.

    Raise the errors of `read_skill_folder`.
    """
    skipped: list[str] = []
    files = list(_read_files(folder, skipped))
    content = next(file.content for file in files if file.path == SKILL_MD)
    read_md = read_skill_md(content)
    repairs = Repairs()
    repairs.listed.extend(read_md.repairs)
    foreign = read_foreign_skill(read_md.skill_md, folder.resolve().name, frozenset(), repairs)
    name, version = registry_name(foreign.stated), str(foreign.version or "1.0.0")
    manifest = {"name": name, "version": version, "description": foreign.description}
    notes = [f"{row.file or SKILL_MD}{f':{row.line}' if row.line else ''}: {row.message}" for row in repairs.all()]
    return SkillFolder(manifest, text_of(content), files, skipped), read_md.skill_md, notes


def params_of(skill: SkillFolder) -> dict[str, Any]:
    """Return the params of create_skill, check_skill and develop_skill. A file that is not UTF-8 is sent in base64."""
    return {"manifest": skill.manifest, "skill_md": skill.skill_md, "files": [_param(file) for file in skill.files]}


def _param(file: BundleFile) -> dict[str, Any]:
    try:
        return {"path": file.path, "content": file.content.decode("utf-8"), "executable": file.executable}
    except UnicodeDecodeError:
        content = base64.b64encode(file.content).decode()
        return {"path": file.path, "content": content, "encoding": "base64", "executable": file.executable}


def with_version(skill: SkillFolder, version: Version) -> SkillFolder:
    """Return the skill with another version in the manifest and in skill.toml.

    The rest of skill.toml stays as it is, byte for byte. Raise InvalidManifest if the version is not found in
    skill.toml.
    """
    return skill._replace(
        manifest={**skill.manifest, "version": str(version)}, files=_rewritten(skill.files, "version", str(version))
    )


def with_range(skill: SkillFolder, name: str, spec: str) -> SkillFolder:
    """Return the skill with another range of a required skill. The rest of skill.toml stays as it is, byte for byte."""
    requires = {**skill.manifest["requires"], "skills": {**skill.manifest["requires"]["skills"], name: spec}}
    files = _rewritten(skill.files, join("requires.skills", name), spec)
    return skill._replace(manifest={**skill.manifest, "requires": requires}, files=files)


def _rewritten(files: Sequence[BundleFile], path: str, text: str) -> list[BundleFile]:
    return [
        BundleFile(file.path, _with_string(file.content, path, text), file.executable)
        if file.path == SKILL_TOML
        else file
        for file in files
    ]


def _with_string(content: bytes, path: str, value: str) -> bytes:
    """Return the content of skill.toml with another string at `path`. All other bytes stay."""
    byte_order_mark = content[: len(BOM_UTF8)] if content.startswith(BOM_UTF8) else b""
    text = content[len(byte_order_mark) :].decode("utf-8")
    span = span_of(text, path)
    if span is None:
        raise InvalidManifest(
            f"'{path}' in skill.toml could not be found",
            hint=f'Write it in a line of its own: KEY = "{value}"',
            file=SKILL_TOML,
        )
    begin, end = span
    quote = text[begin] if text[begin : begin + 3] != text[begin] * 3 else text[begin] * 3
    return byte_order_mark + f"{text[:begin]}{quote}{value}{quote}{text[end:]}".encode()


def _check_parts(folder: Path) -> None:
    """Raise InvalidBundle if `folder` is not the folder of a skill. A wrong folder may be large, so it is not read."""
    if not folder.is_dir():
        raise InvalidBundle(f"'{folder}' is not a folder", hint="Name the folder that contains skill.toml.")
    names = {path.name for path in folder.iterdir()}
    for file_name in (SKILL_TOML, SKILL_MD):
        if file_name not in names:
            other = next((name for name in sorted(names) if name.lower() == file_name.lower()), None)
            rename = f"Rename {other} to {file_name}: capitals count." if other else _NO_SKILL
            raise InvalidBundle(f"there is no {file_name} in the folder '{folder.resolve()}'", hint=rename)


def _read_files(folder: Path, skipped: list[str]) -> Iterator[BundleFile]:
    """Yield the files of a folder. Names of skipped folders are added to `skipped`. Raise BundleTooLarge or
    InvalidBundle.
    """
    total = 0
    for path in _walk(folder, skipped):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            raise InvalidBundle(
                f"'{name}' is not a regular file", hint="A bundle may not contain links, pipes or devices.", file=name
            )
        total += path.stat().st_size
        if total > MOST_BYTES:
            raise BundleTooLarge(
                f"'{folder.resolve().name}' contains more than {MOST_BYTES} bytes",
                hint="Check that it is the right folder.",
            )
        yield BundleFile(name, path.read_bytes(), bool(path.stat().st_mode & 0o111))


def _walk(folder: Path, skipped: list[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in IGNORED or path.name.startswith("."):
            skipped.append(path.name)
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, skipped)
        else:
            yield path
