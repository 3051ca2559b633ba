"""Foreign archives: safe entries are found, and unsafe ones are refused with the entry's name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillery.errors import ArchiveTooLarge, BundleTooLarge, InvalidArchive, SkilleryError
from skillery.importing.archives import open_archive
from skillery.importing.entries import Entry, ImportLimits
from skillery.importing.finder import Finder
from tests.conftest import Server
from tests.support.archives import skill_md, tar_info, tarred, tgz, zip_info, zipped

FUZZ_EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "60"))
GOOD: dict[str, str | bytes] = {
    "pdf/SKILL.md": skill_md("pdf"),
    "pdf/scripts/a.sh*": "#!/bin/sh\n",
    "pdf/data.bin": bytes(range(256)),
}
PACKERS: list[Callable[..., bytes]] = [zipped, tarred, tgz]


def txz(*files: Any) -> bytes:
    return lzma.compress(tarred(*files))


def tbz2(*files: Any) -> bytes:
    return bz2.compress(tarred(*files))


COMPRESSED: list[Callable[..., bytes]] = [txz, tbz2]


def contents(data: bytes, folder: Path, limits: ImportLimits = ImportLimits()) -> dict[str, bytes]:  # noqa: B008
    with open_archive(io_file(data, folder), limits, folder) as archive:
        return {entry.path: archive.read(entry) for entry in archive.entries if not entry.target}


def io_file(data: bytes, folder: Path) -> io.BufferedRandom:
    file = (folder / "sent").open("w+b")
    file.write(data)
    file.flush()
    return file


def refusal(data: bytes, folder: Path, limits: ImportLimits = ImportLimits()) -> SkilleryError:  # noqa: B008
    with pytest.raises((InvalidArchive, ArchiveTooLarge)) as caught:
        contents(data, folder, limits)
    assert caught.value.hint
    assert [path.name for path in folder.iterdir()] == ["sent"], "refused archives leave no files"
    return caught.value


@pytest.mark.parametrize("pack", [*PACKERS, *COMPRESSED])
def test_every_kind_of_archive_gives_the_same_files(pack: Callable[..., bytes], tmp_path: Path) -> None:
    with open_archive(io_file(pack(GOOD, {"pdf/link": "data.bin"}), tmp_path), ImportLimits(), tmp_path) as archive:
        found = {entry.path: entry for entry in archive.entries}
        assert archive.read(found["pdf/data.bin"]) == bytes(range(256))
        assert {path: entry.executable for path, entry in found.items() if not entry.target} == {
            "pdf/SKILL.md": False,
            "pdf/scripts/a.sh": True,
            "pdf/data.bin": False,
        }
        assert found["pdf/link"].target == "data.bin"


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("../evil", "'..'"),
        ("pdf/../../evil", "'..'"),
        ("..\\evil", "'..'"),
        ("/etc/passwd", "absolute"),
        ("C:/evil", "absolute"),
        ("\\\\server\\evil", "absolute"),
        ("a/" * 70 + "evil", "more than"),
    ],
)
def test_a_path_out_of_the_archive_is_refused(pack: Callable[..., bytes], path: str, what: str, tmp_path: Path) -> None:
    error = refusal(pack({**GOOD, path: "x"}), tmp_path)

    assert what in error.message
    assert error.data["entry"].endswith("evil") or error.data["entry"] == path


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "../../../x", "C:\\x"])
def test_a_link_out_of_the_archive_is_refused(pack: Callable[..., bytes], target: str, tmp_path: Path) -> None:
    error = refusal(pack(GOOD, {"pdf/link": target}), tmp_path)

    assert (error.data["entry"], "link" in error.message) == ("pdf/link", True)


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_pipes_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    assert refusal(tarred(GOOD, more=[tar_info("pdf/odd", type=kind)]), tmp_path).data["entry"] == "pdf/odd"


def test_a_device_in_a_zip_is_refused(tmp_path: Path) -> None:
    into = io.BytesIO(zipped(GOOD))
    with zipfile.ZipFile(into, "a") as archive:
        archive.writestr(zip_info("pdf/odd", 0o010644), "")

    assert refusal(into.getvalue(), tmp_path).data["entry"] == "pdf/odd"


def test_a_hard_link_becomes_its_file(tmp_path: Path) -> None:
    data = tarred(GOOD, more=[tar_info("pdf/twin", type=tarfile.LNKTYPE, linkname="pdf/data.bin")])

    with open_archive(io_file(data, tmp_path), ImportLimits(), tmp_path) as archive:
        skill = Finder(archive.entries).skill("pdf")
        assert archive.read(skill.files["twin"]) == bytes(range(256))


def test_encrypted_zip_entry_is_refused_by_name(tmp_path: Path) -> None:
    data = bytearray(zipped(GOOD))
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1

    error = refusal(bytes(data), tmp_path)
    assert (error.data["entry"], "encrypted" in error.message) == ("pdf/data.bin", True)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_zip_that_is_packed_with_something_else_is_refused(method: int, tmp_path: Path) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", method) as archive:
        archive.writestr("pdf/SKILL.md", skill_md("pdf"))

    assert "deflate" in str(refusal(into.getvalue(), tmp_path).hint)


@pytest.mark.parametrize("pack", [*PACKERS, txz])
@pytest.mark.parametrize("cut", [1, 30, 300])
def test_an_archive_that_is_cut_off_is_refused(pack: Callable[..., bytes], cut: int, tmp_path: Path) -> None:
    data = pack({**GOOD, "pdf/noise": os.urandom(5000)})
    # A tar is padded with zeros, so cutting them off changes nothing.
    whole = len(data.rstrip(b"\0")) if pack is tarred else len(data)

    error = refusal(data[: whole - cut], tmp_path)
    assert error.data.get("entry", "").startswith("pdf/"), error.message


@pytest.mark.parametrize("compress", [lzma.compress, bz2.compress])
def test_a_cut_archive_of_each_compressor_is_refused(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    assert "is cut off" in refusal(compress(tarred(GOOD))[:-5], tmp_path).message


@pytest.mark.parametrize("compress", [lzma.compress, bz2.compress])
def test_archives_of_parallel_compressors_are_read(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = tarred(GOOD)
    streams = b"".join(compress(data[at : at + 5000]) for at in range(0, len(data), 5000))

    assert contents(streams, tmp_path)["pdf/data.bin"] == bytes(range(256))


def test_compressed_streams_have_bounds(tmp_path: Path) -> None:
    many = bz2.compress(tarred(GOOD)) + bz2.compress(b"") * 10_000
    assert "streams" in refusal(many, tmp_path).message
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 256 * 1024 * 1024}]
    assert "memory" in refusal(lzma.compress(tarred(GOOD), filters=filters), tmp_path).message


@pytest.mark.full(after=2)
@pytest.mark.parametrize("pack", [zipped, tgz, *COMPRESSED])
def test_a_bomb_is_refused_before_it_is_unpacked(pack: Callable[..., bytes], tmp_path: Path) -> None:
    data = pack({**GOOD, "pdf/bomb": bytes(80 * 1024 * 1024)})

    error = refusal(data, tmp_path)
    assert error.data["entry"] == "pdf/bomb"
    assert "200 times" in error.message
    assert error.hint == "Nothing was imported."


@pytest.mark.parametrize("pack", PACKERS)
def test_limits_name_the_setting_and_the_entry(pack: Callable[..., bytes], tmp_path: Path) -> None:
    many = refusal(pack({f"a/{number}": "x" for number in range(20)}), tmp_path, ImportLimits(max_entries=10))
    large = refusal(pack({"a/b": os.urandom(5000)}), tmp_path, ImportLimits(max_unpacked_bytes=4000))

    assert ("imports.max_entries" in str(many.hint), many.type) == (True, "archive_too_large")
    assert "imports.max_unpacked_mb" in str(large.hint)


def test_a_zip_in_a_zip_is_a_file(tmp_path: Path) -> None:
    nested = zipped({"x/SKILL.md": skill_md("x")})

    found = contents(zipped({**GOOD, "pdf/assets/more.zip": nested}), tmp_path)
    assert found["pdf/assets/more.zip"] == nested


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    huge = tar_info("x", type=tarfile.XHDTYPE, size=2**30).tobuf()

    assert "header" in refusal(huge + bytes(1024), tmp_path).message


def test_headers_upon_headers_are_refused(tmp_path: Path) -> None:
    record = b"12 path=abc\n"
    one = tar_info("x", type=tarfile.XHDTYPE, size=len(record)).tobuf() + record.ljust(512, b"\0")

    refusal(one * 5000 + bytes(1024), tmp_path)


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    sparse = tar_info("pdf/holes", type=tarfile.GNUTYPE_SPARSE, size=0).tobuf(tarfile.GNU_FORMAT)

    refusal(tarred(GOOD)[: -tarfile.RECORDSIZE] + sparse + bytes(1024), tmp_path)


@pytest.mark.full
def test_headers_for_all_entries_are_not_kept_for_each(tmp_path: Path) -> None:
    """If each entry copied every word of the headers, ten thousand of each would take minutes."""
    words = b"".join(b"%d w%07d=v\n" % (14, number) for number in range(15_000))
    for_all = tar_info("x", type=tarfile.XGLTYPE, size=len(words)).tobuf() + words + bytes(-len(words) % 512)
    entries = b"".join(tar_info(f"x/{number}").tobuf() for number in range(20_000))

    with open_archive(io_file(for_all + entries + bytes(1024), tmp_path), ImportLimits(), tmp_path) as archive:
        assert len(archive.entries) == 20_000


def test_tar_header_bytes_of_an_entry_are_bounded(tmp_path: Path) -> None:
    words = b"250000 comment=".ljust(249_999, b"x") + b"\n"
    for_all = tar_info("x", type=tarfile.XGLTYPE, size=len(words)).tobuf() + words + bytes(-len(words) % 512)
    assert "headers" in refusal(for_all * 3 + tarred(GOOD), tmp_path).message


def test_records_of_extended_headers_are_read_strictly(tmp_path: Path) -> None:
    for record in (b"0" * 65_536, b"0 path=x\n", b"-9 path=x\n", b"12 path=abcd", b"99 path=abc\n", b"13 size=0x10\n"):
        header = tar_info("x", type=tarfile.XHDTYPE, size=len(record)).tobuf()
        damaged = header + record + bytes(-len(record) % 512) + tarred(GOOD)
        assert "extended header" in refusal(damaged, tmp_path).message, record[:20]


@pytest.mark.parametrize("pack", [bytes, lambda data: gzip.compress(data + os.urandom(100_000))[:-8]])
def test_an_entry_with_less_than_no_bytes_ends_the_reading(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """A negative size would make the reader return to the same entry forever."""
    back = bytearray(tar_info("back").tobuf(tarfile.GNU_FORMAT))
    back[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")
    back[148:156] = b"%06o\0 " % (sum(back[:148]) + sum(back[156:]) + 8 * 32)

    refusal(pack(tar_info("first").tobuf() + bytes(back) + bytes(1024)), tmp_path)


def test_damage_in_the_middle_is_no_end(tmp_path: Path) -> None:
    data = bytearray(tarred(GOOD))
    at = data.index(b"pdf/data.bin")
    data[at : at + 512] = b"\x55" * 512

    assert refusal(bytes(data), tmp_path).data["entry"] == "pdf/scripts/a.sh"


def test_file_with_a_wrong_checksum_is_refused_by_name(tmp_path: Path) -> None:
    data = bytearray(zipped({"pdf/a": os.urandom(3000)}))
    data[200] ^= 0xFF

    assert refusal(bytes(data), tmp_path).data["entry"] == "pdf/a"


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"BZh91AY", b"\xfd7zXZ\x00", b"\x1f\x8b", gzip.compress(b"hello", mtime=0)]
)
def test_data_in_no_archive_format_is_refused(data: bytes, tmp_path: Path) -> None:
    assert refusal(data, tmp_path).type == "invalid_archive"


def test_an_empty_archive_holds_nothing(tmp_path: Path) -> None:
    for pack in PACKERS:
        assert contents(pack({}), tmp_path) == {}


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    assert list(contents(tarred({"pdf/caf\udce9.md": "x"}), tmp_path)) == ["pdf/café.md"]


def test_windows_paths_are_paths(tmp_path: Path) -> None:
    assert list(contents(zipped({"pdf\\scripts\\a.py": "x"}), tmp_path)) == ["pdf/scripts/a.py"]


MUTATED = st.tuples(st.sampled_from(range(3)), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), max_size=6))


@settings(max_examples=FUZZ_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(MUTATED)
def test_no_archive_crashes_the_reader(tmp_path: Path, mutated: tuple[int, list[tuple[float, bytes]]]) -> None:
    kind, changes = mutated
    data = bytearray(PACKERS[kind](GOOD, {"pdf/link": "data.bin", "pdf/all": "scripts"}))
    for where, piece in changes:
        at = int(where * len(data))
        data[at : at + len(piece)] = piece
    try:
        with open_archive(io_file(bytes(data), tmp_path), ImportLimits(), tmp_path) as archive:
            finder = Finder(archive.entries)
            for root in finder.skills().roots:
                for path, entry in finder.skill(root).files.items():
                    assert ".." not in path.split("/")
                    archive.read(entry)
    except (InvalidArchive, ArchiveTooLarge) as error:
        assert error.message  # noqa: PT017 - it may as well be a good one


def test_a_lying_directory_of_a_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped(GOOD))
    at = data.rindex(b"PK\x05\x06")
    data[at + 12 : at + 16] = struct.pack("<I", 2**31)

    assert "cut off" in refusal(bytes(data), tmp_path).message


def test_a_zip_with_two_directories_is_refused(tmp_path: Path) -> None:
    """The short record names an empty directory, and zipfile reads the other one, with any number of entries."""
    data = zipped(GOOD)
    at = data.rindex(b"PK\x05\x06")
    length, start = struct.unpack("<II", data[at + 12 : at + 20])
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 3, 3, length, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at, 1)

    short = data[at : at + 12] + struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) + data[at + 20 :]
    assert contents(data[:at] + record + locator + short, tmp_path) == contents(data, tmp_path)
    empty = data[at : at + 12] + bytes(8) + data[at + 20 :]
    assert "two different sizes" in refusal(data[:at] + record + locator + empty, tmp_path).message


def test_a_directory_of_comments_is_not_read(tmp_path: Path) -> None:
    one = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", *[0] * 11, 1, 0, 65_535, 0, 0, 0, 0) + b"a".ljust(65_536)
    directory = one * 1100
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1100, 1100, len(directory), 0, 0)

    assert refusal(b"PK\x03\x04" + directory + end, tmp_path).data["max_directory_bytes"] == 64 * 1024 * 1024


def test_links_to_hidden_files_count_toward_the_link_limit() -> None:
    """If each link visited each hidden file, five thousand of both would be 25 million visits."""
    hidden = [Entry(f"d/.{number}", 1, False, "", 0) for number in range(5_000)]
    links = [Entry(f"l{number}", 0, False, "d", None) for number in range(5_000)]
    finder = Finder([Entry("SKILL.md", 1, False, "", 0), *hidden, *links])

    found = finder.skill("")
    assert isinstance(found.problem, BundleTooLarge)
    assert set(found.files) == {"SKILL.md"}


def test_the_canonical_folder_comes_before_agent_folders_also_in_a_wrapper() -> None:
    paths = ("repo/.claude/skills/a/SKILL.md", "repo/x/a/SKILL.md", "repo/skills/a/SKILL.md", "__MACOSX/repo/._skills")
    finder = Finder([Entry(path, 1, False, "", 0) for path in paths])

    assert finder.skills().roots == ["repo/skills/a", "repo/x/a", "repo/.claude/skills/a"]


def test_the_endpoint_refuses_a_whole_archive_and_leaves_nothing_behind(sqlite_server: Server, new_name: str) -> None:
    before = set(sqlite_server.home.rglob("*"))
    good = {f"good/{path}": content for path, content in GOOD.items()}
    data = zipped({**good, f"{new_name}/SKILL.md": skill_md(new_name), "../evil": "x"})

    response = sqlite_server.rpc.http.post("/import", content=data)

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["data"]["type"], error["data"]["entry"]) == ("invalid_archive", "../evil")
    assert sqlite_server.rpc.error("describe_skill", name=new_name)["code"] == -32003
    by_server_itself = {"skillery.db", "skillery.db-wal", "skillery.db-shm", "environments"}  # whenever it needs them
    new = {path.relative_to(sqlite_server.home) for path in set(sqlite_server.home.rglob("*")) - before}
    assert {path for path in new if path.parts[0] not in by_server_itself} == set()
