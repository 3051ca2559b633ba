"""What the descriptions of answers stand on."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Cursor = Annotated[str | None, Meta(description="For the next page; null where this is the last")]
Object = dict[str, Any]


class Answer(msgspec.Struct):
    """Base of all."""


class WhoDid(Answer):
    """An identity."""

    name: str
    kind: str
