"""Formats of files by their first bytes: programs, archives, documents with macros, and disguised files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from skillery_scanner.catalog import Match

_PROGRAMS = (
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"\xfe\xed\xfa\xce", "a macOS program"),
    (b"\xfe\xed\xfa\xcf", "a macOS program"),
    (b"\xce\xfa\xed\xfe", "a macOS program"),
    (b"\xcf\xfa\xed\xfe", "a macOS program"),
    (b"\xca\xfe\xba\xbe", "a macOS program or Java class"),
    (b"\0asm", "a WebAssembly program"),
    (b"dex\n", "an Android program"),
    (b"!<arch>\n", "a library or Debian package"),
    (b"\xed\xab\xee\xdb", "an RPM package"),
)
_ARCHIVES = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"MSCF", "a cabinet archive"),
    (b"xar!", "a macOS package"),
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DOCUMENTS = frozenset({".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub", ".dotx", ".xltx", ".potx"})
_WITH_MACROS = frozenset({".docm", ".xlsm", ".pptm", ".dotm", ".xlam"})
_ARCHIVE_NAMES = frozenset(
    {
        ".zip",
        ".gz",
        ".tgz",
        ".bz2",
        ".xz",
        ".7z",
        ".rar",
        ".zst",
        ".tar",
        ".whl",
        ".jar",
        ".cab",
        ".pkg",
        ".egg",
        ".apk",
    }
)
_PROGRAM_NAMES = frozenset(
    {".exe", ".dll", ".so", ".dylib", ".wasm", ".class", ".pyc", ".pyd", ".deb", ".rpm", ".dex", ".o", ".a"}
)
_PYC_MAGIC = b"\r\n"
MOST_SEARCHED = 4 * 1024 * 1024


def formats(path: str, content: bytes) -> Iterator[Match]:
    """Yield programs, archives, and files whose name states a different format."""
    suffix = PurePosixPath(path).suffix.lower()
    program = _program(content, suffix)
    if program:
        yield Match("executable", path, None, program)
        if suffix and suffix not in _PROGRAM_NAMES:
            yield Match("disguised-file", path, None, f"{program} called {suffix}")
        return
    archive = next((name for magic, name in _ARCHIVES if content.startswith(magic)), "")
    if not archive and content[257:262] == b"ustar":
        archive = "a tar archive"
    if archive:
        yield from _archive(path, suffix, archive, content)
    elif content.startswith(_OLE) and b"V\0B\0A\0" in content[:MOST_SEARCHED]:
        yield Match("macros", path, None, "an Office document with macros")


def _program(content: bytes, suffix: str) -> str:
    program = next((name for magic, name in _PROGRAMS if content.startswith(magic)), "")
    if program == "a Windows program" and b"PE\0\0" not in content[:4096] and suffix not in _PROGRAM_NAMES:
        return ""  # a text may begin with MZ
    if not program and content[2:4] == _PYC_MAGIC and (suffix in {".pyc", ".pyo"} or b"\xe3\0\0\0" in content[:32]):
        return "compiled Python"
    return program


def _archive(path: str, suffix: str, archive: str, content: bytes) -> Iterator[Match]:
    """Yield the matches for a file that begins like an archive. `archive` names its format."""
    head = content[:MOST_SEARCHED]
    if suffix in _WITH_MACROS or (archive == "a ZIP archive" and b"vbaProject.bin" in head):
        yield Match("macros", path, None, "an Office document with macros")
    elif (
        suffix in _DOCUMENTS and archive == "a ZIP archive" and (b"[Content_Types].xml" in head or b"mimetype" in head)
    ):
        return  # an ordinary document
    else:
        yield Match("archive", path, None, archive)
        if suffix not in _ARCHIVE_NAMES:
            yield Match("disguised-file", path, None, f"{archive} called {suffix or 'without a suffix'}")
