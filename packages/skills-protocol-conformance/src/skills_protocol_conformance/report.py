"""The report of a run: on the terminal, as JSON, as JUnit XML, and as a badge."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from xml.etree import ElementTree

from skills_protocol_conformance import PROTOCOL_VERSION
from skills_protocol_conformance.judging import Outcome, Result
from skills_protocol_conformance.open_points import OpenPoint
from skills_protocol_conformance.statement import Level, Statement, shortened

SHOWN = (Result.PASSED, Result.FAILED, Result.SKIPPED)


@dataclass(frozen=True)
class Report:
    url: str
    profile: str
    seconds: float
    outcomes: Sequence[Outcome]
    open_points: Sequence[tuple[OpenPoint, str]]

    @property
    def conforms(self) -> bool:
        return not any(outcome.breaks for outcome in self.outcomes)

    def must(self) -> tuple[int, int]:
        """Return how many statements with the level MUST passed, and how many the profile has."""
        counts = Counter(outcome.result for outcome in self.outcomes if outcome.statement.level is Level.MUST)
        return counts[Result.PASSED], sum(counts[result] for result in SHOWN)


def listing(statements: Sequence[Statement]) -> Iterator[str]:
    """Yield one line for each statement."""
    for statement in statements:
        yield (
            f"{statement.id:<7} {statement.level:<8} {statement.document}, {statement.section}: "
            f"“{statement.quotation}” — {statement.title}"
        )


def terminal(report: Report) -> Iterator[str]:
    """Yield the lines of the terminal: failed statements, skipped ones, the summary, and the open points."""
    for outcome in report.outcomes:
        if outcome.result is Result.FAILED:
            statement = outcome.statement
            answer = f"; answer: {outcome.answer}" if outcome.answer else ""
            yield (
                f"{statement.id} {statement.level}: {statement.title} {_sentence(outcome.verdict)}{answer} "
                f"— “{statement.quotation}” ({statement.document}, {statement.section})"
            )
    reasons: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        if outcome.result is Result.SKIPPED:
            reasons.setdefault(outcome.verdict, []).append(outcome.statement.id)
    for reason, ids in reasons.items():
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        yield f"skipped: {', '.join(ids[:5])}{more}: {shortened(reason)}"
    yield ""
    yield from summary(report)
    yield ""
    if report.open_points:
        yield "What the protocol leaves open, and what this server does:"
        yield from (f"  {point.question}: {shortened(words)}" for point, words in report.open_points)
        yield ""
    passed, checked = report.must()
    skipped = sum(o.result is Result.SKIPPED and o.statement.level is Level.MUST for o in report.outcomes)
    verdict = "conforms" if report.conforms else "does not conform"
    note = f"; {skipped} were skipped" if skipped else ""
    yield (
        f"{report.url} {verdict} to the Skills Protocol {PROTOCOL_VERSION}, profile {report.profile}: "
        f"{passed} of {checked} MUST statements hold{note} ({report.seconds:.1f} s)"
    )


def _sentence(words: str) -> str:
    return f"But {words}" if words else ""


def summary(report: Report) -> Iterator[str]:
    """Yield a table: passed and checked statements of each document, by level."""
    documents = list(dict.fromkeys(outcome.statement.document for outcome in report.outcomes))
    yield f"{'':20}" + "".join(f"{level:>12}" for level in Level) + f"{'skipped':>12}{'not testable':>15}"
    for document in documents:
        own = [outcome for outcome in report.outcomes if outcome.statement.document == document]
        cells = []
        for level in Level:
            counts = Counter(outcome.result for outcome in own if outcome.statement.level is level)
            cells.append(f"{counts[Result.PASSED]}/{counts[Result.PASSED] + counts[Result.FAILED]}")
        results = Counter(outcome.result for outcome in own)
        yield (
            f"{document:20}"
            + "".join(f"{cell:>12}" for cell in cells)
            + f"{results[Result.SKIPPED]:>12}{results[Result.OUTSIDE]:>15}"
        )


def as_json(report: Report) -> str:
    passed, checked = report.must()
    statements: list[dict[str, Any]] = [
        {
            "id": outcome.statement.id,
            "level": outcome.statement.level,
            "document": outcome.statement.document,
            "section": outcome.statement.section,
            "quotation": outcome.statement.quotation,
            "check": outcome.statement.title,
            "result": outcome.result,
            "verdict": outcome.verdict,
            "answer": outcome.answer,
            "seconds": outcome.seconds,
        }
        for outcome in report.outcomes
    ]
    points = [{"id": point.id, "question": point.question, "server": words} for point, words in report.open_points]
    head = {
        "protocol": PROTOCOL_VERSION,
        "url": report.url,
        "profile": report.profile,
        "seconds": round(report.seconds, 1),
        "conforms": report.conforms,
        "must": {"passed": passed, "checked": checked},
    }
    return json.dumps({**head, "statements": statements, "open_points": points}, indent=1, ensure_ascii=False) + "\n"


def as_junit(report: Report) -> str:
    """Return JUnit XML. A MUST that fails is a failure. A weaker statement that fails is skipped, with the verdict."""
    root = ElementTree.Element("testsuites", name="skills-protocol-conformance")
    for document in dict.fromkeys(outcome.statement.document for outcome in report.outcomes):
        suite = ElementTree.SubElement(root, "testsuite", name=document)
        for outcome in report.outcomes:
            if outcome.statement.document == document:
                _case(suite, outcome)
        for name, tag in (("failures", "failure"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite)))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    statement = outcome.statement
    name = f"{statement.id} {statement.level} {statement.title}"
    place = f"{statement.document}.{statement.section.replace('.', ' ')}"
    case = ElementTree.SubElement(suite, "testcase", name=name, classname=place, time=str(outcome.seconds))
    words = shortened(outcome.verdict)
    if outcome.breaks:
        failure = ElementTree.SubElement(case, "failure", message=words)
        failure.text = f"“{statement.quotation}”\n{outcome.answer}"
    elif outcome.result is not Result.PASSED:
        message = f"{statement.level}, does not hold: {words}" if outcome.result is Result.FAILED else words
        ElementTree.SubElement(case, "skipped", message=message or outcome.result)


def badge(report: Report) -> str:
    """Return an SVG with two fields: the protocol, and the MUST statements that hold."""
    passed, checked = report.must()
    left, right = f"Skills Protocol {PROTOCOL_VERSION}", f"{passed}/{checked} MUST"
    widths = [7 * len(text) + 12 for text in (left, right)]
    color = "#2e7d32" if report.conforms and passed == checked else "#b26a00" if report.conforms else "#c62828"
    total = sum(widths)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" '
        f'aria-label="{escape(f"{left}: {right}")}">'
        f"<title>{escape(f'{left}: {right}')}</title>"
        f'<rect width="{widths[0]}" height="20" fill="#444"/>'
        f'<rect x="{widths[0]}" width="{widths[1]}" height="20" fill="{color}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{widths[0] / 2}" y="14">{escape(left)}</text>'
        f'<text x="{widths[0] + widths[1] / 2}" y="14">{escape(right)}</text></g></svg>\n'
    )
