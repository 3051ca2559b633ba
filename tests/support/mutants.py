"""Mutants: faults that a developer could make, each of which a test of its subject must detect.

python -m tests.support.mutants [WORDS …] [--form core|full]: apply each fault of tests/mutants.toml to a copy of the
checkout, and run its tests there. WORDS choose the mutants whose names contain one of them, `--form` those that this
form kills.

The command exits with 1 if a mutant survives, if its old text does not occur exactly once, if the test that fails also
fails without the mutant, or if the tests take more than ten minutes.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pytest

CHECKOUT = Path(__file__).parents[2]
MUTANTS = CHECKOUT / "tests/mutants.toml"
COPIES = 2
SECONDS = 600
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault: `new` instead of `old` in `file`."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]
    """Test files and folders. One of their cases must fail."""
    killed_by: Literal["core", "full"]
    """The form of the suite that must detect the fault. "full": only cases that the core form leaves out detect it."""


class Ended(NamedTuple):
    """The end of a pytest run."""

    code: int | None
    """The exit code, or None if the run took too long."""
    output: str

    @property
    def first_failed(self) -> str:
        failed = FAILED.search(self.output)
        return failed[1] if failed and self.code == pytest.ExitCode.TESTS_FAILED else ""


COMPILED = [f"packages/cellblock/src/cellblock/inside/{name}" for name in ("_cell.abi3.so", "init", "BUILD.json")]
"""Files that the installation makes next to the sources."""


def list_mutants() -> list[Mutant]:
    return msgspec.toml.decode(MUTANTS.read_bytes(), type=dict[str, list[Mutant]])["mutant"]


def make_copy(to: Path) -> Path:
    """Copy the checkout with its uncommitted files, and its environment, which imports from the copy."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=CHECKOUT, text=True)
    for name in [*filter(None, listed.split("\0")), *COMPILED]:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # deleted, but not yet in a commit
            shutil.copy2(CHECKOUT / name, target, follow_symlinks=False)
    (to / ".tools").symlink_to(CHECKOUT / ".tools")
    shutil.copytree(CHECKOUT / ".venv", to / ".venv", symlinks=True, copy_function=_link)
    # Servers, commands and sandboxes start with this environment and without ours: so its own files name the copy.
    for file in [*to.glob(".venv/bin/*"), *to.glob(".venv/lib/*/site-packages/*.pth")]:
        content = b"" if file.is_symlink() else file.read_bytes()
        if (old := os.fsencode(CHECKOUT)) in content:
            mode = file.stat().st_mode
            file.unlink()  # a link to the file of the checkout
            file.write_bytes(content.replace(old, os.fsencode(to)))
            file.chmod(mode)
    paths = subprocess.check_output([_python(to), "-c", "import sys; print(*sys.path)"], cwd=to, text=True).split()
    assert str(to / "src") in paths, paths
    assert not any(Path(path).is_relative_to(CHECKOUT) for path in paths), paths
    return to


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _python(copy: Path) -> Path:
    return copy / ".venv/bin/python"


def check(mutant: Mutant, copy: Path) -> str:
    """Run the tests of a mutant in the copy. Return "" if they detect it, else the reason why they do not."""
    file = copy / mutant.file
    original = file.read_text()
    if original.count(mutant.old) != 1:
        return f"the old text occurs {original.count(mutant.old)} times in {mutant.file}"
    file.write_text(original.replace(mutant.old, mutant.new))
    begin = time.monotonic()
    try:
        ended = run_tests(copy, mutant.tests, mutant.killed_by)
    finally:
        file.write_text(original)
    seconds = time.monotonic() - begin
    if ended.code == pytest.ExitCode.OK:
        return "SURVIVED"
    if not (test := ended.first_failed):
        return f"no test failed, but pytest ended with {ended.code}:\n{ended.output[-2000:]}"
    print(f"{mutant.name}: killed by {test} ({seconds:.0f} s)", flush=True)
    without = run_tests(copy, [test], mutant.killed_by)
    return (
        "" if without.code == pytest.ExitCode.OK else f"{test} fails without the mutant too:\n{without.output[-2000:]}"
    )


def run_tests(copy: Path, tests: Sequence[str], form: str) -> Ended:
    """Run tests in the copy until one fails."""
    subjects = {"core": "none", "full": "all"}[form]
    command = [str(_python(copy)), "-m", "pytest", "-x", "-q", "-rfE", f"--full={subjects}", *tests]
    with tempfile.TemporaryFile("w+") as output:
        running = subprocess.Popen(command, cwd=copy, stdout=output, stderr=subprocess.STDOUT)
        try:
            code: int | None = running.wait(SECONDS)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # the servers of the tests end too
            running.wait()
            code = None
        output.seek(0)
        return Ended(code, output.read())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="words of names; default: all mutants")
    parser.add_argument("--form", choices=("core", "full"), help="only the mutants that this form kills")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in list_mutants()
        if (not options.words or any(word in mutant.name for word in options.words))
        and options.form in (None, mutant.killed_by)
    ]
    if not mutants:
        parser.error("no mutant has such a name and form")
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def judge(mutant: Mutant) -> bool:
        copy = copies.get()
        reason = check(mutant, copy)
        copies.put(copy)
        if reason:
            print(f"{mutant.name}: {reason}", flush=True)
        return not reason

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(COPIES) as pool:
        for number in range(min(COPIES, len(mutants))):
            copies.put(make_copy(Path(folder) / str(number)))
        killed = sum(pool.map(judge, mutants))
    print(f"{killed} of {len(mutants)} mutants killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
