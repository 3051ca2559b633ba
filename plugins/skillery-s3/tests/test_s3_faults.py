"""Faults between the storage and the service: each is repeated, refused or reported, and never stored or returned."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import pytest
from sqlalchemy import insert

from s3_here import keys_below, new_prefix, open_here, settings_of
from skillery.audit import local_actor
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.contents.storage_copies import mark_storage
from skillery.database import Database, migrate
from skillery.database.tables import objects
from skillery.errors import ContentMissing, StorageFull, Unavailable
from skillery.maintenance.storage_copying import Copier, begin
from skillery.testing.storage import digest_of, get, put
from skillery_s3.bucket import Bucket
from skillery_s3.keys import key_of
from skillery_s3.settings import MIB
from skillery_s3.storage import S3Storage
from tests.support.fault_proxy import Fault, FaultProxy, error_body
from tests.support.weed import KEYS, Weed

pytest_plugins = ["s3_fixtures"]
pytestmark = pytest.mark.usefixtures("keys")

LARGE = 11 * MIB
"""Three parts of the smallest size, 5 MiB."""
FUTURE = datetime.now(UTC) + timedelta(days=1)
CONTENT = "/[0-9a-f]{2}/[0-9a-f]{64}"


class Line:
    """A storage behind the proxy, and another one directly at the service."""

    def __init__(self, proxy: FaultProxy, weed: Weed, home: Path) -> None:
        self.prefix = new_prefix()
        self.proxy, self.weed = proxy, weed
        self.home = home
        self.far = open_here(proxy.url, home, self.prefix, part_mb=5)
        self.near = open_here(weed.endpoint, home, self.prefix)

    def with_fault(self, fault: Fault) -> S3Storage:
        """Return the storage behind the proxy, which has a fault that passes."""
        self.proxy.faults = [fault]
        # Only the late answer needs a short limit: a loaded machine may take as long for an answer.
        limits = {"timeout_seconds": 2 if fault.seconds else 20, "retry_seconds": 60}
        return open_here(self.proxy.url, self.home, self.prefix, part_mb=5, **limits)

    def keys(self) -> dict[str, int]:
        return keys_below(self.weed.endpoint, self.prefix)


@pytest.fixture
def line(proxy: FaultProxy, weed: Weed, tmp_path: Path) -> Line:
    return Line(proxy, weed, tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(f"PUT .*{CONTENT}", status=500, body=error_body("InternalError")),
        Fault(f"PUT .*{CONTENT}", times=3, status=503, body=error_body("SlowDown")),
        Fault(f"PUT .*{CONTENT}", refuse=True),
        Fault(f"PUT .*{CONTENT}", wrong_request=True),
        Fault(f"PUT .*{CONTENT}", seconds=3),
    ],
    ids=["500", "503", "cut", "wrong bytes", "slow"],
)
@pytest.mark.parametrize("size", [100_000, LARGE], ids=["one request", "parts"])
@pytest.mark.full(after=1)
def test_an_upload_survives_a_fault(line: Line, fault: Fault, size: int) -> None:
    content = os.urandom(size)

    assert get(line.near, put(line.with_fault(fault), content)) == content
    assert line.proxy.faults[0].times == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(f"GET .*{CONTENT}", status=500, body=error_body("InternalError")),
        Fault(f"GET .*{CONTENT}", times=3, status=503, body=error_body("SlowDown")),
        Fault(f"GET .*{CONTENT}", refuse=True),
        Fault(f"GET .*{CONTENT}", times=3, cut_after=1_500_000),
        Fault(f"GET .*{CONTENT}", seconds=3),
    ],
    ids=["500", "503", "refused", "cut", "slow"],
)
@pytest.mark.full(after=2)
def test_a_download_survives_a_fault(line: Line, fault: Fault) -> None:
    content = os.urandom(3 * MIB)
    digest = put(line.near, content)
    assert get(line.with_fault(fault), digest) == content


@pytest.mark.parametrize(
    "fault",
    [Fault(f"GET .*{CONTENT}", -1, wrong_answer=True), Fault(f"GET .*{CONTENT}", -1, shorten=True)],
    ids=["wrong bytes", "shortened"],
)
@pytest.mark.parametrize("size", [100_000, 3 * MIB])
def test_a_damaged_download_never_ends_well(line: Line, fault: Fault, size: int) -> None:
    digest = put(line.near, os.urandom(size))
    line.proxy.faults = [fault]
    received: list[bytes] = []

    with pytest.raises(Unavailable):
        receive(line.far, digest, received)
    assert sum(map(len, received)) < size


@pytest.mark.parametrize("size", [100_000, 3 * MIB])
def test_damaged_content_is_reported_and_does_not_block_a_storage_copy(
    line: Line, weed: Weed, tmp_path: Path, size: int
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    migrate.upgrade(database)
    mark_storage(database, line.near, "s3")
    rows = [{"sha256": put(line.near, os.urandom(size)), "size_bytes": size} for _ in range(3)]
    database.write_now(lambda connection: connection.execute(insert(objects), rows))
    damaged = rows[1]["sha256"]
    bucket = Bucket(settings_of(weed.endpoint, line.prefix), KEYS)
    obstore.put(bucket.store, key_of(str(damaged)), os.urandom(size))

    target = DirectoryStorage(tmp_path / "target")
    copy = begin(database, line.near, target, ("s3", "directory"), local_actor("tester"))
    copier = Copier(database, line.near, target, lambda _: None)
    copier.complete(copier.copy(copy), verify=False)

    assert {digest: fault.kind for digest, fault in copier.faults.items()} == {damaged: "content_damaged"}
    assert [target.path_of(str(row["sha256"])).exists() for row in rows] == [True, False, True]
    database.close()


def receive(storage: S3Storage, digest: str, received: list[bytes]) -> None:
    with storage.open(digest) as stream:
        while piece := stream.read(65_536):
            received.append(piece)


@pytest.mark.full
def test_an_upload_that_is_always_damaged_is_refused_and_leaves_nothing(line: Line) -> None:
    line.proxy.faults = [Fault(f"PUT .*{CONTENT}", -1, wrong_request=True)]

    with pytest.raises(Unavailable):
        put(line.far, os.urandom(100_000))
    with pytest.raises(Unavailable):
        put(line.far, os.urandom(LARGE))
    assert line.keys() == {}
    assert line.near.remove_unfinished(FUTURE, True) == 0


def test_a_failed_upload_in_parts_removes_its_parts(line: Line) -> None:
    line.proxy.faults = [Fault("partNumber=2", -1, status=403, body=error_body("AccessDenied"))]

    with pytest.raises(Unavailable):
        put(line.far, os.urandom(LARGE))
    line.proxy.faults = []
    assert line.keys() == {}
    assert line.near.remove_unfinished(FUTURE, True) == 0


def test_a_full_service_is_reported_as_full(line: Line) -> None:
    line.proxy.faults = [Fault("PUT", -1, status=409, body=error_body("QuotaExceeded"))]

    with pytest.raises(StorageFull):
        put(line.far, b"too much")


CALLS: dict[str, Callable[[S3Storage, str], object]] = {
    "open": get,
    "put": lambda storage, _: put(storage, b"new"),
    "delete": lambda storage, digest: storage.delete(digest),
    "check": lambda storage, _: storage.check(),
    "mark": lambda storage, _: storage.find_mark(),
    "list": lambda storage, _: list(storage.stored_before(FUTURE)),
    "unfinished": lambda storage, _: storage.remove_unfinished(FUTURE, True),
}
REFUSALS = [(404, "NoSuchBucket"), (403, "AccessDenied"), (403, "RequestTimeTooSkewed"), (403, "InvalidAccessKeyId")]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("status", "code"), REFUSALS)
@pytest.mark.full(after=5)
def test_a_refusal_is_unavailable_and_the_storage_works_again_at_once(
    line: Line, call: Callable[[S3Storage, str], object], status: int, code: str
) -> None:
    digest = put(line.near, b"kept")
    line.proxy.faults = [Fault("", -1, status=status, body=error_body(code))]

    with pytest.raises(Unavailable) as refused:
        call(line.far, digest)
    assert line.proxy.url not in refused.value.message
    line.proxy.faults = []
    call(line.far, digest)


def test_a_missing_content_is_no_failure_of_the_service(line: Line) -> None:
    with pytest.raises(ContentMissing):
        line.far.open(digest_of(b"never stored"))


def test_the_log_names_the_reason(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    line.proxy.faults = [Fault("", -1, status=403, body=error_body("RequestTimeTooSkewed"))]

    with pytest.raises(Unavailable):
        line.far.open(digest_of(b"any"))
    assert "clock" in caplog.text
