"""The form of an identity in results."""

from __future__ import annotations

import msgspec


class Who(msgspec.Struct, frozen=True):
    """An identity."""

    name: str
    kind: str
