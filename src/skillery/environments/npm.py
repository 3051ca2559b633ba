"""Packages of npm: the job that locks them, the job that fetches their files, and their errors in words."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from skillery.backends import FailureType
from skillery.environments.downloads import IncomingFiles, bare, other_file
from skillery.environments.jobs import BuildFailed, JobFailed, Jobs
from skillery.environments.sources import NpmSources, latest_upload
from skillery.environments.uv_errors import cleaned, job_failure, locking_error
from skillery.errors import (
    InvalidVersion,
    InvalidVersionSpec,
    PackageIndexUnavailable,
    PackagesNotOffered,
    SkilleryError,
    Unavailable,
    UnresolvableDependencies,
)
from skillery.formats.npm import NPM, NpmLock, NpmPackage, check_npm_lock, split, write_npm_lock
from skillery.formats.ranges import parse_range
from skillery.formats.requirements import InvalidLock, Pin
from skillery.formats.semver import Version
from skillery.formats.wording import Problem, printable, raise_problems

log = logging.getLogger(__name__)
NOT_LOCKED = "the npm packages could not be locked"
OF_PACKAGES = re.compile(r"EUNSUPPORTEDPROTOCOL|EINVALID\w+|ETARGET|EOVERRIDE|spawn git")
"""Matches errors of npm whose cause is a package, such as an address of git."""
REFUSALS = ("403", "404", "410", "451")
"""HTTP statuses for a file that the registry will not have later either."""
_NO_LOGIN = "the npm registry does not accept the login of this server"
_TOKEN = "the variable SKILLERY_NPM_TOKEN"  # noqa: S105 - a name
_HINT = "Change package.json, or [runtime] npm in skill.toml."


def check_npm_sources(sources: NpmSources, *, locks: bool) -> None:
    """Raise PackagesNotOffered if the settings have no source of npm packages, or, with `locks`, no registry."""
    if not (sources.registry if locks else sources.are_there):
        raise PackagesNotOffered(
            "no npm packages are available: no registry is configured",
            hint="Bundle the packages into your files. Or the admin sets packages.npm_url, for instance to "
            "https://registry.npmjs.org.",
        )


def exact_versions(requirements: Sequence[str], guide: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of a guide that are in the ranges of these requirements, by name."""
    exact = {}
    for name, text in map(split, requirements):
        with contextlib.suppress(InvalidVersion, InvalidVersionSpec):
            version = Version.parse(guide[name]) if name in guide else None
            if version is not None and any(segment.contains(version) for segment in parse_range(text)):
                exact[name] = guide[name]
    return exact


async def resolve_npm(
    jobs: Jobs,
    sources: NpmSources,
    requirements: Sequence[str],
    inferred: Collection[str],
    guide: Mapping[str, str],
    seconds: float,
) -> bytes:
    """Return a new `npm.lock`. `inferred` are the names of requirements that runs do not require. Packages get their
    versions in `guide`, except requirements with other ranges.

    Raise UnresolvableDependencies, with the package at fault if it is known, or PackageIndexUnavailable,
    PackagesNotOffered or Unavailable.
    """
    ranges = dict(map(split, requirements))
    args = {
        "dependencies": ranges | exact_versions(requirements, guide),
        "overrides": {name: version for name, version in guide.items() if name not in ranges},
        "inferred": list(inferred),
        "before": latest_upload(sources.exclude_newer),
    }
    try:
        answer = await jobs.run("npm_lock", args, seconds=seconds)
    except JobFailed as stopped:
        if stopped.kind == FailureType.TIMEOUT:
            raise PackageIndexUnavailable(
                f"{NOT_LOCKED} within {seconds:g} s", hint="The limit is the setting packages.lock_seconds."
            ) from None
        raise locking_error(NOT_LOCKED, stopped) from None
    if answer.refused:
        hosts = ", ".join(answer.refused[:3])
        message = f"an npm package is stored at {hosts}, which is not an allowed host (packages.npm_file_hosts)"
        raise unresolvable_npm("unsatisfiable", "", message)
    if "packages" not in answer.result:
        raise _locking_problem(answer.result, requirements)
    try:
        packages = msgspec.convert(answer.result["packages"], tuple[NpmPackage, ...])
        check_npm_lock(NpmLock(1, tuple(requirements), packages))
    except msgspec.ValidationError as error:
        raise unresolvable_npm("unsatisfiable", "", f"npm made a lock of another form ({error})") from None
    except InvalidLock as error:
        raise unresolvable_npm("unsatisfiable", "", f"the lock of the npm packages {error.message}") from None
    return write_npm_lock(requirements, packages)


def _locking_problem(report: dict[str, Any], requirements: Sequence[str]) -> SkilleryError:
    package, detail = printable(str(report.get("package", "")), 200), cleaned(str(report.get("detail", "")), 300)
    package = package or (split(requirements[0])[0] if len(requirements) == 1 else "")
    match report.get("reason"):
        case "no_npm":
            return PackagesNotOffered(
                "no npm packages are available: runs have no npm",
                hint="The admin can install it: pip install 'skillery[node]'.",
            )
        case "away":
            log.warning("%s: %s", NOT_LOCKED, detail)
            return PackageIndexUnavailable(f"{NOT_LOCKED}: the npm registry cannot be reached", hint="Try again later.")
        case "refused" if detail == "403" and package:
            message = f"the npm registry does not permit this server to have {package} (403)"
            return unresolvable_npm("unsatisfiable", package, message)
        case "refused":
            return PackageIndexUnavailable(f"{NOT_LOCKED}: {_NO_LOGIN} ({detail})", hint=f"The admin sets {_TOKEN}.")
        case "unknown_package":
            message = f"the npm package {package or '(one of these)'} is unknown here: the registry does not have it"
            return unresolvable_npm("unknown_package", package, message)
        case "unsatisfiable":
            return unresolvable_npm("unsatisfiable", package, f"the npm package {package} cannot be locked: {detail}")
        case "source":
            message = f"{package} does not come from the registry, and other sources are not allowed"
            return unresolvable_npm("unsatisfiable", "", message)
        case "integrity":
            return unresolvable_npm("unsatisfiable", "", f"the registry has no SHA-512 of {package}")
        case "too_long":
            return unresolvable_npm("unsatisfiable", "", "the lock of the npm packages is too long")
    if "ERESOLVE" in detail:
        return unresolvable_npm(
            "unsatisfiable", "", f"the npm packages need versions that exclude each other: {detail}"
        )
    if OF_PACKAGES.search(detail):
        return unresolvable_npm("unsatisfiable", package, f"{NOT_LOCKED}: {detail}")
    log.error("%s: %s", NOT_LOCKED, detail)
    return Unavailable(f"{NOT_LOCKED}: {detail or 'npm failed'}")


def unresolvable_npm(reason: str, package: str, message: str) -> UnresolvableDependencies:
    try:
        raise_problems(UnresolvableDependencies, [Problem(message.rstrip("."), NPM)], hint=_HINT)
    except UnresolvableDependencies as error:
        error.data |= {"reason": reason, "package": package}
        return error


async def fetch_npm(
    jobs: Jobs, sources: NpmSources, pins: Sequence[Pin], incoming: IncomingFiles, seconds: float
) -> None:
    """Download the file of each package, and put it into `incoming.whole`; put None at the end. Raise BuildFailed on
    failure.
    """
    try:
        check_npm_sources(sources, locks=False)
    except PackagesNotOffered as error:
        incoming.close()
        raise BuildFailed(error.message) from None
    try:
        files = [
            {"name": pin.name, "version": pin.version, "hashes": bare(pin), "algorithm": "sha512"}
            | {"stored": store_name(pin)}
            for pin in pins
        ]
        args = {"pins": files, "store": sources.store is not None}
        answer = await jobs.run("npm_fetch", args, seconds=seconds, receiver=incoming, build=incoming.progress)
    except JobFailed as stopped:
        raise job_failure("the npm packages could not be fetched", stopped) from None
    finally:
        incoming.close()
    if answer.result:
        raise _fetching_problem(answer.result, answer.refused)


def store_name(pin: Pin) -> str:
    """Return the name of the file of a package in `packages.npm_store`: that of `npm pack`."""
    return f"{pin.name.removeprefix('@').replace('/', '-')}-{pin.version}.tgz"


def _fetching_problem(report: dict[str, Any], refused: tuple[str, ...]) -> BuildFailed:
    package = printable(str(report.get("package", "")), 300)
    name = package.partition(" ")[0]
    if refused:
        hosts = ", ".join(refused[:3])
        return BuildFailed(
            f"{package or 'a package'} is stored at {hosts}, which is not an allowed host "
            "(the setting packages.npm_file_hosts)",
            package=name,
        )
    match report.get("reason"):
        case "hash":
            return BuildFailed(other_file(package), package=name)
        case "unknown_package":
            message = f"{package} is not in the npm registry or store of this server"
            return BuildFailed(message, package=name, reason="unknown_package")
        case "away" if report.get("detail") == "401":
            return BuildFailed(f"{package} could not be fetched: {_NO_LOGIN} (401; {_TOKEN})", passing=True)
        case "away" if (status := str(report.get("detail", ""))) in REFUSALS:
            message = f"{package} could not be fetched: the npm registry answered {status}"
            return BuildFailed(message, package=name)
        case "away":
            return BuildFailed(f"{package} could not be fetched: the npm registry cannot be reached", passing=True)
    return BuildFailed("the npm packages could not be fetched")
