"""A real server with the storage `s3`: contents, signed downloads, failures of the service, and kills."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from bench.kills import kill_again_and_again
from s3_here import keys_below, new_prefix, open_here
from skillery.client import Client
from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, NO_SANDBOX_PROBES, Rpc, Server, manifest, skill_files
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.weed import BUCKET, KEYS, Weed, running_weed

pytest_plugins = ["s3_fixtures"]
pytestmark = pytest.mark.usefixtures("keys")
MAIN = "def main(args):\n    return args\n"
COUNT = "from runtime import blobs\ndef main(args): return len(blobs.read_bytes(args['id']))"
LARGE = "x" * 100_000
SIGNED = {"SKILLERY_SIGNED_DOWNLOADS_SECONDS": "60"}
FUTURE = datetime.now(UTC) + timedelta(days=1)
Start = Callable[..., Server]


def chosen(endpoint: str, prefix: str) -> dict[str, Any]:
    values = {"BUCKET": BUCKET, "ENDPOINT": endpoint, "PREFIX": prefix, "ALLOW_HTTP": "true", "RETRY_SECONDS": "1"}
    values |= {"PART_MB": "5"}
    named = {f"SKILLERY_BACKENDS_STORAGE_S3_{name}": value for name, value in values.items()}
    return {"SKILLERY_STORAGE": "s3", **named, **KEYS}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(endpoint: str, prefix: str = "", **env: str) -> Server:
            server = Server(tmp_path / "home", env={**chosen(endpoint, prefix or new_prefix()), **env})
            stack.callback(server.stop)
            return server

        yield started


class Signed(NamedTuple):
    rpc: Rpc
    prefix: str


@pytest.fixture(scope="module")
def signed(weed: Weed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    """Yield a server with signed downloads, for tests that use new names."""
    prefix = new_prefix()
    server = Server(tmp_path_factory.mktemp("signed") / "home", env={**chosen(weed.endpoint, prefix), **SIGNED})
    yield Signed(server.rpc, prefix)
    assert server.stop() == 0


def publish(rpc: Rpc, name: str, text: str = LARGE) -> None:
    files = [*skill_files(MAIN), {"path": "resources/large.txt", "content": text}]
    rpc("create_skill", manifest=manifest(name), skill_md="# Large\n", files=files)


# -- contents ----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_contents_over_64_kib_are_objects_and_small_ones_are_rows(weed: Weed, start: Start) -> None:
    prefix = new_prefix()
    rpc = start(weed.endpoint, prefix).rpc
    before = set(keys_below(weed.endpoint, prefix))
    rpc("create_blob", content="small", kind="text/plain")
    large = os.urandom(11 * 1024 * 1024)
    blob = rpc.http.post("/blobs", content=large).json()
    publish(rpc, "acme.large")
    digests = {hashlib.sha256(content).hexdigest() for content in (large, LARGE.encode())}

    assert set(keys_below(weed.endpoint, prefix)) - before == {f"{digest[:2]}/{digest}" for digest in digests}
    assert "registry" in before
    assert rpc.http.get(f"/blobs/{blob['blob_id']}").content == large
    assert rpc.http.get(f"/blobs/{blob['blob_id']}", headers={"range": "bytes=5-9"}).content == large[5:10]
    ran = rpc("run_code", language="python", code=COUNT, args={"id": blob["blob_id"]}, input_blobs=[blob["blob_id"]])
    assert ran["output"] == len(large)


@pytest.mark.full
def test_a_sweep_deletes_objects_that_nothing_refers_to(weed: Weed, start: Start) -> None:
    prefix = new_prefix()
    rpc = start(weed.endpoint, prefix, SKILLERY_GC_GRACE_MINUTES="0").rpc
    before = set(keys_below(weed.endpoint, prefix))
    blob = rpc("create_blob", content=LARGE, kind="text/plain")
    assert len(keys_below(weed.endpoint, prefix)) == len(before) + 1
    rpc("delete_blob", blob_id=blob["blob_id"])
    rpc("collect_garbage")

    assert set(keys_below(weed.endpoint, prefix)) == before


@pytest.mark.full
def test_a_server_refuses_the_bucket_of_another_registry(weed: Weed, start: Start) -> None:
    server = start(weed.endpoint)
    server.stop()
    other = chosen(weed.endpoint, new_prefix())
    open_here(weed.endpoint, server.home, other["SKILLERY_BACKENDS_STORAGE_S3_PREFIX"]).mark("another")
    refused = skillery("serve", "--home", str(server.home), "--port", "0", **other)

    assert refused.code != 0
    assert "the storage 's3' does not have the contents of this database" in refused.err


@pytest.mark.full
def test_a_wrong_bucket_stops_the_start_and_the_doctor_names_it(weed: Weed, tmp_path: Path) -> None:
    env = {**chosen(weed.endpoint, "p"), "SKILLERY_BACKENDS_STORAGE_S3_BUCKET": "absent"}
    refused = skillery("serve", "--home", str(tmp_path / "home"), "--port", "0", **env)
    doctor = skillery("doctor", "--json", "--home", str(tmp_path / "home"), **env, **NO_SANDBOX_PROBES)
    probe = next(probe for probe in doctor.json["probes"] if probe["name"] == "storage")

    assert refused.code != 0
    assert "bucket: the service has no bucket with this name" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert (doctor.code != 0, probe["ok"]) == (True, False)
    assert "bucket: the service has no bucket" in probe["detail"]


@pytest.mark.full
def test_the_doctor_accepts_a_storage_that_works(weed: Weed, tmp_path: Path) -> None:
    env = chosen(weed.endpoint, new_prefix())
    doctor = skillery("doctor", "--json", "--home", str(tmp_path / "home"), **env, **NO_SANDBOX_PROBES)
    probes = {probe["name"]: probe for probe in doctor.json["probes"]}

    assert (probes["storage"]["ok"], probes["storage"]["detail"]) == (True, "s3")


@pytest.mark.full
def test_incremental_backups_are_in_a_bucket(weed: Weed, start: Start, tmp_path: Path) -> None:
    prefix, target = new_prefix(), new_prefix()
    store = {name.replace("STORAGE_S3", "BACKUP_S3"): value for name, value in chosen(weed.endpoint, target).items()}
    env = chosen(weed.endpoint, prefix) | store | {"SKILLERY_STORAGE": "s3", "SKILLERY_BACKUPS_STORAGE": "s3"}
    server = start(weed.endpoint, prefix)
    publish(server.rpc, "acme.large")

    first, second = (skillery("backup", "--home", str(server.home), "--json", **env).json for _ in range(2))
    verified = skillery("backup", "verify", "--home", str(server.home), **env)
    in_own_bucket = {**env, "SKILLERY_BACKENDS_BACKUP_S3_PREFIX": prefix}
    refused = skillery("backup", "--home", str(server.home), **in_own_bucket)
    restored = skillery("restore", "--home", str(tmp_path / "restored"), **{**env, "SKILLERY_STORAGE": "directory"})

    assert (first["new_contents"], second["new_contents"]) == (first["contents"], 0)
    assert second["removed"] == [first["id"]]
    assert [key for key in keys_below(weed.endpoint, target) if key.startswith("names/")] == [
        key for key in keys_below(weed.endpoint, target) if key.startswith(f"names/{second['id']}-")
    ]
    assert (verified.code, restored.code) == (0, 0), verified.err + restored.err
    assert (refused.code, "of another registry" in refused.err) == (4, True)
    digest = hashlib.sha256(LARGE.encode()).hexdigest()
    assert (tmp_path / "restored" / "contents" / digest[:2] / digest).read_text() == LARGE


# -- signed downloads --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_blob_is_downloaded_from_the_storage(weed: Weed, signed: Signed) -> None:
    content = os.urandom(200_000)
    blob = signed.rpc.http.post("/blobs", content=content, headers={"content-type": "text/csv"}).json()["blob_id"]
    answer = signed.rpc.http.get(f"/blobs/{blob}")
    elsewhere = httpx.get(answer.headers["location"])

    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (307, b"", "private, no-store")
    assert answer.headers["location"].startswith(weed.endpoint)
    assert parse_qs(urlsplit(answer.headers["location"]).query)["X-Amz-Expires"] == ["60"]
    assert (elsewhere.status_code, elsewhere.content, elsewhere.headers["content-type"]) == (200, content, "text/csv")
    assert elsewhere.headers["content-disposition"] == "attachment"
    part = httpx.get(answer.headers["location"], headers={"range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, content[5:10])


@pytest.mark.full
def test_small_blobs_and_heads_are_answered_by_the_server(signed: Signed) -> None:
    rpc = signed.rpc
    small = rpc("create_blob", content="small", kind="text/plain")["blob_id"]
    large = rpc("create_blob", content=LARGE, kind="text/plain")["blob_id"]

    assert rpc.http.get(f"/blobs/{small}").text == "small"
    assert rpc.http.head(f"/blobs/{large}").headers["content-length"] == "100000"
    assert rpc.http.get(f"/blobs/{large}", headers={"range": "bytes=200000-"}).status_code == 416


@pytest.mark.full
def test_an_archive_is_stored_once_and_downloaded_from_the_storage(weed: Weed, signed: Signed) -> None:
    rpc, prefix = signed
    publish(rpc, "acme.noise", os.urandom(150_000).hex())
    before = set(keys_below(weed.endpoint, prefix))
    first = rpc.http.get("/skills/acme.noise/1.0.0.tar.gz")
    stored = set(keys_below(weed.endpoint, prefix)) - before
    second = rpc.http.get("/skills/acme.noise/1.0.0.tar.gz")
    archive = httpx.get(second.headers["location"])

    assert (first.status_code, second.status_code, len(stored)) == (307, 307, 1)
    assert {key.partition("/")[2] for key in stored} == {hashlib.sha256(archive.content).hexdigest()}
    assert set(keys_below(weed.endpoint, prefix)) - before == stored
    assert archive.headers["content-type"] == "application/gzip"
    assert "acme-noise-1.0.0.tar.gz" in archive.headers["content-disposition"]
    assert first.headers["x-skillery-version"] == "1.0.0"
    known = {"if-none-match": second.headers["etag"]}
    assert rpc.http.get("/skills/acme.noise/1.0.0.tar.gz", headers=known).status_code == 304
    rpc("collect_garbage")
    assert httpx.get(second.headers["location"]).status_code == 200


@pytest.mark.full
def test_a_purge_deletes_the_objects_of_the_files_and_of_the_archives(weed: Weed, start: Start) -> None:
    prefix = new_prefix()
    rpc = start(weed.endpoint, prefix, **SIGNED).rpc
    before = set(keys_below(weed.endpoint, prefix))
    publish(rpc, "acme.leak", os.urandom(150_000).hex())
    addresses = [
        rpc.http.get(f"/skills/acme.leak/1.0.0.{kind}").headers["location"] for kind in ("tar.gz", "zip", "tar.gz")
    ]
    assert len(set(keys_below(weed.endpoint, prefix)) - before) == 3
    purged = rpc("purge_version", name="acme.leak", version="1.0.0", reason="It has a password.")

    assert purged["kept_files"] == []
    assert set(keys_below(weed.endpoint, prefix)) == before
    assert {httpx.get(address).status_code for address in addresses} == {404}
    assert rpc.http.get("/skills/acme.leak/1.0.0.tar.gz").status_code == 404


@pytest.mark.full
def test_without_the_setting_the_server_sends_everything(weed: Weed, start: Start) -> None:
    rpc = start(weed.endpoint).rpc
    large = rpc("create_blob", content=LARGE, kind="text/plain")["blob_id"]

    assert rpc.http.get(f"/blobs/{large}").text == LARGE


@pytest.mark.full
def test_access_is_checked_before_an_address_is_signed(weed: Weed, start: Start) -> None:
    server = start(weed.endpoint, **SIGNED, **ASKS_FOR_TOKENS)
    home = str(server.home)
    token, other = (new_token(name, home) for name in ("ann", "bob"))
    blob = Rpc(server.url, token)("create_blob", content=LARGE, kind="text/plain")["blob_id"]

    assert Rpc(server.url, token).http.get(f"/blobs/{blob}").status_code == 307
    assert Rpc(server.url, other).http.get(f"/blobs/{blob}").status_code == 404
    assert server.rpc.http.get(f"/blobs/{blob}").status_code == 401


@pytest.mark.full
def test_the_client_follows_to_the_storage_without_its_token(proxy: FaultProxy, start: Start, tmp_path: Path) -> None:
    server = start(proxy.url, **SIGNED)
    content = os.urandom(300_000)
    with Client(server.url, token="sky_secret") as client:
        blob = client.upload_blob(content)["blob_id"]
        proxy.seen.clear()
        proxy.headers.clear()
        client.download_blob(blob, tmp_path / "copy")
        with client.open_blob(blob) as opened:
            assert b"".join(opened.pieces) == content

    assert (tmp_path / "copy").read_bytes() == content
    asked = [headers for line, headers in zip(proxy.seen, proxy.headers, strict=True) if "Signature" in line]
    assert len(asked) == 2
    assert all("authorization" not in headers for headers in asked)


def new_token(name: str, home: str) -> str:
    made = skillery("token", "create", "--name", name, "--home", home, "--scope", "read,run")
    assert made.code == 0, made.err
    return made.out.split()[-1]


# -- failures of the service -------------------------------------------------------------------------------------


@pytest.mark.full
def test_calls_fail_while_the_service_is_away_and_nothing_acknowledged_is_lost(start: Start, tmp_path: Path) -> None:
    with running_weed(tmp_path) as weed:
        rpc = start(weed.endpoint).rpc
        publish(rpc, "acme.before")
        kept = rpc("create_blob", content=LARGE, kind="text/plain")["blob_id"]
        weed.stop()

        refused = rpc.error("create_blob", content=LARGE + "new", kind="text/plain")
        read = rpc.error("read_blob", blob_id=kept)
        assert [(error["code"], error["data"]["type"]) for error in (refused, read)] == [(-32603, "unavailable")] * 2
        assert rpc.http.get("/readyz").status_code == 503
        assert rpc("create_blob", content="small contents are in the database", kind="text/plain")

        weed.start()
        assert rpc("read_blob", blob_id=kept, mode="full")["content"] == LARGE
        assert rpc("read_skill_file", name="acme.before", path="resources/large.txt")["content"] == LARGE
        # The server does not know whether the failed upload is stored, and refuses that content for 30 s.
        assert rpc("create_blob", content=LARGE + "newer", kind="text/plain")


@pytest.mark.full
def test_a_damaged_answer_never_reaches_a_caller_as_a_whole_content(proxy: FaultProxy, start: Start) -> None:
    rpc = start(proxy.url).rpc
    blob = rpc("create_blob", content=LARGE, kind="text/plain")["blob_id"]
    large = rpc.http.post("/blobs", content=os.urandom(2_000_000)).json()["blob_id"]
    proxy.faults = [Fault("GET .*/[0-9a-f]{64}$", -1, wrong_answer=True)]

    assert rpc.http.get(f"/blobs/{blob}").status_code == 503
    with pytest.raises(httpx.HTTPError):  # the answer has begun, and is cut
        rpc.http.get(f"/blobs/{large}")
    assert rpc.error("read_blob", blob_id=blob, mode="full")["data"]["type"] == "unavailable"
    proxy.faults = []
    assert rpc.http.get(f"/blobs/{blob}").text == LARGE


# -- kills -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.long
def test_acknowledged_contents_survive_kills(weed: Weed, tmp_path: Path) -> None:
    done = kill_again_and_again(tmp_path, 4, settings=chosen(weed.endpoint, new_prefix()))

    assert done.acknowledged
    assert done.is_whole, (done.lost, done.check)


@pytest.mark.full
@pytest.mark.parametrize("moment", ["partNumber=1", "partNumber=2", "POST .*uploadId="])
def test_a_kill_during_an_upload_leaves_parts_that_a_sweep_removes(
    proxy: FaultProxy, weed: Weed, start: Start, tmp_path: Path, moment: str
) -> None:
    """The proxy kills the server when the request of that moment arrives."""
    prefix = new_prefix()
    server = start(proxy.url, prefix, SKILLERY_GC_GRACE_MINUTES="0")
    before = set(keys_below(weed.endpoint, prefix))

    def kill(line: str) -> None:
        if re.search(moment, line):
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(300)

    proxy.on_request = kill
    with pytest.raises(httpx.HTTPError):
        server.rpc.http.post("/blobs", content=os.urandom(11 * 1024 * 1024))
    proxy.on_request = lambda _line: None
    proxy.seen.clear()
    again = start(proxy.url, prefix, SKILLERY_GC_GRACE_MINUTES="0")
    again.rpc("collect_garbage")
    storage = open_here(weed.endpoint, tmp_path / "other", prefix)

    assert any("uploads=" in line for line in proxy.seen), "a sweep looks for unfinished uploads"
    # The request that ends an upload arrives although the server is dead.
    is_ended = moment.startswith("POST")
    assert len(set(keys_below(weed.endpoint, prefix)) - before) == is_ended
    left = storage.remove_unfinished(FUTURE, True)
    assert left == (not is_ended)
    assert storage.remove_unfinished(datetime.now(UTC) - timedelta(days=1), False) == 0
    assert storage.remove_unfinished(FUTURE, False) == left
    assert storage.remove_unfinished(FUTURE, True) == 0
    assert list((tmp_path / "home" / "s3").iterdir()) == []
