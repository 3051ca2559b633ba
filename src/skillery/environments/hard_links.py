"""The folder of an environment: links to the files of all its trees."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from skillery.environments.disk import BLOCK, make_folder, on_disk
from skillery.environments.errors import BuildFailed
from skillery.formats.wording import printable


def link(trees: Iterable[Path], target: Path) -> int:
    """Link the files of all trees into the folder `target`. Return the disk use of its folders and copies. Blocking.

    If two trees have a file of the same name, the file and its compiled code come from the first tree.
    """
    size = 0
    owners: dict[str, int] = {}
    make_folder(target)
    for number, tree in enumerate(trees):
        for folder, names in _walk(tree):
            if folder and _make_new_folder(target / folder):
                size += BLOCK
            for name in names:
                path = f"{folder}/{name}" if folder else name
                source = _source_of(path)
                if owners.setdefault(source, number) != number or owners.setdefault(path, number) != number:
                    continue
                if not _link(tree / path, target / path):
                    size += on_disk((target / path).stat().st_size)
    return size


def _source_of(path: str) -> str:
    """Return the module of a file with compiled code; for any other file, return its path."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc") or not (folder == "__pycache__" or folder.endswith("/__pycache__")):
        return path
    above = folder.removesuffix("__pycache__")
    return f"{above}{name.removesuffix(f'.{sys.implementation.cache_tag}.pyc')}.py"


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, relative to the root, with its files. A folder comes before its subfolders."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names = []
        with os.scandir(root / folder) as entries:
            below = []
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                below.append(path) if entry.is_dir(follow_symlinks=False) else names.append(entry.name)
        waiting += below
        yield folder, names


def _make_new_folder(path: Path) -> bool:
    """Create a folder. Return False if it exists."""
    try:
        path.mkdir()
        path.chmod(0o755)
    except FileExistsError:
        if not path.is_dir():
            raise _clash(path.name) from None
        return False
    return True


def _link(source: Path, target: Path) -> bool:
    """Link a file. If the disk does not support links, copy the file and return False."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise _clash(target.name) from None
    except OSError as error:
        if error.errno is None or target.exists():
            raise
        shutil.copy2(source, target)
        return False
    return True


def _clash(name: str) -> BuildFailed:
    return BuildFailed(f"two packages have '{printable(name, 128)}', one as a file, one as a folder")
