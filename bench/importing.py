"""Import of thousands of skills like those in public repositories: speed and memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import import_shapes
from bench.report import Report, median
from tests.conftest import Server, clean_environment

ROUNDS = 3
KIB = 1024
LARGEST_BYTES = 14_700 * 1000
LARGEST_FILES = 1_104
SETTINGS = {"SKILLERY_BUNDLE_MAX_FILES": "2048"}
"""Settings for the largest skill. All other skills are far below the default limits."""
ODD = (
    "---\nname: {name}\ndescription: Use it: when {name} is asked for\n---\n",
    "---\r\nname: {name}\r\ndescription: Lines of another system.\r\n---\r\n",
    "\ufeff---\nname: {name}\ndescription: With a mark before it.\n---\n",
    "---\nname: Skill {name}\ndescription: A name with blanks and capitals.\nauthor: me\n---\n",
    "---\nname: {name}\nversion: 1.10\ntags: [a, b]\n---\n",
    "# {name}\n\nNo frontmatter at all.\n",
)
USUAL = "---\nname: {name}\ndescription: What {name} does.\nlicense: MIT\nmetadata:\n  version: 1.2.{number}\n---\n"


def measure(report: Report, folder: Path, small: bool) -> None:
    import_shapes.measure(report, folder, small)
    number = 1_000 if small else 5_000
    source, archive = folder / "skills", folder / "skills.tar.gz"
    size, files = generate(source, number)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(source, "skills")
    first, again, remote, sent = [], [], [], []
    for round_ in range(ROUNDS):
        home = folder / f"home{round_}"
        first.append(_run(source, number, "--home", str(home)))
        again.append(_run(source, number, "--home", str(home)))
        shutil.rmtree(home)
        server = Server(folder / f"served{round_}", env=SETTINGS)
        try:
            remote.append(_run(source, number, "--url", server.url))
            peak = _peak_mib(server.process.pid)
        finally:
            server.stop()
        shutil.rmtree(server.home)
        sent.append(_run(archive, number, "--home", str(home)))
        shutil.rmtree(home)
    report.heading("Importing")
    report.text(
        f"{number} generated skills with {files} files and {size / KIB / KIB:.0f} MiB. 1 % of them are over "
        f"345 KB, and the largest has 14.7 MB in {LARGEST_FILES:,} files. Half of the SKILL.md files need a repair. "
        f"SQLite, medians of {ROUNDS}. The seconds are those of the whole command, including its start and the "
        "creation of the home."
    )
    rows = [
        [what, _seconds(done), f"{number / median([one.seconds for one in done]):.0f}", f"{_memory(done):.0f} MiB"]
        for what, done in (
            ("`skillery import DIR`, a home without a server", first),
            ("the same once more: nothing has changed", again),
            ("`skillery import DIR --url`, memory of the command", remote),
            ("`skillery import skills.tar.gz`", sent),
        )
    ]
    report.table(["what", "seconds", "skills/s", "peak memory"], rows)
    report.text(f"Peak resident memory of the server with `--url`: {peak:.0f} MiB.")


class Done(NamedTuple):
    seconds: float
    peak_mib: float


def generate(folder: Path, number: int) -> tuple[int, int]:
    """Generate the same skills each time. Return their bytes and files."""
    chosen = random.Random(5)
    size = files = 0
    for count in range(number):
        name = f"skill-{count:05d}"
        root = folder / name
        root.mkdir(parents=True)
        head = (USUAL if chosen.random() < 0.47 else chosen.choice(ODD)).format(name=name, number=count % 7)
        wanted = int(min(2_000_000, chosen.lognormvariate(8.7, 1.742)))
        pieces = min(60, 1 + int(chosen.expovariate(0.3)))
        if count == number // 2:
            wanted, pieces = LARGEST_BYTES, LARGEST_FILES - 2
        (root / "SKILL.md").write_bytes(f"{head}\n# {name}\n{_words(chosen, min(wanted, 6000))}\n".encode())
        for piece in range(pieces - 1):
            path = root / ("scripts" if piece % 2 else "references") / f"{piece:04d}.{'py' if piece % 2 else 'md'}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(
                f"# {count} {piece}\n".encode() + chosen.randbytes(max(0, wanted // pieces) // 2).hex().encode()
            )
        found = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
        size, files = size + sum(found), files + len(found)
    return size, files


def _words(chosen: random.Random, length: int) -> str:
    words = ("reads", "writes", "a", "table", "of", "figures", "into", "the", "report", "when", "asked", "for", "it")
    return " ".join(chosen.choices(words, k=max(5, length // 6)))


def _run(source: Path, number: int, *where: str) -> Done:
    command = [sys.executable, "-m", "skillery", "import", str(source), "--json", *where]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment(SETTINGS))
    assert process.stdout is not None
    answer: Any = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    counts = answer[0]["counts"]
    assert process.returncode == 0, counts
    assert sum(counts.values()) == number, counts
    return Done(seconds, usage.ru_maxrss / KIB)


def _seconds(done: list[Done]) -> str:
    return f"{median([one.seconds for one in done]):.1f}"


def _memory(done: list[Done]) -> float:
    return max(one.peak_mib for one in done)


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
