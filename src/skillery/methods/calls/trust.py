"""Methods for trust rules."""

from __future__ import annotations

import msgspec

from skillery.backends import Identity
from skillery.methods import trust_params as params
from skillery.methods.core import Core
from skillery.trust import RuleRequest
from skillery.trust.results import RemovedTrustRule, TrustRule, TrustRules


async def add_trust_rule(core: Core, identity: Identity, asked: params.AddTrustRule) -> TrustRule:
    return await core.trust.add_rule(identity, RuleRequest(**msgspec.structs.asdict(asked)))


async def list_trust_rules(core: Core, identity: Identity, _: params.ListTrustRules) -> TrustRules:
    return await core.trust.list_rules(identity)


async def remove_trust_rule(core: Core, identity: Identity, asked: params.RemoveTrustRule) -> RemovedTrustRule:
    return await core.trust.remove_rule(identity, asked.id)
