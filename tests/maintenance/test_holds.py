"""Legal holds: what sweeps and purges keep, on both databases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, update

from skillery.database import Database
from skillery.database.tables import blobs, holds, objects
from skillery.maintenance.garbage import Sweep
from skillery.maintenance.garbage_steps import AT_ONCE, expired_blobs
from skillery.workspaces.rows import SNAPSHOTS
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.maintenance.test_garbage import NO_GRACE, put, stored, sweep
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

REASON = "dispute 17"


@pytest.fixture(scope="module")
def server(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a server that keeps the newest run only, and sweeps on request."""
    folder = tmp_path_factory.mktemp("holds")
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = people_settings(folder / "plugins", SKILLERY_DATABASE=url, SKILLERY_RUNS_KEEP_COUNT="1", **NO_GRACE)
    running = Server(folder / "home", env=env)
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.fixture
def admin(server: Server) -> Caller:
    return Caller(server.url, Who("admin", "admin", "*"))


def caller(server: Server, name: str) -> Caller:
    return Caller(server.url, Who(name, "read run publish", "*"))


def run_of(rpc: Rpc, skill: str = "") -> str:
    """Run a skill or code, and return the id of the run."""
    code = "def main(args):\n    return 1\n"
    ended = rpc("execute_skill", name=skill) if skill else rpc("run_code", language="python", code=code)
    assert ended["status"] == "completed", ended
    run_id: str = ended["run_id"]
    return run_id


def large(use: str, name: str) -> bytes:
    """Return a content that the storage keeps, because it is too large for the database."""
    return hashlib.sha256(f"{use} {name}".encode()).hexdigest()[:8].encode() * 10_000


def is_stored(server: Server, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() in stored(server.home)


@pytest.mark.full
def test_holds_keep_runs_by_skill_identity_and_id(server: Server, admin: Caller, new_name: str) -> None:
    bob, eve = (caller(server, f"{new_name}-{name}") for name in ("bob", "eve"))
    bob("create_skill", manifest=manifest(new_name), skill_md="# A\n", files=skill_files())
    kept = [run_of(bob, new_name), run_of(bob), run_of(eve)]
    free = run_of(bob)
    named = [("skill", new_name), ("run", kept[1]), ("identity", f"{new_name}-eve")]
    holds = [admin("add_hold", kind=kind, name=name, reason=REASON)["id"] for kind, name in named]
    run_of(bob)

    expected = sweep(admin, dry_run=True)["runs"]["count"]
    assert sweep(admin)["runs"]["count"] == expected >= 1
    assert admin.error("get_run", run_id=free)["data"]["type"] == "run_not_found"
    assert [admin("get_run", run_id=run_id)["run_id"] for run_id in kept] == kept

    for number, hold in enumerate(holds):
        admin("remove_hold", id=hold, reason="settled")
        assert sweep(admin)["runs"]["count"] == 1
        assert admin.error("get_run", run_id=kept[number])["data"]["type"] == "run_not_found"


@pytest.mark.full
def test_holds_refuse_purges_of_versions(server: Server, admin: Caller, new_name: str) -> None:
    author = caller(server, f"{new_name}-author")
    author("create_skill", manifest=manifest(new_name), skill_md="# A\n", files=skill_files())
    purge = {"name": new_name, "version": "1.0.0", "reason": "x"}
    named = [("skill", new_name), ("identity", f"{new_name}-author"), ("run", run_of(author, new_name))]
    for kind, name in named:
        hold = admin("add_hold", kind=kind, name=name, reason=REASON)["id"]
        error = admin.error("purge_version", **purge)
        assert (error["data"]["type"], hold in error["message"], REASON in error["message"]) == ("conflict", True, True)
        assert admin("read_skill_file", name=new_name, path="SKILL.md")["content"]
        admin("remove_hold", id=hold, reason="settled")

    assert admin("purge_version", **purge)["status"] == "purged"


@pytest.mark.full
def test_a_hold_keeps_expired_blobs_and_deleted_workspaces(server: Server, admin: Caller, new_name: str) -> None:
    eve = caller(server, f"{new_name}-eve")
    hold = admin("add_hold", kind="identity", name=f"{new_name}-eve", reason=REASON)["id"]
    blob_id, workspace = put(eve, b"evidence", ttl=1), eve("create_workspace")["id"]
    eve("delete_workspace", workspace=workspace)
    eventually(lambda: eve.http.get(f"/blobs/{blob_id}").status_code == 404)

    assert eve("list_workspaces")["workspaces"] == []
    for dry_run in (True, False):
        swept = sweep(admin, dry_run=dry_run)
        assert (swept["expired_blobs"]["count"], swept["expired_workspaces"]["count"]) == (0, 0)
    admin("remove_hold", id=hold, reason="settled")
    swept = sweep(admin)
    assert (swept["expired_blobs"]["count"], swept["expired_workspaces"]["count"]) == (1, 1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["run", "skill"])
def test_a_held_run_keeps_its_inputs_and_blobs_of_its_args(
    server: Server, admin: Caller, new_name: str, kind: str
) -> None:
    bob = caller(server, f"{new_name}-bob")
    bob("create_skill", manifest=manifest(new_name), skill_md="# A\n", files=skill_files())
    contents = {use: large(use, new_name) for use in ("mounted", "copied", "named", "free")}
    ids = {use: put(bob, content) for use, content in contents.items()}
    args = {"of": ["\0", {"case": ids["named"]}]}
    files = [{"path": "a", "blob_id": ids["copied"]}]
    ran = bob("execute_skill", name=new_name, args=args, input_blobs=[ids["mounted"]], files=files)
    hold = admin("add_hold", kind=kind, name=ran["run_id"] if kind == "run" else new_name, reason=REASON)["id"]
    for blob_id in ids.values():
        bob("delete_blob", blob_id=blob_id)

    expected = sweep(admin, dry_run=True)
    swept = sweep(admin)
    assert (expected["expired_blobs"], expected["unused_contents"]) == (
        swept["expired_blobs"],
        swept["unused_contents"],
    )
    kept = {use for use, content in contents.items() if is_stored(server, content)}
    assert (swept["expired_blobs"]["count"], kept) == (1, {"mounted", "copied", "named"})
    admin("remove_hold", id=hold, reason="settled")
    assert sweep(admin)["expired_blobs"]["count"] == 3
    assert not any(is_stored(server, content) for content in contents.values())


@pytest.mark.full
def test_a_hold_on_a_run_keeps_the_runs_that_its_code_called(server: Server, admin: Caller, new_name: str) -> None:
    bob = caller(server, f"{new_name}-bob")
    bob(
        "create_skill",
        manifest=manifest(new_name, permissions={"network": ["example.com"]}),
        skill_md="# A\n",
        files=skill_files(),
    )
    code = f"from skills.{new_name} import main as called\ndef main(args):\n    return called({{}})\n"
    ran = bob("run_code", language="python", code=code, mount_skills=[new_name])
    assert ran["status"] == "completed", ran
    [called] = [row["run_id"] for row in bob("list_runs", limit=2)["runs"] if row["run_id"] != ran["run_id"]]
    admin("add_hold", kind="run", name=ran["run_id"], reason=REASON)
    run_of(bob)
    sweep(admin)

    assert admin("get_run", run_id=called)["parent_run_id"] == ran["run_id"]
    purge = {"name": new_name, "version": "1.0.0", "reason": "x"}
    assert admin.error("purge_version", **purge)["data"]["type"] == "conflict"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["run", "identity"])
def test_a_hold_keeps_snapshots_that_callers_no_longer_see(
    server: Server, admin: Caller, new_name: str, kind: str
) -> None:
    eve = caller(server, f"{new_name}-eve")
    workspace = eve("create_workspace")["id"]
    before, after = large("before", new_name), large("after", new_name)
    address = f"/v1/workspaces/{workspace}/files/a"
    eve.http.put(address, content=before).raise_for_status()
    code = f"def main(args):\n    open('a', 'w').write({after[:8].decode()!r} * {len(after) // 8})\n"
    ran = eve("run_code", language="python", code=code, workspace=workspace)
    assert ran["status"] == "completed", ran
    hold = admin("add_hold", kind=kind, name=ran["run_id"] if kind == "run" else f"{new_name}-eve", reason=REASON)["id"]
    for number in range(SNAPSHOTS):
        eve.http.put(address, content=b"%d" % number).raise_for_status()
    sweep(admin)

    shown = [row["snapshot"] for row in eve("describe_workspace", workspace=workspace)["snapshots"]]
    assert (len(shown), ran["workspace"]["after"] in shown) == (SNAPSHOTS, False)
    reset = eve.error("reset_workspace", workspace=workspace, snapshot=ran["workspace"]["after"])
    assert reset["data"]["type"] == "snapshot_not_found"
    assert (is_stored(server, before), is_stored(server, after)) == (True, True)
    eve("delete_workspace", workspace=workspace)
    assert sweep(admin)["expired_workspaces"]["count"] == 0
    assert (is_stored(server, before), is_stored(server, after)) == (True, True)
    admin("remove_hold", id=hold, reason="settled")
    assert sweep(admin)["expired_workspaces"]["count"] == 1
    assert (is_stored(server, before), is_stored(server, after)) == (False, False)


def test_holds_have_an_end_a_list_and_audit_entries(server: Server, admin: Caller, new_name: str) -> None:
    hold = admin("add_hold", kind="identity", name=new_name, reason=REASON, until="1s")
    other = admin("add_hold", kind="identity", name=new_name, reason=REASON)["id"]

    def listed() -> dict[str, str]:
        return {row["id"]: row["status"] for row in admin("list_holds")["holds"] if row["name"] == new_name}

    eventually(lambda: listed() == {hold["id"]: "expired", other: "live"})
    live = [row["id"] for row in admin("list_holds", live=True)["holds"] if row["name"] == new_name]
    assert live == [other]
    removed = [admin("remove_hold", id=other, reason="settled") for _ in range(2)]
    assert removed[0] == removed[1]
    assert (removed[0]["status"], removed[0]["removed_by"], removed[0]["removed_reason"]) == (
        "removed",
        "admin",
        "settled",
    )
    [added] = admin("list_audit", subject=new_name, action="add_hold", limit=1)["entries"]
    assert (added["after"]["id"], added["after"]["reason"]) == (other, REASON)
    [ended] = admin("list_audit", subject=other)["entries"]
    assert (ended["action"], ended["after"]) == ("remove_hold", {"status": "removed", "reason": "settled"})


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [("skill", "no.such", "skill_not_found"), ("run", "none", "run_not_found"), ("identity", "a\0b", "invalid_params")],
)
def test_a_hold_names_existing_data(admin: Caller, kind: str, name: str, error: str) -> None:
    assert admin.error("add_hold", kind=kind, name=name, reason="x")["data"]["type"] == error
    assert admin.error("remove_hold", id="none", reason="x")["data"]["type"] == "hold_not_found"


def test_a_sweep_reads_held_runs_once_and_notices_a_new_hold(database: Database) -> None:
    """The read of held runs is the only statement about their evidence, however many batches follow."""
    ids = [f"blob:{number}" for number in range(3 * AT_ONCE)]
    values = {"kind": "a/b", "size_bytes": 1, "sha256": "0" * 64, "is_text": True, "owner": "ann"}
    past = datetime.now(UTC) - timedelta(days=1)
    hold = {"hold": "h", "kind": "identity", "name": "ann", "reason": REASON, "created_at": past}
    hold |= {"identity": "admin", "identity_kind": "person"}

    def fill(connection: Connection) -> None:
        connection.execute(insert(objects).values(sha256="0" * 64, size_bytes=1, data=b"x"))
        rows = [{"id": blob_id, "created_at": past, "expires_at": past, **values} for blob_id in ids]
        connection.execute(insert(blobs), rows)

    database.write_now(fill)
    asked, statements = [0], list[str]()

    def add_hold_before_the_second_batch() -> bool:
        asked[0] += 1
        if asked[0] == 3:
            database.write_now(lambda connection: connection.execute(insert(holds).values(**hold)))
        return False

    def note(*call: Any) -> None:
        statements.append(call[2])

    first = expired_blobs(database, timedelta(), Sweep(dry_run=False, stopped=add_hold_before_the_second_batch))
    database.write_now(lambda connection: connection.execute(update(holds).values(removed_at=past)))
    event.listen(Engine, "before_cursor_execute", note)
    try:
        rest = expired_blobs(database, timedelta(), Sweep(dry_run=False, stopped=lambda: False))
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert (first.count, rest.count) == (AT_ONCE, 2 * AT_ONCE)
    assert len([statement for statement in statements if "evidence_json" in statement]) == 1
