"""Trusted publishing without a plugin, and the sweep of what it stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select

from skillery.backends import Identity, Provenance
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.builtin.open_authenticator import OpenAuthenticator
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.database.tables import exchanged_tokens, tokens
from skillery.errors import InvalidName, TrustedPublishingOff
from skillery.formats.tokens import parse_token_name
from skillery.identity.tokens import create_short_token
from skillery.trust.matching import Exchange, forget_expired, mismatch
from skillery.trust.rules import AddTrustRule, Trust, TrustRule, add_trust_rule

JOB = Identity("ci:github:acme/x", "agent", frozenset({"publish"}), ("a.b",), Provenance("https://x", "y"))


async def test_without_a_plugin_the_answers_name_the_remedy(database: Database, tmp_path: Path) -> None:
    trust = Trust(Registry(database, DirectoryStorage(tmp_path), b"key"), None, OpenAuthenticator())
    exchange, admin = Exchange(trust, "https://skills.example.org"), Identity("ann", scopes=frozenset({"admin"}))

    for call in (
        exchange.exchange("x.y.z", ""),
        add_trust_rule(trust, admin, AddTrustRule(target="a.b", provider="github")),
    ):
        with pytest.raises(TrustedPublishingOff) as caught:
            await call
        assert caught.value.hint == "An admin installs one: pip install skillery-oidc."


def test_a_sweep_deletes_old_exchanges_and_old_tokens_of_jobs(database: Database) -> None:
    now = datetime.now(UTC)
    rows = [{"digest": f"{age}", "expires_at": now - timedelta(hours=age)} for age in (-1, 1, 2)]
    database.write_now(lambda connection: connection.execute(insert(exchanged_tokens), rows) and None)
    for hours in (-30, -2, 1):
        database.write_now(partial(create_short_token, identity=JOB, rule_id="r", lifetime=timedelta(hours=hours)))

    assert database.read_now(partial(forget_expired, limit=100, dry_run=True)) == 2
    assert database.write_now(partial(forget_expired, limit=100)) == 3

    assert database.read_now(_counts) == (1, 2)


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ({"event_name": "push", "ref": "refs/heads/main"}, None),
        ({"event_name": "merge_group", "ref": "refs/heads/gh-readonly-queue/main/pr-7"}, None),
        ({"event_name": "pull_request_target", "ref": "refs/heads/main"}, "others can start them"),
        ({"event_name": "pull_request", "ref": "refs/pull/7/merge"}, "neither a branch nor a tag"),
        ({"ref": "refs/heads/main"}, "others can start them"),
    ],
)
def test_github_trust_rule_checks_event_and_ref_of_job(job: dict[str, str], problem: str | None) -> None:
    rule = TrustRule(
        id="r",
        target="a.*",
        provider="oidc",
        issuer="https://token.actions.githubusercontent.com",
        claims={"repository_owner_id": "7"},
        kind="agent",
        created_by="ann",
        created_at=datetime.now(UTC),
        last_used_at=None,
    )

    found = mismatch(rule, {"repository_owner_id": "7", **job})

    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


def _counts(connection: Connection) -> tuple[int | None, int | None]:
    found = [connection.scalar(select(func.count()).select_from(table)) for table in (exchanged_tokens, tokens)]
    return found[0], found[1]


def test_no_other_token_has_the_name_of_a_job() -> None:
    with pytest.raises(InvalidName, match="belong to CI jobs"):
        parse_token_name("ci:github:acme/x")
