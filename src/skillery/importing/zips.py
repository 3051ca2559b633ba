"""Zip archives (`.zip`, `.skill`), checked by their directory before any file is unpacked.

Python's zipfile reads the archive. This module first checks values that zipfile trusts: the number of entries (zipfile
creates an object for each), their types, and their unpacked sizes.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import BinaryIO

from skillery.errors import ArchiveTooLarge, InvalidArchive
from skillery.formats.paths import MAX_BYTES
from skillery.importing.entries import Entry, ImportLimits, Sizes, broken, refuse, safe_path, safe_target, too_many

MAX_RATIO = 200
"""The maximum ratio of unpacked to packed bytes: an entry with more is refused as a zip bomb. Deflate can reach
1032, ordinary text about 20.
"""
RATIO_BYTES = 4 * 1024 * 1024
"""An entry with at most this many unpacked bytes is never refused as a zip bomb."""
MAX_TARGET_BYTES = 4096
MAX_DIRECTORY_BYTES = 64 * 1024 * 1024
"""The maximum number of bytes of the directory. zipfile reads all of it, with a comment of up to 64 KiB for each
entry.
"""
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_DIRECTORY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
_LOCATOR64_BYTES = 20
_END64_BYTES = 56
_IS_IN_64 = 0xFFFFFFFF
_FIXED = 46
_TAIL = 22 + 65_535 + 20 + 56
_UTF8 = 0x800
_ENCRYPTED = 0x41


class ZipArchive:
    def __init__(self, file: BinaryIO, limits: ImportLimits, names: str = "") -> None:
        """Read and check the directory. The caller closes the file. `names` is the encoding of names that are not
        UTF-8, or "" to find it.

        Raise InvalidArchive if the archive is malformed or has an unsafe entry, and ArchiveTooLarge if it exceeds the
        limits.
        """
        _count_entries(file, limits.max_entries)
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error) as error:
            raise broken(f"is not a readable zip ({_why(error)})", None) from None
        sizes = Sizes(limits)
        try:
            infos = self._zip.infolist()
            self._encoding = names or (found_encoding(infos, self._texts(infos)) if any(map(_legacy, infos)) else "")
            self.entries: Sequence[Entry] = [entry for info in infos if (entry := self._entry(info, sizes)) is not None]
        except BaseException:
            self._zip.close()
            raise

    def read(self, entry: Entry) -> bytes:
        return self._read(entry.place, entry.path)

    def close(self) -> None:
        self._zip.close()

    def _texts(self, infos: Iterable[zipfile.ZipInfo]) -> list[bytes]:
        """Return the contents of SKILL.md files, _MOST_TEXT bytes together."""
        texts, left = list[bytes](), _MOST_TEXT
        for info in infos:
            is_skill_md = info.filename.lower().endswith("skill.md") and not info.flag_bits & _ENCRYPTED
            if not is_skill_md or info.compress_type not in _METHODS:
                continue
            if left <= 0 or len(texts) == _MOST_TEXTS:
                break
            try:
                with self._zip.open(info) as content:
                    texts.append(content.read(left))
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError):
                continue  # `read` raises this error if the skill is imported
            left -= len(texts[-1])
        return texts

    def _read(self, info: zipfile.ZipInfo, path: str) -> bytes:
        try:
            with self._zip.open(info) as content:
                data = content.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
            raise refuse(path, f"cannot be unpacked ({_why(error)})", "Pack the folder again.") from None
        if len(data) != info.file_size:
            raise refuse(
                path, f"has {len(data)} bytes, but the directory states {info.file_size}", "Pack the folder again."
            )
        return data

    def _entry(self, info: zipfile.ZipInfo, sizes: Sizes) -> Entry | None:
        """Return the entry, or None for a folder. Raise InvalidArchive if the entry is unsafe."""
        name, encoding = _name(info, self._encoding)
        path = safe_path(name)
        sizes.add(path, info.file_size)
        if info.flag_bits & _ENCRYPTED:
            raise refuse(path, "is encrypted", "Nothing was imported. Pack it without a password.")
        mode = info.external_attr >> 16
        # Windows may end the name of a folder with a backslash.
        if name.endswith("/") or stat.S_ISDIR(mode) or not path or (name.endswith("\\") and not info.file_size):
            return None
        if stat.S_IFMT(mode) and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise refuse(path, "is not a file, folder or link", "Nothing was imported. Leave devices and pipes out.")
        if info.compress_type not in _METHODS:
            hint = "Nothing was imported. Pack it with deflate, the default of all zip programs."
            raise refuse(path, f"is packed with method {info.compress_type}", hint)
        if info.file_size > RATIO_BYTES and info.file_size > MAX_RATIO * max(1, info.compress_size):
            raise refuse(path, f"unpacks to more than {MAX_RATIO} times its size", "Nothing was imported.")
        if not stat.S_ISLNK(mode):
            return Entry(path, info.file_size, bool(mode & 0o111), "", info, encoding, has_mode=bool(mode))
        if info.file_size > MAX_TARGET_BYTES:
            raise refuse(path, "is a link whose target is too long")
        return Entry(path, 0, False, safe_target(path, self._read(info, path).decode("utf-8", "surrogateescape")), info)


# -- Names of entries --------------------------------------------------------------------------------------------------
# A name is UTF-8 if its flag, an extra field or its bytes say so. Otherwise, its encoding is that of the system that
# made the archive. No field of a zip names this encoding.


ENCODINGS = ("gb18030", "cp932", "big5", "euc-kr")
"""The encodings that are tried, in this order. The first one in which a SKILL.md mentions a name is used."""
ALLOWED_ENCODINGS = frozenset({
    *ENCODINGS, "gbk", "big5hkscs", "cp949", "euc-jp", "shift_jis", "cp437", "cp850", "cp852", "cp866", "cp874",
    *(f"cp{number}" for number in range(1250, 1259)), "koi8-r", "koi8-u", "latin-1",
})  # fmt: skip
_MOST_NAMES = 200
_MOST_TEXT = 256 * 1024
_MOST_TEXTS = 100
_UNICODE_PATH = 0x7075


def _name(info: zipfile.ZipInfo, encoding: str) -> tuple[str, str]:
    """Return the name of an entry, and its encoding if the archive does not state it, else "".

    Not `info.filename`: many programs write UTF-8 without marking it, and zipfile cuts names at a NUL.
    """
    if not _legacy(info):
        return _unicode_name(info) or info.orig_filename, ""
    raw = _raw(info)
    try:
        return raw.decode(encoding or "cp437"), encoding or "cp437"
    except UnicodeError:
        return info.orig_filename, "cp437"


def _legacy(info: zipfile.ZipInfo) -> bool:
    """Return whether the name of an entry is not UTF-8."""
    return _unicode_name(info) is None and not info.flag_bits & _UTF8


def _unicode_name(info: zipfile.ZipInfo) -> str | None:
    """Return the name in the extra field of Info-ZIP (0x7075), or the name without a flag if its bytes are UTF-8."""
    if info.flag_bits & _UTF8:
        return None
    raw, at = _raw(info), 0
    try:
        while at + 4 <= len(info.extra):
            kind, length = struct.unpack_from("<HH", info.extra, at)
            field = info.extra[at + 4 : at + 4 + length]
            # The checksum shows that no program has renamed the entry without the field.
            if kind == _UNICODE_PATH and field[:1] == b"\x01" and field[1:5] == struct.pack("<I", zlib.crc32(raw)):
                return field[5:].decode()
            at += 4 + length
        return raw.decode()
    except UnicodeError:
        return None


def _raw(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("cp437")


def found_encoding(infos: Sequence[zipfile.ZipInfo], texts: Sequence[bytes]) -> str:
    """Return the first of ENCODINGS in which a SKILL.md mentions a name of the archive, or "" if no SKILL.md does.

    `texts` are the contents of SKILL.md files. At most _MOST_NAMES names and _MOST_TEXT bytes are compared.
    """
    raw = [_raw(info) for info in islice(filter(_legacy, infos), _MOST_NAMES)]
    words_of = dict[str, list[str]]()
    for encoding in ENCODINGS:
        with contextlib.suppress(UnicodeError):
            # Longer names are refused later, and each word is searched in the whole text.
            names = [name.decode(encoding).replace("\\", "/") for name in raw if len(name) <= MAX_BYTES]
            segments = dict.fromkeys(segment for name in names for segment in name.split("/") if not segment.isascii())
            words_of[encoding] = [*islice(segments, _MOST_NAMES)]
    # A SKILL.md in the encoding of the names mentions them in any encoding that decodes both.
    kinds = ["utf-8", *(words_of if len(words_of) == 1 else ())]
    for text in (part.decode(kind, "ignore") for kind in kinds for part in texts):
        for encoding, words in words_of.items():
            if any(word in text for word in words):
                return encoding
    return ""


def _count_entries(file: BinaryIO, most: int) -> None:
    """Check the number of entries of the directory, without creating objects for them.

    Raise InvalidArchive if the directory is missing or damaged, and ArchiveTooLarge if it is too large or has too many
    entries.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    at = tail.rfind(_END)
    if at < 0 or at + 22 > len(tail):
        raise broken("is cut off or not a zip: its directory is missing", _last_local_name(file, size))
    length = int.from_bytes(tail[at + 12 : at + 16], "little")
    end = size - len(tail) + at
    if tail[:at][-_LOCATOR64_BYTES:].startswith(_LOCATOR64):
        length, end = _length64(tail[:at], length), end - _LOCATOR64_BYTES - _END64_BYTES
    start = end - length
    if start < 0:
        raise broken("is cut off: its directory is larger than all of it", _last_local_name(file, size))
    if length > MAX_DIRECTORY_BYTES:
        raise ArchiveTooLarge(
            f"the directory of the zip has {length} bytes, at most {MAX_DIRECTORY_BYTES} are read",
            hint="Nothing was imported. Split the archive, or pack it without comments.",
            max_directory_bytes=MAX_DIRECTORY_BYTES,
        )
    file.seek(start)
    count, left = 0, length
    while left >= _FIXED:
        fixed = file.read(_FIXED)
        if not fixed.startswith(_DIRECTORY) or len(fixed) < _FIXED:
            raise InvalidArchive("the directory of the zip is broken", hint="Nothing was imported. Send it again.")
        more = sum(struct.unpack("<HHH", fixed[28:34]))
        file.seek(more, 1)
        left -= _FIXED + more
        count += 1
        if count > most:
            raise too_many(most)


def _length64(before: bytes, length: int) -> int:
    """Return the length of the directory in the zip64 record before the locator.

    zipfile uses this record and ignores the `length` in the short record. Raise InvalidArchive if the two differ.
    """
    record = before[-_LOCATOR64_BYTES - _END64_BYTES : -_LOCATOR64_BYTES]
    length64 = int.from_bytes(record[40:48], "little")
    if not record.startswith(_END64) or length not in {_IS_IN_64, length64}:
        raise broken("has two different sizes for its directory", None, "Nothing was imported. Pack the folder again.")
    return length64


def _last_local_name(file: BinaryIO, size: int) -> str | None:
    """Return the name of the last entry that starts in a truncated zip, or None. Stop at an entry of unknown size."""
    last, at = None, 0
    while at + 30 < size:
        file.seek(at)
        fixed = file.read(30)
        if not fixed.startswith(_LOCAL):
            return last
        packed, _, name_length, extra = struct.unpack("<IIHH", fixed[18:30])
        last = file.read(name_length).decode("utf-8", "replace") or last
        if int.from_bytes(fixed[6:8], "little") & 0x08:
            return last
        at += 30 + name_length + extra + packed
    return last


def _why(error: BaseException) -> str:
    return str(error)[:120] if isinstance(error, zipfile.BadZipFile) else type(error).__name__
