"""Options and events of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

IMPORT_HEADERS = {"content-type": "application/octet-stream", "accept": "application/x-ndjson"}
ImportEvent: TypeAlias = "tuple[str, dict[str, Any]]"
"""An event of an import: its name (`begun`, `skill` or `summary`), and its object.

docs/guide/importing.md describes the objects.
"""


class ImportOptions(TypedDict, total=False):
    """The options of `import_archive`. docs/guide/importing.md describes them."""

    name: str
    """Name for a skill at the root of the archive that states no name."""
    namespace: str
    source: str
    default_source: str
    permissions: Mapping[str, Any]
    take_over: Sequence[str]
    packages: Literal["infer", "declared", "newest"]
    nested: Literal["auto", "keep", "split"]
    names: str
    """Encoding of the names in a zip that are not UTF-8."""
    commit_dates: bool
    """The times of the files in a tar are those of commits."""
    commit: str
    """Hash of the git commit with the files."""
    keep_bytes: bool
    """Scripts keep CR LF at the ends of their lines."""
    dry_run: bool
    prune: bool
    review: bool
    """Each new version waits for a review."""


def query_of(options: ImportOptions) -> dict[str, str]:
    """Return the query parameters of `POST /import`. False and empty options are left out, except empty
    `permissions`.
    """
    return {name: _text(value) for name, value in options.items() if value or isinstance(value, Mapping)}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ",".join(value)
    return msgspec.json.encode(value).decode()


__all__ = ["IMPORT_HEADERS", "ImportEvent", "ImportOptions", "query_of"]
