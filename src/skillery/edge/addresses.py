"""The segments and the query of an address, for endpoints whose addresses have parameters."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from skillery.edge.http import HttpRefusal
from skillery.errors import InvalidParams
from skillery.formats.wording import quoted
from skillery.methods.errors import NOT_FOUND, plain_error


def segments_of(scope: Any, count: int, *, more: bool = False) -> list[str]:
    """Return the decoded segments of the address.

    Raise HttpRefusal 404 if there are fewer than `count` segments, or more than `count` and `more` is false, or if a
    segment is not UTF-8 or contains an encoded `/` or NUL.
    """
    raw = scope["raw_path"].partition(b"?")[0].removeprefix(b"/").split(b"/")
    try:
        found = [unquote_to_bytes(part).decode() for part in raw]
    except UnicodeDecodeError:
        raise nothing_here() from None
    if len(found) < count or (len(found) > count and not more) or any("/" in part or "\0" in part for part in found):
        raise nothing_here()
    return found


def query_of(scope: Any, *known: str) -> dict[str, str]:
    """Return the parameters of the query. Raise InvalidParams if the query has a parameter that is not in `known`."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - set(known))
    if unknown:
        raise InvalidParams(
            f"there is no parameter {quoted(unknown[0])}", hint=f"The parameters are {', '.join(known)}."
        )
    return {key: values[-1] for key, values in query.items()}


def nothing_here(hint: str | None = None) -> HttpRefusal:
    return HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found", hint))
