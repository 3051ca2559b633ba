"""The steps of the demo: each step sends a request and checks its answer."""

from __future__ import annotations

import csv
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skillery.app.bundled import bundled_folders
from skillery.cli.failures import CheckFailed
from skillery.cli.output import as_json
from skillery.client import AsyncClient
from skillery.client.generated import SkillFile
from skillery.errors import StartupError

# -- Samples for the demo: code that uses two skills, and a skill to publish -------------------------------------------


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


GUIDE_TITLE = "# Skills Protocol Overview"
PROFILE = "text.csv.profile"
QUERY = "text.csv.query"
SAMPLE = "resources/orders.csv"


class Exchange(NamedTuple):
    """A request of a step and its answer, as short texts."""

    request: str
    answer: str


class Walk:
    """The state that the steps share: the client, the input, and results of earlier steps."""

    def __init__(self, client: AsyncClient, sample: Path) -> None:
        self.client = client
        self.sample = sample
        self.blob_id = ""


class Step(NamedTuple):
    title: str
    take: Callable[[Walk], Awaitable[Exchange]]


def sample_csv() -> Path:
    """Return the path of a CSV file in a bundled skill. Raise StartupError if the installation does not contain the
    file.
    """
    for folder in bundled_folders():
        if folder.name == PROFILE and (folder / SAMPLE).is_file():
            return folder / SAMPLE
    raise StartupError(f"the bundled skill {PROFILE} is missing from this installation; install Skillery again")


async def load_guide(walk: Walk) -> Exchange:
    answer = await walk.client.load_skills_protocol_guide()
    _expect(GUIDE_TITLE in answer["content"], "the guide does not contain its title")
    headings = [line for line in answer["content"].splitlines() if line.startswith("#")]
    return Exchange("load_skills_protocol_guide", "\n".join([f"{len(answer['content'])} characters:", *headings]))


async def list_skills(walk: Walk) -> Exchange:
    answer = await walk.client.list_skills(limit=1000)
    rows = answer["skills"]
    names = {row["name"] for row in rows}
    _expect({PROFILE, QUERY} <= names, f"the bundled skills are not listed, only {sorted(names)}")
    return Exchange("list_skills", "\n".join(f"{row['name']} {row['version']}  {row['description']}" for row in rows))


async def describe_skill(walk: Walk) -> Exchange:
    answer = await walk.client.describe_skill(name=PROFILE)
    inputs = answer["skill"]["manifest"]["inputs"]
    _expect("csv_blob" in inputs, f"{PROFILE} declares no input csv_blob")
    return Exchange(
        f"describe_skill name={PROFILE}",
        "\n".join(f"{name}: {field['type']}  {field.get('description', '')}" for name, field in inputs.items()),
    )


async def read_file(walk: Walk) -> Exchange:
    answer = await walk.client.read_skill_file(name=PROFILE, path="SKILL.md")
    _expect("csv_blob" in answer["content"], "SKILL.md does not explain how to call the skill")
    lines = [line for line in answer["content"].splitlines() if line.strip() and not line.startswith("---")]
    return Exchange(f"read_skill_file name={PROFILE} path=SKILL.md", "\n".join([*lines[3:6], "…"]))


async def upload_blob(walk: Walk) -> Exchange:
    answer = await walk.client.upload_blob(walk.sample, "text/csv")
    size = walk.sample.stat().st_size
    _expect(answer["size_bytes"] == size, f"the server stored {answer['size_bytes']} of {size} bytes")
    walk.blob_id = answer["blob_id"]
    rows = len(_data_rows(walk.sample))
    return Exchange(f"POST /blobs  ({walk.sample.name}, {rows} rows)", f"{walk.blob_id}, {size} bytes")


async def execute_skill(walk: Walk) -> Exchange:
    answer = await walk.client.execute_skill(name=PROFILE, args={"csv_blob": walk.blob_id})
    output = _completed(answer)
    row_count = output["rows"] + output["malformed_rows"]
    rows = len(_data_rows(walk.sample))
    _expect(row_count == rows, f"{PROFILE} read {row_count} rows, but the file has {rows}")
    columns = ", ".join(f"{column['name']} {column['type']}" for column in output["columns"])
    return Exchange(
        f"execute_skill name={PROFILE} args={{csv_blob: {walk.blob_id}}}",
        f"{_timed(answer)}: {answer['summary']}\n{columns}",
    )


async def compose_skills(walk: Walk) -> Exchange:
    """Run code that combines two skills, and check its report."""
    answer = await walk.client.run_code(
        language="python",
        code=COMPOSITION,
        args={"csv_blob": walk.blob_id},
        mount_skills=[PROFILE, QUERY],
        input_blobs=[walk.blob_id],
    )
    output = _completed(answer)
    _expect(output["report"] in answer["output_blobs"], "the report is not among the output blobs of the run")
    blob = await walk.client.read_blob(blob_id=output["report"], mode="full")
    report = msgspec.json.decode(blob["content"])
    counts = {label: sum(group["orders"] for group in report[label]) for label in output["labels"]}
    _expect(len(set(counts.values())) == 1, f"each grouping must count every row once, but the counts are {counts}")
    best_groups = [f"best {label}: {as_json(report[label][0], -1)}" for label in output["labels"]]
    return Exchange(
        f"run_code mount_skills=[{PROFILE}, {QUERY}]  ({len(COMPOSITION.splitlines())} lines of Python)",
        "\n".join([f"{_timed(answer)}: {answer['summary']}", f"{output['report']}:", *best_groups]),
    )


async def create_skill(walk: Walk) -> Exchange:
    answer = await walk.client.create_skill(manifest=MANIFEST, skill_md=SKILL_MD, files=FILES)
    _expect(answer["name"] == NAME, f"published as {answer['name']}")
    return Exchange(
        f"create_skill  ({NAME}: skill.toml, SKILL.md, code/main.py)",
        f"{answer['name']} {answer['version']} {answer['status']}, {answer['digest'][:19]}…",
    )


async def execute_created(walk: Walk) -> Exchange:
    args = {"csv_blob": walk.blob_id, "by": "country", "top": 3}
    answer = await walk.client.execute_skill(name=NAME, version=VERSION, args=args)
    output = _completed(answer)
    expected = sum_by(_rows_as_dicts(walk.sample), "country", 3)
    _expect(output["top"] == expected, f"{NAME} answered {output['top']}, expected {expected}")
    return Exchange(
        f"execute_skill name={NAME} args={{by: country, top: 3}}",
        f"{_timed(answer)}: {answer['summary']}\n{as_json(output['top'], -1)}",
    )


STEPS: tuple[Step, ...] = (
    Step("Load the guide: how an agent learns the protocol", load_guide),
    Step("List the skills", list_skills),
    Step("Describe one: its inputs", describe_skill),
    Step("Read one of its files", read_file),
    Step("Upload a CSV as a blob: large data does not go through the model", upload_blob),
    Step("Execute the skill on it, in a sandbox", execute_skill),
    Step("Compose two skills in code", compose_skills),
    Step("Publish a new skill", create_skill),
    Step("Execute the new skill", execute_created),
)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


def _completed(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output of a run. Raise CheckFailed if the run failed or its output is not an object."""
    error = answer.get("error") or {}
    _expect(answer["status"] == "completed", f"the run failed: {error.get('type')}: {error.get('message')}")
    _expect(isinstance(answer["output"], dict), f"the run answered {as_json(answer['output'], -1)[:200]}")
    output: dict[str, Any] = answer["output"]
    return output


def _timed(answer: Mapping[str, Any]) -> str:
    return f"{answer['status']} in {answer['duration_ms']:.0f} ms"


def _data_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file) if row][1:]


def _rows_as_dicts(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
