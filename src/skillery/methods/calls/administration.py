"""Methods for admins: tokens, identities, the audit trail and sweeps."""

from __future__ import annotations

import asyncio
from functools import partial

from skillery.backends import Identity, KeepsTokens
from skillery.identity import offboarding, tokens
from skillery.identity.authenticator_chain import by_name, revokers
from skillery.identity.offboarding import RevokedIdentity
from skillery.identity.tokens import CreatedToken, Token, Tokens
from skillery.maintenance.garbage.collector import Garbage
from skillery.methods import params
from skillery.methods.core import Core
from skillery.registry import (
    audit_trail,
)
from skillery.registry.audit_trail import AuditPage, parse_filter


async def collect_garbage(core: Core, identity: Identity, asked: params.CollectGarbage) -> Garbage:
    collect = partial(core.collector.collect, by=identity, dry_run=asked.dry_run, only=asked.steps)
    return Garbage(asked.dry_run, await asyncio.to_thread(collect))


async def create_token(core: Core, identity: Identity, asked: params.CreateToken) -> CreatedToken:
    work = partial(
        tokens.create_token,
        actor=identity,
        name=asked.name,
        scopes=asked.scopes,
        namespaces=asked.namespaces,
        kind=asked.kind,
        expires=asked.expires,
    )
    return await core.registry.write(work)


async def list_tokens(core: Core, _: Identity, __: params.ListTokens) -> Tokens:
    return Tokens(await core.registry.read(tokens.list_tokens))


async def revoke_token(core: Core, identity: Identity, asked: params.RevokeToken) -> Token:
    revoked = await core.registry.write(partial(tokens.revoke_token, actor=identity, token_id=asked.id))
    if isinstance(core.authenticator, KeepsTokens):
        core.authenticator.forget()
    core.sessions.forget()
    return revoked


async def revoke_identity(core: Core, identity: Identity, asked: params.RevokeIdentity) -> RevokedIdentity:
    lists = [revoker.revoke for revoker in revokers(by_name(core.authenticator, ("",)))]
    work = partial(offboarding.revoke_identity, actor=identity, name=asked.name, lists=lists)
    revoked, _ = await core.registry.write(work)
    if isinstance(core.authenticator, KeepsTokens):
        core.authenticator.forget()
    core.sessions.forget()
    await asyncio.sleep(offboarding.SETTLED_SECONDS)
    return await core.registry.write(partial(offboarding.end_late, actor=identity, report=revoked))


async def list_audit(core: Core, _: Identity, asked: params.ListAudit) -> AuditPage:
    wanted = parse_filter(asked.identity, asked.action, asked.subject, asked.outcome, asked.since, asked.until)
    work = partial(
        audit_trail.list_audit, key=core.registry.cursor_key, wanted=wanted, limit=asked.limit, cursor=asked.cursor
    )
    # Slow: with a filter, one page may read many entries.
    return await core.registry.read_page(work)
