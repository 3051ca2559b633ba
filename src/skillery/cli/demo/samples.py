"""Samples for the demo: code that uses two skills, and a skill to publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skillery.client.generated import SkillFile

COMPOSITION = """\
from runtime import blobs, log, summary
from skills.text.csv.profile import profile_csv
from skills.text.csv.query import query_csv


def main(args):
    text = blobs.read_text(args["csv_blob"])
    columns = profile_csv(text)["columns"]
    labels = [one["name"] for one in columns if one["type"] == "text" and 2 <= one["distinct"] <= 5]
    log.info(f"grouping by {labels}")
    sums = {"orders": "count()", "revenue": "sum(total)"}
    report = {
        label: query_csv(text, group_by=[label], aggregate=sums, sort=["-revenue"])
        for label in labels
    }
    summary(f"Revenue by {', '.join(labels)}.")
    return {"labels": labels, "report": blobs.write_json(report)}
"""

NAME = "demo.csv.top"
VERSION = "1.0.0"
MANIFEST = {
    "name": NAME,
    "version": VERSION,
    "description": "Add up the column total of a CSV by the values of another, largest first.",
    "kind": "action",
    "namespace": "demo.csv",
    "tags": ["demo", "csv"],
    "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
    "inputs": {
        "csv_blob": {"type": "blob", "required": True, "description": "A CSV with a column total"},
        "by": {"type": "string", "default": "country", "description": "The column to group by"},
        "top": {"type": "integer", "default": 5, "description": "How many groups to answer"},
    },
}
SKILL_MD = """\
---
name: Top Totals
short_description: Add up the column total of a CSV by the values of another.
tags: [demo, csv]
---

# Top Totals

Call it with `csv_blob`, the id of a CSV with a column `total`, and `by`, the column to group by. It answers the `top`
groups with the largest sums; rows whose total is not a number are skipped and counted.
"""
CODE = """\
import csv
import io
import math

from runtime import blobs, log, summary


def main(args):
    rows = csv.DictReader(io.StringIO(blobs.read_text(args["csv_blob"]), newline=""))
    sums, skipped = {}, 0
    for row in rows:
        try:
            total = float(row["total"])
        except (TypeError, ValueError):
            total = math.nan
        if not math.isfinite(total) or row[args["by"]] is None:
            skipped += 1
            continue
        sums[row[args["by"]]] = sums.get(row[args["by"]], 0.0) + total
    log.info(f"{len(sums)} groups, {skipped} rows skipped")
    largest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[: args["top"]]
    summary(f"{largest[0][0]} leads with {largest[0][1]:.2f}." if largest else "The CSV has no rows.")
    return {"top": [[name, round(total, 2)] for name, total in largest], "skipped": skipped}
"""
FILES: list[SkillFile] = [{"path": "code/main.py", "content": CODE}]


def sum_by(rows: Iterable[Mapping[str, Any]], column: str, top: int) -> list[list[Any]]:
    """Return the expected answer of the published skill, computed in this process."""
    sums: dict[str, float] = {}
    for row in rows:
        text = str(row["total"] or "").strip()
        if text.replace(".", "", 1).lstrip("-").isdecimal() and row[column] is not None:
            sums[row[column]] = sums.get(row[column], 0.0) + float(text)
    largest = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:top]
    return [[name, round(total, 2)] for name, total in largest]
