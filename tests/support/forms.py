"""The two forms of the suite: the core form runs nearly every feature once, the full form runs every case.

`make test` runs the core form, and the full form of the subjects that changed. `make test-all` runs the full form of
all subjects. A subject is a folder of tests (`web` is tests/web, `s3` is plugins/skillery-s3/tests, `conformance` is
packages/skills-protocol-conformance/tests), or `postgres`.

The core form leaves out:

- cases with the mark `full`, on the function or on one `pytest.param`;
- cases in tests/slow_cases.txt, which took over SLOW_SECONDS, except smoke cases (mark `smoke`) and cases on Postgres;
- with the mark `full(after=2)`: the cases of a function after its first two;
- cases in tests/postgres_covered.txt: other cases execute all their statements on Postgres too
  (tests/support/postgres_statements.py).

pytest --full=SUBJECT,…   core, and the full form of these subjects
pytest --full=none        core only
pytest --full=all         all cases
pytest --full=changed     core, and the subjects that changed since the merge base with origin/main (or TESTS_BASE)

The default is `changed`, and for named files or folders (`pytest tests/web`) their full form.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.parallel import common_folder

ROOT = Path(__file__).parents[2]
COVERED = ROOT / "tests" / "postgres_covered.txt"
SLOW = ROOT / "tests" / "slow_cases.txt"
SUBJECT_SECONDS = ROOT / "tests" / "subject_seconds.json"
"""Processor seconds of each subject, [core form, full form], written by `make durations`."""
SHARED = "tests/conftest.py and tests/support"
PLUGINS = "bubblewrap oidc openbao ray s3 scanner sigstore"

# A changed path (a regular expression for its beginning): further subjects whose full form runs. A file below
# src/skillery/X/, tests/X/ or plugins/skillery-X/ adds the subject X itself.
ALSO = {
    r"src/skillery/database/|migrations/|alembic\.ini": "database postgres maintenance",
    r"packages/cellblock/|src/(skillery/(builtin|jobs|sandboxing|testing/sandbox)|runtime)\b": "sandbox bubblewrap ray",
    r"src/skillery/testing/(?!sandbox/)": f"plugins audit contents {PLUGINS}",
    r"src/skillery/((commands|failure_types|hookspecs|routes)\.py|backends/|plugins/)": f"plugins {PLUGINS}",
    r"src/skillery/((__init__|__main__)\.py|errors/|settings|context/)": "app api",
    r"src/skillery/identity/": "oidc openbao",
    r"src/skillery/(proof|attestations)/": "proof openbao sigstore",
    r"src/skillery/contents/": "s3 maintenance",
    r"src/skillery/publishing/": "scanner environments",
    r"src/skillery/evaluations/": "publishing cli",
    r"src/skillery/runs/": "ray",
    r"src/skillery/(methods/|client/|method\.py)|packages/skillery-client/": "api client cli",
    r"packages/skills-protocol-conformance/": "api conformance",
    r"src/skillery/(rpc|mcp|rest|client_source)/": "api",
    r"src/skillery/http/": "api web",
    r"src/skillery/web/(login|visits)": "api",
    r"src/skillery/(labels|versions|skills|tools)/": "registry",
    r"src/skillery/events\.py": "webhooks audit",
    r"src/skillery/git_views/": "git",
    r"pyproject\.toml|requirements\.lock|packaging/|src/skillery/authoring/": "app cli docs plugins",
    r"docs/|examples/|skills/|[^/]+\.md|mkdocs\.yml|Makefile": "docs",
    r"bench/|checks/": "bench",
}
DIALECT = re.compile(r"dialect|postgresql")
"""Text of a source file that behaves differently on Postgres: its change adds the subject `postgres`."""


@dataclass(frozen=True)
class Form:
    """The subjects of which all cases run. `reasons` says why, for subjects that changed."""

    full: frozenset[str] = frozenset()
    everything: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.everything:
            return "every case"
        groups: dict[str, list[str]] = {}
        for subject in sorted(self.full):
            groups.setdefault(self.reasons.get(subject, ""), []).append(subject)
        full = "; ".join(
            f"{', '.join(subjects)}{reason and f', because {reason} changed'}" for reason, subjects in groups.items()
        )
        return "; ".join(["core", *([f"full: {full}"] if full else []), *self.notes])


FORM = pytest.StashKey[Form]()
IS_SAID = pytest.StashKey[bool]()
PLACE = pytest.StashKey[int]()
"""How many cases of the same function come before a case."""
COUNTS = "counts of cases"
_form: list[Form] = []


def rounds(short: int, *, long: int) -> int:
    """Return how often a test repeats its proof: `long` in `make test-all`."""
    return long if _form and _form[0].everything else short


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        metavar="SUBJECTS",
        type=known_subjects,
        help="subjects whose full form runs: a,b | none | all | changed",
    )


def known_subjects(option: str) -> str:
    if unknown := set(option.split(",")) - subjects() - {"none", "all", "changed"}:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(subjects()))}"
        )
    return option


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] = getattr(config, "workerinput", {})
    config.stash[FORM] = Form(**given["form"]) if given else form_of(config)
    _form[:] = [config.stash[FORM]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    form = node.config.stash[FORM]
    node.workerinput["form"] = {"full": sorted(form.full), "everything": form.everything}


def form_of(config: pytest.Config) -> Form:
    option = config.getoption("--full")
    if option is None and config.args_source is pytest.Config.ArgsSource.ARGS:
        option = "all"
    if option == "all":
        return Form(everything=True)
    if option in {None, "changed"}:
        return form_of_changes(changed_files())
    return Form(frozenset(option.split(",")) - {"none"})


@cache
def subjects() -> frozenset[str]:
    """Return the names of all subjects."""
    packages = {folder.parent.name for kind in ("plugins", "packages") for folder in ROOT.glob(f"{kind}/*/tests")}
    folders = {folder.parent.name for folder in ROOT.glob("tests/*/test_*.py")}
    return frozenset(folders | {short_name(package) for package in packages} | {"postgres"})


def form_of_changes(paths: Iterable[str] | None) -> Form:
    """Return the form for changed files, or the core form with a note if git does not know them."""
    if paths is None:
        return Form(notes=("no git history here, so changes are unknown",))
    reasons: dict[str, str] = {}
    notes: set[str] = set()
    for path in sorted(paths):
        if path == "tests/conftest.py" or path.startswith(("tests/support/", "conftest.py")):
            notes.add(f"{SHARED} changed: run `make test-all` before you submit")
        for subject in subjects_of(path):
            reasons.setdefault(subject, path)
    return Form(frozenset(reasons), reasons=reasons, notes=tuple(sorted(notes)))


def subjects_of(path: str) -> set[str]:
    """Return the subjects whose full form a change of this file needs."""
    also = {subject for pattern, names in ALSO.items() if re.match(pattern, path) for subject in names.split()}
    own = re.match(r"(?:src/skillery|tests)/(\w+)/|plugins/skillery-(\w+)/", path)
    if own and (name := own[1] or own[2]) in subjects():
        also.add(name)
    source = ROOT / path
    if path.startswith("src/") and source.suffix == ".py" and source.is_file() and DIALECT.search(source.read_text()):
        also.add("postgres")
    return also


def changed_files() -> set[str] | None:
    """Return the files that differ from the base, with uncommitted and new ones, or None without a repository."""
    base = os.environ.get("TESTS_BASE")
    for branch in ("origin/main", "main"):
        base = base or _git("merge-base", "HEAD", branch)
    changed = _git("diff", "--name-only", "--no-renames", base) if base else None
    if changed is None:
        return None
    return {*changed.splitlines(), *(_git("ls-files", "--others", "--exclude-standard") or "").splitlines()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are not of this form."""
    form, places = config.stash[FORM], Counter[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        item.stash[PLACE] = places[function]
        places[function] += item.nodeid not in covered_on_postgres()
    kept = [item for item in items if form.everything or is_core(item) or is_of(item, form.full)]
    # The process that starts the workers collects nothing, and reads this file for its first line.
    (common_folder(config) / COUNTS).write_text(f"{len(kept):,} of {len(items):,} cases")
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    if FORM in node.config.stash and not node.config.stash.get(IS_SAID, False):
        node.config.stash[IS_SAID] = True
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(first_line(node.config))


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return first_line(config)


def first_line(config: pytest.Config) -> str:
    """Return what runs, and why."""
    form, counts = config.stash[FORM], common_folder(config) / COUNTS
    if not counts.exists():  # a named file or folder does not exist
        return str(form)
    return f"{counts.read_text()}; {form}{_minutes(form)}"


def _minutes(form: Form) -> str:
    """Return about how long the chosen subjects take in addition to the core form."""
    if not SUBJECT_SECONDS.exists() or not form.full:
        return ""
    seconds = json.loads(SUBJECT_SECONDS.read_text())
    more = sum(full - core for subject, (core, full) in seconds.items() if subject in form.full)
    return f" (about {max(1, round(more / 60 / len(os.sched_getaffinity(0))))} minutes more)"


def is_core(item: pytest.Item) -> bool:
    """Return whether the core form has this case."""
    return not _is_marked_full(item) and item.nodeid not in left_out()


def is_timed(item: pytest.Item) -> bool:
    """Return whether the time of a case decides whether it is in the core form."""
    is_marked = _is_marked_full(item) or item.get_closest_marker("smoke") is not None
    return not is_marked and not on_postgres(item)


def _is_marked_full(item: pytest.Item) -> bool:
    full = item.get_closest_marker("full")
    return full is not None and item.stash[PLACE] >= full.kwargs.get("after", 0)


def is_of(item: pytest.Item, full: frozenset[str]) -> bool:
    return subject_of(item.nodeid) in full or ("postgres" in full and on_postgres(item))


def subject_of(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")
    return short_name(parts[1]) if len(parts) > 2 else parts[0]


def short_name(package: str) -> str:
    """Return the subject of a package: `s3` of skillery-s3, `conformance` of skills-protocol-conformance."""
    return package.removeprefix("skillery-").removeprefix("skills-protocol-")


def on_postgres(item: pytest.Item) -> bool:
    called = getattr(item, "callspec", None)
    return item.get_closest_marker("postgres") is not None or (
        called is not None and "postgres" in called.params.values()
    )


@cache
def left_out() -> frozenset[str]:
    """Return the ids of the cases in the two lists of `make durations`."""
    return covered_on_postgres() | slow_cases()


@cache
def covered_on_postgres() -> frozenset[str]:
    """Return the ids of cases that execute only statements that other cases execute too."""
    return frozenset(COVERED.read_text().splitlines()) if COVERED.exists() else frozenset()


@cache
def slow_cases() -> frozenset[str]:
    return frozenset(SLOW.read_text().splitlines()) if SLOW.exists() else frozenset()
