"""`make bench`: measure every figure of docs/design/benchmarks.md and write the file.

`python -m bench http runs` measures the named parts of PARTS. `--small` omits the size of one million.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import (
    agent,
    attack,
    blobs,
    catalogue,
    evaluations,
    http,
    importing,
    mcp,
    memory,
    packages,
    pages,
    peers,
    preloading,
    proof,
    records,
    required,
    runs,
    search,
    simulation,
    start,
    web,
    workers,
)
from bench.report import Report

REPORT = Path(__file__).parents[1] / "docs" / "design" / "benchmarks.md"
PARTS: dict[str, Callable[[Report, Path, bool], None]] = {
    "pages": pages.measure,
    "search": search.measure,
    "catalogue": catalogue.measure,
    "web": web.measure,
    "http": http.measure,
    "mcp": mcp.measure,
    "peers": peers.measure,
    "agent": agent.measure,
    "memory": memory.measure,
    "runs": runs.measure,
    "records": records.measure,
    "preloading": preloading.measure,
    "proof": proof.measure,
    "required": required.measure,
    "evaluations": evaluations.measure,
    "blobs": blobs.measure,
    "import": importing.measure,
    "packages": packages.measure,
    "start": start.measure,
    "workers": workers.measure,
    "simulation": simulation.measure,
    "attack": attack.measure,
}


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} processors ({model}), {memory:.0f} GiB of memory, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--small", action="store_true", help="10 k and 100 k versions only")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    report = Report()
    report.text(
        f"Sections without a date of their own were measured on {datetime.now(UTC):%Y-%m-%d} with `make bench` on "
        f"{machine()}."
    )
    for part in options.parts or PARTS:
        print(f"== {part}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="skillery-bench-") as folder:
            PARTS[part](report, Path(folder), options.small)
    print(report.markdown())
    if not options.parts and not options.small:
        report.write(REPORT)


if __name__ == "__main__":
    main()
