"""The statement of an evaluation about a version, its text for people, and whether a policy accepts it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from skillery.audit import Actor
from skillery.errors import SkilleryError
from skillery.formats.version_spec import Exact, Latest, Range, parse_reference, selects
from skillery.formats.wording import first_names
from skillery.proof.statements import now
from skillery.settings.versions import EvaluationRules

if TYPE_CHECKING:
    from skillery.attestations.evidence import Evidence

OWN = "own"
"""The suite of the version itself. The other suites of a server are versions of other skills."""
MOST_STATED = 200
"""The maximum number of cases that a statement names."""


class CaseResult(msgspec.Struct, frozen=True):
    """The results of one case: for each arm, the number of trials that passed, and the number of all trials."""

    id: str
    kind: str
    arms: dict[str, tuple[int, int]]

    def share(self, arm: str) -> float | None:
        """Return the share of the trials of an arm that passed, or None without trials."""
        passed, trials = self.arms.get(arm, (0, 0))
        return passed / trials if trials else None

    @property
    def is_worse(self) -> bool:
        """Whether a run has passed with the version before, and fails now."""
        return self.kind == "run" and self.share("before") == 1 and self.share("with") == 0


def suite_fits(suite: str, wanted: str) -> bool:
    """Return whether the suite of an evaluation is the one that a policy names: `own`, or a version of another skill
    in a range.
    """
    if suite == wanted or OWN in (suite, wanted):
        return suite == wanted
    try:
        (name, spec), (other, tried) = parse_reference(wanted), parse_reference(suite)
    except SkilleryError:
        return False
    if name != other or not isinstance(tried, Exact):
        return False
    version = tried.version
    return isinstance(spec, Latest) or selects(spec, version.precedence, is_release=version.is_release)


def suite_problem(wanted: str) -> str:
    """Return why a server cannot try the suite that a policy names, or ""."""
    try:
        spec = Latest() if wanted == OWN else parse_reference(wanted)[1]
    except SkilleryError as error:
        return error.message
    return "" if isinstance(spec, Exact | Range | Latest) else f"{wanted} names no range of versions"


def suite_digest(cases: object) -> str:
    """Return the SHA-256 of the cases of a suite."""
    return f"sha256:{hashlib.sha256(msgspec.json.encode(cases, order='sorted')).hexdigest()}"


def case_results(trials: Iterable[tuple[str, str, str, bool]]) -> list[CaseResult]:
    """Return the results by case. A trial is its kind, case, arm, and whether it passed."""
    cases: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for kind, case_id, arm, is_passed in trials:
        arms = cases.setdefault((kind, case_id), {})
        passed, number = arms.get(arm, (0, 0))
        arms[arm] = passed + is_passed, number + 1
    return [CaseResult(case_id, kind, arms) for (kind, case_id), arms in cases.items()]


def evaluation_predicate(
    by: Actor,
    evaluation: str,
    suite: Mapping[str, str],
    before: str | None,
    cases: Sequence[CaseResult],
    tasks: Mapping[str, Any] | None = None,
    prompts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Say how well a version has done the cases of a suite, and whether it does them worse than the version `before`.
    `tasks` are the model, the costs, and the statistics of tasks, with `change` since the version before. `prompts` are
    the figures of prompts that should lead to the skill, or should not: `findability` and `choice`. `count` and the
    verdict leave them out, so no policy judges them.

    Cases are named, and their results are counts: no text of a run is part of the statement. Cases of another skill
    are not named: readers of the version may not see this skill.
    """
    worse = [case.id for case in cases if case.is_worse]
    change = (tasks or {}).get("change") or {}
    verdict = "worse" if worse else change.get("verdict", "same") if before and cases else None
    shares = {arm: _mean(case.share(arm) for case in cases) for arm in ("with", "without", "before")}
    return {
        "evaluation": evaluation,
        "executed": "server",
        "kinds": sorted({case.kind for case in cases}),
        "suite": dict(suite),
        "before": before,
        "count": len(cases),
        "trials": max((trials for case in cases for _, trials in case.arms.values()), default=0),
        "shares": {arm: share for arm, share in shares.items() if share is not None},
        "verdict": verdict,
        "worse": worse[:MOST_STATED],
        **({"tasks": dict(tasks)} if tasks else {}),
        **(prompts or {}),
        "cases": msgspec.to_builtins(cases[:MOST_STATED]) if suite["name"] == OWN else [],
        "by": by.name,
        "kind": by.kind,
        "at": now(),
    }


def _mean(shares: Iterable[float | None]) -> float | None:
    """Return the mean over cases, so that each case counts the same, or None without trials."""
    known = [share for share in shares if share is not None]
    return round(sum(known) / len(known), 4) if known else None


def evaluation_text(predicate: Mapping[str, Any]) -> str:
    """Return the statement of an evaluation in a few words."""
    shares = ", ".join(f"{share:.0%} {arm}" for arm, share in predicate.get("shares", {}).items())
    verdict = predicate.get("verdict") or "nothing to compare"
    worse = f": {first_names(predicate['worse'], 3)}" if predicate.get("worse") else ""
    count, trials = predicate.get("count", 0), predicate.get("trials", 1)
    number = f"{count} case{'s' * (count != 1)}{f' × {trials}' if trials > 1 else ''}"
    tasks = predicate.get("tasks") or {}
    costs = [f"{tasks['cost']:.2f} {tasks['currency']}", f"model {tasks['model']}"] if tasks else []
    outside = ["measured outside"] if predicate.get("executed") == "outside" else []
    judged = [shares, f"{verdict}{worse}", number] if count else []
    return " · ".join([*judged, *_prompts_text(predicate), *costs, *outside])


def _prompts_text(predicate: Mapping[str, Any]) -> Iterator[str]:
    """Yield how well prompts lead to the skill."""
    if search := predicate.get("findability"):
        shares = f"first for {search['at_1']:.0%} of {_prompts(search)}" if search["expected"] else ""
        others = search["prompts"] - search["expected"]
        wrong = f"wrongly first for {search['wrong']} of {others}" if others else ""
        yield f"search: {', '.join(filter(None, [shares, wrong]))}"
    if choice := predicate.get("choice"):
        others = choice["prompts"] - choice["expected"]
        chosen = f"chosen for {choice['chosen']} of {_prompts(choice)}" if choice["expected"] else ""
        wrong = f"wrongly chosen for {choice['wrong']} of {others}" if others else ""
        yield ", ".join(filter(None, [chosen, wrong]))


def _prompts(figures: Mapping[str, Any]) -> str:
    return f"{figures['expected']} prompt{'s' * (figures['expected'] != 1)}"


def judge_evaluation(rules: EvaluationRules, evidence: Sequence[Evidence]) -> tuple[tuple[Evidence, ...], str, str]:
    """Return the evaluations that count for a policy, what is missing, and how to get it. "": they are accepted."""
    counted = _last_of_kinds([each for each in evidence if each.word == "evaluation" and _counts(rules, each)])
    if not counted:
        missing = "an evaluation" if rules.suite == OWN else f"an evaluation with the suite {rules.suite}"
        option = "" if rules.suite == OWN else f" --suite '{rules.suite}'"
        return (), missing, f"Run skillery eval NAME@VERSION{option}."
    last = counted[-1]
    reasons = [*(_refused(rules, each.predicate) for each in counted), _too_few(rules, last.predicate, last.at)]
    missing = next(filter(None, reasons), "")
    approvals = [each.predicate for each in evidence if each.word == "review" and not each.is_personal]
    accepted = {each.get("accepts") for each in approvals if each.get("decision") == "approved"}
    unclear = {each.predicate["evaluation"] for each in counted if each.predicate["verdict"] == "unclear"}
    if rules.verdict == "not_worse" and not missing and unclear - accepted:
        return counted, "a reviewer who accepts its unclear evaluation", "Approve it with the id of the evaluation."
    return counted, missing, "Fix the version, or evaluate it again." if missing else ""


def _last_of_kinds(evaluations: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the last evaluation, and earlier ones with kinds of cases that no later one has: an author must not hide
    tasks that fail behind an evaluation without tasks.
    """
    kept = list(evaluations[-1:])
    for each in reversed(evaluations[:-1]):
        if not {*each.predicate.get("kinds", ())} <= {
            kind for later in kept for kind in later.predicate.get("kinds", ())
        }:
            kept.insert(0, each)
    return tuple(kept)


def _counts(rules: EvaluationRules, evaluation: Evidence) -> bool:
    """Return whether an evaluation has cases of the suite of a policy, and was executed where the policy permits."""
    predicate = evaluation.predicate
    is_permitted = predicate.get("executed") == "server" and not evaluation.is_personal
    fits = suite_fits(predicate.get("suite", {}).get("name", ""), rules.suite)
    return (is_permitted or rules.outside) and fits and predicate.get("count") != 0


def _refused(rules: EvaluationRules, predicate: Mapping[str, Any]) -> str:
    """Return why a policy does not accept the results of an evaluation, or ""."""
    if rules.verdict == "not_worse" and predicate["verdict"] == "worse":
        names = f": {first_names(predicate['worse'], 3)}" if predicate["worse"] else ""
        return f"an evaluation that is not worse than that of {predicate['before']}{names}"
    share = predicate["shares"].get("with", 0.0)
    if share < rules.min_pass:
        return f"an evaluation with {rules.min_pass:.0%} of its cases passed ({share:.0%} are)"
    return ""


def _too_few(rules: EvaluationRules, predicate: Mapping[str, Any], at: datetime | None) -> str:
    """Return why the last evaluation is too small or too old for a policy, or "". `at` is the time of its statement."""
    if predicate["count"] < rules.cases:
        return f"an evaluation with {rules.cases} cases (it has {predicate['count']})"
    return f"an evaluation of the last {rules.max_age_days} days" if is_old(rules, at) else ""


def is_old(rules: EvaluationRules, at: datetime | None) -> bool:
    """Return whether an evaluation with a statement of this time is older than a policy permits."""
    return bool(rules.max_age_days) and at is not None and at < datetime.now(UTC) - timedelta(days=rules.max_age_days)
