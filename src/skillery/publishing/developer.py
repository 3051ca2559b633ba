"""Development versions: checked like published versions, but without examples, and served to their author from
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from skillery.backends import Identity
from skillery.environments.store import Environments
from skillery.errors import InvalidVersion
from skillery.formats.bundle import BundleFile
from skillery.formats.check_results import CheckFinding
from skillery.formats.semver import Version
from skillery.publishing.bundle_checks import MOST_FINDINGS, BundleChecks
from skillery.publishing.gate import publication_of
from skillery.publishing.package_locks import lock_of
from skillery.registry.development import KEPT_SECONDS, Overlays, is_development


class DevelopedSkill(msgspec.Struct, frozen=True):
    """A development version, which only its caller sees."""

    name: str
    version: str
    digest: str
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...]
    kept_ms: Annotated[int, msgspec.Meta(description="Time until the version ends, unless it is kept")]


class KeptSkills(msgspec.Struct, frozen=True):
    """Skills whose development versions the call kept or ended."""

    names: Annotated[tuple[str, ...], msgspec.Meta(description="Without the skills that have no development version")]
    kept_ms: Annotated[int, msgspec.Meta(description="Time until the versions end, unless they are kept; 0 if ended")]


class Developer:
    """Checks bundles and serves them to their authors."""

    def __init__(self, checks: BundleChecks, overlays: Overlays, environments: Environments) -> None:
        self.overlays = overlays
        self._checks = checks
        self._environments = environments

    async def develop_skill(
        self, identity: Identity, manifest: Mapping[str, Any], skill_md: str, files: Sequence[BundleFile]
    ) -> DevelopedSkill:
        """Serve a bundle to the identity as a development version, in place of the skill's earlier one.

        Raise the errors of `Publisher.create_skill` for a bundle that is not valid. Findings do not prevent that the
        version is served. Raise InvalidVersion if the version is not a development version, for example `1.2.0-dev.3`.
        """
        _check_version(str(manifest.get("version", "")))
        bundle, state = await self._checks.check(identity, manifest, skill_md, files, None)
        row = self.overlays.put(identity, bundle, bundle.warnings)
        if (lock := lock_of(bundle)) is not None:
            self._environments.begin(lock)  # install the packages early, so that the first run waits less
        publication = publication_of(bundle, identity)
        findings = await self._checks.findings(publication, bundle, state.scan, identity, trials=True)
        return DevelopedSkill(
            name=row.name,
            version=row.version,
            digest=row.digest,
            warnings=bundle.warnings,
            findings=findings[:MOST_FINDINGS],
            kept_ms=int(KEPT_SECONDS * 1000),
        )

    def keep(self, identity: Identity, names: Sequence[str]) -> KeptSkills:
        return KeptSkills(tuple(self.overlays.renew(identity, names)), int(KEPT_SECONDS * 1000))

    def end(self, identity: Identity, names: Sequence[str]) -> KeptSkills:
        return KeptSkills(tuple(self.overlays.remove(identity, names)), 0)


def _check_version(text: str) -> None:
    try:
        version = Version.parse(text)
    except InvalidVersion:
        return  # the check of the bundle reports it with all other problems
    if not is_development(version.prerelease):
        raise InvalidVersion(
            f"'{text}' is not a development version",
            hint=f"Write {version.major}.{version.minor}.{version.patch}-dev.1, or publish it with create_skill.",
        )
