"""tests/mutants.toml names code and tests that exist."""

from __future__ import annotations

import pytest

from tests.support.mutants import CHECKOUT, Mutant, list_mutants

MUTANTS = list_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_old_text_of_a_mutant_occurs_once(mutant: Mutant) -> None:
    text = (CHECKOUT / mutant.file).read_text()

    assert text.count(mutant.old) == 1
    assert text.replace(mutant.old, mutant.new) != text
    assert [test for test in mutant.tests if not (CHECKOUT / test).exists()] == []
    assert mutant.tests


def test_there_are_sixty_mutants_with_different_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
