"""Made by `make client`: do not edit."""

from typing import Literal, NotRequired, TypedDict


class RunFile(TypedDict):
    """A file in the workspace of a run."""

    path: str
    blob_id: str
    executable: NotRequired[bool]


class SkillFile(TypedDict):
    """A file of a new skill."""

    path: str
    content: str
    encoding: NotRequired[Literal["utf-8", "base64"]]
    executable: NotRequired[bool]
