"""Archives, byte for byte: every reader finds the packed files, and equal files give equal bytes."""

from __future__ import annotations

import hashlib
import io
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.archives import FORMS, ArchiveEntry, Form, archive, archive_size

FILES = {
    "SKILL.md": (b"---\nname: x\n---\n", False),
    "scripts/run.sh": (b"#!/bin/sh\n", True),
    "empty": (b"", False),
    "größe/naïve file.bin": (bytes(range(256)) * 600, False),
    "/".join(["d" * 60] * 3) + "/" + "f" * 60: (b"in two fields", False),
    "p/" + "x" * 180: (b"too long for a header", True),
}
DIGESTS = {
    "tar.gz": "42794621bc0c651dd2875d4407d707a691011ea56b61fe301c0921fc640beb17",
    "zip": "2d7adf6e553e5376c569418c20ceea009360c099a3bf645076d13efe186613cf",
}
"""Digests of the archives of FILES. Every machine, Python and zlib gives the same bytes, so archives of different
servers can be compared.
"""


def packed(form: Form, files: dict[str, tuple[bytes, bool]], piece: int = 1000) -> bytes:
    def read(entry: ArchiveEntry) -> Iterator[bytes]:
        content = files[entry.path][0]
        return (content[at : at + piece] for at in range(0, len(content), piece))

    entries = [ArchiveEntry(path, len(content), executable) for path, (content, executable) in files.items()]
    whole = b"".join(archive(form, entries, read))
    assert len(whole) == archive_size(form, entries)
    return whole


def unpacked(form: Form, data: bytes) -> dict[str, tuple[bytes, bool]]:
    if form == "zip":
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            assert opened.testzip() is None
            return {
                one.filename: (opened.read(one), bool(one.external_attr >> 16 & stat.S_IXUSR))
                for one in opened.infolist()
            }
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        found = {}
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            found[member.name] = (content.read(), bool(member.mode & stat.S_IXUSR))
            assert (member.uid, member.gid, member.mtime) == (0, 0, 315_532_800)
        return found


@pytest.mark.parametrize("form", FORMS)
def test_unpacked_archive_equals_the_packed_files(form: Form) -> None:
    assert unpacked(form, packed(form, FILES)) == FILES


@pytest.mark.parametrize("form", FORMS)
def test_the_same_files_are_the_same_bytes_everywhere(form: Form) -> None:
    data = packed(form, FILES)
    assert packed(form, dict(reversed(FILES.items())), piece=7) == data
    assert hashlib.sha256(data).hexdigest() == DIGESTS[form]


def test_the_tar_of_this_machine_reads_it_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(packed("tar.gz", FILES))
    done = subprocess.run(["tar", "-xzf", "x.tar.gz"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    assert (tmp_path / "scripts/run.sh").stat().st_mode & 0o777 == 0o755
    assert all((tmp_path / path).read_bytes() == content for path, (content, _) in FILES.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_content_of_another_length_breaks_off(form: Form) -> None:
    with pytest.raises(OSError, match="x is not 5 bytes"):
        list(archive(form, [ArchiveEntry("x", 5, False)], lambda _: [b"four"]))


names = st.text("abcdé/ ._-", min_size=1, max_size=250).filter(
    lambda name: len(name.encode()) <= 255 and all(part.strip(". ") for part in name.split("/"))
)


@given(st.dictionaries(names, st.tuples(st.binary(max_size=200), st.booleans()), max_size=5))
def test_any_files_come_out_as_they_went_in(files: dict[str, tuple[bytes, bool]]) -> None:
    for form in FORMS:
        assert unpacked(form, packed(form, files)) == files
