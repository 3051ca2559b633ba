"""Every method, on one screen, and how each reaches the core."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from skillery import access
from skillery.api.rpc import params
from skillery.api.services import Services
from skillery.backends import Identity, KeepsTokens, Language, Scope
from skillery.errors import InvalidParams
from skillery.formats.bundle import BundleFile
from skillery.formats.labels import parse_label
from skillery.formats.moments import parse_until
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.semver import Version
from skillery.formats.version_spec import Latest, VersionSpec, parse_version_spec
from skillery.publishing import CheckedSkill
from skillery.quotas import get_usage
from skillery.registry import (
    MovedLabel,
    NewVersion,
    Pin,
    Verified,
    Waiver,
    deprecate_skill,
    describe_skill,
    list_labels,
    list_skills,
    list_waivers,
    read_skill_file,
    reject_version,
    remove_label,
    resolve_skills,
    revoke_waiver,
    rollback_label,
    search_skills,
    set_label,
    set_visibility,
    submit_version,
    undeprecate_skill,
    unyank_version,
    verify_lock,
    waive_finding,
    yank_version,
)
from skillery.registry.audit_trail import list_audit, parse_filter
from skillery.runs import CodeRequest, SkillRequest
from skillery.runs.reading import RunFilter, get_run, list_runs
from skillery.tokens import CreatedToken, Token, create_token, list_tokens, revoke_token

GUIDE = "skills.protocol.guide"


async def _list_skills(services: Services, identity: Identity, asked: params.ListSkills) -> Any:
    namespace = parse_namespace(asked.namespace) if asked.namespace else ""
    return await services.database.read(
        partial(
            list_skills,
            identity=identity,
            key=services.cursor_key,
            namespace=namespace,
            detail=asked.detail,
            limit=asked.limit,
            cursor=asked.cursor,
        )
    )


async def _describe_skill(services: Services, identity: Identity, asked: params.DescribeSkill) -> Any:
    name, spec = _which(asked.name, asked.version)
    work = partial(
        describe_skill, identity=identity, storage=services.storage, name=name, spec=spec, detail=asked.detail
    )
    if asked.detail == "full":
        # SKILL.md may be large, and then lies in the storage.
        return await asyncio.to_thread(services.database.read_now, work)
    return await services.database.read(work)


async def _read_skill_file(services: Services, identity: Identity, asked: params.ReadSkillFile) -> Any:
    name, spec = _which(asked.name, asked.version)
    work = partial(
        read_skill_file,
        identity=identity,
        storage=services.storage,
        name=name,
        spec=spec,
        path=parse_path(asked.path),
    )
    return await asyncio.to_thread(services.database.read_now, work)


async def _execute_skill(services: Services, identity: Identity, asked: params.ExecuteSkill) -> Any:
    parse_skill_name(asked.name)
    request = SkillRequest(asked.name, asked.version, asked.args, asked.input_blobs, _set(asked.timeout_ms))
    return await services.runner.execute_skill(identity, request)


async def _run_code(services: Services, identity: Identity, asked: params.RunCode) -> Any:
    _check_entrypoint(asked.entrypoint, asked.language)
    request = CodeRequest(
        asked.code,
        asked.entrypoint,
        asked.args,
        asked.mount_skills,
        asked.input_blobs,
        asked.limits,
        asked.language,
    )
    return await services.runner.run_code(identity, request)


async def _create_blob(services: Services, identity: Identity, asked: params.CreateBlob) -> Any:
    content = await asyncio.to_thread(_bytes, asked.content, asked.encoding, "content")
    ttl = _set(asked.ttl)
    return await services.blobs.create_blob(identity, content, asked.kind, timedelta(seconds=ttl) if ttl else None)


async def _read_blob(services: Services, identity: Identity, asked: params.ReadBlob) -> Any:
    return await services.blobs.read_blob(identity, asked.blob_id, asked.mode, _set(asked.max_bytes))


async def _delete_blob(services: Services, identity: Identity, asked: params.DeleteBlob) -> Any:
    deleted = await services.blobs.delete_blob(identity, asked.blob_id)
    return {"blob_id": deleted.id, "size_bytes": deleted.size_bytes}


async def _get_usage(services: Services, identity: Identity, asked: params.GetUsage) -> Any:
    whose = _identity(asked.identity) if asked.identity else identity.name
    if whose != identity.name:
        access.require(identity, "admin")
    namespaces = [grant.removesuffix(".*") for grant in identity.namespaces if grant != "*"]
    if asked.namespace:
        namespaces = [parse_namespace(asked.namespace.removesuffix(".*"))]
        if not access.covers(identity, f"{namespaces[0]}.x"):
            access.require(identity, "admin")
    elif whose != identity.name:
        namespaces = []
    sees = partial(access.covers_all, identity)
    work = partial(get_usage, quotas=services.quotas, identity=whose, namespaces=namespaces, sees=sees)
    return await asyncio.to_thread(services.database.read_now, work)


async def _collect_garbage(services: Services, identity: Identity, asked: params.CollectGarbage) -> Any:
    swept = await asyncio.to_thread(services.collector.collect, by=identity, dry_run=asked.dry_run)
    return {"dry_run": asked.dry_run, "removed": swept}


async def _load_guide(services: Services, identity: Identity, _: params.LoadSkillsProtocolGuide) -> Any:
    work = partial(
        read_skill_file, identity=identity, storage=services.storage, name=GUIDE, spec=Latest(), path="SKILL.md"
    )
    answer = await services.database.read(work)
    return {"content": answer["content"]}


async def _create_skill(services: Services, identity: Identity, asked: params.CreateSkill) -> NewVersion:
    files = await asyncio.to_thread(_files, asked.files)
    return await services.publisher.create_skill(identity, asked.manifest, asked.skill_md, files)


async def _check_skill(services: Services, identity: Identity, asked: params.CheckSkill) -> CheckedSkill:
    files = await asyncio.to_thread(_files, asked.files)
    return await services.publisher.check_skill(identity, asked.manifest, asked.skill_md, files)


async def _submit_version(services: Services, identity: Identity, asked: params.SubmitVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    return await services.database.write(partial(submit_version, identity=identity, name=name, version=version))


async def _approve_version(services: Services, identity: Identity, asked: params.ApproveVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    note = _text(asked.note, "note") if asked.note else ""
    return await services.publisher.approve_version(identity, name, version, asked.digest or None, note)


async def _reject_version(services: Services, identity: Identity, asked: params.RejectVersion) -> NewVersion:
    name, version, reason = parse_skill_name(asked.name), Version.parse(asked.version), _text(asked.reason, "reason")
    work = partial(reject_version, identity=identity, name=name, version=version, reason=reason)
    return await services.database.write(work)


async def _yank_version(services: Services, identity: Identity, asked: params.YankVersion) -> NewVersion:
    name, version, reason = parse_skill_name(asked.name), Version.parse(asked.version), _text(asked.reason, "reason")
    work = partial(yank_version, identity=identity, name=name, version=version, reason=reason)
    return await services.database.write(work)


async def _unyank_version(services: Services, identity: Identity, asked: params.UnyankVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    return await services.database.write(partial(unyank_version, identity=identity, name=name, version=version))


async def _deprecate_skill(services: Services, identity: Identity, asked: params.DeprecateSkill) -> NewVersion:
    name, message = parse_skill_name(asked.name), _text(asked.message, "message")
    successor = parse_skill_name(asked.successor) if asked.successor else None
    work = partial(deprecate_skill, identity=identity, name=name, message=message, successor=successor)
    return await services.database.write(work)


async def _undeprecate_skill(services: Services, identity: Identity, asked: params.UndeprecateSkill) -> NewVersion:
    name = parse_skill_name(asked.name)
    return await services.database.write(partial(undeprecate_skill, identity=identity, name=name))


async def _set_visibility(services: Services, identity: Identity, asked: params.SetVisibility) -> NewVersion:
    name = parse_skill_name(asked.name)
    work = partial(set_visibility, identity=identity, name=name, visibility=asked.visibility)
    return await services.database.write(work)


async def _get_run(services: Services, identity: Identity, asked: params.GetRun) -> Any:
    return await services.database.read(partial(get_run, identity=identity, run_id=asked.run_id))


async def _list_runs(services: Services, identity: Identity, asked: params.ListRuns) -> Any:
    skill = parse_skill_name(asked.skill) if asked.skill else ""
    if "\0" in asked.identity:
        raise InvalidParams("'identity' holds a NUL", hint="Write the name of a token.", param="identity")
    status: Any = "" if asked.status is msgspec.UNSET else asked.status
    work = partial(
        list_runs,
        identity=identity,
        key=services.cursor_key,
        asked=RunFilter(skill, status, asked.since, asked.identity),
        limit=asked.limit,
        cursor=asked.cursor,
    )
    # A filter may leave out many on the way to a page.
    return await asyncio.to_thread(services.database.read_now, work)


async def _cancel_run(services: Services, identity: Identity, asked: params.CancelRun) -> Any:
    return await services.runner.cancel_run(identity, asked.run_id)


async def _set_label(services: Services, identity: Identity, asked: params.SetLabel) -> MovedLabel:
    name, label, spec = parse_skill_name(asked.name), parse_label(asked.label), parse_version_spec(asked.version)
    work = partial(set_label, identity=identity, name=name, label=label, spec=spec)
    return await services.database.write(work)


async def _rollback_label(services: Services, identity: Identity, asked: params.RollbackLabel) -> MovedLabel:
    name, label = parse_skill_name(asked.name), parse_label(asked.label)
    return await services.database.write(partial(rollback_label, identity=identity, name=name, label=label))


async def _remove_label(services: Services, identity: Identity, asked: params.RemoveLabel) -> MovedLabel:
    name, label = parse_skill_name(asked.name), parse_label(asked.label)
    return await services.database.write(partial(remove_label, identity=identity, name=name, label=label))


async def _list_labels(services: Services, identity: Identity, asked: params.ListLabels) -> Any:
    work = partial(
        list_labels,
        identity=identity,
        key=services.cursor_key,
        name=parse_skill_name(asked.name),
        label=parse_label(asked.label) if asked.label else "",
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return await services.database.read(work)


async def _resolve_skills(services: Services, identity: Identity, asked: params.ResolveSkills) -> Any:
    work = partial(resolve_skills, identity=identity, texts=asked.skills)
    # A thousand look-ups take their time.
    return {"lock": await asyncio.to_thread(services.database.read_now, work)}


async def _verify_lock(services: Services, identity: Identity, asked: params.VerifyLock) -> Verified:
    pins = [Pin(entry.name, entry.version, entry.digest) for entry in asked.lock]
    work = partial(verify_lock, identity=identity, pins=pins)
    return await asyncio.to_thread(services.database.read_now, work)


async def _search_skills(services: Services, identity: Identity, asked: params.SearchSkills) -> Any:
    work = partial(
        search_skills,
        identity=identity,
        key=services.cursor_key,
        query=asked.query,
        kind="" if asked.kind is msgspec.UNSET else asked.kind,
        tags=asked.tags,
        namespace=parse_namespace(asked.namespace) if asked.namespace else "",
        limit=asked.limit,
        cursor=asked.cursor,
    )
    # A word that every skill has takes its time.
    return await asyncio.to_thread(services.database.read_now, work)


async def _waive_finding(services: Services, identity: Identity, asked: params.WaiveFinding) -> Waiver:
    work = partial(
        waive_finding,
        identity=identity,
        name=parse_skill_name(asked.name),
        rule=_text(asked.rule, "rule"),
        reason=_text(asked.reason, "reason"),
        until=parse_until(asked.until, datetime.now(UTC)),
        file=parse_path(asked.file) if asked.file else None,
        version=Version.parse(asked.version) if asked.version else None,
    )
    return await services.database.write(work)


async def _list_waivers(services: Services, identity: Identity, asked: params.ListWaivers) -> Any:
    name = parse_skill_name(asked.name) if asked.name else ""
    key, limit, cursor = services.cursor_key, asked.limit, asked.cursor
    work = partial(list_waivers, identity=identity, key=key, name=name, limit=limit, cursor=cursor)
    return await services.database.read(work)


async def _revoke_waiver(services: Services, identity: Identity, asked: params.RevokeWaiver) -> Waiver:
    return await services.database.write(partial(revoke_waiver, identity=identity, waiver_id=_id(asked.id)))


async def _create_token(services: Services, identity: Identity, asked: params.CreateToken) -> CreatedToken:
    work = partial(
        create_token,
        actor=identity,
        name=asked.name,
        scopes=asked.scopes,
        namespaces=asked.namespaces,
        kind=asked.kind,
        expires=asked.expires,
    )
    return await services.database.write(work)


async def _list_tokens(services: Services, _: Identity, __: params.ListTokens) -> Any:
    return {"tokens": await services.database.read(list_tokens)}


async def _revoke_token(services: Services, identity: Identity, asked: params.RevokeToken) -> Token:
    revoked = await services.database.write(partial(revoke_token, actor=identity, token_id=asked.id))
    if isinstance(services.authenticator, KeepsTokens):
        services.authenticator.forget()
    return revoked


async def _list_audit(services: Services, _: Identity, asked: params.ListAudit) -> Any:
    wanted = parse_filter(asked.identity, asked.action, asked.subject, asked.outcome, asked.since, asked.until)
    work = partial(list_audit, key=services.cursor_key, wanted=wanted, limit=asked.limit, cursor=asked.cursor)
    # A filter may have to look through much.
    return await asyncio.to_thread(services.database.read_now, work)


class Method(NamedTuple):
    call: Callable[[Services, Identity, Any], Awaitable[Any]]
    params: type[params.Params]
    needs: Scope
    is_tool: bool = True
    """One of the eight that the specification shows to LLMs."""
    audits: str | None = None
    """The param that says what the method changes: each change leaves an entry in the audit trail, and so does each
    that is refused. "" where it changes nothing, or what has a row of its own that says who: runs and blobs. None:
    nobody has said yet, and tests/test_audit.py asks for it."""
    once: bool = False
    """Heeds an Idempotency-Key: what it does cannot simply be done again."""


METHODS: dict[str, Method] = {
    "list_skills": Method(_list_skills, params.ListSkills, "read", audits=""),
    "describe_skill": Method(_describe_skill, params.DescribeSkill, "read", audits=""),
    "read_skill_file": Method(_read_skill_file, params.ReadSkillFile, "read", audits=""),
    "execute_skill": Method(_execute_skill, params.ExecuteSkill, "run", audits="", once=True),
    "run_code": Method(_run_code, params.RunCode, "run", audits="", once=True),
    "create_blob": Method(_create_blob, params.CreateBlob, "run", audits="", once=True),
    "read_blob": Method(_read_blob, params.ReadBlob, "read", audits=""),
    "load_skills_protocol_guide": Method(_load_guide, params.LoadSkillsProtocolGuide, "read", audits=""),
    "create_skill": Method(_create_skill, params.CreateSkill, "publish", is_tool=False, audits="manifest", once=True),
    "submit_version": Method(_submit_version, params.SubmitVersion, "publish", is_tool=False, audits="name"),
    "approve_version": Method(_approve_version, params.ApproveVersion, "review", is_tool=False, audits="name"),
    "reject_version": Method(_reject_version, params.RejectVersion, "review", is_tool=False, audits="name"),
    "yank_version": Method(_yank_version, params.YankVersion, "publish", is_tool=False, audits="name"),
    "unyank_version": Method(_unyank_version, params.UnyankVersion, "publish", is_tool=False, audits="name"),
    "deprecate_skill": Method(_deprecate_skill, params.DeprecateSkill, "publish", is_tool=False, audits="name"),
    "undeprecate_skill": Method(_undeprecate_skill, params.UndeprecateSkill, "publish", is_tool=False, audits="name"),
    "set_visibility": Method(_set_visibility, params.SetVisibility, "publish", is_tool=False, audits="name"),
    "get_run": Method(_get_run, params.GetRun, "read", is_tool=False, audits=""),
    "list_runs": Method(_list_runs, params.ListRuns, "read", is_tool=False, audits=""),
    "cancel_run": Method(_cancel_run, params.CancelRun, "run", is_tool=False, audits="run_id"),
    "set_label": Method(_set_label, params.SetLabel, "publish", is_tool=False, audits="name"),
    "rollback_label": Method(_rollback_label, params.RollbackLabel, "publish", is_tool=False, audits="name"),
    "remove_label": Method(_remove_label, params.RemoveLabel, "publish", is_tool=False, audits="name"),
    "list_labels": Method(_list_labels, params.ListLabels, "read", is_tool=False, audits=""),
    "resolve_skills": Method(_resolve_skills, params.ResolveSkills, "read", is_tool=False, audits=""),
    "verify_lock": Method(_verify_lock, params.VerifyLock, "read", is_tool=False, audits=""),
    "search_skills": Method(_search_skills, params.SearchSkills, "read", is_tool=False, audits=""),
    "check_skill": Method(_check_skill, params.CheckSkill, "publish", is_tool=False, audits=""),
    "waive_finding": Method(_waive_finding, params.WaiveFinding, "review", is_tool=False, audits="name"),
    "list_waivers": Method(_list_waivers, params.ListWaivers, "review", is_tool=False, audits=""),
    "revoke_waiver": Method(_revoke_waiver, params.RevokeWaiver, "review", is_tool=False, audits="id"),
    "delete_blob": Method(_delete_blob, params.DeleteBlob, "run", is_tool=False, audits="blob_id"),
    "get_usage": Method(_get_usage, params.GetUsage, "read", is_tool=False, audits=""),
    "collect_garbage": Method(_collect_garbage, params.CollectGarbage, "admin", is_tool=False, audits=""),
    "create_token": Method(_create_token, params.CreateToken, "admin", is_tool=False, audits="name"),
    "list_tokens": Method(_list_tokens, params.ListTokens, "admin", is_tool=False, audits=""),
    "revoke_token": Method(_revoke_token, params.RevokeToken, "admin", is_tool=False, audits="id"),
    "list_audit": Method(_list_audit, params.ListAudit, "admin", is_tool=False, audits=""),
}


def _which(name: str, version: str) -> tuple[str, VersionSpec]:
    return parse_skill_name(name), parse_version_spec(version)


def _check_entrypoint(name: str, language: Language) -> None:
    """The default where there are no functions to call, else a name that a function can have."""
    if language == "bash" and name != "main":
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, and bash code has none: it runs from its first line",
            hint="Leave 'entrypoint' out; the args are JSON on stdin, and what is printed is the output.",
            param="entrypoint",
        )
    if not (name.replace("$", "_") if language == "javascript" else name).isidentifier():
        called = {"javascript": "JavaScript", "python": "Python"}[language]
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, which is no {called} identifier",
            hint="Name a function of the code, for example main.",
            param="entrypoint",
        )


def _text(value: str, where: str) -> str:
    """As others will read it. Raises InvalidParams for nothing but blanks, and for a NUL."""
    if "\0" in value or not value.strip():
        reason = "holds a NUL" if "\0" in value else "is blank"
        raise InvalidParams(f"'{where}' {reason}", hint="Write a sentence.", param=where)
    return value.strip()


def _id(text: str) -> str:
    if "\0" in text:
        raise InvalidParams("an id holds no NUL", hint="Pass the id as it was answered.", param="id")
    return text


def _identity(name: str) -> str:
    """Identities are whatever an authenticator calls them. Raises InvalidParams for what no database can hold."""
    if "\0" in name:
        raise InvalidParams("'identity' holds a NUL", hint="Write the name of an identity.", param="identity")
    return name


def _set(value: int | msgspec.UnsetType) -> int | None:
    return None if value is msgspec.UNSET else value


def _files(files: list[params.SkillFile]) -> list[BundleFile]:
    return [BundleFile(file.path, _bytes(file.content, file.encoding, file.path), file.executable) for file in files]


def _bytes(content: str, encoding: str, where: str) -> bytes:
    if encoding == "utf-8":
        return content.encode("utf-8")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams(
            f"'{where}' is not valid base64", hint="Leave encoding out for plain text.", param=where
        ) from None
