"""A bundle: all files of one version of a skill, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from skillery.errors import BundleTooLarge
from skillery.formats.examples import Examples
from skillery.formats.manifest import Manifest
from skillery.formats.paths import check_paths
from skillery.formats.skill_md import SkillMd
from skillery.formats.tools import Tool

SKILL_TOML = "skill.toml"
SKILL_MD = "SKILL.md"


class SourceFile(NamedTuple):
    """A Python file of a bundle that must compile. `export` is the name that the file must define, or None for any
    names.
    """

    path: str
    content: bytes
    export: str | None = None


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle. `path` is relative to the root of the skill."""

    path: str
    content: bytes
    executable: bool = False

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the content as 64 hex digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        """The size of the content in bytes."""
        return len(self.content)


class BundleLimits(msgspec.Struct, frozen=True):
    """Limits on all files of a bundle together, including skill.toml and SKILL.md."""

    max_bytes: int = 16 * 1024 * 1024
    max_files: int = 512


class Bundle(msgspec.Struct, frozen=True):
    """A checked bundle. `files` include skill.toml and SKILL.md, and are sorted by the bytes of their paths."""

    manifest: Manifest
    skill_md: SkillMd
    files: tuple[BundleFile, ...]
    digest: str
    size_bytes: int
    warnings: tuple[str, ...]
    examples: Examples
    tools: tuple[Tool, ...] = ()


def digest_of(files: Iterable[BundleFile]) -> str:
    """Return the digest `sha256:…` of the files.

    The digest covers one line `mode SP sha256 SP path LF` for each file. So the same files have the same digest on
    every server.
    """
    return digest_of_entries((file.path, file.sha256, file.executable) for file in files)


def digest_of_entries(files: Iterable[tuple[str, str, bool]]) -> str:
    """Return the digest of files that are given as (path, SHA-256, is executable). See `digest_of`."""
    return f"sha256:{hashlib.sha256(files_text(files)).hexdigest()}"


def files_text(files: Iterable[tuple[str, str, bool]]) -> bytes:
    """Return the text whose SHA-256 is the digest of files that are given as (path, SHA-256, is executable)."""
    lines = [
        f"{'100755' if executable else '100644'} {sha256} {path}\n".encode()
        for path, sha256, executable in sorted(files, key=lambda file: file[0].encode())
    ]
    return b"".join(lines)


def with_file(bundle: Bundle, file: BundleFile, limits: BundleLimits) -> Bundle:
    """Return the bundle with one more file and the new digest.

    Raise BundleTooLarge if the bundle then exceeds `limits`, and InvalidPath if the path conflicts with another path.
    """
    check_paths([*(file.path for file in bundle.files), file.path])
    files = tuple(in_order([*bundle.files, file]))
    check_size(files, limits)
    size = sum(file.size for file in files)
    return msgspec.structs.replace(bundle, files=files, digest=digest_of(files), size_bytes=size)


def check_size(files: Sequence[BundleFile], limits: BundleLimits) -> None:
    """Raise BundleTooLarge if the number of files or their total size exceeds `limits`."""
    if len(files) > limits.max_files:
        raise BundleTooLarge(
            f"The bundle has {len(files)} files, at most {limits.max_files} are allowed.",
            hint="Pack small files into one, or keep data in blobs.",
            files=len(files),
            max_files=limits.max_files,
        )
    size = sum(file.size for file in files)
    if size > limits.max_bytes:
        raise BundleTooLarge(
            f"The bundle has {size} bytes, at most {limits.max_bytes} are allowed.",
            hint="Keep large data in blobs and pass their ids as arguments.",
            size_bytes=size,
            max_bytes=limits.max_bytes,
        )


def in_order(files: Iterable[BundleFile]) -> list[BundleFile]:
    """Return the files sorted by the bytes of their paths."""
    return sorted(files, key=lambda file: file.path.encode())
