"""What was installed, held against what its wheels say of themselves: every file is there, whole, and named by one."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

_OWN = frozenset({".lock", "CACHEDIR.TAG", ".gitignore"})
"""Of the installer, at the top."""
_UNHASHED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
"""Of a `.dist-info`: written by the installer, or signed elsewhere."""


class NotWhole(Exception):
    """The message names the package and the file in it, and no path of this machine."""


def verify(folder: Path) -> tuple[int, int]:
    """Blocking: the number of packages in the folder and the bytes of its files, which anybody may read afterwards and
    nobody change. Raises NotWhole."""
    recorded: dict[str, tuple[str, str]] = {}
    infos = sorted(folder.glob("*.dist-info"))
    for info in infos:
        recorded.update(_recorded(folder, info))
    folder.chmod(0o755)
    size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise NotWhole(f"'{name}' is neither a file nor a folder")
        if path.is_dir():
            path.chmod(0o755)
            continue
        size += path.stat().st_size
        if name not in recorded and not _is_installers(name):
            raise NotWhole(f"'{name}' is in no package's list of files")
        path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)
    for name, (package, expected) in recorded.items():
        _check(folder, name, package, expected)
    return len(infos), size


def _recorded(folder: Path, info: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    package = info.name.removesuffix(".dist-info").replace("-", " ")
    try:
        rows = list(csv.reader(io.StringIO((info / "RECORD").read_text("utf-8"))))
    except (OSError, ValueError, csv.Error):
        raise NotWhole(f"{package} has no list of its files") from None
    for row in filter(None, rows):
        name, expected = row[0], row[1] if len(row) > 1 else ""
        if ".." in name.split("/") or name.startswith("/"):
            raise NotWhole(f"{package} lists '{name[:128]}', which is outside of its folder")
        yield name, (package, expected)


def _check(folder: Path, name: str, package: str, expected: str) -> None:
    path = folder / name
    if not path.is_file():
        raise NotWhole(f"{package} lacks its file '{name[:128]}'")
    kind, _, value = expected.partition("=")
    if not value and (name.rpartition("/")[2] in _UNHASHED or name.endswith(".pyc")):
        return
    if kind not in {"sha256", "sha384", "sha512"}:
        raise NotWhole(f"{package} says no hash of its file '{name[:128]}'")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, kind).digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value:
        raise NotWhole(f"{package} was published with a damaged file, or it was changed: '{name[:128]}'")


def _is_installers(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return (not folder and last in _OWN) or (folder.endswith(".dist-info") and last in _UNHASHED)
