"""Small wheels of one's own, in a folder that servers take for all packages there are."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    house: Path,
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    *,
    requires: Sequence[str] = (),
    record: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """A wheel with these modules, by default one that says its version. `record` replaces hashes in its RECORD."""
    content = dict(files or {f"{name}.py": f"VERSION = {version!r}\n"})
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *(f"Requires-Dist: {r}\n" for r in requires)]
    content[f"{info}/METADATA"] = "".join(lines)
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = [
        f"{path},{(record or {}).get(path) or hash_of(text)},{len(text.encode())}" for path, text in content.items()
    ]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = house / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in content.items():
            archive.writestr(zipfile.ZipInfo(entry), text)
    return path


def hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
