"""Print recall, false alarms and times of the scanner.

.venv/bin/python plugins/skillery-scanner/tests/measure_scanner.py [FOLDER …]

Each FOLDER holds more harmless skills, each in a folder with a SKILL.md.
"""

from __future__ import annotations

import statistics
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from scanner_corpus import attacks  # noqa: E402
from skillery_scanner.catalog import File, Severity, Skill, at_least  # noqa: E402
from skillery_scanner.scan import scan  # noqa: E402
from skillery_scanner.scanner import severity_of  # noqa: E402
from tests.support.skill_corpus import grow  # noqa: E402

UNTUNED = ("other-words", "subtle")
BLOCK: Severity = "high"
WARN: Severity = "low"
EACH = 60  # twice each of the sentences of `other-words`


class Verdict:
    """What the default thresholds do with a skill."""

    def __init__(self, skill: Skill) -> None:
        began = time.process_time()
        self.matches = scan(skill)
        self.ms = (time.process_time() - began) * 1000
        severities = [severity_of(match) for match in self.matches]
        self.blocked = any(at_least(one, BLOCK) for one in severities)
        self.warned = any(at_least(one, WARN) for one in severities)


def folders(root: Path) -> Iterator[Skill]:
    """Yield every skill below a folder."""
    for path in sorted(root.rglob("SKILL.md")):
        if path.is_file():
            yield read(path.parent)


def read(folder: Path) -> Skill:
    found = [one for one in sorted(folder.rglob("*")) if one.is_file() and not one.is_symlink()]
    files = tuple(File(one.relative_to(folder).as_posix(), one.read_bytes()) for one in found[:512])
    toml = folder / "skill.toml"
    manifest = tomllib.loads(toml.read_text()) if toml.is_file() else {}
    return Skill(str(manifest.get("name", f"x.{folder.name}")), manifest, files)


def pages(root: Path) -> Iterator[Skill]:
    """Yield each page of the documentation as a skill of instructions."""
    for path in sorted(root.rglob("*.md")):
        yield Skill(f"page.{path.stem}", {}, (File("SKILL.md", path.read_bytes()),))


def modules(root: Path) -> Iterator[Skill]:
    """Yield each module of the standard library as a skill of code."""
    for path in sorted(root.glob("*.py")):
        yield Skill(f"module.{path.stem}", {}, (File("code/main.py", path.read_bytes()),))


def report_recall() -> None:
    verdicts: dict[str, list[Verdict]] = defaultdict(list)
    for attack in attacks(EACH):
        verdicts[attack.family].append(Verdict(attack.skill))
    print("attacks | skills | refused | refused or warned")
    for family, found in verdicts.items():
        print(f"{family} | {len(found)} | {share(one.blocked for one in found)} | {share(one.warned for one in found)}")
    known = [one for family, found in verdicts.items() if family not in UNTUNED for one in found]
    shares = f"{share(one.blocked for one in known)} | {share(one.warned for one in known)}"
    print(f"all but these two | {len(known)} | {shares}")


def report_false_alarms(more: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = grow(Path(folder) / "corpus", skills=400).root
        library = Path(sysconfig.get_path("stdlib"))
        sets: dict[str, Iterable[Skill]] = {
            "bundled skills": folders(ROOT / "skills"),
            "generated skills of the tests": folders(corpus),
            "pages of the documentation": pages(ROOT / "docs"),
            "modules of the standard library": modules(library),
            **{str(one): folders(one) for one in more},
        }
        print("\nharmless | skills | refused | refused or warned | rules that refuse")
        for name, skills in sets.items():
            found = [Verdict(skill) for skill in skills]
            rules = sorted(
                {match.rule for one in found for match in one.matches if at_least(severity_of(match), BLOCK)}
            )
            shares = f"{share(one.blocked for one in found)} | {share(one.warned for one in found)}"
            print(f"{name} | {len(found)} | {shares} | {', '.join(rules) or '-'}")


def report_times() -> None:
    times = [min(Verdict(skill).ms for _ in range(15)) for skill in folders(ROOT / "skills")]
    print(f"\nprocessor time of a bundled skill: median {statistics.median(times):.0f} ms, largest {max(times):.0f} ms")


def share(values: Iterable[bool]) -> str:
    found = list(values)
    return f"{sum(found)} ({100 * sum(found) / len(found):.0f} %)" if found else "-"


if __name__ == "__main__":
    report_recall()
    report_false_alarms([Path(one) for one in sys.argv[1:]])
    report_times()
