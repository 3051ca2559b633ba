"""Findings about undeclared packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
from packaging.utils import canonicalize_name

from skillery.backends import Finding
from skillery.formats.import_names import Providers, is_known_package

INFER = ", or import the skill with --packages infer"
"""Remedy for imported skills. The author of a skill declares the package."""
Mode = Literal["off", "suggest", "lock"]
"""Handling of undeclared packages: no check, a finding for each, or a lock that contains them."""

UNDECLARED, INFERRED = "undeclared_package", "inferred_package"
"""The rules of findings about undeclared and inferred packages."""


class Missing(msgspec.Struct, frozen=True, eq=False):
    """A module that Python files of a bundle import and that the bundle does not contain.

    `file` and `line` are the first import that the file cannot work without, or the first optional import. `more` is
    the number of other imports.
    """

    module: str
    file: str
    line: int
    optional: bool
    more: int
    required_by: Mapping[str, int]
    """The files that cannot be imported without the module, each with the line of the import."""
    providers: Providers


class ImportScan(msgspec.Struct, frozen=True):
    """The modules that a bundle imports and does not contain, and the packages that provide them."""

    mode: Mode
    missing: tuple[Missing, ...] = ()
    chosen: Mapping[str, str] = {}
    """The inferred package of each module."""
    reasons: Mapping[str, str] = {}
    """The reason for each module without an inferred package."""
    unread: str = ""
    """The reason if files were not checked, else ""."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The inferred packages, which are locked together with the declared packages."""
        return tuple(sorted(set(self.chosen.values())))


def is_provided(missing: Missing, packages: frozenset[str]) -> bool:
    """Return whether one of the packages provides the module.

    If the provider of the module is only guessed, also return True if one of the packages contains unknown modules.
    """
    if packages & {*missing.providers.packages, canonicalize_name(missing.module.partition(".")[0])}:
        return True
    return missing.providers.how == "guessed" and not all(map(is_known_package, packages))


def findings_of(scan: ImportScan, entrypoint: str, packages: frozenset[str], *, is_sure: bool) -> tuple[Finding, ...]:
    """Return the findings of a skill. `packages` are the packages in its runs, `is_sure` says whether this list is
    complete.

    If an import of the entrypoint certainly fails, the finding is an error, else a warning. A module that `packages`
    provide (`is_provided`) has no finding, unless its package is inferred.
    """
    is_sure = is_sure and all(map(is_known_package, packages))
    return tuple(_findings(scan, entrypoint, packages, is_sure))


def _findings(scan: ImportScan, entrypoint: str, packages: frozenset[str], is_sure: bool) -> Iterator[Finding]:
    for one in scan.missing:
        package = scan.chosen.get(one.module)
        if package is not None and package in packages:
            message = f"imports {one.module}{_more(one)}: the package {package} is inferred and locked"
            yield Finding(INFERRED, message, "info", one.file, one.line)
        elif not is_provided(one, packages):
            line = one.required_by.get(entrypoint) if is_sure else None
            if line is None:
                yield Finding(UNDECLARED, _message(one, scan), "warning", one.file, one.line)
            else:
                yield Finding(UNDECLARED, _message(one, scan).removesuffix(INFER), "error", entrypoint, line)
    if scan.unread:
        yield Finding(UNDECLARED, scan.unread, "warning")


def _message(missing: Missing, scan: ImportScan) -> str:
    begin = f"imports {missing.module}{' (optional)' if missing.optional else ''}{_more(missing)}"
    reason = scan.reasons.get(missing.module)
    if reason is not None:
        return f"{begin}, which is not locked: {reason}"
    providers = missing.providers
    if providers.how == "guessed":
        add = "add its package to runtime.dependencies, or the module to the skill"
        return f"{begin}, which no known package provides: {add}"
    if providers.how == "ambiguous":
        return f"{begin}, which is ambiguous: {providers} provide it; add the right one to runtime.dependencies"
    add = f"add '{providers.packages[0]}' to runtime.dependencies{INFER}"
    return f"{begin}, but no package for it is declared: {add}"


def _more(missing: Missing) -> str:
    return f" (and {missing.more} more file{'s' * (missing.more > 1)})" if missing.more else ""
