"""Archives for tests: folders of skills as zip, tar and tar.gz, and malformed archives."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping


def skill_md(name: str, description: str = "What it does.", body: str = "# Title\n", **more: str) -> str:
    lines = "".join(f"{key}: {value}\n" for key, value in more.items())
    return f"---\nname: {name}\ndescription: {description}\n{lines}---\n{body}"


def zipped(files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None) -> bytes:
    """Return a zip archive of the files. A path that ends with `*` is executable."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zip_info(path.rstrip("*"), 0o100755 if path.endswith("*") else 0o100644), content)
        for path, target in (links or {}).items():
            archive.writestr(zip_info(path, stat.S_IFLNK | 0o777), target)
    return into.getvalue()


def zip_info(path: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path)
    info.create_system = 3
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def tarred(
    files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None, more: Iterable[tarfile.TarInfo] = ()
) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tar_info(path.rstrip("*"), size=len(data), mode=0o755 if path.endswith("*") else 0o644)
            archive.addfile(info, io.BytesIO(data))
        for path, target in (links or {}).items():
            archive.addfile(tar_info(path, type=tarfile.SYMTYPE, linkname=target))
        for info in more:
            archive.addfile(info)
    return into.getvalue()


def tar_info(path: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tgz(files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None) -> bytes:
    return gzip.compress(tarred(files, links))


def of_windows(files: dict[str, bytes | str], encoding: str = "", extra: str = "") -> bytes:
    """Return a zip as Windows makes it: names in `encoding`, no modes, and folders that end with a backslash.

    `extra` names an encoding of a second name in the extra field of Info-ZIP.
    """
    into, named = io.BytesIO(), dict[bytes, bytes]()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (path, content) in enumerate(files.items()):
            raw = path.replace("/", "\\").encode(encoding or "utf-8")
            # zipfile writes names in ASCII or with the flag of UTF-8, so other names are put in place afterwards.
            info = zipfile.ZipInfo((chr(97 + number // 26) + chr(97 + number % 26)).ljust(len(raw), "~"))
            info.create_system, info.external_attr, info.compress_type = 0, 0x20, zipfile.ZIP_DEFLATED
            if extra:
                field = b"\1" + struct.pack("<I", zlib.crc32(raw)) + path.encode(extra)
                info.extra = struct.pack("<HH", 0x7075, len(field)) + field
            archive.writestr(info, content)
            named[info.filename.encode()] = raw
    data = into.getvalue()
    for written, raw in named.items():
        data = data.replace(written, raw)
    return data
