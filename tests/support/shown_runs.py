"""A skill with a past for tests of pages: 15 versions, a label, callers over 80 days, and all kinds of parts."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select, update

from skillery.database import Database
from skillery.database.tables import label_moves, skill_versions, skills, use_days, version_steps
from tests.conftest import Server, manifest, skill_files
from tests.support.people import Caller, Who
from tests.support.shown_skill import PNG

VERSIONS = [*(f"0.{minor}.0" for minor in range(1, 12)), "1.0.0", "1.1.0", "1.2.0", "1.3.0"]
AGES = {"0.11.0": 110, "1.0.0": 85, "1.1.0": 45, "1.2.0": 20, "1.3.0": 4}
"""The age of the newest versions in days. The others are as old as 0.11.0."""
YANKED_AGE, MOVES = 30, {"1.0.0": 100, "1.1.0": 44, "1.2.0": 15}
"""The age of the withdrawal of 1.1.0, and of the moves of the label `stable`."""
USES = (("1.0.0", 80, 36, 9, 0), ("1.1.0", 44, 5, 4, 0), ("1.1.0", 39, 5, 100, 6), ("1.2.0", 18, 19, 3, 0))
"""The version, the age of the first of a number of days, that number, the runs of a day, and the failed ones."""
CALLERS = ("eve", "joe", "kim", "lea")
_RUN = "<script>window.__pwned=1</script><img src=x onerror=window.__pwned=2>"
_SVG = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 4 2'{}><rect width='4' height='2' fill='teal'/>{}</svg>"
_NOTEBOOK = (
    '{{"nbformat": 4, "nbformat_minor": 5, "metadata": {{}}, "cells": ['
    '{{"cell_type": "markdown", "source": "# Weeks{0}"}}, {{"cell_type": "code", "execution_count": 1, '
    '"source": "print(7)", "outputs": [{{"output_type": "stream", "name": "stdout", "text": "7{0}"}}]}}]}}'
)
NORMAL: dict[str, str | bytes] = {
    "weeks.csv": "week,north,south\n" + "".join(f"2026-W{n},{n * 1003},{n * 507}\n" for n in range(30, 44)),
    "orders.jsonl": "".join(f'{{"city": "Bern", "amount": {n}.5, "paid": true}}\n' for n in range(30)),
    "dot.png": PNG,
    "map.svg": _SVG.format("", ""),
    "report.md": "# Weeks\n\nSee [the weeks](weeks.csv).\n\n![The map](map.svg)\n\n- [x] checked\n",
    "weeks.ipynb": _NOTEBOOK.format(""),
    "page.html": "<h1>Weeks</h1><p>14 weeks.</p>",
    "plan.pdf": b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>"
    b"endobj 3 0 obj<</Type/Page/MediaBox[0 0 99 99]/Parent 2 0 R>>endobj trailer<</Root 1 0 R>>",
    "settings.json": '{"region": {"name": "north", "weeks": [30, 31]}}',
    "rate.py": "def rate():\n    return 1\n",
    "packed.bin": b"\x00\x01\xff",
}
HOSTILE: dict[str, str | bytes] = {
    "weeks.csv": f'"=HYPERLINK(1)",{_RUN}\n@SUM(1),\u202eevil\n',
    "orders.jsonl": f'{{"a": "{_RUN}", "b": 1}}\n' * 3,
    "dot.png": f"<html>{_RUN}",
    "map.svg": _SVG.format(" onload='parent.__pwned=3'", "<script>parent.__pwned=4</script>"),
    "report.md": f"# {_RUN}\n\n[a](javascript:window.__pwned=5) ![up](../../../logout) <iframe src=/account>\n",
    "weeks.ipynb": _NOTEBOOK.format(_RUN),
    "page.html": f"<title>stolen</title>{_RUN}<meta http-equiv=refresh content='0; url=/account'>",
    "plan.pdf": f"%PDF-{_RUN}",
    "settings.json": f'{{"__proto__": {{"polluted": 1}}, "{_RUN}": "\u202e"}}',
    "rate.py": f"{_RUN}\n\u202e = 1\n",
    "packed.bin": b"\x00" + _RUN.encode(),
}
CODE = """
import base64, os
def main(args):
    if args.get("strict"):
        total = sum(row["amount"] for row in [{"amount": 1}, {"amount": None}])
    os.makedirs("out")
    for name, content in args["files"].items():
        with open(os.path.join("out", name), "wb") as file: file.write(base64.b64decode(content))
    return {"weeks": 14, "total": 1190402, "is_whole": True, "regions": ["north", "south"]}
"""
SKILL_MD = "# Weekly report\n\nReport what was sold.\n\n## When to use it\n\nEach Monday.\n\n```python\nprint(1)\n```\n"


class ShownRuns:
    """A skill in the namespace of its owner, on a server of tests.support.people."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server, self.name = server, f"{namespace}.report"
        self.owner = Who(f"{namespace}-ann", "read run publish", f"{namespace}.*")
        self.callers = [Who(f"{namespace}-{name}") for name in CALLERS]
        owner = Caller(server.url, self.owner)
        inputs = {
            "files": {"type": "object", "description": "The files to write, as base64"},
            "strict": {"type": "boolean", "default": False, "description": "Refuse rows without an amount"},
        }
        for version in VERSIONS:
            summary = "Report what each region sold in a week, as tables, charts and texts."
            made = manifest(self.name, version, inputs=inputs) | {"description": summary}
            owner("create_skill", manifest=made, skill_md=SKILL_MD, files=skill_files(CODE))
        for version in MOVES:
            owner("set_label", name=self.name, label="stable", version=version)
        owner("yank_version", name=self.name, version="1.1.0", reason="It loses rows.")
        self.run_id = self.run(0, NORMAL)["run_id"]
        self.hostile_id = self.run(1, HOSTILE)["run_id"]
        for number in (1, 2, 3):
            self.failed_id = Caller(server.url, self.callers[number])(
                "execute_skill", name=self.name, args={"files": {}, "strict": True}
            )["run_id"]
        database = Database(server.database or f"sqlite:///{server.home / 'skillery.db'}")
        database.write_now(self._age)
        database.close()

    def run(self, caller: int, files: dict[str, str | bytes]) -> dict[str, Any]:
        """Run the skill with files that it writes to its output."""
        contents = {name: each.encode() if isinstance(each, str) else each for name, each in files.items()}
        args = {"files": {name: base64.b64encode(content).decode() for name, content in contents.items()}}
        run: dict[str, Any] = Caller(self.server.url, self.callers[caller])("execute_skill", name=self.name, args=args)
        assert run["status"] == "completed", run
        return run

    def _age(self, connection: Connection) -> None:
        """Move what happened into the past, and write the uses of four callers."""
        now = datetime.now(UTC)
        skill_id = connection.scalar(select(skills.c.id).where(skills.c.name == self.name))
        versions, ids = skill_versions.c, {}
        for version, version_id in connection.execute(
            select(versions.version, versions.id).where(versions.skill_id == skill_id)
        ):
            ids[version] = version_id
            created_at = now - timedelta(days=AGES.get(version, 110))
            connection.execute(update(skill_versions).where(versions.id == version_id).values(created_at=created_at))
        steps, moves = version_steps.c, label_moves.c
        values = {"created_at": now - timedelta(days=YANKED_AGE)}
        connection.execute(update(version_steps).where(steps.version_id == ids["1.1.0"]).values(values))
        for version, age in MOVES.items():
            move = moves.skill_id == skill_id, moves.version_id == ids[version]
            connection.execute(update(label_moves).where(*move).values(created_at=now - timedelta(days=age)))
        for version, age, days, count, failed in USES:
            for number in range(days):
                day = {
                    "skill_id": skill_id,
                    "version_id": ids[version],
                    "day": (now.date() - timedelta(days=age - number)).isoformat(),
                    "caller": self.callers[number % len(CALLERS)].name,
                    "client": "claude-code" if number % 2 else "",
                    "runs": count,
                    "completed": count - failed,
                    "failed": failed,
                    "busy_ms": 40 * count,
                    "loads": number % 3,
                    "reads": 0,
                }
                connection.execute(use_days.insert().values(day))
