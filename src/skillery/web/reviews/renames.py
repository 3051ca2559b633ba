"""Renamed files: a removed and an added file with the same content are one change."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from skillery.formats.version_diffs import FileChange


def with_renames(changes: Iterable[FileChange]) -> list[FileChange]:
    """Return the changes of diff_versions, with each renamed file as one change instead of two."""
    removed: dict[str, list[FileChange]] = {}
    for change in changes:
        if change.change == "removed" and change.old:
            removed.setdefault(change.old.sha256, []).append(change)
    merged: list[FileChange] = []
    gone: set[str] = set()
    for change in changes:
        before = removed.get(change.new.sha256) if change.change == "added" and change.new else None
        if before:
            was = before.pop(0)
            gone.add(was.path)
            merged.append(replace(change, change="renamed", old=was.old, diff="", note=f"Before: {was.path}"))
        else:
            merged.append(change)
    return [change for change in merged if change.change != "removed" or change.path not in gone]
