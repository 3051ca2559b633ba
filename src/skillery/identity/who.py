"""An identity as results name it."""

from __future__ import annotations

import msgspec


class Who(msgspec.Struct, frozen=True):
    """An identity."""

    name: str
    kind: str
