"""Markdown and source code of skills as HTML that is safe on pages of this server.

Bounds limit the time and the size of the result.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

from skillery.web.display import visible

# -- Source code: tokens are spans of few classes, and hidden characters are boxes -------------------------------------
# Only the ending of the file selects the lexer. Guessing by content would execute slow patterns on hostile texts.


_LEXERS = {
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("sh", "bash", "zsh"), "bash"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx"), "javascript"),
    **dict.fromkeys(("ts", "tsx"), "typescript"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("xml", "svg", "xsd", "xsl"), "xml"),
    **dict.fromkeys(("ini", "cfg"), "ini"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cpp", "hpp", "cc"), "cpp"),
    **dict.fromkeys(("diff", "patch"), "diff"),
    **dict.fromkeys(("md", "markdown"), "markdown"),
    **{name: name for name in ("toml", "json", "css", "sql", "go", "java", "lua", "php", "r", "swift")},
    "rs": "rust",
    "rb": "ruby",
    "kt": "kotlin",
    "pl": "perl",
    "ps1": "powershell",
    "tex": "latex",
    "dockerfile": "docker",
    "makefile": "make",
}
"""Names of Pygments lexers by the ending of a file, or by the name of a file without an ending."""
_TOKEN_CLASSES: tuple[tuple[Any, str], ...] = (
    (Comment, "c"),
    (String, "s"),
    (Number, "n"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Tag, "k"),
    (Name.Function, "n"),
    (Name.Class, "n"),
    (Name.Decorator, "n"),
    (Name.Attribute, "n"),
)


_IMPORTED_LATE = ("pygments.lexers._cocoa_builtins", "pygments.lexers._php_builtins")
"""Modules that some lexers import only when they read their first text."""


def load_lexers() -> None:
    """Import all lexers, because a worker process cannot open files later."""
    for name in set(_LEXERS.values()):
        find_lexer_class_by_name(name)
    for module in _IMPORTED_LATE:
        import_module(module)


def has_lexer(path: str) -> bool:
    """Return whether files with the ending of `path` are highlighted."""
    return _ending(path) in _LEXERS


def highlighted_lines(text: str, path: str) -> list[str]:
    """Return the lines of a file as HTML, without line ends."""
    lines: list[list[Markup]] = [[]]
    for name, part in _parts(text.replace("\r\n", "\n"), _LEXERS.get(_ending(path), "")):
        for number, piece in enumerate(part.split("\n")):
            if number:
                lines.append([])
            if piece:
                shown = visible(piece, is_code=True)
                lines[-1].append(Markup('<span class="{}">{}</span>').format(name, shown) if name else shown)
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    return [str(Markup("").join(line)) for line in lines]


def highlighted(text: str, path: str) -> str:
    """Return the text of a file as HTML."""
    return "\n".join(highlighted_lines(text, path))


def _parts(text: str, lexer: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text, each with the CSS class of its tokens. "" means no class."""
    if not lexer:
        yield "", text
        return
    # Unprocessed: the usual preparation of a lexer removes and changes characters.
    tokens = ((_class_of(kind), part) for _, kind, part in _lexer(lexer).get_tokens_unprocessed(text))
    for name, group in groupby(tokens, key=lambda token: token[0]):
        yield name, "".join(part for _, part in group)


@cache
def _lexer(name: str) -> Any:
    return find_lexer_class_by_name(name)()


@cache
def _class_of(kind: Any) -> str:
    """Return the CSS class of a token type, or ""."""
    return next((name for group, name in _TOKEN_CLASSES if kind in group), "")


def _ending(path: str) -> str:
    """Return the ending of a path without the dot, in lower case."""
    return path.rpartition("/")[2].rpartition(".")[2].lower()


# -- Markdown ----------------------------------------------------------------------------------------------------------


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
    """The file that has the Markdown text."""

    base: str
    """The address of the version or of the run, for example `/s/text.csv@1.0`."""
    path: str
    """The path of the file in the bundle, or below the workspace of the run."""
    folder: str = "files"
    """The segment between `base` and the path of another file, to which links lead: `files`, or `parts` of a run."""


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
    allowed_starts = (f"{place.base}/{place.folder}/", f"{place.base}/raw/", f"#{ID}")
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


def resolved(url: str, place: Place, *, is_image: bool = False) -> str | None:
    """Return the address to which a link or an image of a file leads, or None if it must not work.

    Relative links stay inside the bundle, or inside the files of the run.
    """
    if _REMOTE.fullmatch(url):
        return None if is_image else url
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
    lines = f"#{rest}" if _LINES.fullmatch(rest) and not is_image else ""
    return f"{place.base}/{'raw' if is_image else place.folder}/{'' if target == '.' else quote(target)}{lines}"


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
        address = resolved(source, self._place, is_image=True)
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
