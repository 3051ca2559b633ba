"""text.redact.pii. For other code: `redact`, `find_pii`, and `Redactor` for long texts and counts."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from typing import Any

from runtime import blobs, log, summary

from .exchange import open_text
from .finding import KINDS, Finding, find_pii
from .redacting import MOST_PLACES, Redactor

__all__ = ["KINDS", "Finding", "Redactor", "find_pii", "main", "redact"]


def redact(text: str, *, kinds: Collection[str] = KINDS, style: str = "label", keep: Iterable[str] = ()) -> str:
    """The text without personal data. Raises ValueError for an unknown kind or style."""
    return Redactor(kinds, style, keep).redact(text)


def main(args: dict[str, Any]) -> dict[str, Any]:
    redactor = Redactor(args.get("kinds", KINDS), args.get("style", "label"), map(str, args.get("keep", ())))
    raw = io.BytesIO()
    # Bytes that are no UTF-8 pass through as they are.
    with open_text(args["text_blob"], errors="surrogateescape") as file:
        for piece in redactor.stream(file):
            raw.write(piece.encode("utf-8", "surrogateescape"))
    total = redactor.counts.total()
    counts = {kind: redactor.counts[kind] for kind in KINDS if kind in redactor.kinds}
    text = f"Replaced {total} values: " + (", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "none found")
    log.info(text)
    summary(text + ".")
    report = {"counts": counts, "places": redactor.places, "places_left_out": max(total - MOST_PLACES, 0)}
    return {
        "summary": text + ".",
        "total": total,
        "counts": counts,
        "first": redactor.places[:10],
        "redacted_blob": blobs.write_bytes(raw.getvalue(), kind="text/plain"),
        "report_blob": blobs.write_json(report),
    }
