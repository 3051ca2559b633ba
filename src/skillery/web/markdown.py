"""Markdown of skills as HTML that is safe on pages of this server: headings, task boxes, alerts, links and code.

Bounds limit the time and the size of the result. A worker process renders the texts.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec
import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from skillery.web.display import marked, visible
from skillery.web.rendering import has_lexer, highlighted

MOST_CHARACTERS = 200_000
"""The maximum number of characters that are rendered. Of a longer text, the page shows the first part."""
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
_ALERTS = {"NOTE": "note", "TIP": "tip", "IMPORTANT": "important", "WARNING": "warning", "CAUTION": "caution"}
_ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href"},
    "img": {"src", "alt"},
    "ol": {"start"},
    "span": {"title", "role", "aria-label"},
    **{heading: {"id"} for heading in _HEADINGS},
}
_CLASSES = {
    "span": {"k", "s", "c", "n", "hidden-char", "box", "is-done", "host", "mixed"},
    "th": {"right"},
    "td": {"right"},
    "li": {"task"},
    "p": {"caption"},
    "blockquote": {"alert", *_ALERTS.values()},
}
_ALWAYS = {
    "pre": {"class": "code", "tabindex": "0"},
    "div": {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "Table"},
    "th": {"scope": "col"},
    "img": {"loading": "lazy"},
}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REMOTE = re.compile(r"(?:https?://|mailto:)[^\s\\]+", re.IGNORECASE)
_LINES = re.compile(r"L[0-9]{1,7}(?:-L[0-9]{1,7})?")
_BARE = re.compile(r"https://[a-z0-9.-]{1,253}(?::[0-9]{1,5})?(?:[/?#][^\s\\]*)?", re.IGNORECASE)
_DOMAIN = re.compile(r"(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}")
_NO_HOST = re.compile(r"[^a-z0-9.-]")
_BLANKS = re.compile(r"(\s+)")
_BOX = re.compile(r"\[([ xX])\] ")
_DOCUMENTS = ("md", "txt", "pdf", "csv", "png", "jpg", "docx", "xlsx", "pptx", "zip", "js", "lock")
LEAST_HEADINGS = 4  # a text with fewer headings has no contents
MOST_CONTENTS = 60
_FRONTMATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)(?:^|\n)---[ \t]*(?:\r?\n|$)", re.DOTALL)


class Place(NamedTuple):
    """The file that has the Markdown text."""

    base: str
    """The address of the version or of the run, for example `/s/text.csv@1.0`."""
    path: str
    """The path of the file in the bundle, or below the workspace of the run."""
    folder: str = "files"
    """The segment between `base` and the path of another file, to which links lead: `files`, or `parts` of a run."""


class Heading(msgspec.Struct, frozen=True):
    """A heading in the contents of a text."""

    id: str
    words: str
    is_deeper: bool


class Rendered(msgspec.Struct, frozen=True):
    """A Markdown text as HTML, with its contents."""

    html: str
    contents: list[Heading] = []
    is_plain: bool = False
    """Whether the text is shown as it is, because a bound was exceeded."""
    is_cut: bool = False
    """Whether only the first part is shown, because the text is too long."""


def split_frontmatter(text: str) -> tuple[str, str]:
    """Return the frontmatter of a SKILL.md without its `---` lines, and the text after it."""
    match = _FRONTMATTER.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def first_part(text: str) -> str:
    """Return the text, or its first part up to a blank line if it is too long to render."""
    if len(text) <= MOST_CHARACTERS:
        return text
    end = text.rfind("\n\n", MOST_CHARACTERS // 2, MOST_CHARACTERS)
    return text[: end if end > 0 else MOST_CHARACTERS]


def rendered(text: str, place: Place) -> Rendered | None:
    """Return Markdown as HTML, or None if it has too many characters or too many columns in a table.

    The first heading is an `<h2>`, and no level is left out.
    """
    if len(text) > MOST_CHARACTERS or any(line.count("|") > MOST_COLUMNS for line in text.split("\n")):
        return None
    renderer = _Renderer(place)
    html = renderer.render(text)
    if len(html) > MOST_HTML:
        return None
    allowed_starts = (f"{place.base}/{place.folder}/", f"{place.base}/raw/", f"#{ID}")
    cleaned = nh3.clean(
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
    return Rendered(cleaned, _contents(renderer.headings))


def _contents(headings: Sequence[tuple[int, str, str]]) -> list[Heading]:
    """Return two levels of headings for the contents. A single heading of the first level is the title of the text."""
    if len(headings) < LEAST_HEADINGS:
        return []
    top = 3 if sum(level == 2 for level, *_ in headings) == 1 else 2
    shown = [heading for heading in headings if top <= heading[0] <= top + 1]
    return [Heading(anchor, words, level > top) for level, anchor, words in shown[:MOST_CONTENTS]]


def resolved(url: str, place: Place, *, is_image: bool = False) -> str | None:
    """Return the address to which a link or an image of a file leads, or None if it must not work.

    Relative links stay inside the bundle, or inside the files of the run.
    """
    if _REMOTE.fullmatch(url):
        return url if not is_image and (url[:7].lower() == "mailto:" or _host_of(url)) else None
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
    lines = f"?form=source#{rest}" if _LINES.fullmatch(rest) and not is_image else ""
    return f"{place.base}/{'raw' if is_image else place.folder}/{'' if target == '.' else quote(target)}{lines}"


class _Renderer:
    """Renders one text. Its rules replace the rules of markdown-it for texts, links, images and code."""

    def __init__(self, place: Place) -> None:
        self.headings: list[tuple[int, str, str]] = []
        """The level, the id and the words of each heading."""
        self._place = place
        self._ids: dict[str, int] = {}
        self._levels: list[int] = []
        self._is_in_link = False
        self._host = ""
        """The host that the end of the link shows, or ""."""
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        rules: dict[str, Any] = self._markdown.renderer.rules  # type: ignore[attr-defined]
        rules |= {
            "text": self._text,
            "code_inline": lambda tokens, at, *_: f"<code>{marked(tokens[at].content, is_code=True)}</code>",
            "code_block": lambda tokens, at, *_: _code(tokens[at].content, ""),
            "fence": lambda tokens, at, *_: _code(tokens[at].content, tokens[at].info),
            "image": self._image,
            "link_open": self._link,
            "link_close": self._link_end,
            "heading_open": self._heading,
            "heading_close": lambda *_: f"</{self._tag}>\n",
            "table_open": lambda *_: '<div class="scroll" tabindex="0"><table>\n',
            "table_close": lambda *_: "</table></div>\n",
            "th_open": _cell,
            "td_open": _cell,
        }

    def render(self, text: str) -> str:
        tokens = self._markdown.parse(text)
        _mark_tasks(tokens)
        _mark_alerts(tokens)
        return str(self._markdown.renderer.render(tokens, self._markdown.options, {}))

    @property
    def _tag(self) -> str:
        return f"h{min(6, len(self._levels) + 1)}"

    def _heading(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return the start tag of a heading, with a unique id."""
        inline, level = tokens[at + 1], int(tokens[at].tag[1:])
        words = "".join(child.content for child in inline.children or () if child.type in {"text", "code_inline"})
        slug = _slug(words)
        count = self._ids[slug] = self._ids.get(slug, -1) + 1
        shown = f"{ID}{slug}-{count}" if count else f"{ID}{slug}"
        self._levels = [*(above for above in self._levels if above < level), level]
        self.headings.append((len(self._levels) + 1, shown, words[:200]))
        return str(Markup('<{} id="{}">').format(self._tag, shown))

    def _text(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return a text with its bare links. A task begins with its box, an alert with its kind."""
        token = tokens[at]
        start = str(token.meta.get("start", ""))
        if self._is_in_link or "https://" not in token.content:
            return f"{start}{marked(token.content)}"
        return start + "".join(map(_linked, _BLANKS.split(token.content)))

    def _link(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return the start tag of a link, without an address if the link must not work."""
        address = resolved(str(tokens[at].attrs.get("href", "")), self._place)
        self._is_in_link, self._host = True, ""
        if address is None:
            return "<a>"
        end = next(place for place in range(at, len(tokens)) if tokens[place].type == "link_close")
        host = _host_of(address) if _REMOTE.fullmatch(address) else ""
        named = _named_hosts(_words(tokens[at + 1 : end])) if host else ()
        # Readers take the user in `https://user@host` for the host.
        if "@" in urlsplit(address).netloc or any(host != name and not host.endswith(f".{name}") for name in named):
            self._host = host
        return str(Markup('<a href="{}">').format(address))

    def _link_end(self, *_: Any) -> str:
        """Return the end tag of a link. If its text names another host, its own host follows."""
        self._is_in_link = False
        return str(Markup('</a> <span class="host">({})</span>').format(visible(self._host)) if self._host else "</a>")

    def _image(self, tokens: Sequence[Token], at: int, *_: Any) -> str:
        """Return an `<img>` for an image of the bundle, or a link for a remote one: pages load nothing remote."""
        token = tokens[at]
        source, words = str(token.attrs.get("src", "")), _words(token.children or ())
        address = resolved(source, self._place, is_image=True)
        if address is not None and not address.startswith("#"):
            return str(Markup('<img src="{}" alt="{}">').format(address, words))
        if _REMOTE.fullmatch(source):
            shown = Markup("image: {} {}").format(visible(_host_of(source) or "remote"), visible(words))
            # A link inside a link is not possible.
            return str(shown if self._is_in_link else Markup('<a href="{}">{}</a>').format(source, shown))
        return str(Markup("image: {}").format(visible(words or source)))


def _mark_tasks(tokens: Sequence[Token]) -> None:
    """Replace `[ ] ` and `[x] ` at the start of list items by boxes."""
    for item, inline in zip(tokens, tokens[2:], strict=False):
        if item.type != "list_item_open" or inline.type != "inline" or not inline.children:
            continue
        first = inline.children[0]
        if first.type == "text" and (box := _BOX.match(first.content)):
            is_done = box[1] != " "
            item.attrSet("class", "task")
            first.content = first.content[4:]
            words = ("box is-done", "done") if is_done else ("box", "not done")
            first.meta = {"start": '<span class="{}" role="img" aria-label="{}"></span> '.format(*words)}


def _mark_alerts(tokens: Sequence[Token]) -> None:
    """Make alerts of quotes that begin with a line such as `[!NOTE]`."""
    for quote_open, inline in zip(tokens, tokens[2:], strict=False):
        children = inline.children or []
        if quote_open.type != "blockquote_open" or not children or children[0].type != "text":
            continue
        kind = _ALERTS.get(children[0].content.strip()[2:-1], "")
        if kind and children[0].content.strip() == f"[!{kind.upper()}]":
            quote_open.attrSet("class", f"alert {kind}")
            is_alone = len(children) == 1
            children[0].content = ""
            children[0].meta = {"start": f"<strong>{kind.capitalize()}</strong>{'' if is_alone else '<br>'}"}
            del children[1:2]


def _linked(piece: str) -> Markup:
    """Return a piece without blanks as HTML. An `https://` address in it is a link."""
    before = piece[: len(piece) - len(piece.lstrip("(<[\"'"))]
    address = piece[len(before) :].rstrip(".,;:!?>]\"'*_")
    if address.endswith(")") and "(" not in address:
        address = address.rstrip(").,;:!?")
    if not _BARE.fullmatch(address) or not _REMOTE.fullmatch(address):
        return marked(piece)
    after = piece[len(before) + len(address) :]
    return Markup('{}<a href="{}">{}</a>{}').format(visible(before), address, marked(address), visible(after))


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # an invalid IPv6 address
        return ""


def _named_hosts(words: str) -> Iterator[str]:
    """Yield the hosts that the text of a link names. Names of files are no hosts."""
    for word in unicodedata.normalize("NFKC", words[:2000]).lower().split():
        plain = word[next((place for place, char in enumerate(word) if char.isalnum()), 0) :]
        is_address = "://" in plain
        name = _NO_HOST.split(_host_of(plain) if is_address else plain, maxsplit=1)[0].rstrip(".")
        if _DOMAIN.fullmatch(name) and (is_address or not (has_lexer(name) or name.rpartition(".")[2] in _DOCUMENTS)):
            yield name


def _cell(tokens: Sequence[Token], at: int, *_: Any) -> str:
    """Return the start tag of a table cell, with a class if the cell is aligned right."""
    is_right = "right" in str(tokens[at].attrs.get("style", ""))
    return f'<{tokens[at].tag} class="right">' if is_right else f"<{tokens[at].tag}>"


def _code(text: str, info: str) -> str:
    """Return a highlighted code block. `info` is the text after the fence, which names the language."""
    language = (info.split() or [""])[0].lower()
    ending = {"python": "py", "shell": "sh", "console": "sh", "javascript": "js", "typescript": "ts", "yaml": "yml"}
    caption = '<p class="caption">Diagram source</p>\n' if language == "mermaid" else ""
    code = highlighted(text.removesuffix("\n"), f"x.{ending.get(language, language)}")
    return f"{caption}<pre><code>{code}</code></pre>\n"


def _words(tokens: Sequence[Token]) -> str:
    return "".join(token.content for token in tokens if token.content)


def _slug(words: str) -> str:
    """Return an id for a heading: its words in lower case, joined with hyphens."""
    return re.sub(r"[^\w]+", "-", unicodedata.normalize("NFC", words).lower()).strip("-")[:80] or "section"
