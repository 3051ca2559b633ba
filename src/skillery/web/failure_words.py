"""The words of failed requests on pages, where they differ from the words for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

MOST_LINKS = 5
_OF_PAGES = {
    "body_too_large": (
        "The text of this form is too large. The server has used nothing of it.",
        "Go back in your browser, and shorten the text.",
    ),
    "internal_error": (
        "The server could not finish this request.",
        "Try again. If it fails again, send the number of the request to an admin.",
    ),
}
"""Messages and hints by the type of the error, where those for programs do not help the user of a page."""


class FailureWords(NamedTuple):
    """What a page says about a failed request."""

    message: str
    hint: str
    title: str
    """The words before the links. "" if there are no links."""
    links: list[tuple[str, str]]
    """Words and addresses of pages that the user may have meant."""


def words_of(error: Mapping[str, Any]) -> FailureWords:
    """Return the words for an error object. Hidden objects get the same words as objects that do not exist."""
    words: Mapping[str, Any] = error.get("data", {})
    kind, name = words.get("type"), str(words.get("name", ""))
    if kind == "skill_not_found":
        message = f"The skill {name} does not exist, or you may not see it."
        hint = "" if words.get("near") else "Check the name, or search for the skill."
        return FailureWords(message, hint, *_links("Similar", [(one, f"/s/{one}") for one in words.get("near") or ()]))
    if kind == "version_not_found":
        version, versions = words.get("version", ""), words.get("versions") or ()
        message = f"{name} has no version {version}, or you may not see it."
        links = [(version, f"/s/{quote(f'{name}@{version}', safe='@')}") for version in versions]
        return FailureWords(message, "", *_links("Its versions", [*links, ("all versions", f"/s/{name}/versions")]))
    if kind == "label_not_found":
        links = [(one, f"/s/{name}@{one}") for one in words.get("labels") or ()]
        message = f"{name} has no label {words.get('label', '')}."
        return FailureWords(message, "", *_links("Its labels", [*links, ("all versions", f"/s/{name}/versions")]))
    if kind == "file_not_found" and words.get("version"):
        at = quote(f"{name}@{words['version']}", safe="@")
        links = [("all files", f"/s/{at}/files")]
        return FailureWords(error["message"], words.get("hint", ""), *_links("See", links))
    message, hint = _OF_PAGES.get(str(kind), (error["message"], words.get("hint", "")))
    return FailureWords(message, hint, "", [])


def _links(title: str, links: list[tuple[str, str]]) -> tuple[str, list[tuple[str, str]]]:
    shown = links[: MOST_LINKS - 1] + links[-1:] if len(links) > MOST_LINKS else links
    return (title, shown) if shown else ("", [])
