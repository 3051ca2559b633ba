"""Tokens as text (`sky_<id>_<secret>`), and the checks of the parameters for a new token."""

from __future__ import annotations

import re
import secrets
import string
import unicodedata
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from skillery.errors import InvalidName, InvalidParams
from skillery.formats.names import parse_namespace
from skillery.formats.timestamps import parse_duration
from skillery.formats.wording import quoted

PREFIX = "sky_"
MOST_NAME = 100
MOST_NAMESPACES = 100
REMEMBERED_SECONDS = 1.0
"""The longest time in which a server may still accept a token that another server has revoked."""
RESERVED = {"skillery": "the bundled skills are published under it"}
CI_PREFIX = "ci:"
"""The start of the names of CI jobs. No other identity of the registry has such a name."""
_ID_LENGTH = 12
_SECRET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43  # 62 ** 43 > 2 ** 256
_TOKEN = re.compile(rf"{PREFIX}([0-9a-z]{{{_ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})")


class NewToken(NamedTuple):
    """A new token: the text for its owner, and the id, which is not secret."""

    text: str
    id: str


def new_token() -> NewToken:
    """Return a new token with an id of 62 random bits and a secret of 256 random bits.

    Both consist of letters and digits, so that a double click selects the whole token.
    """
    token_id = "".join(secrets.choice(string.digits + string.ascii_lowercase) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_SECRET) for _ in range(_SECRET_LENGTH))
    return NewToken(f"{PREFIX}{token_id}_{secret}", token_id)


def id_of(text: str) -> str | None:
    """Return the id in a token, or None if the text is not a token."""
    match = _TOKEN.fullmatch(text)
    return match[1] if match else None


def parse_token_name(text: str) -> str:
    """Return the token name unchanged. Audit entries show this name as the caller.

    Raise InvalidName if the name is reserved, empty, too long or not printable, or if a space is at its start or end.
    """
    if text.startswith(CI_PREFIX):
        raise InvalidName(
            f"the name {quoted(text)} is taken: names with '{CI_PREFIX}' belong to CI jobs of trust rules",
            hint="Choose another name, or add a rule: skillery trust add.",
        )
    if text in RESERVED:
        raise InvalidName(f"the name {quoted(text)} is taken: {RESERVED[text]}", hint="Choose another name.")
    is_plain = text.isprintable() and text == text.strip() and unicodedata.is_normalized("NFC", text)
    if not 1 <= len(text) <= MOST_NAME or not is_plain:
        raise InvalidName(
            f"{quoted(text)} is not a valid token name",
            hint=f"A name is 1 to {MOST_NAME} printable characters, without a space at either end, e.g. 'sales-ci'.",
        )
    return text


def parse_grants(texts: Iterable[str]) -> tuple[str, ...]:
    """Return namespace grants, sorted and without duplicates: `sales.*`, or `*` for all names.

    Raise InvalidParams if a text is not a grant, or if there are too many grants.
    """
    values = sorted(set(texts))
    if len(values) > MOST_NAMESPACES:
        raise InvalidParams(f"a token has at most {MOST_NAMESPACES} namespaces, not {len(values)}", param="namespaces")
    return tuple(_parse_grant(text) for text in values)


def _parse_grant(text: str) -> str:
    """Return the grant unchanged. Raise InvalidParams if it is neither `*` nor a namespace with `.*`."""
    if text == "*":
        return text
    try:
        # "." is never a namespace: "" would be the root of all namespaces.
        parse_namespace(text.removesuffix(".*") or ".")
    except InvalidName:
        suggestion = None
    else:
        suggestion = f"{text.removesuffix('.*')}.*"
    if suggestion == text:
        return text
    guess = f" (did you mean {quoted(suggestion)}?)" if suggestion else ""
    raise InvalidParams(
        f"{quoted(text)} is not a namespace grant{guess}",
        hint="Write a namespace and '.*' (sales.*) for every name that starts with 'sales.', or '*' for all names.",
        param="namespaces",
    )


def parse_lifetime(text: str) -> timedelta | None:
    """Return the lifetime in a text such as `90d`, or None for "" and `never`: no end.

    The units are `s`, `m`, `h`, `d` and `w`. Raise InvalidParams if the text is not a duration or means more than ten
    years.
    """
    if text in {"", "never"}:
        return None
    try:
        return parse_duration(text, "expires")
    except InvalidParams as error:
        raise InvalidParams(error.message, hint=f"{error.hint} Or 'never'.", param="expires") from None
