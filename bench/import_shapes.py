"""Import of a corpus with all shapes of public repositories: the share of imported skills, and the speed if names
are equal.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Report, median
from tests.conftest import Server, clean_environment
from tests.support.skill_corpus import SEED, Corpus, grow

ROUNDS = 3
SMALL, USUAL = 2_000, 5_000
NAMESPACES = ("one", "two")
"""Namespaces that are imported one after the other into one server. In the second, every name also exists in the
first.
"""


class Done(NamedTuple):
    seconds: float
    answer: dict[str, Any]

    @property
    def made(self) -> int:
        """Number of skills on the server, without links and copies."""
        return sum(self.answer["counts"].get(outcome, 0) for outcome in ("published", "unchanged"))

    @property
    def imported(self) -> int:
        """Number of paths whose skill is on the server."""
        return self.made + int(self.answer["counts"].get("merged", 0))


def measure(report: Report, folder: Path, small: bool) -> None:
    corpus = grow(folder / "corpus", skills=SMALL if small else USUAL)
    rounds = [_round(corpus, folder / f"shapes{number}") for number in range(ROUNDS)]
    firsts = [first for first, _ in rounds]
    share = min(done.imported / len(corpus.paths) for one in firsts for done in one)
    again = min(done.answer["counts"].get("unchanged", 0) / done.made for _, one in rounds for done in one)
    report.heading("Importing all shapes")
    report.text(
        f"A generated tree (`tests/support/skill_corpus.py`, seed {SEED}): {len(corpus.paths):,} paths of skills, "
        f"links counted: canonical and agent folders, copies, links to skills and to folders of skills, equal names, "
        f"nested skills, SKILL.md files that need a repair, undeclared packages. `skillery import DIR --url … "
        f"--namespace NS`, SQLite; the lowest share and the median speed of {ROUNDS} rounds."
    )
    rows = [["paths of skills that are imported", f"{100 * share:.2f} %"], ["unchanged", f"{100 * again:.2f} %"]]
    for number, namespace in enumerate(NAMESPACES):
        taken = median([one[number].seconds for one in firsts])
        made = firsts[0][number].made
        rows.append([f"skills a second, namespace {namespace} ({made:,} skills)", f"{made / taken:.0f}"])
    rows[1][0] = "of the skills in the second import of the same tree: unchanged"
    report.table(["what", "figure"], rows)


def _round(corpus: Corpus, home: Path) -> tuple[list[Done], list[Done]]:
    """Import each namespace, and then import each again."""
    server = Server(home)
    try:
        first, again = ([_run(corpus, server, one) for one in NAMESPACES] for _ in range(2))
        return first, again
    finally:
        server.stop()
        shutil.rmtree(home)


def _run(corpus: Corpus, server: Server, namespace: str) -> Done:
    command = [sys.executable, "-m", "skillery", "import", str(corpus.root), "--json"]
    started = time.perf_counter()
    ended = subprocess.run(
        [*command, "--url", server.url, "--namespace", namespace],
        stdout=subprocess.PIPE,
        env=clean_environment(),
        check=False,
    )
    seconds = time.perf_counter() - started
    [answer] = json.loads(ended.stdout)
    assert set(corpus.lost) <= {line["path"] for line in answer["sections"]["links_not_followed"]}
    return Done(seconds, answer)
