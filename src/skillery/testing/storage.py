"""The contract of Storage: subclass StorageContract and provide the fixture `storage`."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import threading
import urllib.request
import warnings
from datetime import UTC, datetime, timedelta

import pytest

from skillery.backends import KINDS, KeepsNames, ListsContents, SignsDownloads, Storage
from skillery.backends.storage import NO_MARKS
from skillery.errors import ContentMissing
from skillery.testing.contracts import Contract

MIB = 1024 * 1024


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(storage: Storage, content: bytes, chunk: int = 65_536) -> str:
    """Store a content in pieces of `chunk` bytes, and return its digest."""
    upload = storage.begin()
    for start in range(0, len(content), chunk):
        upload.write(content[start : start + chunk])
    upload.commit(digest_of(content))
    return digest_of(content)


def get(storage: Storage, digest: str) -> bytes:
    with storage.open(digest) as stream:
        return stream.read()


def _crash_while_storing(storage: Storage, content: bytes) -> None:
    """Store the content in a process that the kernel ends when a file exceeds 1 MiB."""
    import resource  # not on Windows

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # about other threads of the tests
        pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            put(storage, content)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


class StorageContract(Contract):
    """The contract: a content is stored completely or not at all, and is returned unchanged by its digest."""

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError("provide the fixture `storage`: an empty store")

    @pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3 * MIB])
    def test_reads_return_the_stored_value(self, storage: Storage, size: int) -> None:
        """`open(digest)` returns exactly the bytes that were written before `commit(digest)`, of any size."""
        content = os.urandom(size)

        assert get(storage, put(storage, content)) == content

    def test_a_stream_can_be_read_from_anywhere(self, storage: Storage) -> None:
        """The stream of `open` is seekable: `seek` and `tell` work from any position."""
        content = os.urandom(200_000)
        digest = put(storage, content)

        with storage.open(digest) as stream:
            stream.seek(150_000)
            assert stream.read(10) == content[150_000:150_010]
            stream.seek(0, io.SEEK_END)
            assert stream.tell() == len(content)

    def test_nothing_is_visible_before_commit(self, storage: Storage) -> None:
        """Before `commit`, and after `abort`, `open` raises ContentMissing."""
        content = b"not yet"
        upload = storage.begin()
        upload.write(content)

        with pytest.raises(ContentMissing):
            storage.open(digest_of(content))
        upload.abort()
        with pytest.raises(ContentMissing):
            storage.open(digest_of(content))

    @pytest.mark.parametrize("is_stored", [False, True])
    def test_a_crash_during_an_upload_changes_no_content(self, storage: Storage, is_stored: bool) -> None:
        """If the process ends during an upload, `open` finds the complete content or none, so `commit` renames a
        complete file.
        """
        if storage.local_path(put(storage, b"local")) is None:
            return  # a service stores the contents, and its connections do not survive a fork
        content = os.urandom(3 * MIB)
        if is_stored:
            put(storage, content)

        _crash_while_storing(storage, content)

        try:
            assert get(storage, digest_of(content)) == content
        except ContentMissing:
            assert not is_stored

    def test_the_same_content_twice_is_no_error(self, storage: Storage) -> None:
        """Storing a content that is already stored succeeds and changes nothing."""
        assert put(storage, b"twice") == put(storage, b"twice")
        assert get(storage, digest_of(b"twice")) == b"twice"

    def test_a_reader_keeps_its_stream_through_a_second_put(self, storage: Storage) -> None:
        """An open stream stays valid while the same content is stored again."""
        content = os.urandom(MIB)
        digest = put(storage, content)
        with storage.open(digest) as stream:
            first = stream.read(10)
            put(storage, content)
            assert first + stream.read() == content

    def test_several_write_at_once(self, storage: Storage) -> None:
        """Several threads may store contents at the same time, also the same content."""
        contents = [os.urandom(100_000 + number) for number in range(8)] * 2
        threads = [threading.Thread(target=put, args=(storage, content)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [get(storage, digest_of(content)) for content in contents] == contents

    def test_a_local_path_holds_the_content(self, storage: Storage) -> None:
        """`local_path` is None, or the path of a file with exactly the content."""
        path = storage.local_path(put(storage, b"local"))

        assert path is None or path.read_bytes() == b"local"
        assert storage.local_path(digest_of(b"unknown")) is None

    def test_deleted_contents_are_missing(self, storage: Storage) -> None:
        """After `delete`, the content is missing. Deleting a missing content is no error."""
        digest = put(storage, b"gone")
        storage.delete(digest)
        storage.delete(digest)

        with pytest.raises(ContentMissing):
            storage.open(digest)

    def test_stored_contents_are_listed(self, storage: Storage) -> None:
        """`stored_before` yields the digest and the size of each content that is older than the given time."""
        if not isinstance(storage, ListsContents):
            return
        kept, gone = put(storage, b"kept"), put(storage, b"gone")
        storage.delete(gone)
        unfinished = storage.begin()
        unfinished.write(b"not yet")

        assert list(storage.stored_before(datetime.now(UTC) + timedelta(minutes=1))) == [(kept, 4)]
        assert list(storage.stored_before(datetime.now(UTC) - timedelta(minutes=1))) == []
        unfinished.abort()

    @pytest.mark.parametrize("digest", ["", "x", "../../etc/passwd", "0" * 63, "G" * 64, "0" * 64, "A" * 64])
    def test_an_invalid_digest_is_missing(self, storage: Storage, digest: str) -> None:
        """`open` raises ContentMissing for every text that is not a stored digest, and reads no other file."""
        with pytest.raises(ContentMissing):
            storage.open(digest)

    def test_the_first_mark_stays(self, storage: Storage) -> None:
        """`mark` stores the first mark, and returns it to all later callers."""
        storage = KINDS["storage"].completed(storage)
        if storage.find_mark() == NO_MARKS:
            return
        assert storage.find_mark() is None
        assert storage.mark("one") == "one"
        assert storage.mark("two") == "one"
        assert storage.find_mark() == "one"

    def test_a_mark_is_no_content(self, storage: Storage) -> None:
        """If a mark were listed as a content, a sweep would delete it."""
        storage = KINDS["storage"].completed(storage)
        if storage.find_mark() == NO_MARKS or not isinstance(storage, ListsContents):
            return
        storage.mark("one")

        assert list(storage.stored_before(datetime.now(UTC) + timedelta(minutes=1))) == []
        assert storage.find_mark() == "one"

    def test_names_are_listed_until_they_are_removed(self, storage: Storage) -> None:
        """`names` yields each name that was added and not removed, and `stored_before` yields none of them."""
        if not isinstance(storage, KeepsNames):
            return
        assert list(storage.names()) == []
        for name in ("20260101T000000000000Z-ab", "other", "other"):
            storage.add_name(name)
        storage.remove_name("other")
        storage.remove_name("unknown")

        assert list(storage.names()) == ["20260101T000000000000Z-ab"]
        if isinstance(storage, ListsContents):
            assert list(storage.stored_before(datetime.now(UTC) + timedelta(minutes=1))) == []

    def test_an_active_upload_survives_a_sweep(self, storage: Storage) -> None:
        """`remove_unfinished` removes no upload that began later, and with `dry_run` none at all."""
        storage = KINDS["storage"].completed(storage)
        upload = storage.begin()
        upload.write(b"active")
        storage.remove_unfinished(datetime.now(UTC) - timedelta(days=1), False)
        storage.remove_unfinished(datetime.now(UTC) + timedelta(days=1), True)
        upload.commit(digest_of(b"active"))

        assert get(storage, digest_of(b"active")) == b"active"

    def test_a_signed_address_answers_the_content_with_its_headers(self, storage: Storage) -> None:
        """The address of `sign` answers the content, with the requested headers."""
        if not isinstance(storage, SignsDownloads):
            return
        headers = {
            "content-type": "text/csv; charset=utf-8",
            "content-disposition": "attachment; filename*=UTF-8''%C3%A4%20b",
        }
        address = storage.sign(put(storage, b"a,b"), 60, headers)
        if address is None:
            return
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the storage chose the address
            assert answer.read() == b"a,b"
            assert {name: answer.headers[name] for name in headers} == headers

    def test_a_store_that_works_says_so(self, storage: Storage) -> None:
        """`check` returns without an exception if the storage works."""
        storage.check()
