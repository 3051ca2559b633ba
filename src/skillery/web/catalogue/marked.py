"""Marked words of search results."""

from __future__ import annotations

import re

from markupsafe import Markup

from skillery.web.display import visible

_MARKED = re.compile("«([^«»]*)»")
LONGEST = 400


def marked(snippet: str) -> Markup:
    """Return a snippet of search_skills as HTML, with the words between « and » as `<mark>`."""
    parts = []
    end = 0
    text = snippet[:LONGEST]
    for match in _MARKED.finditer(text):
        parts += [visible(text[end : match.start()]), Markup("<mark>{}</mark>").format(visible(match[1]))]
        end = match.end()
    parts.append(visible(text[end:]))
    return Markup('<bdi class="foreign">{}</bdi>').format(Markup("").join(parts))


def unmarked(snippet: str) -> str:
    return snippet.replace("«", "").replace("»", "")
