"""Names that look like the name of a popular skill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skillery_scanner.catalog import Match, Skill

SHORTEST = 5
"""Characters of a name that is compared. One edit turns many short words into another word."""
_ALIKE = str.maketrans({"0": "o", "1": "l", "5": "s", "3": "e", "_": "-"})


def lookalike_name(skill: Skill) -> Iterator[Match]:
    """Yield a match for each popular name that differs by one edit. Names in one namespace have the same owner, and may
    be alike.
    """
    for popular in skill.popular:
        if popular != skill.name and _is_foreign(skill.name, popular) and is_near(skill.name, popular):
            yield Match("lookalike-name", "skill.toml", None, f"{skill.name} looks like {popular}")
            return


def _is_foreign(name: str, popular: str) -> bool:
    own_namespace, popular_namespace = name.rpartition(".")[0], popular.rpartition(".")[0]
    return not own_namespace or own_namespace != popular_namespace


def is_near(name: str, other: str) -> bool:
    """Return whether two names differ by one edit (insert, delete, replace, or swap of adjacent letters) or only in
    signs that look alike.
    """
    if min(len(name), len(other)) < SHORTEST or abs(len(name) - len(other)) > 1:
        return False
    if name.translate(_ALIKE) == other.translate(_ALIKE) or name.replace("-", "").replace("_", "") == other.replace(
        "-", ""
    ).replace("_", ""):
        return True
    return _one_edit(name, other)


def _one_edit(name: str, other: str) -> bool:
    start = next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))
    name_rest, other_rest = name[start:], other[start:]
    if len(name_rest) == len(other_rest):
        swapped = name_rest[1:2] + name_rest[:1] + name_rest[2:]
        return name_rest[1:] == other_rest[1:] or swapped == other_rest
    longer, shorter = sorted((name_rest, other_rest), key=len, reverse=True)
    return longer[1:] == shorter


def popular_names(names: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*own, *names)))
