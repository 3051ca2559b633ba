"""Policies: what a version needs before the registry publishes it. The most specific policy of a skill counts alone."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
from packaging.licenses import canonicalize_license_expression

from skillery.attestations.evaluations import judge_evaluation, suite_problem
from skillery.attestations.evidence import Evidence, signer_of
from skillery.attestations.predicates import Predicate
from skillery.errors import SkilleryError, StartupError
from skillery.formats.names import parse_skill_name
from skillery.formats.tokens import CI_PREFIX
from skillery.formats.wording import did_you_mean, first_names
from skillery.identity.access import RESERVED, ApprovalRules, grant_covers
from skillery.proof.statements import now
from skillery.settings.versions import EvaluationRules, PolicyRules, Publishing

log = logging.getLogger(__name__)
NEEDS = ("publication", "author", "tests", "scan", "evaluation", "review")
_SEVERITIES = ("none", "info", "warning", "error")


class Policy:
    """A policy for the skills of a pattern, or the policy `default`, which follows the settings of `publishing`."""

    def __init__(self, name: str, rules: PolicyRules, approval: ApprovalRules, *, is_default: bool = False) -> None:
        self.name = name
        self.rules = rules
        self.approval = approval
        """The rules that decide who approves versions."""
        self.is_default = is_default

    @cached_property
    def digest(self) -> str:
        """`sha256:` and the SHA-256 of the policy's JSON with sorted keys."""
        rules = msgspec.to_builtins(self.rules)
        # Settings of later releases leave the digests of other policies as they were.
        added = ("evaluation", "requires", "licences")
        values = {key: value for key, value in rules.items() if key not in added or value not in (None, [], (), "own")}
        own = {"self_approval": self.approval.self_approval} if self.is_default else {}
        text = json.dumps({"policy": self.name, **values, **own}, sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def without_keys(self) -> Policy:
        """Return the policy without the need that reviewers sign with their own keys."""
        rules = msgspec.structs.replace(self.rules, signed_reviews=False)
        return Policy(self.name, rules, self.approval, is_default=self.is_default)


class Policies:
    """All policies of a registry."""

    def __init__(self, entries: Mapping[str, PolicyRules], approval: ApprovalRules) -> None:
        """`approval` are the rules of the policy `default`. Raise StartupError if an entry is not valid."""
        self._entries = {pattern: _policy(pattern, rules) for pattern, rules in entries.items()}
        rules = PolicyRules(needs=("publication",), reviewers=approval.reviewers)
        reviewed = msgspec.structs.replace(rules, needs=("publication", "review"))
        self._default = Policy("default", rules, approval, is_default=True)
        self._reviewed = Policy("default", reviewed, approval, is_default=True)

    @property
    def named(self) -> tuple[Policy, ...]:
        """The policies of the settings."""
        return tuple(self._entries.values())

    def of(self, name: str, *, asks_review: bool = False) -> Policy:
        """Return the policy for a skill. `asks_review` means that the settings of publishing ask for a review of the
        version. Only the policy `default` uses it.
        """
        # A longer pattern is more specific: all patterns that cover a name begin with the same text.
        patterns = [pattern for pattern in self._entries if grant_covers(pattern, name)]
        if patterns and not grant_covers(RESERVED, name):
            return self._entries[max(patterns, key=lambda pattern: (pattern == name, len(pattern)))]
        return self._reviewed if asks_review else self._default


def make_policies(
    entries: Mapping[str, PolicyRules], publishing: Publishing, signing_key: str, *, is_open: bool
) -> Policies:
    """Return the policies of the settings. `is_open` means `auth = "open"`, with which every version is published at
    once. Raise StartupError if a policy is not valid, or cannot be met. Log a warning for each setting of `publishing`
    that a policy replaces.
    """
    chosen = ApprovalRules(publishing.reviewers, publishing.self_approval)
    policies = Policies(entries, ApprovalRules("any", True) if is_open else chosen)
    if policies.named and signing_key == "off":
        raise StartupError('[policy] needs signed statements: remove signing.key = "off", or remove [policy]')
    for policy in policies.named:
        where = f'[policy."{policy.name}"]'
        if is_open and "review" in policy.rules.needs:
            raise StartupError(f'{where} needs reviews, and auth = "open" has only one identity: change auth')
        changed = [key for key, default in _REPLACED.items() if getattr(publishing, key) != default]
        for key in changed:
            log.warning("publishing.%s does not count for the skills of %s, which replaces it", key, where)
        if publishing.agents != "publish" and "review" not in policy.rules.needs and not is_open:
            log.warning("%s needs no review: versions of agents that meet it are published at once", where)
    return policies


_REPLACED = {"people": "publish", "reviewers": "people", "self_approval": False}
"""The settings of publishing that a policy replaces, with their defaults."""


def _policy(pattern: str, rules: PolicyRules) -> Policy:
    where = f'[policy."{pattern}"]'
    prefix = pattern.removesuffix(".*")
    try:
        if pattern != "*":
            parse_skill_name(prefix)
    except SkilleryError:
        raise StartupError(f"{where} is not a pattern: write a name, a namespace such as acme.*, or *") from None
    if rules.evaluation is not None and "evaluation" not in rules.needs:
        raise StartupError(f"{where} has 'evaluation' without the need: add \"evaluation\" to needs")
    evaluation = rules.evaluation or EvaluationRules()
    if not evaluation.outside and (problem := suite_problem(evaluation.suite)):
        raise StartupError(f"{where} has a suite that cannot be tried ({problem}): write NAME@RANGE or outside = true")
    if not rules.needs and not rules.licences:
        raise StartupError(f"{where} has no needs: write needs = [...] with some of {', '.join(NEEDS)}, or licences")
    for need in rules.needs:
        if need not in NEEDS:
            raise StartupError(f"{where} has the unknown need {need!r}{did_you_mean(need, NEEDS)}: write some of "
                               f"{', '.join(NEEDS)}")  # fmt: skip
    return Policy(pattern, rules, ApprovalRules(rules.reviewers, False, pattern))


# -- The judgement -----------------------------------------------------------------------------------------------------


class Need(NamedTuple):
    """A need of a policy, with the evidence for it. `missing` says what is missing, "" if the need is met."""

    need: str
    evidence: tuple[Evidence, ...] = ()
    missing: str = ""
    hint: str = ""


class Situation(NamedTuple):
    """The facts, apart from the evidence, on which a judgement depends."""

    publisher: str
    asks_review: bool = False
    """Whether the version waits for a review for another reason than its policy, such as more permissions."""
    former_signer: str = ""
    """The signer of the latest published version, or ""."""
    unmet: tuple[str, ...] = ()
    """With `requires = "same"`: the required versions that do not meet the policy, with their missing needs."""


class Verdict(NamedTuple):
    """The judgement of a version by its policy."""

    policy: Policy
    needs: tuple[Need, ...]
    signer: str
    is_signer_new: bool
    """Whether the version has another signer than the latest published version."""
    publisher: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The missing needs of the version, as short texts. () if the version meets its policy."""
        return tuple(need.missing for need in self.needs if need.missing)

    def summary(self, name: str, version: str, builder: str) -> Predicate:
        """Return the predicate of `passed`: a verification summary of SLSA."""
        inputs = dict.fromkeys(each.sha256 for need in self.needs for each in need.evidence)
        policy = self.policy
        return {
            "verifier": {"id": builder},
            "timeVerified": now(),
            "resourceUri": f"skillery:{name}@{version}",
            "policy": {"uri": f"skillery:policy:{policy.name}", "digest": {"sha256": policy.digest.partition(":")[2]}},
            "inputAttestations": [{"digest": {"sha256": sha256}} for sha256 in inputs],
            "verificationResult": "PASSED",
            "verifiedLevels": [f"SKILLERY_{need.need.upper()}" for need in self.needs],
            "signer": self.signer or self.publisher,
        }


def judge(policy: Policy, situation: Situation, evidence: Sequence[Evidence]) -> Verdict:
    """Return whether the evidence about a version meets its policy."""
    signer, former = signer_of(evidence), situation.former_signer
    is_new = bool(former) and signer != former and not policy.is_default
    needs = [_JUDGES[need](policy, evidence) for need in NEEDS[:-1] if need in policy.rules.needs]
    if policy.rules.licences:
        needs.append(_licences(policy, evidence))
    if policy.rules.requires == "same":
        hint = "Require other versions. If the required versions meet the policy later, approve this version again."
        missing = f"required versions that meet this policy, unlike {first_names(situation.unmet, 5)}"
        needs.append(Need("requires", (), missing, hint) if situation.unmet else Need("requires"))
    if "review" in policy.rules.needs:
        needs.append(_review(policy, situation, evidence, policy.rules.reviews))
    elif is_new or (situation.asks_review and not policy.is_default):
        needs.append(_review(policy, situation, evidence, 1))
    if is_new and needs[-1].missing:
        changed = f"{needs[-1].missing}: the signer has changed from {former} to {signer or 'no signer'}"
        needs[-1] = needs[-1]._replace(missing=changed)
    return Verdict(policy, tuple(needs), signer, is_new, situation.publisher)


def _last(evidence: Sequence[Evidence], word: str) -> Evidence | None:
    return next((each for each in reversed(evidence) if each.word == word and not each.is_personal), None)


def _publication(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    last = _last(evidence, "publication")
    if last is None and not policy.is_default:
        hint = "It was published before this registry signed statements: publish a new version."
        return Need("publication", missing="a signed statement about its publication", hint=hint)
    return Need("publication", (last,) if last else ())


def _author(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    signed = [
        each for each in evidence if each.is_author or (each.word == "provenance" and each.by.startswith(CI_PREFIX))
    ]
    authors = policy.rules.authors
    accepted = tuple(each for each in signed if not authors or any(map(each.is_by, authors)))
    if accepted:
        return Need("author", accepted[-1:])
    hint = "Publish it from a CI job, or run skillery publish --sign."
    if signed:
        return Need("author", missing=f"the signature of a permitted author ({signed[-1].by} is none)", hint=hint)
    return Need("author", missing="the signature of its author", hint=hint)


def _tests(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    last = _last(evidence, "tests")
    if last is None:
        hint = "Add [[examples]] to skill.toml, and publish a new version."
        return Need("tests", missing="examples that have passed", hint=hint)
    if last.predicate.get("result") != "PASSED":
        names = ", ".join(last.predicate.get("warnedTests", ())[:3])
        hint = "Examples that need permissions run when the last reviewer approves."
        return Need("tests", (last,), missing=f"results of the examples {names}", hint=hint)
    return Need("tests", (last,))


def _scan(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    last = _last(evidence, "scan")
    if last is None:
        return Need("scan", missing="a scan", hint="Publish a new version.")
    most = _SEVERITIES.index(policy.rules.scan)
    worse = [
        str(finding.get("rule"))
        for finding in last.predicate.get("findings", ())
        if not finding.get("waiver") and _SEVERITIES.index(str(finding.get("severity", "error"))) > most
    ]
    if not worse:
        return Need("scan", (last,))
    rules = ", ".join(dict.fromkeys(worse))
    missing = f"a version without findings above {policy.rules.scan!r}: {rules[:200]}"
    return Need("scan", (last,), missing=missing, hint="Fix the findings, and publish a new version.")


def _evaluation(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    return Need("evaluation", *judge_evaluation(policy.rules.evaluation or EvaluationRules(), evidence))


def _licences(policy: Policy, evidence: Sequence[Evidence]) -> Need:
    """A later scan does not read the licences again: files and packages of a version never change."""
    last = _last([each for each in evidence if "licences" in each.predicate], "scan")
    if last is None:
        return Need("licences", missing="the licences of the version", hint="Publish a new version.")
    allowed = frozenset(licence.casefold() for licence in policy.rules.licences)
    refused = [
        f"{subject} ({', '.join(texts) or 'unknown'})"
        for subject, texts in last.predicate["licences"].items()
        if not texts or not all(is_permitted(text, allowed) for text in texts)
    ]
    if not refused:
        return Need("licences", (last,))
    hint = f"The policy permits {', '.join(policy.rules.licences)}. Publish a new version."
    return Need("licences", (last,), f"other licences of {first_names(refused, 5)}", hint)


_WORD = re.compile(r"[()]|[^\s()]+(?: WITH [^\s()]+)?")


def is_permitted(text: str, allowed: frozenset[str]) -> bool:
    """Return whether a licence is allowed, or an SPDX expression permits a choice of allowed licences. `allowed` is in
    lower case.
    """
    if text.casefold() in allowed:
        return True
    try:
        return _permits(iter(_WORD.findall(canonicalize_license_expression(text))), allowed)
    except (ValueError, RecursionError):
        return False


def _permits(words: Iterator[str], allowed: frozenset[str]) -> bool:
    """Return whether an expression permits, up to its end or closing bracket. AND binds closer than OR."""
    is_any, is_all = False, True
    for word in words:
        if word == ")":
            break
        if word == "OR":
            is_any, is_all = is_any or is_all, True
        elif word != "AND":
            # The brackets are read to their end, whatever was before them.
            is_met = _permits(words, allowed) if word == "(" else word.casefold() in allowed
            is_all = is_all and is_met
    return is_any or is_all


def _review(policy: Policy, situation: Situation, evidence: Sequence[Evidence], number: int) -> Need:
    approvals = dict(_approvals(policy, situation, evidence, is_personal=False))
    counted = list(approvals.values())
    if policy.rules.signed_reviews:
        signed = dict(_approvals(policy, situation, evidence, is_personal=True))
        counted = [each for by in approvals if by in signed for each in (approvals[by], signed[by])]
        unsigned = [by for by in approvals if by not in signed]
        if unsigned and len(approvals) - len(unsigned) < number:
            hint = "Run skillery approve --sign."
            return Need("review", tuple(counted), f"the reviewers' own signatures: {', '.join(unsigned)}", hint)
        approvals = {by: approvals[by] for by in approvals if by in signed}
    if len(approvals) >= number:
        return Need("review", tuple(counted))
    texts = f"{len(approvals)} of {number} approval{'s' if number > 1 else ''}"
    reviewers = "reviewers" if policy.approval.reviewers == "any" else "people with the scope review"
    hint = f"Approvals are from different {reviewers}" + (
        "." if policy.approval.self_approval else f", and not from {situation.publisher}, who has published it."
    )
    return Need("review", tuple(counted), texts, hint)


def _approvals(
    policy: Policy, situation: Situation, evidence: Sequence[Evidence], *, is_personal: bool
) -> Iterator[tuple[str, Evidence]]:
    """Yield the reviewers whose last decision is an approval that counts, and the decision."""
    of_reviews = (each for each in evidence if each.word == "review" and each.is_personal == is_personal)
    for by, each in {each.by: each for each in of_reviews}.items():
        is_allowed = policy.approval.self_approval or by != situation.publisher
        is_allowed = is_allowed and (policy.approval.reviewers == "any" or each.kind == "person")
        if is_allowed and each.predicate.get("decision") == "approved":
            yield by, each


_JUDGES = {"publication": _publication, "author": _author, "tests": _tests, "scan": _scan, "evaluation": _evaluation}
