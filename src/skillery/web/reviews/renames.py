"""Renamed files: a removed and an added file with the same content are one change."""

from __future__ import annotations

from typing import Any


def with_renames(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the FileChanges of diff_versions, with each renamed file as one change instead of two."""
    removed: dict[str, list[dict[str, Any]]] = {}
    for one in changes:
        if one["change"] == "removed":
            removed.setdefault(one["old"]["sha256"], []).append(one)
    merged: list[dict[str, Any]] = []
    gone: set[str] = set()
    for one in changes:
        before = removed.get(one["new"]["sha256"]) if one["change"] == "added" else None
        if before:
            was = before.pop(0)
            gone.add(was["path"])
            renamed = {"change": "renamed", "old": was["old"], "diff": "", "note": f"Before: {was['path']}"}
            merged.append({**one, **renamed})
        else:
            merged.append(one)
    return [one for one in merged if one["change"] != "removed" or one["path"] not in gone]
