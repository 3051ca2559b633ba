"""A skill folder, checked as publishing checks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.formats.bundle import Bundle, BundleFile, BundleLimits
from skillery.formats.examples import Example
from skillery.formats.problems import Problem
from skillery.formats.python_source import source_problem
from skillery.formats.unfinished_bundle import begin_bundle
from skillery.publishing.folders import read_skill_folder


class ListedExample(NamedTuple):
    """An example, its line in skill.toml, and its problems. An example with problems cannot run."""

    example: Example
    line: int | None
    problems: tuple[Problem, ...]


class CheckedFolder(NamedTuple):
    bundle: Bundle
    examples: tuple[ListedExample, ...]


def check_folder(folder: Path, limits: BundleLimits) -> CheckedFolder:
    """Read and check the skill in a folder. Raise InvalidParams (with a list of the problems), BundleTooLarge or
    OSError.

    The problems of single examples are returned, so that the other examples can run.
    """
    skill = read_skill_folder(folder)
    begun = begin_bundle(skill.manifest, skill.skill_md, skill.files, limits)
    problems = _problems_by_example(begun.examples.problems) if begun.examples else {}
    if begun.examples and None not in problems:
        begun.examples = msgspec.structs.replace(begun.examples, problems=())
    # The author trusts the own folder: it is compiled in this process, which saves the start of a worker.
    found = {one.path: source_problem(one.path, one.content, one.export) for one in begun.sources}
    bundle = begun.finish({path: problem for path, problem in found.items() if problem})
    lines = zip(bundle.examples.read, bundle.examples.lines, strict=True)
    listed = (ListedExample(one, line, problems.get(number, ())) for number, (one, line) in enumerate(lines))
    return CheckedFolder(bundle, tuple(listed))


def write_files(bundle: Bundle, folder: Path) -> None:
    """Write the files of a bundle as a run finds them."""
    for file in bundle.files:
        _write(file, folder / file.path)


def _write(file: BundleFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(0o555 if file.executable else 0o444)


def _problems_by_example(problems: tuple[Problem, ...]) -> Mapping[int | None, tuple[Problem, ...]]:
    """Return the problems by the index of their example; None is the key of problems with all examples."""
    found: dict[int | None, tuple[Problem, ...]] = {}
    for problem in problems:
        head, bracket, _ = (problem.path or "").removeprefix("examples[").partition("]")
        number = int(head) if bracket and head.isdecimal() else None
        found[number] = (*found.get(number, ()), problem)
    return found
