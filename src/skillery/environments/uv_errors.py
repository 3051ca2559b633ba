"""What uv says, as callers are told: the package and the reason, without an address or a path of this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from skillery.backends import FailureType
from skillery.environments.errors import BuildFailed
from skillery.environments.jobs import Stopped
from skillery.errors import PackageIndexUnavailable, SkilleryError, Unavailable, UnresolvableDependencies
from skillery.formats.problems import Problem, raise_problems
from skillery.formats.requirements import DEPENDENCIES, package_of
from skillery.formats.wording import printable

log = logging.getLogger(__name__)
MOST = 600
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s`'\")]+", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.])(?:~|\.{1,2})?/[^\s`'\",:;)]+")
_CAUSE = re.compile(r"(?:cause:|╰─▶|▶)\s*(.*?)(?:\n\s*\n|\nhint:|\Z)", re.DOTALL)
_YANKED = re.compile(r"warning: `?([A-Za-z0-9._-]+)==([^\s`]+)`? is yanked(?: \(reason: \"(.*?)\"\))?")
_BAD_FILE = re.compile(
    r"(?:(Failed to download) `([^`]+)`\s+cause: Failed to extract archive|Failed to build `([^`]+)`)"
)
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:==[^\s]+)?$")
_NETWORK = (
    "Failed to fetch",
    "error sending request",
    "Request failed after",
    "Failed to download",
    "tcp connect error",
    "dns error",
    "operation timed out",
    "lack of valid authentication credentials",
)
_LOGIN = re.compile(r"\b(?:401|403)\b")
_HINT = "Change [runtime] dependencies in skill.toml; nothing was stored."
_NO_WHEEL = f"{_HINT} The server's admin can let it be built, with the setting packages.build_from_source."


def cleaned(text: str, most: int = MOST) -> str:
    """One line, with words in place of addresses and paths."""
    bare = _PATH.sub("(a path)", _ADDRESS.sub("(the index)", text))
    return printable(" ".join(bare.split()).replace("'", "’"), most)


def cause_of(said: str) -> str:
    found = _CAUSE.search(said)
    return cleaned(found[1] if found else said.partition("error:")[2] or said)


def _last_cause(said: str) -> str:
    """What was wrong in the end, without what that was in the way of."""
    if "Failed to build" in said:
        return build_failure(said)
    return cleaned(said.rpartition("cause:")[2].partition("hint:")[0], 300)


def check_yanked(said: str, requirements: Iterable[str]) -> None:
    """Raises UnresolvableDependencies where uv warns of a release that was taken back."""
    found = _YANKED.search(said)
    if found is not None:
        why = f": {cleaned(found[3], 200)}" if found[3] else ""
        raise unresolvable("yanked", found[1], requirements, f"{found[1]} {found[2]} was yanked{why}")


def why_not(said: str, requirements: Iterable[str], what: str) -> SkilleryError:
    """The error for what uv says when it ends in failure; `what` has failed."""
    bad = _BAD_FILE.search(said)
    if bad is not None:
        reason, words = ("damaged", "is damaged") if bad[1] else ("build_failed", "could not be built from source")
        file = printable(bad[2] or bad[3], 200)
        package = package_of(file) if _NAMED.match(file) else file
        return unresolvable(reason, package, requirements, f"{file} {words}: {_last_cause(said)}")
    if any(sign in said for sign in _NETWORK):
        log.warning("%s: the package index: %s", what, cleaned(said, 2000))
        login = " (it does not accept the login of this server)" if _LOGIN.search(said) else ""
        return PackageIndexUnavailable(
            f"{what}: the package index cannot be reached{login}",
            hint="It was tried several times, and nothing was stored. Try again later, or tell the server's admin.",
        )
    if "No solution found" not in said:
        log.error("%s: %s", what, cleaned(said, 2000))
        return Unavailable(f"{what}: {cleaned(said.partition('error:')[2] or 'uv failed', 300)}")
    cause = cause_of(said)
    package = _package(cause, requirements)
    if "was not found in the" in cause:
        return unresolvable("unknown_package", package, requirements, f"no package {package} is known here: {cause}")
    if "has no usable wheels" in cause or "has no wheels" in cause or "building from source is disabled" in said:
        more = f"{package} has no wheel for this server, and nothing is built from source: {cause}"
        return unresolvable("no_wheel", package, requirements, more, _NO_WHEEL)
    if "yanked" in cause:
        return unresolvable("yanked", package, requirements, f"{package} was yanked: {cause}")
    return unresolvable("unsatisfiable", package, requirements, f"the dependencies cannot be met: {cause}")


def elsewhere(hosts: Sequence[str]) -> SkilleryError:
    """The index leads to hosts that are not those of the settings."""
    return Unavailable(
        f"the package index keeps its files at {', '.join(hosts[:3])}, which packages may not come from",
        hint="The server's admin can allow it with the setting packages.file_hosts.",
    )


def not_locked(what: str, stopped: Stopped) -> SkilleryError:
    """For the end of a job that was to lock."""
    log.error("%s: %s: %s", what, stopped.kind, cleaned(stopped.message, 2000))
    return Unavailable(f"{what}: {cleaned(f'{stopped.kind}: {stopped.message}', 300)}")


def unresolvable(
    reason: str, package: str, requirements: Iterable[str], message: str, hint: str = _HINT
) -> UnresolvableDependencies:
    names = [package_of(one) for one in requirements]
    path = f"{DEPENDENCIES}[{names.index(package)}]" if package in names else DEPENDENCIES
    try:
        raise_problems(
            UnresolvableDependencies,
            [Problem(message.rstrip("."), path)],
            hint=hint,
        )
    except UnresolvableDependencies as error:
        error.data |= {"reason": reason, "package": package}
        return error


def _package(cause: str, requirements: Iterable[str]) -> str:
    """Who is to blame: what uv found missing, else the first that is declared and named."""
    missing = re.search(
        r"([a-z0-9][a-z0-9._-]*)(?:==\S+)? (?:was not found in|has no usable wheels|has no wheels)", cause
    )
    if missing:
        return missing[1]
    names = [package_of(one) for one in requirements]
    named = [(found.start(), name) for name in names if (found := re.search(rf"\b{re.escape(name)}\b", cause))]
    return min(named)[1] if named else next(iter(names), "")


def uv_failure(said: str) -> tuple[str, bool]:
    """Why uv could not do what it was asked for a lock, and whether another try may go better."""
    log.warning("uv: %s", cleaned(said, 2000))
    if any(sign in said for sign in _NETWORK):
        return "the package index cannot be reached; try again later", True
    if "os error 28" in said or "No space left" in said:
        return "it needs more disk than a build may use", False
    return cause_of(said), False


def build_failure(said: str) -> str:
    """Why a package could not be built, with the last line that its own build printed."""
    log.warning("a build: %s", cleaned(said, 4000))
    before, _, after = said.partition("error: Failed to build")
    printed = (after.partition("[stderr]")[2].partition("\nhint:")[0] or before).strip()
    return f"its build said '{cleaned(printed.splitlines()[-1], 200)}'" if printed else cause_of(said)


def job_failure(what: str, stopped: Stopped) -> BuildFailed:
    """Why a job in the sandbox did not come to its end."""
    log.warning("%s: %s: %s", what, stopped.kind, cleaned(stopped.message, 2000))
    if stopped.kind == FailureType.TIMEOUT:
        return BuildFailed(f"{what} in time (the setting packages.build_seconds)")
    if stopped.kind == FailureType.MEMORY_LIMIT_EXCEEDED:
        return BuildFailed(f"{what}: {stopped.message}")
    if stopped.kind == FailureType.SANDBOX_ERROR:
        return BuildFailed(f"{what}: the sandbox failed ({cleaned(stopped.message, 200)})", passing=True)
    return BuildFailed(f"{what}: {cleaned(f'{stopped.kind}: {stopped.message}', 300)}")
