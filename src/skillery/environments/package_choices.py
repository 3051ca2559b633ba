"""The choice of the package that provides an imported module. If the choice is uncertain, the result is a reason."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from skillery.environments.definitions import PackageSources
from skillery.formats.import_names import Providers


class Choice(NamedTuple):
    """The chosen package. If it is "", `reason` is a clause that continues a message about the import."""

    package: str
    reason: str = ""


def offered_by(sources: PackageSources) -> frozenset[str] | None:
    """Return the packages in the wheelhouse; None without a wheelhouse. Blocking."""
    if sources.wheelhouse is None:
        return None
    return frozenset(_package_of(path) for path in sources.wheelhouse.glob("*.whl"))


def choose(sources: PackageSources, offered: frozenset[str] | None, providers: Providers) -> Choice:
    """Return the choice among the packages that provide a module. `offered` is the result of `offered_by`.

    A package of an index is never chosen only because it has the name of the module. Otherwise a skill with a missing
    module would get a package from any owner of that name. A wheelhouse and `packages.allowed` are lists of the admin,
    so a name in them is trusted.
    """
    if not sources.are_there:
        return Choice("", "no packages are available (the settings packages.index_urls and packages.wheelhouse)")
    refused = {name: _refusal(sources, name) for name in providers.packages}
    fit = [name for name in providers.packages if not refused[name] and (offered is None or name in offered)]
    if not fit:
        reason = next((reason for reason in refused.values() if reason), "")
        return Choice("", reason or f"the wheelhouse of this server has no wheel of {providers}")
    is_vouched = offered is not None or bool(sources.allowed)
    if providers.how == "ambiguous" and not (is_vouched and len(fit) == 1):
        return Choice("", f"it is ambiguous: {providers} provide it")
    if providers.how == "guessed" and not is_vouched:
        return Choice("", "no package is known to provide it")
    return Choice(fit[0])


def _refusal(sources: PackageSources, package: str) -> str:
    return next((finding.message for finding in sources.refused([package])), "")


def _package_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])
