"""Markdown of skills as HTML that is safe on pages of this server. Bounds limit the time and the size of the result."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from skillery.web.display import visible
from skillery.web.highlighting import highlighted

MOST_BYTES = 256 * 1024
MOST_COLUMNS = 500
MOST_HTML = 1024 * 1024
ID = "md-"
"""Prefix of all ids in the HTML, so that a heading cannot have the id of a part of the page."""
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_TAGS = {
    *("p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a", "img", "span", "div"),
    *("table", "thead", "tbody", "tr", "th", "td"),
    *_HEADINGS,
}
_ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href"},
    "img": {"src", "alt"},
    "ol": {"start"},
    "span": {"title"},
    **{heading: {"id"} for heading in _HEADINGS},
}
_CLASSES = {"span": {"k", "s", "c", "n", "hidden-char"}, "th": {"right"}, "td": {"right"}}
_ALWAYS = {
    "pre": {"class": "code", "tabindex": "0"},
    "div": {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "Table"},
    "th": {"scope": "col"},
    "img": {"loading": "lazy"},
}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REMOTE = re.compile(r"(?:https?://|mailto:)[^\s\\]+", re.IGNORECASE)
_LINES = re.compile(r"L[0-9]{1,7}(?:-L[0-9]{1,7})?")
_FRONTMATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?:^|\n)---[ \t]*(?:\r?\n|$)", re.DOTALL)


class Place(NamedTuple):
    """The bundle file that has the Markdown text."""

    base: str
    """The address of the version, for example `/s/text.csv@1.0`."""
    path: str
    """The path of the file in the bundle."""


def split_frontmatter(text: str) -> tuple[str, str]:
    """Return the frontmatter of a SKILL.md without its `---` lines, and the text after it."""
    match = _FRONTMATTER.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def is_bounded(text: str) -> bool:
    """Return whether a text is small enough to render: its bytes, and the columns of its tables."""
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "replace")) > MOST_BYTES:
        return False
    return all(line.count("|") <= MOST_COLUMNS for line in text.split("\n"))


def rendered(text: str, place: Place, shift: int) -> str | None:
    """Return Markdown as HTML, with each heading `shift` levels lower. Return None if a bound is exceeded."""
    if not is_bounded(text):
        return None
    html = _Renderer(place, shift).render(text)
    if len(html) > MOST_HTML:
        return None
    allowed_starts = (f"{place.base}/files/", f"{place.base}/raw/", f"#{ID}")
    return nh3.clean(
        html,
        tags=_TAGS,
        clean_content_tags=set(),
        attributes=_ATTRIBUTES,
        allowed_classes=_CLASSES,
        set_tag_attribute_values=_ALWAYS,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        url_relative=lambda url: url if url.startswith(allowed_starts) else None,
        strip_comments=True,
    )


def resolved(url: str, place: Place, kind: str = "files") -> str | None:
    """Return the address to which a link of a bundle file leads, or None if the link must not work.

    Relative links stay inside the bundle. `kind` is `files` for links and `raw` for images.
    """
    if _REMOTE.fullmatch(url):
        return url if kind == "files" else None
    if url.startswith("#"):
        return f"#{ID}{quote(_slug(unquote(url[1:])))}"
    plain = unquote(url)
    if plain.startswith("//") or "\\" in plain or _SCHEME.match(plain) or ":" in plain.partition("/")[0]:
        return None
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in plain):
        return None
    path, _, rest = url.partition("#")
    path = unquote(path.partition("?")[0])
    above = "" if path.startswith("/") else posixpath.dirname(place.path)
    target = posixpath.normpath(posixpath.join(above, path.lstrip("/")))
    if target == ".." or target.startswith(("../", "/")):
        return None
    lines = f"#{rest}" if _LINES.fullmatch(rest) and kind == "files" else ""
    return f"{place.base}/{kind}/{'' if target == '.' else quote(target)}{lines}"


class _Renderer:
    """Renders one text. Its rules replace the rules of markdown-it for texts, links, images and code."""

    def __init__(self, place: Place, shift: int) -> None:
        self._place = place
        self._shift = shift
        self._ids: dict[str, int] = {}
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        rules: dict[str, Any] = self._markdown.renderer.rules  # type: ignore[attr-defined]
        rules |= {
            "text": lambda tokens, at, *_: visible(tokens[at].content),
            "code_inline": lambda tokens, at, *_: f"<code>{visible(tokens[at].content, is_code=True)}</code>",
            "code_block": lambda tokens, at, *_: _code(tokens[at].content, ""),
            "fence": lambda tokens, at, *_: _code(tokens[at].content, tokens[at].info),
            "image": self._image,
            "link_open": self._link,
            "heading_open": self._heading,
            "heading_close": lambda tokens, at, *_: f"</{self._lower(tokens[at].tag)}>\n",
            "table_open": lambda *_: '<div class="scroll" tabindex="0"><table>\n',
            "table_close": lambda *_: "</table></div>\n",
            "th_open": _cell,
            "td_open": _cell,
        }

    def render(self, text: str) -> str:
        return str(self._markdown.render(text))

    def _lower(self, tag: str) -> str:
        """Return the tag of a heading, `shift` levels lower."""
        return f"h{min(6, int(tag[1:]) + self._shift)}"

    def _heading(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return the start tag of a heading, with a unique id."""
        inline = tokens[at + 1]
        words = "".join(child.content for child in inline.children or () if child.type in {"text", "code_inline"})
        slug = _slug(words)
        count = self._ids[slug] = self._ids.get(slug, -1) + 1
        shown = f"{ID}{slug}-{count}" if count else f"{ID}{slug}"
        return str(Markup('<{} id="{}">').format(self._lower(tokens[at].tag), shown))

    def _link(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return the start tag of a link, without an address if the link must not work."""
        address = resolved(str(tokens[at].attrs.get("href", "")), self._place)
        return "<a>" if address is None else str(Markup('<a href="{}">').format(address))

    def _image(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return an `<img>` for an image of the bundle. A remote image becomes a link, so that pages load nothing
        remote.
        """
        token = tokens[at]
        source, words = str(token.attrs.get("src", "")), _words(token.children or ())
        address = resolved(source, self._place, "raw")
        if address is not None and not address.startswith("#"):
            return str(Markup('<img src="{}" alt="{}">').format(address, words))
        if _REMOTE.fullmatch(source):
            host = urlsplit(source).hostname or "remote"
            # An image in a link: a link inside a link is not possible.
            is_in_link = any(token.type == "link_open" for token in tokens[:at]) and not _is_closed(tokens[:at])
            shown = Markup("image: {} {}").format(visible(host), visible(words))
            return str(shown if is_in_link else Markup('<a href="{}">{}</a>').format(source, shown))
        return str(Markup("image: {}").format(visible(words or source)))


def _is_closed(tokens: Sequence[Token]) -> bool:
    """Return whether the last link in `tokens` has ended."""
    last = next(token for token in reversed(tokens) if token.type in {"link_open", "link_close"})
    return last.type == "link_close"


def _cell(tokens: Sequence[Token], at: int, *_: Any) -> str:
    """Return the start tag of a table cell, with a class if the cell is aligned right."""
    is_right = "right" in str(tokens[at].attrs.get("style", ""))
    return f'<{tokens[at].tag} class="right">' if is_right else f"<{tokens[at].tag}>"


def _code(text: str, info: str) -> str:
    """Return a highlighted code block. `info` is the text after the fence, which names the language."""
    language = (info.split() or [""])[0].lower()
    ending = {"python": "py", "shell": "sh", "console": "sh", "javascript": "js", "typescript": "ts", "yaml": "yml"}
    return f"<pre><code>{highlighted(text.removesuffix(chr(10)), f'x.{ending.get(language, language)}')}</code></pre>\n"


def _words(tokens: Sequence[Token]) -> str:
    return "".join(token.content for token in tokens if token.content)


def _slug(words: str) -> str:
    """Return an id for a heading: its words in lower case, joined with hyphens."""
    plain = unicodedata.normalize("NFC", words).lower()
    return re.sub(r"[^\w]+", "-", plain).strip("-")[:80] or "section"
