"""The rules of the settings, which map the claims of a token to an identity."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skillery.backends import ALL_SCOPES, ExplainedCheck, Identity, Scope
from skillery_oidc.access_tokens import Refused
from skillery_oidc.settings import OidcSettings, Rule

MOST_NAME = 200
ANY = "*"
_TEMPLATE = re.compile(r"\{([^{}]+)\}")
_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_RESERVED = frozenset({"skillery"})
_OF_JOBS = "ci:"
"""The start of the names of CI jobs that publish by a trust rule."""


def identity_of(claims: dict[str, Any], settings: OidcSettings) -> tuple[int, Identity]:
    """Return the number of the first rule that matches, from 1, and the identity that it gives.

    Raise Refused if no rule matches, or if the claims do not have the texts that the rule needs.
    """
    for number, rule in enumerate(settings.rules, 1):
        if mismatch(rule, claims) is None:
            return number, _identity(number, rule, claims, settings)
    raise Refused(
        "rules", "no rule of this server matches the token: ask an admin to add you to a group, or to add a rule"
    )


def explain_rules(claims: dict[str, Any], settings: OidcSettings) -> Iterator[ExplainedCheck]:
    """Yield whether each rule matches. The rules after the first match are skipped."""
    matched = 0
    for number, rule in enumerate(settings.rules, 1):
        reason = mismatch(rule, claims)
        if matched:
            detail = f"not asked, because rule {matched} matches" + ("" if reason else "; it would match too")
            yield ExplainedCheck(f"rule {number}", "skipped", detail)
        elif reason is None:
            matched = number
            yield ExplainedCheck(f"rule {number}", "ok", "it matches")
        else:
            yield ExplainedCheck(f"rule {number}", "skipped", reason)


def mismatch(rule: Rule, claims: dict[str, Any]) -> str | None:
    """Return why a rule does not match, or None if it does."""
    for path, expected in rule.claims.items():
        values = expected if isinstance(expected, tuple) else (expected,)
        claimed = _values(path, claims)
        if not claimed:
            return f"the token has no claim '{path}'"
        if not any(value == ANY or _contains(claimed, value) for value in values):
            expected_text = " or ".join(repr(value) for value in values)
            return f"the claim '{path}' is {_shown(claimed)}, not {expected_text}"
    return None


def _contains(claimed: Sequence[Any], value: str | int | bool) -> bool:
    # True == 1 in Python, and not in a claim.
    return any(type(element) is type(value) and element == value for element in claimed)


def _shown(claimed: Sequence[Any]) -> str:
    return ", ".join(repr(element) for element in claimed[:20])[:300]


def _values(path: str, claims: dict[str, Any]) -> list[Any]:
    """Return the values of a claim. The values of `scope` are separated by spaces (RFC 8693 §4.2)."""
    value = _find(path, claims)
    if path == "scope" and isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [element for element in value if isinstance(element, str | int)]
    return [value] if isinstance(value, str | int) else []


def _find(path: str, claims: Mapping[str, Any]) -> Any:
    """Return a claim by its name, or by a path of names with dots between them."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def claimed_text(path: str, claims: Mapping[str, Any]) -> str:
    """Return the text of a claim, or "" if the token has no text there."""
    value = _find(path, claims)
    return value if isinstance(value, str) else ""


def identities_of(claims: Mapping[str, str], settings: OidcSettings) -> list[str]:
    """Return the names that the rules can give to a user, of whom only these claims are known.

    Names without a claim are left out, because several users may have them.
    """
    names = []
    for rule in settings.rules:
        needed = _TEMPLATE.findall(rule.identity)
        if needed and set(needed) <= set(claims):
            names.append(_TEMPLATE.sub(lambda match: claims[match[1]], rule.identity))
    return [name for name in dict.fromkeys(names) if is_name(name)]


def _identity(number: int, rule: Rule, claims: dict[str, Any], settings: OidcSettings) -> Identity:
    subject = f"rule {number}"
    name = _filled(rule.identity, claims, subject)
    if not is_name(name):
        raise Refused(subject, f"{subject} of this server gives the identity {name[:60]!r}, which is not a valid name")
    namespaces = tuple(sorted({_grant(grant, claims, subject) for grant in rule.namespaces}))
    return Identity(name, rule.kind, frozenset(rule.scopes) & _allowed(claims, settings), namespaces)


def is_name(name: str) -> bool:
    """Return whether a text can be the name of an identity."""
    is_plain = name.isprintable() and name == name.strip() and unicodedata.is_normalized("NFC", name)
    return 1 <= len(name) <= MOST_NAME and is_plain and name not in _RESERVED and not name.startswith(_OF_JOBS)


def _allowed(claims: dict[str, Any], settings: OidcSettings) -> frozenset[Scope]:
    """Return the scopes that the claim `scope` allows."""
    if not settings.scopes:
        return ALL_SCOPES
    return frozenset(scope for name in _values("scope", claims) for scope in settings.scopes.get(str(name), ()))


def _grant(grant: str, claims: dict[str, Any], subject: str) -> str:
    for path in _TEMPLATE.findall(grant):
        text = _text(path, claims, subject)
        # A claim fills one part of a name. A dot or an asterisk would reach into other namespaces.
        if not _SEGMENT.fullmatch(text):
            raise Refused(subject, f"{subject}: the claim '{path}' is {text[:60]!r}, which is not part of a namespace")
    return _filled(grant, claims, subject)


def _filled(template: str, claims: dict[str, Any], subject: str) -> str:
    return _TEMPLATE.sub(lambda match: _text(match[1], claims, subject), template)


def _text(path: str, claims: dict[str, Any], subject: str) -> str:
    value = _find(path, claims)
    if not isinstance(value, str) or not value:
        raise Refused(subject, f"{subject} needs the claim '{path}', but the token has no text there")
    return value
