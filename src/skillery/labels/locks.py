"""Locks of skills: the exact version and digest of each skill, and the check of such a lock."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE
from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import parse_reference
from skillery.formats.wording import quoted
from skillery.method import ExactVersion, Method, Params, SkillName, about
from skillery.registry.required_choice import choose
from skillery.registry.requires import closure_of_row, ranges_of, sees_skills
from skillery.registry.resolution import find_skill, resolve, version_if_there
from skillery.registry.revocations import require_harmless
from skillery.registry.version_rows import Severity, VersionRow, is_severe

MOST_LOCKED = 1000
_SHOWN = 400
"""The maximum number of characters of a reference that an error shows."""
ProblemName: TypeAlias = Literal["gone", "yanked", "rejected", "purged", "digest_changed", "two_versions", "invalid"]


class Locked(msgspec.Struct, frozen=True):
    """One skill in a lock."""

    name: str
    version: str
    digest: str
    status: str
    requires: Annotated[list[str] | UnsetType, Meta(description="Names of the skills that it requires")] = UNSET


class Lock(msgspec.Struct, frozen=True):
    """A lock of skills: exact versions with their digests."""

    lock: list[Locked]
    requires_hidden: Annotated[
        int | UnsetType, Meta(description="Number of further required skills, which the caller may not see")
    ] = UNSET


class Pin(msgspec.Struct, frozen=True):
    """One skill of a lock, as the caller of verify_lock has sent it."""

    name: str
    version: str
    digest: str


class LockProblem(msgspec.Struct, frozen=True):
    name: str
    version: str
    problem: ProblemName | Literal["deprecated", "not_published"]
    message: str
    severity: Severity | None = None
    """The severity of a yank or purge, and the id of the advisory about it."""
    advisory: str | None = None


class Verified(msgspec.Struct, frozen=True):
    """The result of verify_lock. `ok` is true if `problems` is empty; `warnings` do not matter."""

    ok: bool
    problems: list[LockProblem]
    warnings: list[LockProblem]


def lock_skills(connection: Connection, identity: Identity, texts: Sequence[str], *, required: bool = True) -> Lock:
    """Return the exact version of each reference, in the given order and without duplicates. With `required`, the
    versions that they require follow. Skills that the identity may not see are only counted.

    A reference is `name` or `name@<version spec>`. Raise the error of the first reference that does not resolve, with
    the reference in `data["skill"]`. Raise InvalidParams if there are more than MOST_LOCKED references, or if two of
    them select different versions of one skill.
    """
    if len(texts) > MOST_LOCKED:
        raise InvalidParams(
            f"'skills' names {len(texts)} skills, at most {MOST_LOCKED} are allowed",
            hint="Lock fewer skills in one call.",
            param="skills",
        )
    rows: dict[str, VersionRow] = {}
    named = [(text, _resolved(connection, identity, text)) for text in dict.fromkeys(texts)]
    closures = [(text, each.row) for text, row in named for each in closure_of_row(connection, row)]
    sees = sees_skills(connection, identity)
    hidden = {row.name for _, row in closures if not sees(row)}
    seen = ((text, row) for text, row in closures if required and row.name not in hidden)
    for text, row in itertools.chain(named, seen):
        locked = rows.setdefault(row.name, row)
        if locked.version_id != row.version_id:
            raise InvalidParams(
                f"'{row.name}' cannot be locked in two versions, {locked.version} and {row.version}",
                hint="Lock one version of a skill.",
                param="skills",
                skill=text,
            )
    return _lock_of(rows.values(), hidden)


def _lock_of(rows: Iterable[VersionRow], hidden: Collection[str] = ()) -> Lock:
    """Return a lock of these versions, without the names of required skills in `hidden`."""
    requires = ((row, [name for name in ranges_of(row) if name not in hidden]) for row in rows)
    locked = [Locked(row.name, row.version, row.digest, row.status, names or UNSET) for row, names in requires]
    return Lock(locked, len(hidden) or UNSET)


def lock_required(connection: Connection, identity: Identity, name: str, texts: Sequence[str]) -> Lock:
    """Return the versions that publishing would choose now for a skill `name` that requires these references. Raise the
    errors of `choose`.
    """
    ranges = [(parse_reference(text)[0], text.partition("@")[2] or "*") for text in texts]
    return _lock_of(each.row for each in choose(connection, identity, name, ranges))


def _resolved(connection: Connection, identity: Identity, text: str) -> VersionRow:
    """Return the version of a reference. The error names the reference, if it does not resolve."""
    try:
        name, spec = parse_reference(text)
        row = resolve(connection, identity, name, spec, manages=True)
        require_harmless(identity, row)
        return row
    except SkilleryError as error:
        error.data["skill"] = text[:_SHOWN]
        if (shown := quoted(text, _SHOWN)) not in error.message:
            error.message = f"{shown} does not resolve: {error.message}"
        raise


def check_lock(connection: Connection, identity: Identity, pins: Sequence[Pin]) -> Verified:
    """Return the problems and warnings of a lock, from a comparison of each version with the registry."""
    problems: list[LockProblem] = []
    warnings: list[LockProblem] = []
    versions: dict[str, str] = {}
    for pin in dict.fromkeys(pins):
        for finding in _findings(connection, identity, pin, versions):
            (warnings if finding.problem in ("deprecated", "not_published") else problems).append(finding)
    return Verified(not problems, problems, warnings)


def _findings(connection: Connection, identity: Identity, pin: Pin, versions: dict[str, str]) -> Iterator[LockProblem]:
    """Yield the problems and warnings of one skill in a lock. `versions` has the checked version of each skill, and is
    updated.
    """
    name, version = pin.name[:200], pin.version[:300]
    if versions.setdefault(pin.name, pin.version) != pin.version:
        message = f"'{name}' is locked in two versions, {versions[pin.name][:300]} and {version}"
        yield LockProblem(name, version, "two_versions", message)
    try:
        exact = Version.parse(pin.version)
        row = version_if_there(connection, identity, parse_skill_name(pin.name), exact)
    except InvalidParams as error:
        yield LockProblem(name, version, "invalid", f"{error.message} A lock names exact versions.")
        return
    if row is None:
        is_there = find_skill(connection, identity, pin.name) is not None
        message = f"'{name}' has no version {version}" if is_there else f"there is no skill '{name}'"
        yield LockProblem(name, version, "gone", message)
        return
    if pin.digest.strip().lower() != row.digest:
        message = f"'{row.name}' {row.version} has the digest {row.digest}, the lock has {pin.digest[:80]}"
        yield LockProblem(name, version, "digest_changed", message)
    yield from _standing(row, name, version)


def _standing(row: VersionRow, name: str, version: str) -> Iterator[LockProblem]:
    """Yield the problem or warning that follows from the status of a version, if there is one."""
    states = msgspec.json.decode(row.standing_json) if row.standing_json else {}
    subject = f"'{row.name}' {row.version}"
    match row.status:
        case "yanked":
            yanked = states["yanked"]
            severity, advisory = yanked.get("severity", "broken"), yanked.get("advisory")
            words = f" as {severity} ({advisory})" if is_severe(yanked) else ""
            message = f"{subject} was yanked{words}: {yanked['reason']}"
            yield LockProblem(name, version, "yanked", message, severity, advisory)
        case "rejected":
            yield LockProblem(name, version, "rejected", f"{subject} was rejected: {states['rejected']['reason']}")
        case "purged":
            purged = states["purged"]
            about = purged.get("severity"), purged.get("advisory")
            yield LockProblem(name, version, "purged", f"{subject} was purged: {purged['reason']}", *about)
        case "deprecated":
            instead = states["deprecated"]["successor"]
            use = f" Use '{instead}' instead." if instead else ""
            message = f"{subject} is deprecated: {states['deprecated']['message']}{use}"
            yield LockProblem(name, version, "deprecated", message)
        case status if status not in RESOLVABLE:
            yield LockProblem(name, version, "not_published", f"{subject} is not published yet: {status}")


# -- resolve_skills ----------------------------------------------------------------------------------------------------


class ResolveSkills(Params, frozen=True, kw_only=True):
    """Resolve skills to exact versions and digests, as a lock."""

    skills: Annotated[list[str], about("'name' or 'name@version spec' each, at most 1000")]
    required: Annotated[bool, about("Whether the lock has the skills that they require too", default=True)] = True
    required_by: Annotated[
        str, about("Choose the versions that publishing would choose for a skill of this name that requires them")
    ] = ""


async def resolve_skills(registry: Registry, identity: Identity, params: ResolveSkills) -> Lock:
    if params.required_by:
        work = partial(lock_required, identity=identity, name=params.required_by, texts=params.skills)
    else:
        work = partial(lock_skills, identity=identity, texts=params.skills, required=params.required)
    # Slow: a request may ask for a thousand look-ups.
    return await registry.read_page(work)


# -- verify_lock -------------------------------------------------------------------------------------------------------


class LockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A skill in a lock of skills, as resolve_skills returns it."""

    name: SkillName
    version: ExactVersion
    digest: Annotated[str, about("Digest of the bundle")]
    status: Annotated[str, about("Status of the version when it was locked")] = ""
    requires: Annotated[list[str], about("Names of the skills that it requires")] = []


class VerifyLock(Params, frozen=True, kw_only=True):
    """Check whether the locked versions still exist with the same digests."""

    lock: Annotated[Annotated[list[LockEntry], Meta(max_length=1000)], about("'lock' of resolve_skills")]


async def verify_lock(registry: Registry, identity: Identity, params: VerifyLock) -> Verified:
    pins = [Pin(entry.name, entry.version, entry.digest) for entry in params.lock]
    work = partial(check_lock, identity=identity, pins=pins)
    return await registry.read_page(work)


METHODS = (
    Method(resolve_skills, "read", audits=""),
    Method(verify_lock, "read", audits=""),
)
