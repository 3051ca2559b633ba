"""The figures of the README, on fewer skills: recall on generated attacks, and false alarms on harmless skills."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from measure_scanner import ROOT, UNTUNED, Verdict, folders, pages
from scanner_corpus import attacks
from tests.support.skill_corpus import grow


def test_nearly_all_generated_attacks_are_refused() -> None:
    refused: dict[str, list[bool]] = defaultdict(list)
    for attack in attacks(12):
        refused[attack.family].append(Verdict(attack.skill).blocked)
    weak = {family: sum(found) for family, found in refused.items() if sum(found) < 11 and family not in UNTUNED}

    assert weak == {}


@pytest.mark.smoke
def test_no_bundled_skill_and_no_page_is_refused() -> None:
    for skill in (*folders(ROOT / "skills"), *pages(ROOT / "docs")):
        assert not Verdict(skill).blocked, (skill.name, Verdict(skill).matches)
    for skill in folders(ROOT / "skills"):
        assert Verdict(skill).matches == []


def test_no_generated_skill_is_refused(tmp_path: Path) -> None:
    for skill in folders(grow(tmp_path / "corpus", skills=60).root):
        assert not Verdict(skill).blocked, (skill.name, Verdict(skill).matches)
