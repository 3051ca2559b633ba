"""The forms of the suite: which subjects run for a change, and what the budgets and lists say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.durations import CASE_SECONDS, over_budget, slow
from tests.support.forms import ALSO, form_of_changes, subjects, subjects_of
from tests.support.postgres_statements import covered, statements_of, uncovered

ROOT = Path(__file__).parents[2]


def test_each_source_file_has_a_subject() -> None:
    sources = [
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "plugins", "migrations", "packages", "bench")
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts
    ]

    assert len(sources) > 500
    assert [path for path in sources if not subjects_of(path)] == []


def test_the_table_names_known_subjects() -> None:
    assert {name for names in ALSO.values() for name in names.split()} <= subjects()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/skillery/web/frame.py", {"web"}),
        ("plugins/skillery-s3/src/skillery_s3/storage.py", {"s3"}),
        ("tests/webhooks/test_delivery.py", {"webhooks"}),
        ("packages/skills-protocol-conformance/tests/stand_in.py", {"conformance", "api"}),
        ("src/skillery/identity/quotas.py", {"identity", "oidc", "openbao"}),
        ("src/skillery/builtin/linux_sandbox/sandbox.py", {"sandbox", "bubblewrap", "ray"}),
        ("packages/cellblock/src/cellblock/host/groups.py", {"sandbox", "bubblewrap", "ray"}),
        ("migrations/versions/0001_first.py", {"database", "postgres", "maintenance"}),
        ("docs/guide/skills.md", {"docs"}),
        ("tests/support/prefork.py", set()),
    ],
)
def test_a_changed_file_adds_the_subjects_that_use_it(path: str, expected: set[str]) -> None:
    assert subjects_of(path) == expected


def test_the_first_line_names_the_changed_file() -> None:
    assert str(form_of_changes(["src/skillery/web/frame.py"])) == (
        "core; full: web, because src/skillery/web/frame.py changed"
    )
    assert str(form_of_changes([])) == "core"
    assert "make test-all" in str(form_of_changes(["tests/support/prefork.py"]))
    assert str(form_of_changes(None)) == "core; no git history here, so changes are unknown"


def used(seconds: float, *, core: bool = True, smoke: bool = False) -> dict[str, float | bool]:
    return {"processor": seconds, "core": core, "smoke": smoke}


def test_cases_and_files_over_their_budget_are_named() -> None:
    tests = {
        "tests/a/test_a.py::test_slow": used(1.0),
        "tests/a/test_a.py::test_smoke": used(9.0, smoke=True),
        "tests/a/test_a.py::test_full": used(9.0, core=False),
        **{f"tests/b/test_b.py::test_{number}": used(0.7) for number in range(10)},
    }

    lines = over_budget(tests, tolerance=1)

    assert [line.split()[0] for line in lines] == ["tests/a/test_a.py::test_slow", "tests/b/test_b.py"]
    assert f"1.0 s ({CASE_SECONDS})" in lines[0]
    assert over_budget(tests, tolerance=2) == []


def test_slow_cases_leave_the_core_form_and_return_when_they_are_fast() -> None:
    seconds = {"fast": 0.1, "slow": 0.4, "faster": 0.25, "fixed": 0.1}
    tests = {test: {"processor": taken, "timed": True} for test, taken in seconds.items()}
    tests["smoke"] = {"processor": 9.0, "timed": False}

    assert slow(tests, known={"faster", "fixed"}) == ["slow", "faster"]


NARROW = "a::narrow[it's /*]"
LOG = """\
postgres|LOG:  statement: SELECT 'test 7 other a::one'
test_7_1|LOG:  statement: DELETE FROM expired
postgres|LOG:  statement: SELECT 'test 7 chosen a::wide'
test_7_1|LOG:  execute <unnamed>: SELECT a FROM skills WHERE name IN ($1, $2)
\tAND b = 'x''y'
test_7_1|LOG:  statement: DELETE FROM expired
test_7_1|LOG:  statement: SELECT 2
postgres|LOG:  statement: SELECT 'test 7 chosen a::narrow[it''s /*]'
test_7_1|LOG:  execute _pg3_0: SELECT a FROM skills WHERE name IN ($1, $2, $3)
\tAND b = 'z'
postgres|LOG:  statement: SELECT 'test 8 postgres a::race'
test_8_1|LOG:  statement: SELECT pg_sleep(1)
"""


def test_a_case_is_covered_if_others_execute_its_statements() -> None:
    statements = statements_of(LOG.splitlines(keepends=True))

    assert statements.keys() == {"a::wide", NARROW}
    assert statements["a::wide"] > statements[NARROW]
    assert covered(statements, {}) == {NARROW}


def test_a_case_that_alone_executes_a_statement_must_run() -> None:
    statements = statements_of(LOG.splitlines(keepends=True))

    assert uncovered(statements, frozenset({NARROW})) == []
    (line,) = uncovered(statements, frozenset({"a::wide"}))
    assert line == "a::wide is in it, but no case of the core form executes SELECT ?"
