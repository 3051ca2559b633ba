"""The results of evaluations: get_evaluation, read_transcript and list_evaluations."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, select

from skillery.attestations.evaluations import case_results
from skillery.backends import Identity
from skillery.contents.kept_contents import is_transcript
from skillery.database.tables import blobs, evaluations, skill_versions
from skillery.errors import EvaluationNotFound
from skillery.evaluations.prompts import with_rival
from skillery.formats.texts import parse_id
from skillery.formats.version_spec import parse_named
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import Cursor, Method, PageLimit, Params, SkillName, about
from skillery.publishing.evaluation_cases import sees_suite
from skillery.publishing.evaluation_rows import (
    Evaluation,
    evaluation_fields,
    evaluation_of,
    find_seen,
    read_results,
    select_evaluations,
)
from skillery.publishing.evaluations import Evaluations
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.visibility import SEEN_BY_ALL, seen_names


class ArmCount(msgspec.Struct, frozen=True):
    """The trials of an arm that have passed, and all that have ended."""

    passed: int
    trials: int


class KeptTranscript(msgspec.Struct, frozen=True):
    """A stored transcript of an agent: `read_transcript` returns its text."""

    id: str
    arm: str
    passed: bool


class EvaluatedCase(msgspec.Struct, frozen=True):
    """A case of an evaluation, with its results by arm: `with` the version, `without` it, or `before` it."""

    id: str
    kind: str
    arms: dict[str, ArmCount]
    problems: Annotated[list[str], Meta(description="Why trials with the version have not passed")]
    transcripts: Annotated[list[KeptTranscript], Meta(description="Transcripts that are kept")]


class EvaluationCases(Evaluation, frozen=True, kw_only=True):
    """An evaluation with its cases."""

    cases: list[EvaluatedCase]


class EvaluationPage(msgspec.Struct, frozen=True):
    """A page of evaluations, newest first."""

    evaluations: Sequence[Evaluation]
    next_cursor: NextCursor


class GetEvaluation(Params, frozen=True, kw_only=True):
    """Return an evaluation with the results of its cases."""

    id: Annotated[str, about("Id of the evaluation")]


async def get_evaluation(parts: Evaluations, identity: Identity, params: GetEvaluation) -> EvaluationCases:
    work = partial(_read_cases, identity=identity, evaluation=parse_id(params.id))
    return await parts.registry.read_page(work)


def _read_cases(connection: Connection, identity: Identity, evaluation: str) -> EvaluationCases:
    """Return an evaluation with its cases. Only publishers and reviewers see why trials have not passed, and the
    transcripts: these texts quote results of runs. Callers who do not see the suite see no cases, and only callers who
    see another skill read its name.
    """
    row = find_seen(connection, identity, evaluation)
    is_seen = sees_suite(connection, identity, row.suite)
    tried = read_results(connection, row.id) if is_seen else []
    problems = defaultdict[tuple[str, str], list[str]](list)
    transcripts = defaultdict[str, list[KeptTranscript]](list)
    if _sees_texts(connection, identity, row):
        kept = set(connection.scalars(select(blobs.c.id).where(blobs.c.path == evaluation, *is_transcript())))
        seen = seen_names(connection, identity, {result.rival for *_, result in tried})
        for kind, case_id, arm, result in tried:
            if arm == "with" and result.problem:
                rival = result.rival if result.rival in seen else ""
                problems[kind, case_id].append(with_rival(kind, result.problem, rival))
            if result.transcript in kept:
                transcripts[case_id].append(KeptTranscript(result.transcript, arm, result.passed))
    cases = case_results((kind, case_id, arm, result.passed) for kind, case_id, arm, result in tried)
    return EvaluationCases(
        **evaluation_fields(row, is_seen=is_seen),
        cases=[
            EvaluatedCase(
                each.id,
                each.kind,
                {arm: ArmCount(*counts) for arm, counts in each.arms.items()},
                problems[each.kind, each.id],
                transcripts[each.id] if each.kind == "task" else [],
            )
            for each in cases
        ],
    )


def _sees_texts(connection: Connection, identity: Identity, row: Row[Any]) -> bool:
    """Return whether an identity publishes or reviews the skill of an evaluation, and sees its suite."""
    is_responsible = access.reviews(identity, row.name) or access.publishes(identity, row.name)
    return is_responsible and sees_suite(connection, identity, row.suite)


def _has_transcripts(connection: Connection, identity: Identity, evaluation: str) -> bool:
    return _sees_texts(connection, identity, find_seen(connection, identity, evaluation))


class ReadTranscript(Params, frozen=True, kw_only=True):
    """Return what an agent of an evaluation said and did."""

    id: Annotated[str, about("Id of the evaluation")]
    transcript: Annotated[str, about("Id of the transcript")]


class Transcript(msgspec.Struct, frozen=True):
    """A transcript: lines of JSON, each with `role` and `text`."""

    text: str


async def read_transcript(parts: Evaluations, identity: Identity, params: ReadTranscript) -> Transcript:
    evaluation, transcript = parse_id(params.id), parse_id(params.transcript)
    is_seen = await parts.registry.read(partial(_has_transcripts, identity=identity, evaluation=evaluation))
    text = await asyncio.to_thread(parts.transcripts.read, evaluation, transcript) if is_seen else None
    if text is None:
        hint = "Publishers and reviewers who see the suite read transcripts, for evals.keep_transcripts_days."
        raise EvaluationNotFound(f"{evaluation} has no transcript {quoted(transcript)}", hint=hint)
    return Transcript(text)


class ListEvaluations(Params, frozen=True, kw_only=True):
    """List the evaluations of a skill, newest first."""

    name: SkillName
    version: Annotated[str, about("Version spec (omit for all versions)")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_evaluations(parts: Evaluations, identity: Identity, params: ListEvaluations) -> EvaluationPage:
    work = partial(_read_page, identity=identity, key=parts.registry.cursor_key, params=params)
    return await parts.registry.read_page(work)


def _read_page(connection: Connection, identity: Identity, key: bytes, params: ListEvaluations) -> EvaluationPage:
    """Return a page of evaluations of the versions that the identity sees. Raise the errors of `resolve`."""
    name, spec = parse_named(params.name, params.version)
    if params.version:
        row = resolve(connection, identity, name, spec, manages=True)
        where = [evaluations.c.version_id == row.version_id]
    else:
        skill_id = find_skill(connection, identity, name)
        if skill_id is None:
            raise skill_not_found(connection, identity, name)
        where = [skill_versions.c.skill_id == skill_id]
        if not access.reviews(identity, name):
            is_own = skill_versions.c.publisher == identity.name
            where.append(skill_versions.c.status.in_(SEEN_BY_ALL) | is_own)
    bound_to = ("list_evaluations", name, params.version)
    if params.cursor:
        where.append(evaluations.c.id < int(read_cursor(key, bound_to, params.cursor, 1)[0]))
    newest = select_evaluations().where(*where).order_by(evaluations.c.id.desc()).limit(params.limit + 1)
    rows = connection.execute(newest).all()
    page = fitting_items([evaluation_of(connection, identity, row) for row in rows[: params.limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return EvaluationPage(page, next_cursor)


METHODS = (
    Method(get_evaluation, "read", audits=""),
    Method(read_transcript, "read", audits=""),
    Method(list_evaluations, "read", audits=""),
)
