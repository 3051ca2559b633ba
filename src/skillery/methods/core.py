"""The parts of the registry and the runtime that methods use. `skillery.app` builds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from skillery.audit.refusals import Refusals
from skillery.backends import Sandbox
from skillery.contents.blobs import Blobs
from skillery.contents.kept_contents import SignedDownloads
from skillery.context.disks import Disks
from skillery.database.registry import Registry
from skillery.environments.methods import EnvironmentParts
from skillery.exports import Exports
from skillery.exports.marketplaces import Marketplaces
from skillery.git_views import Repositories
from skillery.identity.idempotency import Once
from skillery.identity.offboarding import Identities
from skillery.identity.token_methods import TokenRules
from skillery.identity.usage import UsageParts
from skillery.identity.web_sessions import Signer
from skillery.importing import Importer
from skillery.maintenance.garbage import Collector
from skillery.maintenance.purges import Purger
from skillery.publishing.bundle_checks import Developer
from skillery.publishing.evaluations import Evaluations
from skillery.publishing.methods import Rechecks
from skillery.publishing.passing import Passing
from skillery.publishing.publisher import Publisher
from skillery.publishing.reviews import Reviews
from skillery.publishing.tool_maker import ToolMaker
from skillery.registry.uses import ContentParts
from skillery.runs.ended_runs import Cancellation
from skillery.runs.followed_runs import Following
from skillery.runs.runner import Runner
from skillery.runs.statements import RunStatements
from skillery.skills.figures import FirstSkills
from skillery.skills.files import Guide
from skillery.skills.listings import CatalogueParts
from skillery.skills.search import Search
from skillery.trust.matching import Exchange
from skillery.trust.rules import Trust
from skillery.versions.revocations import Revocations
from skillery.webhooks.deliveries import Deliveries
from skillery.webhooks.targets import Webhooks
from skillery.workspaces.methods import Workspaces


@dataclass(frozen=True)
class Core:
    """The parts of the server that methods use. A method and an endpoint get only the part that they need."""

    guide: Guide
    registry: Registry
    catalogue: CatalogueParts
    search: Search
    first_skills: FirstSkills
    contents: ContentParts
    blobs: Blobs
    signed: SignedDownloads
    runner: Runner
    following: Following
    run_statements: RunStatements
    cancellation: Cancellation
    workspaces: Workspaces
    publisher: Publisher
    rechecks: Rechecks
    passing: Passing
    reviews: Reviews
    evaluations: Evaluations
    revocations: Revocations
    developer: Developer
    importer: Importer
    tools: ToolMaker
    webhooks: Webhooks
    deliveries: Deliveries
    trust: Trust
    exchange: Exchange
    environments: EnvironmentParts
    exports: Exports
    repositories: Repositories
    marketplaces: Marketplaces
    usage: UsageParts
    token_rules: TokenRules
    once: Once
    refusals: Refusals
    collector: Collector
    purger: Purger
    identities: Identities
    signer: Signer
    sandbox: Sandbox
    disks: Disks

    @cached_property
    def parts(self) -> dict[type, Any]:
        """The parts by type. The first annotation of a method's function is the type of its part."""
        return {type(part): part for part in (self, *vars(self).values())}
