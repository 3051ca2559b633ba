"""Made by `make client`: do not edit."""

from typing import Literal, NotRequired, TypedDict


class SkillFile(TypedDict):
    """One file of a new skill."""

    path: str
    content: str
    encoding: NotRequired[Literal["utf-8", "base64"]]
    executable: NotRequired[bool]
