"""The program `pip` of a run, and `python -m pip`: it says which packages are there, and installs none."""

# ruff: noqa: T201 - a program prints

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

REFUSED = (
    "pip: a run cannot install packages. Declare them in [runtime] dependencies, or import the skill with --packages "
    "infer."
)
WITH_VALUE = {"-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target"}
WITH_VALUE |= {"--python", "--platform", "--prefix", "--root", "--timeout", "--progress-bar", "--trusted-host"}
NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*+)\s*+(?:\[[^\]]*+\])?\s*+(?:[=<>!~;].*)?$")


def requirements(words: list[str]) -> Iterator[str]:
    """Yield the requirements of an `install` command, also those of requirement files."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word in {"-r", "--requirement"} and left:
            lines = Path(left.pop(0)).read_text().splitlines()
            yield from requirements([line for line in map(str.strip, lines) if line and line[0] not in "#-"])
        elif word in WITH_VALUE and left:
            left.pop(0)
        elif word in {"-e", "--editable"} or not word.startswith("-"):
            yield word


def is_there(requirement: str) -> bool:
    """Return whether a package is importable. A version range is not compared."""
    match = NAME.match(requirement)
    try:
        return bool(match and version(match[1]))
    except PackageNotFoundError:
        return False


def install(words: list[str]) -> int:
    wanted = list(requirements(words))
    missing = [requirement for requirement in wanted if not is_there(requirement)]
    if missing or not wanted:
        print(REFUSED, file=sys.stderr)
        if missing:
            print(f"pip: not there: {', '.join(missing)}", file=sys.stderr)
        return 1
    print(f"already installed: {', '.join(wanted)}")
    return 0


def main(words: list[str]) -> int:
    command, *rest = [*words, ""][: len(words) or 1]
    if command == "install":
        return install(rest)
    if command in {"list", "freeze"}:
        lines = {f"{package.metadata['Name']}=={package.version}" for package in distributions()}
        print("\n".join(sorted(lines, key=str.lower)))
        return 0
    if command in {"--version", "-V"}:
        print(f"pip of a run, which installs no packages (python {sys.version_info[0]}.{sys.version_info[1]})")
        return 0
    print(f"pip: a run has `install`, `list` and `freeze`, not '{command}'", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
