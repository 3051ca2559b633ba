"""Small wheels in a folder that servers use as their package source."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
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
    more: Mapping[str, str] | None = None,
    links: Sequence[str] = (),
    headers: Sequence[str] = (),
) -> Path:
    """Write a wheel with these modules and return its path. The default module has its version as VERSION. METADATA has
    the `headers` too.

    `record` replaces hashes in RECORD, `more` adds files that RECORD omits, `links` makes files symbolic links.
    """
    content = dict(files or {f"{name}.py": f"VERSION = {version!r}\n"})
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *(f"Requires-Dist: {r}\n" for r in requires)]
    lines += (f"{header}\n" for header in headers)
    content[f"{info}/METADATA"] = "".join(lines)
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = [
        f"{path},{(record or {}).get(path) or hash_of(text)},{len(text.encode())}" for path, text in content.items()
    ]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = house / f"{name}-{version}-{tag}.whl"
    unfinished = path.with_suffix(".part")  # a server may read the folder at any time
    with zipfile.ZipFile(unfinished, "w") as archive:
        for entry, text in {**content, **(more or {})}.items():
            info_of = zipfile.ZipInfo(entry)
            info_of.external_attr = (0o120777 if entry in links else 0o100644) << 16
            archive.writestr(info_of, text, zipfile.ZIP_DEFLATED)
    return unfinished.replace(path)


def hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


BACKEND = """
import base64, hashlib, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    {hostile}
    name, version = "{name}", "{version}"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\\nBUILT = True\\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    digest = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    rows = [f"{path},sha256={digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]) + "\\n"
    file = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{file}", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return file
"""


def make_sdist(house: Path, name: str, version: str, hostile: str = "pass") -> Path:
    """Write a source archive without build dependencies and return its path. Its build runs the line `hostile`."""
    backend = BACKEND
    for key, value in {"hostile": hostile, "name": name, "version": version}.items():
        backend = (
            backend.replace('"{' + key + '}"', f'"{value}"')
            if key != "hostile"
            else backend.replace("{hostile}", value)
        )
    files = {
        "backend.py": backend,
        "pyproject.toml": (
            f'[project]\nname = "{name}"\nversion = "{version}"\n'
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        ),
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
    }
    path = house / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
