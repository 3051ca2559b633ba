"""Local paths for the files of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FORBIDDEN = ("", ".", "..")
SPECIAL = {"\\", ":"} if os.name == "nt" else set()


def is_plain(path: str) -> bool:
    """Return whether a path in the result of a run stays inside a folder. The path is untrusted: the code of the run
    chose it.
    """
    return not any(one in FORBIDDEN or not one.isprintable() or SPECIAL & set(one) for one in path.split("/"))


def places_below(folder: os.PathLike[str], paths: Iterable[str]) -> list[Path]:
    """Return a local path below `folder` for each path. If a path occurs twice, the second local path gets a number.

    A run may return a file and a picture with one path. Raise ValueError if a path leads outside the folder.
    """
    places: list[Path] = []
    for path in paths:
        if not is_plain(path):
            raise ValueError(
                f"the run has a file {path!r}, which leads outside the folder: download its blob by its id"
            )
        first = place = Path(folder).joinpath(*path.split("/"))
        number = 1
        while place in places:
            number += 1
            place = first.with_name(f"{first.stem}-{number}{first.suffix}")
        places.append(place)
    return places
