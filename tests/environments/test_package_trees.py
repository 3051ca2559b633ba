"""Installed files: the server writes what the sandbox sends only to paths in the wheel's file list."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.environments.jobs import BuildFailed
from skillery.environments.trees import FILES, TreeWriter
from skillery.environments.wheels import MOST_ENTRIES, ListedFile, ListedFiles, read_wheel
from skillery.formats.requirements import Pin
from tests.support.wheels import hash_of, make_wheel

MIB = 1024 * 1024
PIN = Pin("own", "1.0", frozenset())
LISTED = {"own/a.py": "X = 1\n", "own/b.txt": "text", "own-1.0.dist-info/RECORD": "list"}
WHEEL = ListedFiles(
    "own 1.0",
    {
        name: ListedFile(name, *(("", "") if name.endswith("RECORD") else hash_of(text).split("=", 1)))
        for name, text in LISTED.items()
    },
)


@pytest.fixture
def aside() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    yield folder / "aside"
    shutil.rmtree(folder)


def head(what: str, name: str, size: int, *, executable: bool = False) -> bytes:
    return json.dumps([what, name, size, executable]).encode() + b"\n"


def whole() -> bytes:
    return b"".join(head("file", name, len(text)) + text.encode() for name, text in LISTED.items())


def written(aside: Path) -> dict[str, str]:
    files = aside / FILES
    return {str(path.relative_to(files)): path.read_text() for path in files.rglob("*") if path.is_file()}


@given(st.lists(st.integers(1, 30), max_size=20))
def test_pieces_may_break_anywhere(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, rest = TreeWriter(WHEEL, Path(folder) / "aside", MIB, 1), whole()
        for size in sizes:
            piece, rest = rest[:size], rest[size:]
            writer.take("x/0", piece)
        writer.take("x/0", rest)

        assert writer.finish().package == "own 1.0"
        assert written(Path(folder) / "aside") == LISTED


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (head("file", "../evil", 1) + b"x", "is not in its list"),
        (head("file", "own/c.py", 1) + b"x", "is not in its list"),
        (head("file", "own/b.txt", 4) + b"TEXT", "damaged or changed file"),
        (head("file", "own/b.txt", 3) + b"tex", "damaged or changed file"),
        (head("file", "own/b.txt", 4) + b"text" + head("file", "own/b.txt", 4) + b"text", "twice"),
        (head("code", "own/b.txt", 1) + b"x", "code without a module"),
        (head("code", "own/a.py", 1) + b"x" + head("code", "own/a.py", 1) + b"x", "twice"),
        (head("link", "own/a.py", 1) + b"x", "twice"),
        (head("file", "own/b.txt", -1), "a negative size"),
        (head("file", "own/b.txt", 2 * MIB), "packages.max_mb"),
        (b"x" * 100_000, "a head that is too long"),
        (b"[1, 2]\n", "an invalid head"),
        (whole()[:-1], "an incomplete file"),
        (head("file", "own/a.py", 6) + b"X = 1\n", "does not contain its file"),
    ],
)
def test_tree_writer_refuses_invalid_streams_and_unlisted_files(aside: Path, stream: bytes, words: str) -> None:
    writer = TreeWriter(WHEEL, aside, MIB, 1)

    def take() -> None:
        writer.take("x/0", stream)
        writer.finish()

    with pytest.raises(BuildFailed, match=words.replace(".", r"\.")):
        take()
    assert not (aside.parent / "evil").exists()


@given(st.lists(st.binary(max_size=60) | st.sampled_from([head("file", name, 3) for name in LISTED]), max_size=8))
def test_whatever_comes_only_listed_names_are_written(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = TreeWriter(WHEEL, Path(folder) / "aside", MIB, 1)
        try:
            for piece in pieces:
                writer.take("x/0", piece)
        except BuildFailed:
            pass

        there = [path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file()]
        assert all(str(path).removeprefix(f"aside/{FILES}/") in LISTED for path in there)


def directory_of(entries: int, *, said: int, zip64: bool = False) -> bytes:
    """Return a zip archive without contents: a directory of `entries` entries that claims to have `said` entries."""
    one = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, *(0,) * 6) + b"a"
    size = len(one) * entries
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, size, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, said, said, 10 if zip64 else size, 0, 0)
    return one * entries + (record + locator if zip64 else b"") + end


@pytest.mark.parametrize(("said", "zip64"), [(5, False), (5, True), (0xFFFF, True)])
def test_read_wheel_refuses_too_many_entries_despite_a_false_entry_count(
    tmp_path: Path, said: int, zip64: bool
) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(directory_of(MOST_ENTRIES + 1, said=said, zip64=zip64))

    with pytest.raises(BuildFailed, match=f"has {MOST_ENTRIES + 1} files"):
        read_wheel(path, PIN)


@pytest.mark.parametrize("rows", ["a,sha256=a\n" * (MOST_ENTRIES + 1), "\n" * (MOST_ENTRIES + 1), "ab," * 10_000])
def test_an_endless_list_of_files_is_not_read(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("own-1.0.dist-info/RECORD", rows)

    with pytest.raises(BuildFailed, match="list of more than"):
        read_wheel(path, PIN)


def test_folders_count_toward_the_size_limit_of_packages(aside: Path) -> None:
    names = [f"{number}/" + "a/" * 400 + "x" for number in range(3)]
    kind, value = hash_of("").split("=", 1)
    writer = TreeWriter(
        ListedFiles("own 1.0", {name: ListedFile(name, kind, value) for name in names}), aside, 4 * MIB, 4
    )

    with pytest.raises(BuildFailed, match=r"packages\.max_mb"):
        writer.take("x/0", b"".join(head("file", name, 0) for name in names))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_wheel_or_a_failure(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.whl"
        path.write_bytes(content)
        with pytest.raises(BuildFailed):
            read_wheel(path, PIN)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_a_damaged_wheel_is_read_as_it_was_or_a_failure(at: int, noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_wheel(Path(folder), "own", "1.0")
        content = bytearray(path.read_bytes())
        start = at % len(content)
        content[start : start + len(noise)] = noise
        path.write_bytes(content)
        try:
            found = read_wheel(path, PIN)
        except BuildFailed:
            return
        assert all(".." not in one.target.split("/") and not one.target.startswith("/") for one in found.files.values())
