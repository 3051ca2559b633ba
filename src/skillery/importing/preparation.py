"""Reading of one skill for an import: its files, its stated name and version, and the repairs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from skillery.errors import BundleTooLarge, InvalidBundle
from skillery.formats.agent_skill import agent_skill
from skillery.formats.bundle import BundleFile, BundleLimits, digest_of
from skillery.formats.foreign_requirements import NO_PACKAGES, Needs, read_needs
from skillery.formats.foreign_skill import ForeignSkill, alias_key, read_foreign_skill, registry_name
from skillery.formats.lenient_skill_md import read_skill_md
from skillery.formats.licences import MOST_BYTES, licence_of_text
from skillery.formats.manifest import Manifest, parse_manifest, toml_manifest
from skillery.formats.names import index_name, is_within
from skillery.formats.origins import MOST_BYTES as MOST_ORIGIN_BYTES
from skillery.formats.repairs import Repair, Repairs
from skillery.formats.script_blocks import LEFT_OUT
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.formats.skill_toml import renamed_toml
from skillery.formats.texts import normalized
from skillery.formats.wording import quoted
from skillery.importing.aliases import FILES_PART
from skillery.importing.entries import Archive, Entry
from skillery.importing.finder import SKILL_MD, SKILL_TOML, LocatedSkill

MEBIBYTE = 1024 * 1024
DATED_DAYS = 90
"""The days after the last commit of a skill in which uploaded packages are still used for it."""


class PreparedSkill(NamedTuple):
    """A skill after reading. The registry has not been searched for it."""

    located: LocatedSkill
    skill_md: SkillMd
    files: tuple[BundleFile, ...]
    stated: str
    key: str
    """The stated name as stored in the alias."""
    wanted: str
    """The registry name that is used if it is free."""
    is_name_repaired: bool
    """True if the stated name is not a valid registry name, or if an earlier skill of the import states it too."""
    description: str
    declared: Version | None
    manifest: dict[str, Any] | None
    """The manifest in skill.toml, which decides all other fields, or None if the skill has no skill.toml."""
    source_digest: str
    repairs: tuple[Repair, ...]
    needs: Needs = Needs()
    """The packages that the files declare, for a skill without skill.toml."""
    requires: tuple[str, ...] = ()
    """The skills that SKILL.md requires, in the namespace of the import, for a skill without skill.toml."""
    cut_off: str = ""
    """The date after which new packages are ignored, or "" if none is ignored."""
    committed_at: datetime | None = None
    licence: str = ""  # of the nearest licence file, if SKILL.md states none
    licence_path: str = ""
    origin: bytes = b""  # an OriginDocument

    def files_as(self, name: str, version: str) -> tuple[dict[str, Any], tuple[BundleFile, ...]]:
        """Return the manifest and the files of a skill with a skill.toml, with another name and version."""
        toml = next(file for file in self.files if file.path == SKILL_TOML)
        content, manifest = renamed_toml(toml.content, name, version)
        named = BundleFile(SKILL_TOML, content, toml.executable)
        return manifest, tuple(named if file is toml else file for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)


class SkillReader:
    """Reads the skills of one archive. Blocking; any thread may call it."""

    def __init__(
        self,
        archive: Archive,
        limits: BundleLimits,
        namespace: str,
        permissions: Mapping[str, Any] | None,
        archive_name: str,
        roots: Sequence[str],
        keep_bytes: bool = False,
        commit_dates: bool = False,
    ) -> None:
        """`roots` are the paths of all skills. A skill at the root of the archive that states no name is named
        after `archive_name`. With `keep_bytes`, scripts keep CR LF. With `commit_dates`, the times of the files are
        those of commits.
        """
        self._archive = archive
        self._limits = limits
        self._namespace = namespace
        self._permissions = permissions
        self._archive_name = archive_name
        self._folders = frozenset(map(_leaf, roots))
        self._keep_bytes = keep_bytes
        self._commit_dates = commit_dates
        self._named_as_folders = {self._below(_leaf(root)): root for root in reversed(roots)}
        self._licences: dict[str, str] = {}
        self._elements: dict[str, Counter[str]] = {}
        for root in roots:
            self._elements.setdefault(_leaf(root), Counter()).update(set(root.split("/")))

    def is_other_folder(self, skill: LocatedSkill, name: str) -> bool:
        """Return whether `name` is the name for another skill's folder."""
        return name in self._named_as_folders and name != self._below(skill.folder)

    def root_named(self, name: str) -> str | None:
        """Return the path of the first skill whose folder has the name, or None."""
        return self._named_as_folders.get(name)

    def elements_like(self, root: str) -> Mapping[str, int]:
        """Return how many paths of skills in folders of the same name contain an element, for all their elements."""
        return self._elements.get(_leaf(root), {})

    def prepare(self, skill_row: LocatedSkill) -> PreparedSkill:
        """Read a skill: its name, files, repairs, date and licence. Raise the errors of `_prepare`."""
        prepared = self._prepare(skill_row)
        if not prepared.skill_md.frontmatter.get("license") and (entry := skill_row.licence):
            prepared = prepared._replace(licence=self._licence(entry), licence_path=entry.path)
        if (entry := skill_row.origin) and entry.size <= MOST_ORIGIN_BYTES:
            prepared = prepared._replace(origin=self._archive.read(entry))
        time = max(entry.time for entry in skill_row.files.values()) if self._commit_dates else 0
        committed_at = datetime.fromtimestamp(time, UTC) if 0 < time <= datetime.now(UTC).timestamp() else None
        return prepared._replace(cut_off=_cut_off(committed_at), committed_at=committed_at)

    def _licence(self, entry: Entry) -> str:
        if entry.path not in self._licences:  # many skills share the file
            self._licences[entry.path] = licence_of_text(self._archive.read(entry) if entry.size <= MOST_BYTES else b"")
        return self._licences[entry.path]

    def _prepare(self, skill_row: LocatedSkill) -> PreparedSkill:
        """Read a skill and return its name, files and repairs.

        Raise InvalidBundle, InvalidManifest or InvalidPath if the files are not a valid skill, BundleTooLarge if they
        exceed the limits, and InvalidArchive if a file is damaged in the archive.
        """
        if skill_row.problem is not None:
            raise skill_row.problem
        if SKILL_MD not in skill_row.files:
            raise InvalidBundle(f"there is no {SKILL_MD}", hint="A skill needs SKILL.md; skill.toml is optional.")
        self._check_size(skill_row)
        repairs = Repairs()
        if skill_row.renamed:
            repairs.note("file_name", f"{quoted(skill_row.renamed)} is taken as {SKILL_MD}", file=skill_row.renamed)
        if skill_row.listed:
            message = (
                f"it lists most of the {skill_row.listed} skills in its folder. All of them are imported separately "
                "(--nested keep keeps them as files)"
            )
            repairs.note("collection", message, file=SKILL_MD)
        files = self._read_files(skill_row, repairs)
        by_path = {file.path: file for file in files}
        read = read_skill_md(by_path[SKILL_MD].content)
        repairs.listed.extend(read.repairs)
        toml = by_path.get(SKILL_TOML)
        if toml is not None:
            return self._with_toml(skill_row, read.skill_md, files, toml_manifest(toml.content), repairs)
        skill = read_foreign_skill(read.skill_md, skill_row.folder or self._archive_name, self._folders, repairs)
        needs = read_needs({path: file.content for path, file in by_path.items()}, repairs)
        return self._without_toml(skill_row, read.skill_md, files, skill, repairs)._replace(needs=needs)

    def _read_files(self, skill: LocatedSkill, repairs: Repairs) -> tuple[BundleFile, ...]:
        """Return the files as they are stored. The files of a skill with a skill.toml, which may be an export, keep
        their paths and bytes.
        """
        changes = SKILL_TOML not in skill.files
        encodings = {entry.encoding for entry in skill.files.values()} - {""}
        for encoding in sorted(encodings):
            names = [path for path, entry in skill.files.items() if entry.encoding == encoding]
            message = (
                f"{len(names)} names of files, such as {quoted(names[0])}, are read in the encoding {encoding} "
                "(--names ENCODING chooses another one)"
            )
            repairs.note("file_name_encoding", message)
        files = []
        for path, entry in skill.files.items():
            content = self._archive.read(entry)
            is_script, is_crlf_text = content.startswith(b"#!"), b"\r\n" in content and b"\0" not in content
            if changes and not self._keep_bytes and (is_script or path.endswith(".sh")) and is_crlf_text:
                content = content.replace(b"\r\n", b"\n")
                message = "the lines of this script end in CR LF; they are stored with LF (--keep-bytes keeps them)"
                repairs.note("line_ends", message, file=path)
            stored_path = normalized("NFC", path) if changes else path
            if stored_path != path:
                repairs.note("nfc", f"the path {quoted(path)} is stored in the Unicode form NFC", file=path)
            files.append(BundleFile(stored_path, content, entry.executable or (is_script and not entry.has_mode)))
        return tuple(files)

    def _without_toml(
        self,
        skill_row: LocatedSkill,
        skill_md: SkillMd,
        files: tuple[BundleFile, ...],
        skill: ForeignSkill,
        repairs: Repairs,
    ) -> PreparedSkill:
        name = registry_name(skill.stated)
        wanted = self._below(name)
        if name == self._namespace:
            repairs.note(
                "name", f"its name is the namespace '{name}'; its name in the registry is '{wanted}'", file=SKILL_MD
            )
        return PreparedSkill(
            located=skill_row,
            skill_md=skill_md,
            files=files,
            stated=skill.stated,
            key=alias_key(skill.stated),
            wanted=wanted,
            is_name_repaired=name != skill.stated,
            description=skill.description,
            declared=skill.version,
            manifest=None,
            source_digest=_source_digest(files, self._permissions),
            repairs=repairs.all(),
            requires=tuple(map(self._below, skill.requires)),
        )

    def _with_toml(
        self,
        skill: LocatedSkill,
        skill_md: SkillMd,
        files: tuple[BundleFile, ...],
        manifest: dict[str, Any],
        repairs: Repairs,
    ) -> PreparedSkill:
        checked = parse_manifest(manifest)
        wanted = self._below(checked.name)
        if checked.name not in {wanted, self._namespace} and not is_export(checked, files):
            raise InvalidBundle(
                f"{SKILL_TOML} has the name '{checked.name}', which is not below the namespace '{self._namespace}'",
                hint="Change the name in skill.toml, or import it without a namespace.",
                file=SKILL_TOML,
            )
        if wanted != checked.name:
            message = (
                f"{SKILL_TOML} says '{checked.name}'; its name below the namespace '{self._namespace}' is '{wanted}'"
            )
            repairs.note("name", message, file=SKILL_TOML)
        if self._permissions is not None:
            message = f"the permissions in {SKILL_TOML} are used, not the ones given for the import"
            repairs.note("own_permissions", message, file=SKILL_TOML)
        return PreparedSkill(
            located=skill,
            skill_md=skill_md,
            files=files,
            stated=checked.name,
            key=checked.name,
            wanted=wanted,
            is_name_repaired=False,
            description=checked.description,
            declared=checked.version,
            manifest=manifest,
            source_digest=_source_digest(files, None),
            repairs=repairs.all(),
        )

    def _below(self, name: str) -> str:
        is_below = not self._namespace or (is_within(name, self._namespace) and name != self._namespace)
        return name if is_below else f"{self._namespace}.{name}"

    def _check_size(self, skill: LocatedSkill) -> None:
        """Raise BundleTooLarge if the skill exceeds the limits. No file is read for this."""
        limits, files = self._limits, len(skill.files) + (SKILL_TOML not in skill.files)
        if files > limits.max_files:
            raise BundleTooLarge(
                f"the skill has {files} files with {SKILL_TOML}, at most {limits.max_files} are allowed",
                hint="Leave some out, or ask an admin to raise the setting bundle_max_files.",
                files=files,
                max_files=limits.max_files,
            )
        size = sum(entry.size for entry in skill.files.values())
        if size > limits.max_bytes:
            raise BundleTooLarge(
                f"the skill has {size} bytes, at most {limits.max_bytes} are allowed",
                hint="Leave large data out, or ask an admin to raise the setting bundle_max_mb "
                f"({limits.max_bytes // MEBIBYTE} now).",
                size_bytes=size,
                max_bytes=limits.max_bytes,
            )


def with_warnings(prepared: PreparedSkill) -> PreparedSkill:
    """Return the skill with warnings about omitted requirements, for users of its scripts."""
    omitted = [repair for repair in prepared.repairs if repair.code in {NO_PACKAGES, LEFT_OUT}]
    warnings = [
        f"{repair.file}:{repair.line}: {repair.message}" if repair.file and repair.line else repair.message
        for repair in omitted
    ]
    read = prepared.skill_md
    return prepared._replace(skill_md=msgspec.structs.replace(read, warnings=(*read.warnings, *warnings)))


def _cut_off(committed_at: datetime | None) -> str:
    """Return the date DATED_DAYS after a commit, or "" if there is no commit or the date is in the future."""
    end = committed_at and committed_at + timedelta(days=DATED_DAYS)
    return str(end.date()) if end and end <= datetime.now(UTC) else ""


def _leaf(root: str) -> str:
    return root.rpartition("/")[2]


def is_export(manifest: Manifest, files: tuple[BundleFile, ...]) -> bool:
    """Return whether files look like an exported skill: SKILL.md conforms to Agent Skills with the index name of the
    skill.
    """
    content = next(file.content for file in files if file.path == SKILL_MD)
    name = index_name(manifest.name)
    return not agent_skill(content, name=name, description=manifest.description).is_generated


def with_packages(source_digest: str, packages: Sequence[str]) -> str:
    """Return the source digest of the same files and given permissions, with inferred packages.

    The result has the same length as `source_digest`, and its first part still identifies the files and permissions.
    """
    if not packages:
        return source_digest
    more = hashlib.sha256(" ".join(packages).encode()).hexdigest()
    kept = source_digest[:FILES_PART]
    return f"{kept}+{more[: len(source_digest) - len(kept) - 1]}"


def same_files(source_digest: str, other: str) -> bool:
    """Return whether two source digests are of the same files and the same given permissions. The inferred packages
    may differ.
    """
    if "+" in source_digest + other:
        return source_digest[:FILES_PART] == other[:FILES_PART]
    return source_digest == other


def _source_digest(files: tuple[BundleFile, ...], permissions: Mapping[str, Any] | None) -> str:
    """Return the digest of the files and the given permissions. `with_packages` adds the inferred packages."""
    digest = digest_of(files)
    if not permissions:
        return digest
    encoded = msgspec.json.encode(permissions, order="sorted")
    return f"sha256:{hashlib.sha256(digest.encode() + encoded).hexdigest()}"
