"""Quotas of identities and namespaces, over HTTP, on both databases and with two servers on one database."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.importing.test_importing import sent
from tests.support.archives import zipped
from tests.support.bundles import vouched
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

MIB = 1024 * 1024
QUOTAS = """
[quotas]
runs_per_minute = 500

[quotas.identities."few-*"]
blobs = 3

[quotas.identities."small-*"]
blobs_mb = 1

[quotas.identities."slow-*"]
runs_per_minute = 2

[quotas.identities."narrow-*"]
concurrent_runs = 1

[quotas.identities."narrow-boss"]
blobs = 7

[quotas.namespaces."tiny.*"]
bundles_mb = 1
"""
NO_OP = "def main(args):\n    return 1\n"
WAIT = "import time\n\ndef main(args):\n    time.sleep(600)\n"


class Place:
    """A server with quotas, and the settings that it started with."""

    def __init__(self, server: Server, env: dict[str, str]) -> None:
        self.server = server
        self.env = env

    def caller(self, name: str, scopes: str = "read run publish", grants: str = "*") -> Caller:
        return Caller(self.server.url, Who(name, scopes, grants))


@pytest.fixture(scope="module")
def place(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("quotas")
    (folder / "home").mkdir()
    (folder / "home" / "skillery.toml").write_text(QUOTAS)
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = people_settings(folder / "plugins", SKILLERY_DATABASE=url)
    running = Server(folder / "home", env=env)
    yield Place(running, env)
    assert running.stop() == 0, running.log.read_text()[-4000:]


def cancel_only_run(caller: Rpc) -> None:
    """Cancel the only run of the caller that has started."""
    [run] = eventually(lambda: caller("list_runs", status="started")["runs"])
    caller("cancel_run", run_id=run["run_id"])


def put(caller: Caller, content: bytes) -> httpx.Response:
    return caller.http.post("/blobs", content=content)


def files_in_storage(server: Server) -> int:
    return sum(path.is_file() for path in (server.home / "contents").rglob("*"))


# -- blobs ---------------------------------------------------------------------------------------------------------


def test_blob_count_is_limited_and_deletion_frees_quota(place: Place) -> None:
    caller = place.caller("few-ada")
    made = [caller("create_blob", content=str(number), kind="text/plain")["blob_id"] for number in range(3)]

    error = caller.error("create_blob", content="4", kind="text/plain")

    assert (error["code"], error["data"]["type"]) == (-32005, "quota_exceeded")
    assert (error["data"]["quota"], error["data"]["used"], error["data"]["limit"]) == ("blobs", 3, 3)
    assert "delete_blob" in error["data"]["hint"]
    refused = put(caller, b"4")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, -32005)
    caller("delete_blob", blob_id=made[0])
    assert put(caller, b"4").status_code == 201
    assert caller.error("create_blob", content="5", kind="text/plain")["code"] == -32005
    assert place.caller("few-bob")("create_blob", content="1", kind="text/plain")


def test_blob_bytes_are_limited_and_refused_blobs_leave_no_files(place: Place) -> None:
    caller = place.caller("small-ada")
    caller("create_blob", content="x" * 700_000, kind="text/plain")
    before = files_in_storage(place.server)

    error = caller.error("create_blob", content="y" * 400_000, kind="text/plain")
    refused = put(caller, b"z" * 5_000_000)

    assert (error["data"]["quota"], error["data"]["used"], error["data"]["limit"]) == ("blob_bytes", 700_000, MIB)
    assert "400000" in error["message"]
    assert refused.json()["error"]["data"]["type"] == "quota_exceeded"
    assert files_in_storage(place.server) == before
    assert caller("create_blob", content="y" * 300_000, kind="text/plain")


@pytest.mark.postgres
def test_of_many_uploads_at_once_just_as_many_pass_as_may(place: Place) -> None:
    callers = [place.caller("few-crowd") for _ in range(12)]

    with ThreadPoolExecutor(12) as threads:
        codes = list(threads.map(lambda caller: put(caller, b"content").status_code, callers))

    assert sorted(codes) == [201] * 3 + [413] * 9
    assert callers[0]("get_usage")["blobs"] == {"used": 3, "limit": 3}


def test_a_blob_that_has_expired_counts_no_longer(place: Place) -> None:
    caller = place.caller("few-brief")
    for number in range(3):
        caller("create_blob", content=str(number), kind="text/plain", ttl=1)

    def there_is_room() -> bool:
        return "result" in caller.send("create_blob", {"content": "x", "kind": "text/plain"})

    eventually(there_is_room)


def test_upload_retry_with_its_key_succeeds_at_a_full_quota(place: Place) -> None:
    caller = place.caller("few-again")

    def send(ttl: int) -> httpx.Response:
        return caller.http.post(f"/blobs?ttl={ttl}", content=b"x", headers={"idempotency-key": "again"})

    first = send(3600)
    for number in range(2):
        caller("create_blob", content=str(number), kind="text/plain")

    assert (put(caller, b"x").status_code, send(3600).json()) == (413, first.json())
    assert send(60).json()["error"]["data"]["type"] == "idempotency_key_reused"
    assert caller("get_usage")["blobs"]["used"] == 3


# -- blobs of runs -------------------------------------------------------------------------------------------------


def test_run_gets_an_oserror_past_the_blob_quota_and_continues(place: Place) -> None:
    caller = place.caller("few-writer")
    code = (
        "from runtime import blobs\n\ndef main(args):\n    kept = []\n    while True:\n        try:\n"
        "            kept.append(blobs.write_text(f'{len(kept)}'))\n        except OSError as error:\n"
        "            return [len(kept), str(error)]\n"
    )

    run = caller("run_code", language="python", code=code)

    assert run["status"] == "completed"
    assert run["output"][0] == 3
    assert "has 3 blobs" in run["output"][1]
    assert len(run["output_blobs"]) == 3
    assert [caller("read_blob", blob_id=one)["content"] for one in run["output_blobs"]] == ["0", "1", "2"]


def test_an_output_past_the_quota_fails_the_run_and_not_its_record(place: Place) -> None:
    caller = place.caller("few-output")
    for number in range(3):
        caller("create_blob", content=str(number), kind="text/plain")

    run = caller("run_code", language="python", code="def main(args):\n    return 'x' * 100_000\n")

    assert (run["status"], run["error"]["type"]) == ("failed", "QuotaExceeded")
    assert "has 3 blobs" in run["error"]["message"]
    assert caller("run_code", language="python", code=NO_OP)["status"] == "completed"


def test_log_past_the_quota_keeps_its_preview_and_the_run_completes(place: Place) -> None:
    caller = place.caller("few-logger")
    for number in range(3):
        caller("create_blob", content=str(number), kind="text/plain")

    run = caller("run_code", language="python", code="def main(args):\n    print('line\\n' * 5000)\n    return 1\n")

    assert (run["status"], run["output"]) == ("completed", 1)
    assert run["logs_preview"].startswith("line")
    assert "logs_blob" not in run
    assert caller("get_run", run_id=run["run_id"])["logs_blob"] is None


# -- runs ----------------------------------------------------------------------------------------------------------


def test_runs_per_minute_are_limited_with_a_retry_time(place: Place) -> None:
    caller = place.caller("slow-ada")
    for _ in range(2):
        assert caller("run_code", language="python", code=NO_OP)["output"] == 1

    error = caller.error("run_code", language="python", code=NO_OP)

    assert (error["code"], error["data"]["type"], error["data"]["quota"]) == (-32006, "rate_limited", "runs_per_minute")
    assert 0 < error["data"]["retry_after_ms"] <= 60_000
    assert re.search(r"Try again in [1-9]\d* s", error["data"]["hint"])
    assert place.caller("slow-bob")("run_code", language="python", code=NO_OP)["output"] == 1
    assert caller("get_usage")["runs_per_minute"] == {"used": 2, "limit": 2}


@pytest.mark.postgres
def test_of_many_runs_at_once_just_as_many_start_as_may(place: Place) -> None:
    callers = [place.caller("slow-crowd") for _ in range(6)]

    def run(caller: Caller) -> int:
        return int(caller.send("run_code", {"language": "python", "code": NO_OP}).get("error", {}).get("code", 0))

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(run, callers)) == [-32006] * 4 + [0] * 2


def test_concurrent_runs_are_limited_across_all_servers(
    place: Place, database_kind: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """On Postgres, the second run is requested from another server."""
    other = place.server
    if database_kind == "postgres":
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "skillery.toml").write_text(QUOTAS)
        contents = {"SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(place.server.home / "contents")}
        other = start_server(env={**place.env, **contents})
    first, second = place.caller("narrow-ada"), Caller(other.url, Who("narrow-ada"))
    long = {"language": "python", "code": WAIT}
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(first, "run_code", **long)
        eventually(lambda: second("get_usage")["concurrent_runs"]["used"])

        error = second.error("run_code", language="python", code=NO_OP)

        assert (error["code"], error["data"]["quota"]) == (-32006, "concurrent_runs")
        assert error["data"]["retry_after_ms"] > 0
        cancel_only_run(second)
        assert running.result()["error"]["type"] == "Cancelled"
    assert second("run_code", language="python", code=NO_OP)["output"] == 1


@pytest.mark.full
def test_queued_runs_count_and_refused_runs_are_not_recorded(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(QUOTAS)
    url = start_server(env=people_settings(tmp_path / "plugins", SKILLERY_CONCURRENT_RUNS="1")).url
    ada, bob, again = (Caller(url, Who(name)) for name in ("ada", "narrow-bob", "narrow-bob"))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ada, "run_code", language="python", code=WAIT)
        eventually(lambda: ada("get_usage")["concurrent_runs"]["used"])
        waiting = threads.submit(bob, "run_code", language="python", code=NO_OP)
        eventually(lambda: again("get_usage")["concurrent_runs"]["used"])

        error = again.error("run_code", language="python", code=NO_OP)
        assert (error["code"], error["data"]["type"]) == (-32006, "rate_limited")
        assert not first.done()
        cancel_only_run(Caller.same(ada))
        assert waiting.result()["output"] == 1
    assert len(again("list_runs")["runs"]) == 1


@ON_SQLITE
def test_skill_calls_inside_a_run_count_as_a_single_run(place: Place, new_name: str) -> None:
    caller = place.caller("slow-caller")
    name = f"{new_name}.called"
    called = manifest(name, permissions={"network": ["https://example.org"]})
    caller("create_skill", manifest=called, skill_md="# A\n", files=skill_files("def main(args):\n    return 2\n"))
    code = f"from skills.{name} import main as called\n\ndef main(args):\n    return [called({{}}) for _ in range(3)]\n"

    run = caller("run_code", language="python", code=code, mount_skills=[name])

    assert run["output"] == [2, 2, 2]
    assert caller("get_usage")["runs_per_minute"]["used"] == 1


# -- bundles -------------------------------------------------------------------------------------------------------


@ON_SQLITE
def test_the_bundles_of_a_namespace_are_limited_together(place: Place) -> None:
    caller = place.caller("publisher")

    def asked(name: str, size: int) -> dict[str, Any]:
        files = [*skill_files(), {"path": "resources/data.txt", "content": name + "x" * size}]
        return {"manifest": manifest(name), "skill_md": "# A\n", "files": files}

    caller("create_skill", **asked("tiny.a.one", 600_000))
    before = files_in_storage(place.server)

    error = caller.error("create_skill", **asked("tiny.b.two", 600_000))

    assert (error["code"], error["data"]["type"]) == (-32005, "quota_exceeded")
    assert (error["data"]["quota"], error["data"]["namespace"], error["data"]["limit"]) == (
        "bundle_bytes",
        "tiny.*",
        MIB,
    )
    assert files_in_storage(place.server) == before
    assert caller.status("tiny.b.two") == "unseen"
    assert caller("create_skill", **asked("tiny.a.one", 600_000))["status"] == "published"
    assert caller("create_skill", **asked("tinyx.two", 600_000))["status"] == "published"
    archive = zipped(vouched("tiny.docs.count", "review", {"note": "x" * 400_000}))
    [refused] = sent(caller, archive, source="x")["skills"]
    assert (refused["outcome"], refused["error"]["data"]["quota"]) == ("refused", "bundle_bytes")
    usage = caller("get_usage", namespace="tiny.b")["namespaces"]
    assert usage == [{"namespace": "tiny.*", "bundle_bytes": {"used": error["data"]["used"], "limit": MIB}}]


# -- usage ---------------------------------------------------------------------------------------------------------


def test_usage_is_visible_to_its_identity_and_to_admins(place: Place) -> None:
    place.caller("small-seen")("create_blob", content="12345", kind="text/plain")
    admin = place.caller("root", "admin", "")

    own = place.caller("small-seen", grants="tiny.* other.*")("get_usage")

    assert own["identity"] == "small-seen"
    assert own["blob_bytes"] == {"used": 5, "limit": MIB}
    assert own["blobs"] == {"used": 1, "limit": 20_000}
    assert own["runs_per_minute"] == {"used": 0, "limit": 500}
    assert [one["namespace"] for one in own["namespaces"]] == ["other.*", "tiny.*"]
    assert admin("get_usage", identity="small-seen")["blob_bytes"] == own["blob_bytes"]
    assert admin("get_usage", identity="narrow-boss")["blobs"]["limit"] == 7
    assert admin("get_usage", identity="narrow-boss")["concurrent_runs"]["limit"] == 100
    reader = place.caller("curious", "read", "other.*")
    assert reader.error("get_usage", identity="small-seen")["code"] == -32002
    assert reader.error("get_usage", namespace="tiny")["code"] == -32002
    assert reader("get_usage", namespace="other.below")["namespaces"][0]["namespace"] == "other.*"


def test_open_auth_has_no_default_quotas(sqlite_server: Server) -> None:
    usage = sqlite_server.rpc("get_usage")
    shown = skillery("quota", "--home", str(sqlite_server.home))
    as_json = skillery("quota", "--namespace", "text", "--home", str(sqlite_server.home), "--json")

    assert {usage[name]["limit"] for name in ("blobs", "blob_bytes", "runs_per_minute", "concurrent_runs")} == {None}
    assert "local\tblobs\t" in shown.out
    assert "\tnone" in shown.out
    assert as_json.json["namespaces"][0]["namespace"] == "text.*"
    assert as_json.json["namespaces"][0]["bundle_bytes"]["used"] > 0


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[quotas.identities."ci-*"]\nblob = 1\n', ["'blob'", "ci-*", "'blobs'"]),
        ('[quotas.identities."c*i"]\nblobs = 1\n', ["c*i"]),
        ('[quotas.identities."x"]\nblobs = -1\n', ["quotas.identities"]),
        ("[quotas.identities]\nx = 1\n", ["'x'", "table"]),
        ('[quotas.namespaces."sales"]\nbundles_mb = 1\n', ["'sales'", "sales.*"]),
        ('[quotas.namespaces."sales.*"]\nbundle_mb = 1\n', ["'bundles_mb'"]),
        ("[quotas]\nidentity = 1\n", ["quotas.identity", "quotas.identities"]),
    ],
)
@pytest.mark.full(after=4)
def test_a_quota_that_is_none_stops_the_start_and_is_named(tmp_path: Path, text: str, named: list[str]) -> None:
    (tmp_path / "skillery.toml").write_text(text)

    ended = skillery("list", "--home", str(tmp_path))

    assert ended.code == 4
    assert [word for word in named if word not in ended.err] == []


def test_config_show_lists_the_entries_and_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "skillery.toml").write_text(QUOTAS)

    shown = skillery("config", "show", "--home", str(tmp_path), "--json").json

    assert shown["quotas.identities.few-*.blobs"] == {"value": 3, "source": "skillery.toml"}
    assert shown["quotas.namespaces.tiny.*.bundles_mb"] == {"value": 1, "source": "skillery.toml"}
    assert shown["quotas.runs_per_minute"]["value"] == 500
    assert "null" not in json.dumps({name: one for name, one in shown.items() if name.startswith("quotas")})
