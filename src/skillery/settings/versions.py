"""Groups of settings about new versions: publishing, reviews, policies, evaluations, signatures and seals.

docs/reference/settings.md explains each setting.
"""

from __future__ import annotations

import typing
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Landing = typing.Literal["publish", "review", "draft"]


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules for new versions: a version is published at once, waits for a review, or becomes a draft.

    With `auth = "open"`, every version is published at once.
    """

    people: Landing = "publish"
    agents: Landing = "review"
    first_permissions: Landing = "publish"
    reviewers: typing.Literal["people", "any"] = "people"
    """Whether only people approve versions, or agents too."""
    self_approval: bool = False
    """Whether reviewers, admins included, approve versions that they have published."""
    examples_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    import_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 15.0


class Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version in use waits for a review again `recertify_days` after its last approval. 0: never."""

    recertify_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0


class EvaluationRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The evaluation that a policy needs: `evaluation = {…}` in `[policy."ns.*"]`."""

    suite: str = "own"
    """`own`: the cases of the version. `NAME@RANGE`: the tasks of another skill. Other names need `outside`."""
    verdict: typing.Literal["not_worse", "any"] = "not_worse"
    min_pass: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """The least share of trials with the version that pass, as the mean of its cases."""
    cases: Positive = 1
    """The least number of cases."""
    max_age_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 0
    """0: evaluations do not age."""
    outside: bool = False
    """Whether results of other tools count too."""


class PolicyRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a version needs before the registry publishes it: `[policy."ns.*"]`."""

    needs: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    """Identities that may sign or build versions. Empty: every publisher."""
    reviews: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    reviewers: typing.Literal["people", "any"] = "people"
    signed_reviews: bool = False
    """Whether reviewers sign their reviews with keys of their own."""
    scan: typing.Literal["none", "info", "warning"] = "warning"
    """The highest severity of findings without a waiver that passes."""
    licences: tuple[str, ...] = ()
    """The licences that a version and its packages may have, as SPDX or as their own words. Empty: any licence."""
    evaluation: EvaluationRules | None = None
    requires: typing.Literal["own", "same"] = "own"
    """The policy of required versions. `own`: that of their skill. `same`: this policy too."""


Price = Annotated[float, msgspec.Meta(ge=0)]


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model for tasks of evaluations: `[models.NAME]`. Prices are those of a million tokens. `secret` is the name of
    its key in the backend of secrets.
    """

    url: str
    model: str
    api: typing.Literal["openai", "anthropic"] = "openai"
    secret: str = ""
    input_price: Price = 0.0
    output_price: Price = 0.0
    concurrent: Positive = 4


class Evals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evaluations of versions. `runs` is the number of trials that a server process tries at the same time, while no
    caller waits. 0: none. `model` and `grader` name models of the settings; without `grader`, the model grades too.
    `budget` and `budget_tokens` are those of one evaluation, `daily_budget` and `daily_tokens` those of all evaluations
    of a day. The budgets of tokens also limit models without prices; 0: no limit. Transcripts of agents are kept for
    `keep_transcripts_days`; 0: none is stored.
    """

    runs: Natural = 2
    on_submit: typing.Literal["none", "run", "all"] = "run"
    """The kinds of cases that the server evaluates when a version waits for its policy."""
    model: str = ""
    grader: str = ""
    trials: Positive = 3
    budget: Price = 5.0
    daily_budget: Price = 50.0
    budget_tokens: Natural = 20_000_000
    daily_tokens: Natural = 200_000_000
    currency: str = "USD"
    keep_transcripts_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 30


class Signing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that signs the statements of this registry about versions."""

    key: Annotated[str, msgspec.Meta(pattern=r"^(secret:[A-Z][A-Z0-9_]*|[a-z0-9][a-z0-9-]*)$")] = "home"
    """`home`: a file in the home. `secret:NAME`: a secret. `off`: nothing is signed. Else the signer of a plugin."""


class Seals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seals of finished runs, attestations and the audit trail.

    With `public`, callers without credentials read them too, with the numbers of runs. The hashes of runs are kept for
    `keep_days`; 0 means forever. `seconds` is the time between two seals of a server. Each hour, the newest seal is
    written to `file`. "": to none.
    """

    public: bool = False
    keep_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 400
    seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 60.0
    file: str = ""
