"""list_failures: failed runs in groups of the same failure, with callers, versions, and the release before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from skillery.database import Database
from skillery.database.tables import failure_days
from skillery.formats.tracebacks import Shape
from skillery.registry.usage import INSIGHT_DAYS, count_failure, thin_out
from tests.conftest import Rpc, Server
from tests.support.browser import token_of
from tests.support.processes import await_early_day

Publish = Callable[..., dict[str, Any]]
LOOKS_UP = """
def rate(args):
    return {'north': 1}[args['region']]

def main(args):
    if args.get('fails'):
        raise OSError(f"cannot read /tmp/{args['fails']}/orders.csv of {args['fails']}")
    return rate(args)
"""
WORKS = "def main(args):\n    return 1\n"


def failures_of(rpc: Rpc, name: str, **params: Any) -> list[dict[str, Any]]:
    page = rpc("list_failures", skill=name, **params)
    assert page["next_cursor"] is None
    failures: list[dict[str, Any]] = page["failures"]
    return failures


@pytest.mark.full
def test_same_failures_form_a_group(rpc: Rpc, publish: Publish, new_name: str) -> None:
    await_early_day()
    publish(new_name, code=LOOKS_UP)
    runs = [rpc("execute_skill", name=new_name, args={"region": region}) for region in ("west", "east", "north")]
    rpc("execute_skill", name=new_name, args={"fails": "a1"})
    publish(new_name, "1.1.0", code=f"# moved\n\n{LOOKS_UP}")
    last = rpc("execute_skill", name=new_name, args={"fails": "b22"})

    newest, missing = failures_of(rpc, new_name, sort="newest")

    assert runs[2]["status"] == "completed"
    assert (newest["error_type"], newest["runs"], newest["callers"]) == ("OSError", 2, 1)
    assert newest["message"] == "cannot read /tmp/b22/orders.csv of b22"
    assert newest["place"] == "code/main.py, line 9 in main"
    assert newest["last_run_id"] == last["run_id"]
    assert (newest["since_version"], newest["last_version"]) == ("1.0.0", "1.1.0")
    assert (missing["error_type"], missing["message"]) == ("KeyError", "'east'")
    assert (missing["runs"], missing["days"], missing["before"]) == (2, [0] * 29 + [2], None)
    assert missing["place"] == "code/main.py, line 3 in rate"
    assert missing["first_day"] == datetime.now(UTC).date().isoformat()


def test_pages_of_failures_begin_with_the_most_harm(rpc: Rpc, publish: Publish, new_name: str) -> None:
    await_early_day()
    for number, times in enumerate((1, 3, 2)):
        publish(f"{new_name}.of{number}", code="def main(args):\n    return 1 / 0\n")
        for _ in range(times):
            rpc("execute_skill", name=f"{new_name}.of{number}")

    def names(**params: Any) -> list[str]:
        listed, cursor = [], ""
        while cursor is not None:
            page = rpc("list_failures", namespace=new_name, limit=1, cursor=cursor, **params)
            listed += [failure["skill"].rpartition(".")[2] for failure in page["failures"]]
            cursor = page["next_cursor"]
        return listed

    assert names() == ["of1", "of2", "of0"]
    assert names(sort="newest", days=1) == ["of2", "of1", "of0"]
    assert rpc.error("list_failures", cursor="x")["data"]["type"] == "invalid_cursor"


@pytest.mark.full
def test_publishers_see_the_failures_of_their_skills_without_values(tokens_server: Server, new_name: str) -> None:
    url, name = tokens_server.url, f"{new_name}.fails"

    def caller(who: str, *scopes: str, grants: tuple[str, ...] = ()) -> Rpc:
        return Rpc(url, token_of(tokens_server, f"{new_name}-{who}", *scopes, namespaces=list(grants)))

    ann = caller("ann", "read", "run", "publish", grants=(f"{new_name}.*",))
    bob, eve = caller("bob", "read", "run"), caller("eve", "read", "run", "publish", grants=("other.*",))
    files = [{"path": "code/main.py", "content": LOOKS_UP}]
    runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
    described = {"name": name, "version": "1.0.0", "description": "Fails.", "runtime": runtime}
    ann("create_skill", manifest=described, skill_md="# F\n", files=files)
    secret = bob("execute_skill", name=name, args={"region": "a secret of bob"})
    missing = bob("execute_skill", name=name, args={})

    of_ann = {failure["message"]: failure for failure in failures_of(ann, name)}

    assert set(of_ann) == {"…"}
    assert sum(failure["runs"] for failure in of_ann.values()) == 2
    assert [failure["last_run_id"] for failure in of_ann.values()] == [None]
    assert failures_of(bob, name) == failures_of(eve, name) == []
    for run in (secret, missing):
        same = bob("get_run", run_id=run["run_id"])["same_failure"]
        assert (same["runs"], same["callers"], same["last_run_id"]) == (2, 1, missing["run_id"])
    assert "same_failure" not in bob("get_run", run_id=secret["run_id"], wait_ms=1)
    ann("set_visibility", name=name, visibility="private")
    assert len(failures_of(ann, name)) == 1


@pytest.mark.full
def test_failures_of_a_new_version_name_the_release_before(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name, "1.2.4", code=WORKS)
    rpc("set_label", name=new_name, label="stable", version="1.2.4")
    for _ in range(20):
        rpc("execute_skill", name=new_name)
    publish(new_name, "1.3.0", code=LOOKS_UP)
    rpc("execute_skill", name=new_name, args={"region": "west"})

    [failure] = failures_of(rpc, new_name)
    assert failure["before"] == {"version": "1.2.4", "runs": 20}
    assert failure["rollback"] is None

    rpc("set_label", name=new_name, label="stable", version="1.3.0")
    [failure] = failures_of(rpc, new_name)
    assert failure["rollback"] == {"labels": ["stable"], "version": "1.2.4"}


def test_cancelled_runs_are_no_failures(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name, code="import time\ndef main(args):\n    time.sleep(600)\n")
    run = rpc("execute_skill", name=new_name, background=True)
    rpc("cancel_run", run_id=run["run_id"])
    rpc("get_run", run_id=run["run_id"], wait_ms=30_000)

    assert failures_of(rpc, new_name) == []


@pytest.mark.full
def test_a_skill_with_endless_different_failures_has_few_groups(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name, code="def main(args):\n    raise type('E' + args['letters'], (Exception,), {})('x')\n")
    for number in range(52):
        rpc("execute_skill", name=new_name, args={"letters": "ab"[number % 2] * (number + 1)})

    failures = failures_of(rpc, new_name, limit=100)

    assert len(failures) == 51
    assert [failure["runs"] for failure in failures if failure["error_type"] == ""] == [2]


def test_counts_of_failures_are_kept_for_ninety_days(database: Database) -> None:
    shape = Shape("0123456789abcdef", "KeyError", "", "'x'")
    now = datetime.now(UTC)
    for age in (0, INSIGHT_DAYS - 1, INSIGHT_DAYS):
        for run_id in ("run_first", "run_last"):
            count = partial(count_failure, skill_id=7, version_id=8, shape=shape, caller="ann")
            database.write_now(partial(count, run_id=run_id, finished_at=now - timedelta(days=age)))

    database.write_now(thin_out)

    kept = select(failure_days.c.runs, failure_days.c.last_run_id)
    rows = database.read_now(lambda connection: connection.execute(kept).all())
    assert [tuple(row) for row in rows] == [(2, "run_last")] * 2
