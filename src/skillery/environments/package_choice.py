"""Choice of the package that provides an imported module. In doubt, the result is a reason and not a guess."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from skillery.environments.sources import Sources
from skillery.formats.import_names import Providers


class Choice(NamedTuple):
    """The chosen package, or "" and the reason, as a clause that follows the import in a message."""

    package: str
    reason: str = ""


def offered_by(sources: Sources) -> frozenset[str] | None:
    """Return the packages in the wheelhouse, or None without a wheelhouse. Blocking."""
    if sources.wheelhouse is None:
        return None
    return frozenset(_package_of(path) for path in sources.wheelhouse.glob("*.whl"))


def choose(sources: Sources, offered: frozenset[str] | None, providers: Providers) -> Choice:
    """Choose among the providers of a module. `offered` is the result of `offered_by`.

    From an index, a package is never chosen by the name of the module alone. Otherwise any module that a skill forgot
    to include would be installed from the owner of that name on the index. A wheelhouse and `packages.allowed` are
    lists of the admin and vouch for a name.
    """
    if not sources.are_there:
        return Choice("", "this server offers no packages (the settings packages.index_urls and packages.wheelhouse)")
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


def _refusal(sources: Sources, package: str) -> str:
    return next((finding.message for finding in sources.refused([package])), "")


def _package_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])
