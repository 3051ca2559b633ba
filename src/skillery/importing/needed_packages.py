"""The packages of an imported skill: those that its files declare, and those that they only import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from skillery.backends import Identity
from skillery.environments.definitions import fits_this_python, fitting_python, missing_python
from skillery.errors import InvalidParams, Refused, UnresolvableDependencies
from skillery.formats.bundle import BundleFile
from skillery.formats.foreign_requirements import NO_PACKAGES, Needs, read_needs
from skillery.formats.repairs import Repair, Repairs
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import lock_path, python_of
from skillery.importing.preparation import PreparedSkill, with_packages, with_warnings
from skillery.publishing.bundle_checks import BundleChecks
from skillery.publishing.package_locks import ImportScan, Mode

MOST_NAMED = 10
"""The maximum number of packages that a warning names."""


class NeededPackages(NamedTuple):
    """Finds and locks the packages of the skills of one import."""

    checks: BundleChecks
    identity: Identity
    mode: Mode | None
    """The handling of undeclared packages. None means the setting of the server."""
    newest: bool
    """True if packages are locked in their newest versions, also for old commits."""

    async def scan_imports(
        self, prepared: PreparedSkill, runtime: Mapping[str, object]
    ) -> tuple[ImportScan, PreparedSkill]:
        """Return the undeclared packages, and the skill with a source digest that includes the inferred packages."""
        table = (prepared.manifest or {}).get("runtime", runtime)
        declared = cast(Sequence[str], table.get("dependencies", ()))
        cut_off = self._cut_off(prepared)
        scan = await self.checks.undeclared.infer(self.identity.name, prepared.files, declared, self.mode, cut_off)
        packages = scan.packages if cut_off == prepared.cut_off else (*scan.packages, "newest")
        if scan.mode == "lock":
            npm = cast(Sequence[str], table.get("npm", ()))
            packages += await self.checks.inferred_npm(prepared.files, npm)
        return scan, prepared._replace(source_digest=with_packages(prepared.source_digest, packages))

    def _cut_off(self, prepared: PreparedSkill) -> str:
        return "" if self.newest else prepared.cut_off

    async def runtime(self, prepared: PreparedSkill) -> tuple[dict[str, object], PreparedSkill]:
        """Return `[runtime]` for the packages of the skill's scripts, and the skill with the locks of scripts that
        cannot have them. Raise PackageIndexUnavailable if the index is unreachable.

        If this server cannot install packages, the skill or the script is imported without them, with a repair.
        """
        needs = prepared.needs
        separate = [path for path, own in needs.scripts if not fits_this_python(own.requires_python)]
        if separate:
            needs = _without(prepared, separate)
        problem = await self._problem(prepared, needs)
        if isinstance(problem, UnresolvableDependencies) and any(own.dependencies for _, own in needs.scripts):
            separate = [path for path, own in needs.scripts if path in separate or own.dependencies]
            needs = _without(prepared, separate)
            problem = await self._problem(prepared, needs)
        for path, own in needs.scripts:
            if path in separate:
                prepared = await self._with_script_lock(prepared, path, own)
        if problem is not None:
            more = ["…"] if len(needs.dependencies) > MOST_NAMED else []
            packages = ", ".join([*needs.dependencies[:MOST_NAMED], *more])
            prepared = _noted(prepared, packages or f"Python {needs.requires_python}", problem.message, "")
        return {} if problem is not None else needs.runtime(), with_warnings(prepared)

    async def _problem(self, prepared: PreparedSkill, needs: Needs) -> InvalidParams | Refused | None:
        """Return the error if this server cannot install the packages, else None."""
        if not needs.runtime():
            return None
        content = next((file.content for file in prepared.files if file.path == LOCK), None)
        try:
            await self.checks.check_needs(self.identity, needs, content, self._cut_off(prepared))
        except (InvalidParams, Refused) as error:
            return error
        return None

    async def _with_script_lock(self, prepared: PreparedSkill, path: str, needs: Needs) -> PreparedSkill:
        """Return the skill with a lock for one script, or with a repair if the server has no Python or package for
        it.
        """
        python = fitting_python(needs.requires_python, self.checks.pythons())
        if python is None:
            return _noted(prepared, "", missing_python(needs.requires_python), path)
        locked = lock_path(path)
        stored = next((file.content for file in prepared.files if file.path == locked), None)
        if not needs.dependencies or (stored is not None and python_of(stored) == python):
            return prepared
        try:
            lock = await self.checks.script_lock(self.identity, needs, python, self._cut_off(prepared))
        except (InvalidParams, Refused) as error:
            return _noted(prepared, ", ".join(needs.dependencies[:MOST_NAMED]), error.message, path)
        others = tuple(file for file in prepared.files if file.path != locked)
        return prepared._replace(files=(*others, BundleFile(locked, lock)))


def _without(prepared: PreparedSkill, separate: Sequence[str]) -> Needs:
    """Return the needs of a skill without those of the scripts `separate`. Repairs are noted already."""
    return read_needs({file.path: file.content for file in prepared.files}, Repairs(), separate)


def _noted(prepared: PreparedSkill, packages: str, reason: str, script: str) -> PreparedSkill:
    """Return the skill with a repair: the files cannot have their packages. `script` is one script, or "" for all."""
    owner = "it needs" if packages else "it"
    runs = "it runs" if script else "its scripts run"
    message = f"{owner} {packages}, and {runs} without: {reason.rstrip('.')}" if packages else reason
    note = Repair(NO_PACKAGES, message, file=script or None)
    return prepared._replace(repairs=(*prepared.repairs, note))
