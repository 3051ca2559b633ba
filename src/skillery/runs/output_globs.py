"""The globs of a run: files in its workspace that it keeps in addition to those in `out`."""

from __future__ import annotations

from collections.abc import Sequence

from skillery.errors import InvalidParams, InvalidPath
from skillery.formats.manifest import Permissions
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.wording import quoted

MOST_GLOBS = 100
HINT = (
    "A glob is relative to /workspace, with '/' between at most 8 segments, e.g. 'report/*.pdf' or '**/*.csv'. '*' is "
    "any part of a segment, '**' any number of folders."
)


def parse_outputs(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the globs without duplicates.

    Raise InvalidPath if a glob breaks the rules of bundle paths, and InvalidParams if there are too many globs.
    """
    if len(globs) > MOST_GLOBS:
        raise InvalidParams(
            f"a run was given {len(globs)} globs in 'outputs', at most {MOST_GLOBS} are allowed",
            hint="Write '**' for any number of folders: one glob can match many files.",
            param="outputs",
        )
    globs = list(dict.fromkeys(map(plain_path, globs)))
    for glob in globs:
        problem = path_problem(glob)
        if problem:
            raise InvalidPath(f"The glob {quoted(glob)} {problem}.", hint=HINT, param="outputs")
    return tuple(globs)


def checked_outputs(globs: Sequence[str], permissions: Permissions) -> tuple[str, ...]:
    """Return the globs. Raise InvalidParams if there are globs and the skill has permissions.

    Such a skill may write its secrets, or what it read with them, to files that its author does not give to callers.
    """
    if globs and (permissions.secrets or permissions.network):
        raise InvalidParams(
            "'outputs' names files of a skill that has permissions",
            hint="Leave 'outputs' out. The skill chooses the files: it writes them to /workspace/out.",
            param="outputs",
        )
    return tuple(globs)
