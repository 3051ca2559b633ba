"""Errors of uv in words for callers: the package and the cause, without addresses and paths of this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from skillery.backends import FailureType
from skillery.environments.jobs import BuildFailed, JobFailed
from skillery.errors import PackageIndexUnavailable, SkilleryError, Unavailable, UnresolvableDependencies
from skillery.formats.import_names import usual_packages
from skillery.formats.requirements import DEPENDENCIES, package_of
from skillery.formats.wording import Problem, nearest, printable, quoted, raise_problems

log = logging.getLogger(__name__)
MOST = 600
MISSPELT = 0.8
"""Least similarity of a suggested package: another package with a similar name would be a guess."""
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s`'\")]+", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.])(?:~|\.{1,2})?/[^\s`'\",:;)]+")
_CAUSE = re.compile(r"(?:cause:|╰─▶|▶)\s*(.*?)(?:\n\s*\n|\nhint:|\Z)", re.DOTALL)
_YANKED = re.compile(r"warning: `?([A-Za-z0-9._-]+)==([^\s`]+)`? is yanked(?: \(reason: \"(.{0,300}?)\"\))?")
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
_HINT = "Change [runtime] dependencies in skill.toml."
_NO_WHEEL = f"{_HINT} The admin can allow a build with the setting packages.build_from_source."


def cleaned(text: str, most: int = MOST) -> str:
    """Return the text as one line, with addresses and paths replaced by words."""
    bare = _PATH.sub("(a path)", _ADDRESS.sub("(the index)", text))
    return printable(" ".join(bare.split()).replace("'", "’"), most)


def cause_of(output: str) -> str:
    match = _CAUSE.search(output)
    return cleaned(match[1] if match else output.partition("error:")[2] or output)


def _last_cause(output: str) -> str:
    """Return the root cause of a failed download or build."""
    if "Failed to build" in output:
        return build_failure(output)
    return cleaned(output.rpartition("cause:")[2].partition("hint:")[0], 300)


def check_yanked(output: str, requirements: Iterable[str]) -> None:
    """Raise UnresolvableDependencies if uv warned about a yanked release."""
    match = _YANKED.search(output)
    if match is not None:
        why = f": {cleaned(match[3], 200)}" if match[3] else ""
        raise unresolvable("yanked", match[1], requirements, f"{match[1]} {match[2]} was yanked{why}")


def uv_error(output: str, requirements: Iterable[str], subject: str) -> SkilleryError:
    """Return the error for the output of a failed uv. `subject` names the failed action."""
    bad = _BAD_FILE.search(output)
    if bad is not None:
        reason, words = ("damaged", "is damaged") if bad[1] else ("build_failed", "could not be built from source")
        file = printable(bad[2] or bad[3], 200)
        package = package_of(file) if _NAMED.match(file) else file
        return unresolvable(reason, package, requirements, f"{file} {words}: {_last_cause(output)}")
    if any(sign in output for sign in _NETWORK):
        log.warning("%s: the package index: %s", subject, cleaned(output, 2000))
        login = " (it does not accept the login of this server)" if _LOGIN.search(output) else ""
        return PackageIndexUnavailable(
            f"{subject}: the package index cannot be reached{login}",
            hint="Several attempts failed. Try again later, or tell the admin of the server.",
        )
    if "No solution found" not in output:
        log.error("%s: %s", subject, cleaned(output, 2000))
        return Unavailable(f"{subject}: {cleaned(output.partition('error:')[2] or 'uv failed', 300)}")
    cause = cause_of(output)
    package = _package(cause, requirements)
    if "was not found in the" in cause:
        near = nearest(package, usual_packages(), MISSPELT)
        meant = f" (did you mean {quoted(near)}?)" if near else ""
        message = f"the package {package} is unknown here{meant}: the package index does not have it"
        return unresolvable("unknown_package", package, requirements, message)
    if "has no usable wheels" in cause or "has no wheels" in cause or "building from source is disabled" in output:
        more = f"{package} has no wheel for this system, and packages are not built from source here: {cause}"
        return unresolvable("no_wheel", package, requirements, more, _NO_WHEEL)
    if "yanked" in cause:
        return unresolvable("yanked", package, requirements, f"{package} was yanked: {cause}")
    return unresolvable("unsatisfiable", package, requirements, f"the dependencies cannot be met: {cause}")


def foreign_hosts_error(hosts: Sequence[str]) -> SkilleryError:
    """Return the error for an index whose files are on hosts that the settings do not allow."""
    return Unavailable(
        f"the package index keeps its files at {', '.join(hosts[:3])}, which are not allowed hosts",
        hint="The admin can allow them with the setting packages.file_hosts.",
    )


def locking_error(subject: str, stopped: JobFailed) -> SkilleryError:
    """Return the error for a locking job that failed."""
    log.error("%s: %s: %s", subject, stopped.kind, cleaned(stopped.message, 2000))
    return Unavailable(f"{subject}: {cleaned(f'{stopped.kind}: {stopped.message}', 300)}")


def unresolvable(
    reason: str, package: str, requirements: Iterable[str], message: str, hint: str = _HINT
) -> UnresolvableDependencies:
    names = [package_of(requirement) for requirement in requirements]
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
    """Return the package that caused a failure: the missing package, else the first declared package in the text."""
    missing = re.search(
        r"([a-z0-9][a-z0-9._-]{0,127})(?:==\S{1,128})? (?:was not found in|has no usable wheels|has no wheels)", cause
    )
    if missing:
        return missing[1]
    names = [package_of(requirement) for requirement in requirements]
    named = [(match.start(), name) for name in names if (match := re.search(rf"\b{re.escape(name)}\b", cause))]
    return min(named)[1] if named else next(iter(names), "")


def uv_failure(output: str) -> tuple[str, bool]:
    """Return why uv failed on a lock, and whether a retry may succeed."""
    log.warning("uv: %s", cleaned(output, 2000))
    if any(sign in output for sign in _NETWORK):
        return "the package index cannot be reached; try again later", True
    if "os error 28" in output or "No space left" in output:
        return "the build needs more disk than allowed", False
    return cause_of(output), False


def build_failure(output: str) -> str:
    """Return why a package could not be built, with the last line of the build's own output."""
    log.warning("a build: %s", cleaned(output, 4000))
    before, _, after = output.partition("error: Failed to build")
    printed = (after.partition("[stderr]")[2].partition("\nhint:")[0] or before).strip()
    return f"the build printed '{cleaned(printed.splitlines()[-1], 200)}'" if printed else cause_of(output)


def job_failure(subject: str, stopped: JobFailed) -> BuildFailed:
    """Return why a job in the sandbox failed."""
    log.warning("%s: %s: %s", subject, stopped.kind, cleaned(stopped.message, 2000))
    if stopped.kind == FailureType.TIMEOUT:
        return BuildFailed(f"{subject} in time (the setting packages.build_seconds)")
    if stopped.kind == FailureType.MEMORY_LIMIT_EXCEEDED:
        return BuildFailed(f"{subject}: {stopped.message}")
    if stopped.kind == FailureType.SANDBOX_ERROR:
        return BuildFailed(f"{subject}: the sandbox failed ({cleaned(stopped.message, 200)})", passing=True)
    return BuildFailed(f"{subject}: {cleaned(f'{stopped.kind}: {stopped.message}', 300)}")
