"""Files that a caller gives to a run or a workspace: blobs with their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from skillery.errors import InvalidParams, InvalidPath
from skillery.formats.paths import check_paths, path_problem, plain_path
from skillery.formats.wording import quoted
from skillery.method import about

MOST_FILES = 1_000
OUT = "out"
"""The folder below /workspace whose files a run keeps as blobs."""
PATH_HINT = (
    "A path is relative to /workspace, with '/' between at most 8 segments, e.g. 'in/report.docx', and at most 255 "
    "bytes."
)


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in the workspace of a run."""

    path: Annotated[str, about("Path below /workspace (e.g., 'report.docx')")]
    blob_id: Annotated[str, about("Blob that is copied there")]
    executable: Annotated[bool, about("Whether the copy is executable", default=False)] = False


def parse_files(files: Sequence[RunFile]) -> tuple[RunFile, ...]:
    """Return the files with plain paths.

    Raise InvalidPath if a path breaks the rules of bundle paths, is `out` or collides with another path. Raise
    InvalidParams if there are more than MOST_FILES.
    """
    if len(files) > MOST_FILES:
        raise InvalidParams(
            f"a run was given {len(files)} files, at most {MOST_FILES} are allowed",
            hint="Pack them into an archive and unpack it in the run.",
            param="files",
        )
    plain = [msgspec.structs.replace(file, path=plain_path(file.path)) for file in files]
    for file in plain:
        problem = path_problem(file.path)
        if problem:
            raise InvalidPath(f"The path {quoted(file.path)} {problem}.", hint=PATH_HINT, param="files")
        if file.path.casefold() == OUT:
            message = f"{quoted(file.path)} is the folder whose files a run keeps: it cannot be a file"
            raise InvalidPath(message, hint="Write out/NAME for a file in the folder out.", param="files")
    check_paths(file.path for file in plain)
    return tuple(plain)
