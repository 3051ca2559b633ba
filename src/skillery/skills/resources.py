"""Skills and their files as MCP resources, and as entries of the MCP extension for skills."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.errors import PeopleOnly, ResourceNotFound, SkilleryError
from skillery.formats.foreign_skill import title_of
from skillery.formats.json_pieces import JsonPieces, content_pieces
from skillery.formats.media_types import MARKDOWN, media_type_of
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.skill_uris import folder_of, name_above, segments_of, skill_paths_of, uri_of
from skillery.formats.version_spec import parse_version_spec
from skillery.registry.cursors import fitting, make_cursor, read_cursor
from skillery.registry.resolution import resolve
from skillery.registry.revocations import revocation_of
from skillery.skills.files import open_content
from skillery.skills.listings import seen_rows
from skillery.skills.skill_folders import (
    SkillFolder,
    conforming,
    count_files,
    find_folder,
    listed_named,
    names_below,
    open_folders,
    seen_named,
    stored_skill_md,
    with_skills_below,
)

MOST_FILES = 512
MOST_BYTES = 16 * 1024 * 1024
"""Limits of the MCP extension for skills that every host must support. Larger skills have no entry."""
SKILLS_A_PAGE = 50
RESOURCES_A_PAGE = 500
CHILDREN_A_PAGE = 200
DIRECTORY = "inode/directory"
_HINT = "skills/list and resources/list name the skills, resources/directory/read the files of each."


class Resource(NamedTuple):
    uri: str
    name: str
    media_type: str | None
    """The media type that follows from the name, or None if the name has no known ending."""
    size: int | None = None
    description: str | None = None
    title: str | None = None


class EntryFile(NamedTuple):
    uri: str
    digest: str
    size: int


class SkillEntry(NamedTuple):
    uri: str
    frontmatter: dict[str, object]
    resources: list[EntryFile]
    revocation: Mapping[str, str] | None = None
    """The yank for security, if the URI names a revoked version."""


class ResourceContent(NamedTuple):
    skill: str
    path: str
    uri: str
    media_type: str | None
    content: JsonPieces
    """The content as a JSON string."""
    encoding: str
    """`utf-8` or `base64`."""


def find_skill_entries(
    connection: Connection, identity: Identity, key: bytes, storage: Storage, *, cursor: str
) -> tuple[list[SkillEntry], str | None]:
    """Return a page of skill entries and the next cursor. The order is that of list_skills.

    Skills over the limits of MCP (MOST_FILES, MOST_BYTES) are omitted.
    """
    bound_to = ("skills/list",)
    namespace, name = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    rows = seen_rows(connection, identity, "key", SKILLS_A_PAGE + 1, (namespace, name))
    versions = [(name, version_id) for _, name, version_id in rows[:SKILLS_A_PAGE]]
    folders = open_folders(connection, identity, storage, versions)
    crowded = with_skills_below(connection, [folder.name for folder in folders])
    entries = [_entry_or_reason(connection, identity, storage, folder, folder.name in crowded) for folder in folders]
    page = fitting(entries, map(_size_of, entries))
    next_cursor = None
    if len(page) < len(rows):
        namespace, name, _ = rows[len(page) - 1]
        next_cursor = make_cursor(key, bound_to, (namespace, name))
    return [entry for entry in page if isinstance(entry, SkillEntry)], next_cursor


def _size_of(entry: SkillEntry | str) -> int:
    return len(msgspec.json.encode(entry)) if isinstance(entry, SkillEntry) else 0


def find_skill_entry(connection: Connection, identity: Identity, storage: Storage, *, uri: str) -> SkillEntry:
    """Return the entry of a skill, or of the version in the URI.

    Raise ResourceNotFound if `uri` is not the SKILL.md of a skill, or if the skill is over the limits of MCP.
    """
    at_version = _find_at_version(connection, identity, storage, uri)
    folder, path = at_version[:2] if at_version else _find(connection, identity, storage, uri)
    if path != SKILL_MD:
        raise ResourceNotFound(
            f"{_shown(uri)} is not the SKILL.md of a skill", hint=f"The SKILL.md is {folder.uri(SKILL_MD)}.", uri=uri
        )
    is_crowded = at_version is None and bool(with_skills_below(connection, [folder.name]))
    entry = _entry_or_reason(connection, identity, storage, folder, is_crowded)
    if isinstance(entry, str):
        raise ResourceNotFound(f"the skill at {_shown(uri)} is not served: {entry}", hint=_HINT, uri=uri)
    return entry._replace(revocation=at_version[2]) if at_version else entry


def find_resources(
    connection: Connection, identity: Identity, key: bytes, storage: Storage, *, cursor: str
) -> tuple[list[Resource], str | None]:
    """Return a page with the SKILL.md of each skill, and the next cursor. `read_directory` returns the other files."""
    bound_to = ("resources/list",)
    namespace, name = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    rows = seen_rows(connection, identity, "key", RESOURCES_A_PAGE + 1, (namespace, name))
    page = rows[:RESOURCES_A_PAGE]
    resources: list[Resource] = []
    for start in range(0, len(page), SKILLS_A_PAGE):
        versions = [(name, version_id) for _, name, version_id in page[start : start + SKILLS_A_PAGE]]
        folders = open_folders(connection, identity, storage, versions)
        resources += [_resource(folder, SKILL_MD, folder.skill_md.size_bytes) for folder in folders]
    next_cursor = None
    if len(rows) > len(page):
        namespace, name, _ = page[-1]
        next_cursor = make_cursor(key, bound_to, (namespace, name))
    return resources, next_cursor


def read_content(connection: Connection, identity: Identity, storage: Storage, *, uri: str) -> ResourceContent:
    """Return the file at a URI. Raise ResourceNotFound if there is no file at the URI.

    The file belongs to the latest version of its skill, or to the version in the URI: `skill://a/b@1.2.0/SKILL.md`.
    Raise the errors of `content_pieces`.
    """
    at_version = _find_at_version(connection, identity, storage, uri)
    folder, path = at_version[:2] if at_version else _find(connection, identity, storage, uri)
    file = next((file for file in folder.files if file.path == path), None)
    if file is None:
        paths = ", ".join(file.path for file in folder.files[:10])
        raise ResourceNotFound(
            f"the skill '{folder.name}' has no file at {_shown(uri)}",
            hint=f"The files are {paths}{' and more' * (len(folder.files) > 10)}.",
            uri=uri,
        )
    if path == SKILL_MD:
        stored, description = stored_skill_md(connection, storage, folder.version_id)
        skill_md = conforming(folder.name, stored, description).content
        pieces = content_pieces(partial(io.BytesIO, skill_md), len(skill_md))
        return ResourceContent(folder.name, path, uri, MARKDOWN, *pieces)
    pieces = content_pieces(partial(open_content, connection, storage, file.sha256), file.size_bytes)
    return ResourceContent(folder.name, path, uri, media_type_of(path), *pieces)


def find_in_folder(
    connection: Connection, identity: Identity, key: bytes, storage: Storage, *, uri: str, cursor: str
) -> tuple[list[Resource], str | None]:
    """Return a page of the direct children of a folder (files, skills and namespaces), and the next cursor.

    Raise ResourceNotFound if there is no folder at the URI.
    """
    bound_to = ("resources/directory/read", uri)
    after = read_cursor(key, bound_to, cursor, 1)[0] if cursor else ""
    segments = segments_of(uri)
    if segments is None:
        raise _nothing_at(uri)
    folder = find_folder(connection, identity, storage, segments)
    of_files = _children_of_files(*folder) if folder else {}
    of_skills, more = _children_of_skills(connection, identity, segments, after)
    if not of_files and not of_skills and not cursor:
        raise ResourceNotFound(f"{_shown(uri)} is not a folder", hint=_HINT, uri=uri)
    children = [] if cursor else list(of_files.values())
    children += [Resource(uri_of((*segments, name)), name, DIRECTORY) for name in of_skills if name not in of_files]
    return children, make_cursor(key, bound_to, (more,)) if more else None


# -- parts -------------------------------------------------------------------------------------------------------


def _find(connection: Connection, identity: Identity, storage: Storage, uri: str) -> tuple[SkillFolder, str]:
    segments = segments_of(uri)
    folder = find_folder(connection, identity, storage, segments) if segments else None
    if folder is None:
        raise _nothing_at(uri)
    return folder


def _find_at_version(
    connection: Connection, identity: Identity, storage: Storage, uri: str
) -> tuple[SkillFolder, str, Mapping[str, str] | None] | None:
    """Return the version of a skill that a URI names, the path inside its folder, and the yank of a revoked version.
    Return None if the URI names no version. Raise ResourceNotFound if the identity does not see the version.
    """
    segments = segments_of(uri) or ()
    depth = next((index for index, segment in enumerate(segments) if "@" in segment), None)
    if depth is None:
        return None
    last_folder, _, version = segments[depth].partition("@")
    candidates = skill_paths_of((*segments[:depth], last_folder))
    name = next((name for name, rest in candidates if not rest), None)
    if name is None or not seen_named(connection, identity, [name]):
        return None
    try:
        row = resolve(connection, identity, name, parse_version_spec(version))
    except PeopleOnly:
        raise
    except SkilleryError as error:
        raise ResourceNotFound(error.message, hint=error.hint or _HINT, uri=uri) from None
    [folder] = open_folders(connection, identity, storage, [(name, row.version_id)])
    # The files of the version have its number in their URIs.
    folder = folder._replace(folder=segments[: depth + 1])
    return folder, "/".join(segments[depth + 1 :]), revocation_of(row)


def _nothing_at(uri: str) -> ResourceNotFound:
    return ResourceNotFound(f"there is nothing at {_shown(uri)}", hint=_HINT, uri=uri)


def _shown(uri: str) -> str:
    return repr(uri[:200])


def _resource(folder: SkillFolder, path: str, size: int) -> Resource:
    uri = folder.uri(path)
    if path == SKILL_MD:
        skill_md = folder.skill_md
        title = title_of(skill_md.frontmatter, "", folder.name) or None
        return Resource(uri, skill_md.name, MARKDOWN, size, skill_md.description, title)
    return Resource(uri, path.rpartition("/")[2], media_type_of(path), size)


def _entry_or_reason(
    connection: Connection, identity: Identity, storage: Storage, folder: SkillFolder, is_crowded: bool
) -> SkillEntry | str:
    """Return the MCP entry of a skill, or the reason why the skill is too large for an entry.

    If the folder of a skill contains other skills, MCP counts their files as files of the outer skill.
    """
    below: list[tuple[str, int]] = []
    if is_crowded:
        # Each skill has at least two files, so one more skill would exceed the limit on files.
        below = names_below(connection, identity, folder.name, most=MOST_FILES // 2)
    count = len(folder.files) + count_files(connection, [version_id for _, version_id in below])
    if count > MOST_FILES:
        return f"with the skills in its folder it has {count} files or more; MCP allows a skill at most {MOST_FILES}"
    files = [
        EntryFile(skill.uri(file.path), f"sha256:{file.sha256}", file.size_bytes)
        for skill in (folder, *open_folders(connection, identity, storage, below))
        for file in skill.files
    ]
    size = sum(file.size for file in files)
    if size > MOST_BYTES:
        return f"its files have {size} bytes; MCP allows a skill at most {MOST_BYTES}"
    return SkillEntry(folder.uri(SKILL_MD), folder.skill_md.frontmatter, files)


def _children_of_files(folder: SkillFolder, path: str) -> dict[str, Resource]:
    """Return the files and folders directly below a folder of a skill, by name. `path` "" is the folder of the skill
    itself.
    """
    resources: dict[str, Resource] = {}
    above = f"{path}/" if path else ""
    for file in folder.files:
        if file.path.startswith(above):
            child, _, deeper = file.path.removeprefix(above).partition("/")
            where = above + child
            if deeper:
                resources.setdefault(child, Resource(folder.uri(where), child, DIRECTORY))
            else:
                resources[child] = _resource(folder, where, file.size_bytes)
    return resources


def _children_of_skills(
    connection: Connection, identity: Identity, segments: tuple[str, ...], after: str
) -> tuple[list[str], str | None]:
    """Return the direct subfolders that contain skills, and the skill name after which the next page begins, or None
    at the end.
    """
    name = name_above(segments)
    if name is None:
        return [], None
    first_after = after
    children: dict[str, None] = {}
    is_full = False
    for skill_name in _names_from(connection, identity, name, after):
        folder = folder_of(skill_name)
        if folder[: len(segments)] != segments or len(folder) == len(segments):
            continue
        child = folder[len(segments)]
        if len(children) == CHILDREN_A_PAGE and child not in children:
            is_full = True
            break
        children[child] = None
        after = skill_name
    # `a.b` sorts before `a.b-c`, and `a.b.c` after it: a folder may have been on an earlier page.
    already_listed = listed_named(
        connection, identity, [f"{name}.{child}" for child in children if f"{name}.{child}" <= first_after]
    )
    return [child for child in children if f"{name}.{child}" not in already_listed], after if is_full else None


def _names_from(connection: Connection, identity: Identity, name: str, after: str) -> Iterator[str]:
    """Yield the names of the skill `name` and of the skills below, after the name `after`.

    After a batch, the names below its last child folder are skipped: that folder is already listed.
    """
    if not after and listed_named(connection, identity, [name]):
        yield name
    while below := names_below(connection, identity, name, after=after, most=CHILDREN_A_PAGE):
        for skill_name, _ in below:
            yield skill_name
        last_name, _ = below[-1]
        child, _, deeper = last_name.removeprefix(f"{name}.").partition(".")
        # "/" follows "." in the order of bytes.
        after = f"{name}.{child}/" if deeper else last_name
