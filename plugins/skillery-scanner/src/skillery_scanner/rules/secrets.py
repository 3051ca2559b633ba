"""Secrets in files: private keys, tokens of known services, and passwords in code."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from skillery_scanner.catalog import Match
from skillery_scanner.texts import excerpt

_KEY = re.compile(r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
# A prefix that the service documents, then enough characters of its alphabet. The hints are searched first, because
# `in` is many times faster than a regular expression.
_TOKENS = (
    ("AKIA", re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    ("ASIA", re.compile(r"\bASIA[0-9A-Z]{16}\b")),
    ("gh", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b")),
    ("github_pat_", re.compile(r"\bgithub_pat_[A-Za-z0-9_]{40,255}\b")),
    ("glpat-", re.compile(r"\bglpat-[A-Za-z0-9_-]{20,64}")),
    ("xox", re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{20,250}")),
    ("sk-ant-", re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20,250}")),
    ("sk-", re.compile(r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{32,250}")),
    ("k_live_", re.compile(r"\b[rs]k_live_[A-Za-z0-9]{20,250}\b")),
    ("AIza", re.compile(r"\bAIza[0-9A-Za-z_-]{35}")),
    ("npm_", re.compile(r"\bnpm_[A-Za-z0-9]{36}\b")),
    ("pypi-", re.compile(r"\bpypi-AgEI[A-Za-z0-9_-]{50,250}")),
    ("hf_", re.compile(r"\bhf_[A-Za-z0-9]{30,64}\b")),
    ("SG.", re.compile(r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}")),
    ("sky_", re.compile(r"\bsky_[A-Za-z0-9_-]{24,250}")),
    ("hooks.slack.com", re.compile(r"hooks\.slack\.com/services/T[A-Z0-9]{6,14}/B[A-Z0-9]{6,14}/[A-Za-z0-9]{16,32}")),
    ("/api/webhooks/", re.compile(r"discord(?:app)?\.com/api/webhooks/[0-9]{16,20}/[A-Za-z0-9_-]{50,90}")),
)
_VALUE = re.compile(
    r"(?:password|passwd|secret|api_?key|auth_?token|access_?token|private_?key)[\"']?[ \t]{0,4}[:=][ \t]{0,4}"
    r"[\"']([^\"'\s]{12,200})[\"']",
    re.IGNORECASE,
)
_VALUE_HINTS = ("pass", "secret", "key", "token")
_PLACEHOLDER = re.compile(
    r"example|placeholder|changeme|change-me|your|dummy|sample|redacted|xxx|\*\*\*|\.\.\.|<|>|\$|\{|test|fake|123456",
    re.IGNORECASE,
)
_RANDOM_BITS = 3.3
"""Bits of each character of a random value. Words and sentences have fewer bits or spaces."""


def secrets(path: str, text: str) -> Iterator[Match]:
    """Yield the secrets in a text. Excerpts contain only the start of a secret, because every reader sees findings."""
    lowered = text.lower()
    if "private key" in lowered:
        for match in _KEY.finditer(text):
            yield Match("secret-key", path, _line(text, match), "-----BEGIN … PRIVATE KEY-----")
    for hint, pattern in _TOKENS:
        if hint in text:
            for match in pattern.finditer(text):
                if _is_random(match[0]):
                    yield Match("secret-token", path, _line(text, match), f"{match[0][:8]}…")
    if any(hint in lowered for hint in _VALUE_HINTS):
        for match in _VALUE.finditer(text):
            if _is_random(match[1]) and re.search(r"[0-9]", match[1]):
                name = excerpt(text, match.start(), match.start(1))
                yield Match("secret-value", path, _line(text, match), f"{name}…")


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _is_random(value: str) -> bool:
    return not _PLACEHOLDER.search(value) and _bits(value) > _RANDOM_BITS


def _bits(value: str) -> float:
    """Return the entropy of a value in bits for each character."""
    total = len(value)
    return -sum(count / total * math.log2(count / total) for count in Counter(value).values())
