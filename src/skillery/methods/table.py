"""METHODS, the table of all methods. The annotations of a function are its params and its result: skillery.method."""

from __future__ import annotations

from typing import Any

from skillery.attestations import attestations, keys, seals
from skillery.contents import blobs
from skillery.environments import methods as environments
from skillery.identity import holds, offboarding, token_methods, usage
from skillery.labels import label_listings, labels, locks
from skillery.maintenance import garbage, purges
from skillery.method import rows
from skillery.publishing import evaluation_results, evaluations, own_statements, passing, reviews, tool_maker
from skillery.publishing import methods as publishing
from skillery.registry import audit_trail
from skillery.runs import comparison, failures, incidents, statements
from skillery.runs import methods as runs
from skillery.skills import descriptions, figures, files, insight, listings, namespaces, reach, search
from skillery.tools import tool_listings
from skillery.trust import rules
from skillery.versions import checks, dependents, lifecycle, revocations, versions, waivers
from skillery.webhooks import dead_letters, targets
from skillery.workspaces import methods as workspaces

TOOLS = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
)
"""The tools of the Skills Protocol, in its order."""
METHODS = rows(
    *listings.METHODS,
    *descriptions.METHODS,
    *files.METHODS,
    *runs.METHODS,
    *blobs.METHODS,
    *publishing.METHODS,
    *reviews.METHODS,
    *search.METHODS,
    *checks.METHODS,
    *lifecycle.METHODS,
    *revocations.METHODS,
    *versions.METHODS,
    *dependents.METHODS,
    *purges.METHODS,
    *publishing.RECHECKS,
    *waivers.METHODS,
    *labels.METHODS,
    *label_listings.METHODS,
    *locks.METHODS,
    *attestations.METHODS,
    *own_statements.METHODS,
    *passing.METHODS,
    *evaluations.METHODS,
    *evaluation_results.METHODS,
    *keys.METHODS,
    *seals.METHODS,
    *runs.READING,
    *comparison.METHODS,
    *statements.METHODS,
    *tool_listings.METHODS,
    *tool_maker.METHODS,
    *workspaces.METHODS,
    *environments.METHODS,
    *namespaces.METHODS,
    *figures.METHODS,
    *failures.METHODS,
    *incidents.METHODS,
    *insight.METHODS,
    *reach.METHODS,
    *usage.METHODS,
    *garbage.METHODS,
    *holds.METHODS,
    *token_methods.METHODS,
    *offboarding.METHODS,
    *targets.METHODS,
    *dead_letters.METHODS,
    *rules.METHODS,
    *audit_trail.METHODS,
    first=TOOLS,
)
FOR_MODELS: dict[str, dict[str, Any]] = {"search_skills": {"limit": 5, "detail": "brief"}}
"""The defaults of params in tool calls of models, if they differ from those of the method."""
