"""`/s/{ref}`: whether to trust a skill, its purpose, its inputs, and its usage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from skillery.contents.blob_rows import BlobRow
from skillery.errors import BlobNotFound
from skillery.formats.semver import Version
from skillery.labels.label_listings import ListLabels, list_labels
from skillery.method import or_none
from skillery.publishing.evaluation_results import ListEvaluations, list_evaluations
from skillery.publishing.evaluation_rows import Evaluation
from skillery.registry.version_rows import Severity
from skillery.runs.failures import ListFailures, list_failures
from skillery.versions.dependents import read_around
from skillery.versions.example_results import ExampleResult, ResultFile, read_results
from skillery.web.frame import Direct, Page, PageRequest
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.run_fields import fields_of, inputs_of_schema
from skillery.web.run_parts import PREVIEW_ROWS, Result, read_result, sent_blob
from skillery.web.skill_agent import read_agent_card
from skillery.web.skill_opened import Opened, examples_of, life_of, number_of, open_version, page_of, shown_tools
from skillery.web.skill_trust import read_trust
from skillery.web.views.kinds import with_ending
from skillery.web.views.shown import View
from skillery.web.views.tables import Wanted

_MOST_SKILL_MD = 1024 * 1024
MOST_IN_LINE = 20
"""The number of versions whose evaluations a line shows."""
SEVERITIES: dict[Severity, str] = {
    "broken": "it does not work",
    "security": "only reviewers run it",
    "malicious": "only people who publish or review the skill see it",
}
VISIBILITIES = {
    "public": "all users of this server",
    "namespace": "users with a grant for its name",
    "private": "its publishers",
}


class EvaluationLine(NamedTuple):
    """The last evaluations of versions with equal cases and the same model, the highest version last."""

    last: Evaluation
    failed: list[int]
    """The share of failed trials of each version, in percent."""
    blank: list[int]
    """Zeros for the versions up to MOST_IN_LINE, so that columns of all lines are as wide."""
    words: str


async def show_about(request: PageRequest) -> Page:
    opened = await open_version(request, "full")
    skill = opened.skill
    skill_md = or_none(skill.skill_md) or ""
    frontmatter, body = split_frontmatter(skill_md)
    text = await request.site.texts.markdown(opened.digest, Place(opened.exact, "SKILL.md"), body[:_MOST_SKILL_MD])
    tools = await shown_tools(request, opened)
    agent = await read_agent_card(request, opened, tools)
    trust, policy = await read_trust(request, opened)
    results = await _results_of(request, opened)
    chosen = number_of(request.query.get("example", ""))
    chosen = chosen if chosen in results else min(results, default=0)
    can_change = request.publishes(opened.name)
    labels = (await request.do(list_labels, ListLabels(name=opened.name, limit=1))).labels if can_change else []
    page_of_failures = await request.do(list_failures, ListFailures(skill=opened.name, limit=3)) if can_change else None
    around = partial(read_around, identity=request.identity, skill_id=opened.facts.skill_id, name=opened.name)
    values: dict[str, Any] = {
        "around": await request.read_page(around),
        "failing_ways": page_of_failures.failures if page_of_failures else [],
        "inputs": fields_of(skill.manifest.get("inputs")),
        "tools": [(tool, fields_of(inputs_of_schema(tool.parameters))) for tool in tools],
        "examples": examples_of(request, opened),
        "results": results,
        "chosen": chosen,
        "example_parts": await _views_of(request, opened, chosen, results[chosen]) if chosen else [],
        "trust": trust,
        "evaluation_lines": await _evaluation_lines(request, opened),
        "policy": policy,
        "life": await life_of(request, opened),
        "findings": or_none(skill.findings) or [],
        "text": text,
        "skill_md_size": len(skill_md.encode()),
        "frontmatter": frontmatter,
        "agent": agent,
        "can_change": can_change,
        "all_labels": labels,
        "visibilities": VISIBILITIES,
        "severities": SEVERITIES,
    }
    page = page_of(request, opened, "about", "skill_about.html", **values)
    return page._replace(headers=agent.kept_choice(request))


async def _evaluation_lines(request: PageRequest, opened: Opened) -> list[EvaluationLine]:
    if opened.facts.created_at is None:
        return []
    newest = (await request.do(list_evaluations, ListEvaluations(name=opened.name, limit=100))).evaluations
    by_cases: dict[tuple[str, str | None], dict[str, Evaluation]] = {}
    for each in newest:
        if "with" in each.shares:
            by_cases.setdefault((each.suite_digest, each.model), {}).setdefault(each.version, each)
    return [_line_of(versions) for versions in by_cases.values()]


def _line_of(versions: Mapping[str, Evaluation]) -> EvaluationLine:
    """Return the line of evaluations, by version."""
    ordered = sorted(versions.values(), key=lambda each: Version.parse(each.version).precedence)[-MOST_IN_LINE:]
    passed = [round(100 * each.shares["with"]) for each in ordered]
    shares = ", ".join(f"{each.version} {percent} %" for each, percent in zip(ordered, passed, strict=True))
    failed, blank = [100 - percent for percent in passed], [0] * (MOST_IN_LINE - len(passed))
    return EvaluationLine(ordered[-1], failed, blank, f"Passed trials by version: {shares}")


# -- The results of examples -------------------------------------------------------------------------------------------


async def _results_of(request: PageRequest, opened: Opened) -> dict[int, ExampleResult]:
    """Return the results of the examples of a version by number. The caller may see the version."""
    if not opened.skill.examples:
        return {}
    return await request.read_page(partial(read_results, version_id=opened.facts.version_id))


async def _views_of(request: PageRequest, opened: Opened, number: int, result: ExampleResult) -> list[View]:
    """Return the views of the parts of a result, or of its whole output if it has no parts."""
    output = next((_row_of(file) for file in result.files if file.is_output), None)
    files = [_row_of(file) for file in result.files if not file.is_output]
    output_json = (result.output_json or "").encode()
    output_bytes = output.size_bytes if output else len(output_json)
    read = Result(f"{opened.exact}/examples/{number}", files, output, output_json, output_bytes)
    to_show = await read_result(request, read, {file.id for file in files})
    group, decimal = request.language
    wanted = Wanted(PREVIEW_ROWS, group=group, decimal=decimal)
    views = (await request.site.texts.parts(replace(to_show, wanted=wanted, folder="files"))).views
    return [view for view in views if view.role != "whole"] or views


async def send_example_file(request: PageRequest) -> Direct:
    """Send a file that an example wrote. Raise BlobNotFound if there is no such file."""
    opened, blob_id = await open_version(request), request.parameter("blob")
    result = (await _results_of(request, opened)).get(number_of(request.parameter("number")))
    file = next((file for file in result.files if file.blob_id == blob_id), None) if result else None
    if file is None:
        raise BlobNotFound(f"this example has no file '{blob_id[:80]}'", hint="Open the page of the skill.")
    return sent_blob(request, _row_of(file), file.path or with_ending("result", file.kind))


def _row_of(file: ResultFile) -> BlobRow:
    return BlobRow(file.blob_id, file.kind, file.size_bytes, file.sha256, is_text=False, owner="", path=file.path)
