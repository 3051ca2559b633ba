"""Paths of the files in a bundle. A valid path is relative, short and without `..`. Two paths of a bundle never
collide, even if a file system ignores case or Unicode form.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import accumulate

from skillery.errors import InvalidPath
from skillery.formats.wording import Problem, has_surrogate, quoted, raise_problems

MAX_DEPTH = 8
MAX_BYTES = 255

PATH_HINT = (
    "A path is relative to the skill's root, with '/' between at most 8 segments, e.g. 'code/main.py', "
    "and at most 255 bytes."
)
_DRIVE = re.compile(r"[A-Za-z]:")
_NOT_ON_WINDOWS = re.compile(r'[<>:"|?*]')
_UNSTORABLE = re.compile(r'[<>:"|?*\\\x00-\x1f\x7f\ud800-\udfff]')
_DEVICE = re.compile(r"CON|PRN|AUX|NUL|(?:COM|LPT)[1-9¹²³]", re.IGNORECASE)


def parse_path(text: str) -> str:
    """Return the path, as `plain_path` returns it. Raise InvalidPath if the text is not a valid path."""
    path = plain_path(text)
    problem = path_problem(path)
    if problem:
        raise InvalidPath(f"The path {quoted(text)} {problem}.", hint=PATH_HINT)
    return path


def plain_path(text: str) -> str:
    """Return the path without `.`, `..` and empty segments: `code/main.py` for `./code//lib/../main.py`.

    The text is returned unchanged if it is absolute, ends with '/' or leads outside. `path_problem` refuses such texts.
    """
    if len(text) > 4 * MAX_BYTES or text.startswith("/") or text.endswith("/"):
        return text
    segments: list[str] = []
    for segment in text.split("/"):
        if segment == ".." and not segments:
            return text
        if segment == "..":
            segments.pop()
        elif segment not in {"", "."}:
            segments.append(segment)
    return "/".join(segments) or text


def path_problem(text: str) -> str | None:
    """Return the reason why `text` is not a valid path in a bundle, or None if it is valid.

    The reason is a clause that follows the path in a message, for example "contains a backslash".
    """
    return _text_problem(text) or _segment_problem(text.split("/"))


def portability_problem(path: str) -> str | None:
    """Return the reason why Windows cannot store a valid path, as a clause after the path, or None if it can."""
    for segment in path.split("/"):
        odd = _NOT_ON_WINDOWS.search(segment)
        if odd:
            return f"contains {odd[0]!r}, which names of Windows cannot contain"
        if segment.endswith((".", " ")):
            return "has a segment that ends with a dot or a space, which Windows removes"
        if _DEVICE.fullmatch(segment.partition(".")[0].rstrip(" ")):
            return f"has the segment {quoted(segment)}, which is the name of a device of Windows"
    return None


def unportable_path(paths: Iterable[str]) -> str | None:
    """Return the first path that Windows cannot store, or None if it can store all paths."""
    return next((path for path in paths if portability_problem(path) is not None), None)


def portable_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield each path in a form that all file systems can store next to the others, and that leads nowhere else.

    Characters that Windows refuses become `_`. A path that would collide with an earlier path begins with a number.
    """
    files, folders, numbers = set[str](), set[str](), dict[str, int]()
    for path in paths:
        segments = (segment for segment in path.split("/") if segment not in {"", ".", ".."})
        portable = name = "/".join(map(_portable, segments)) or "_"
        key = _folded(portable)
        while True:
            *above, last = accumulate(_folded(name).split("/"), "{}/{}".format)
            if last not in files and last not in folders and files.isdisjoint(above):
                break
            # Strangers choose the names, and may choose the same one many times.
            numbers[key] = numbers.get(key, 1) + 1
            name = f"{numbers[key]} {portable}"
        files.add(last)
        folders.update(above)
        yield name


def _portable(segment: str) -> str:
    """Return a segment without the characters and endings that names of Windows cannot have."""
    name = _UNSTORABLE.sub("_", segment).rstrip(". ") or "_"
    return f"_{name}" if _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")) else name


def leads_outside(path: str) -> bool:
    """Return whether a path that is joined to a folder names a file outside the folder, or no file."""
    return "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/"))


def check_paths(paths: Iterable[str]) -> None:
    """Raise InvalidPath, with a list of the collisions, if paths of one bundle collide."""
    problems = list(path_collisions(paths))
    if problems:
        raise_problems(InvalidPath, problems, hint="Rename or leave out one of the two.")


def path_collisions(paths: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for each file that some file systems cannot store together with another file of the bundle.

    Collisions are: a path that is given twice, paths that differ only in case or Unicode form, and a file with the path
    of another file's folder.
    """
    files: dict[str, str] = {}
    for path in paths:
        folded = _folded(path)
        if folded in files:
            yield _same_place(path, files[folded])
        files.setdefault(folded, path)
    for path in files.values():
        for folder in list(accumulate(_folded(path).split("/"), "{}/{}".format))[:-1]:
            if folder in files:
                message = f"{quoted(files[folder])} is a file and also the folder of {quoted(path)}"
                yield Problem(message, path=path, file=path)


def _same_place(path: str, other: str) -> Problem:
    if path == other:
        return Problem(f"{quoted(path)} is given twice", path=path, file=path)
    message = f"{quoted(path)} and {quoted(other)} are the same path if case or Unicode form is ignored"
    return Problem(message, path=path, file=path)


def _text_problem(text: str) -> str | None:
    """Return the reason why the characters or the size of a path are not valid, or None."""
    # The size is checked first, so that the following checks are cheap.
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        return f"has {size} bytes, at most {MAX_BYTES} are allowed"
    if has_surrogate(text):
        return "contains half a character (a lone surrogate)"
    if any(unicodedata.category(character) == "Cc" for character in text):
        return "contains a control character"
    if "\\" in text:
        return "contains a backslash"
    if _DRIVE.match(text):
        return "starts with a drive letter"
    return None


def _segment_problem(segments: list[str]) -> str | None:
    if segments == [""]:
        return "is empty"
    if not segments[0]:
        return "is absolute"
    if not segments[-1]:
        return "ends with '/'"
    if "" in segments:
        return "contains an empty segment"
    if "." in segments or ".." in segments:
        return "contains a '.' or '..' segment"
    if len(segments) > MAX_DEPTH:
        return f"has {len(segments)} segments, at most {MAX_DEPTH} are allowed"
    return None


def _folded(path: str) -> str:
    """Return the key of a path: equal for paths that a file system may treat as the same file."""
    # Both steps run twice: folding can undo a normal form and the reverse (Unicode 3.13, D146).
    folded = unicodedata.normalize("NFKC", path).casefold()
    return unicodedata.normalize("NFKC", folded).casefold()
