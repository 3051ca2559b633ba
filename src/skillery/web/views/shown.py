"""The parts of a run's result as views: files and values of the output, by name, each in the form that shows it best.

`show_parts` runs in the rendering process. The server process does not parse the result of a run.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skillery.formats.tracebacks import Frame
from skillery.web.display import counted, visible
from skillery.web.markdown import Place, rendered, split_frontmatter
from skillery.web.rendering import has_lexer, highlighted_lines, numbered, with_mark
from skillery.web.views.charts import Chart, chart_of
from skillery.web.views.kinds import BINARY, HEAD_BYTES, SVG, TEXT, decoded, format_of, kind_of, picture_size
from skillery.web.views.notebooks import MOST_CELLS, MOST_ON_RUN, Cell, cells_of, is_notebook, picture_of
from skillery.web.views.parts import EMPTY, WHOLE, File, Part, Role, decoded_json, parts_of
from skillery.web.views.tables import (
    Table,
    TableView,
    Wanted,
    as_csv,
    grouped,
    matching_rows,
    table_of_json,
    table_of_text,
    table_view,
    types_of,
)
from skillery.web.views.trees import MOST_NODES, MOST_NODES_ON_PAGE, Fact, Node, facts_of, is_cut, tree_of

PARTS = 8
"""The number of parts whose content the page of a run shows. Further parts are links."""
PLAIN_BYTES = 16 * 1024
"""The size of the start of a part that is shown as plain text if its view is not possible."""
MOST_HIGHLIGHTED = 200_000
MOST_TEXT = 1024 * 1024
ROWS_BELOW_CHART = 6
MOST_JSON_TEXT = 256 * 1024
MOST_LINES = 20_000
MOST_HTML, MOST_PDF, MOST_NOTEBOOK, MOST_PICTURE, MOST_SVG = 5_000_000, 50_000_000, 5_000_000, 20_000_000, 5_000_000
"""The sizes of the largest files in frames, of the largest notebook, and of the largest pictures."""
_PAGE_SECONDS, _PART_SECONDS = 0.7, 0.35
SLOW = "Showing this part takes too long, so this is its start as text."
Form = Literal["view", "source", "raw"]
ViewKind = Literal["values", "table", "picture", "svg", "markdown", "notebook", "html", "pdf", "json", "text", "other"]


class Code(Struct, frozen=True):
    """Code of a run, with the frame at which it failed. Of a file, only the lines around the failing line are shown."""

    path: str
    content: bytes
    frame: Frame | None
    is_file: bool


class ToShow(Struct, frozen=True):
    """The result of a run, and how to show it."""

    base: str
    """The address of the run."""
    output: bytes
    """The output as JSON, or its start."""
    output_bytes: int
    files: list[File]
    args: bytes = b"null"
    part: str = ""
    """The name of the only part to show, or "" for all parts."""
    form: Form = "view"
    """The view, the source as text, or the complete text that a download has."""
    wanted: Wanted = Wanted()
    folder: str = "parts"
    """The segment between `base` and the names of parts in addresses."""
    code: Code | None = None


class View(Struct, frozen=True):
    """A part as a page shows it."""

    name: str
    kind: ViewKind
    words: str
    size_bytes: int
    blob_id: str = ""
    """The content of the part, or "" if the part is a value of the output."""
    note: str = ""
    """A sentence about what the view leaves out, and why."""
    facts: list[Fact] = []
    table: TableView | None = None
    chart: Chart | None = None
    tree: Node | None = None
    cells: list[Cell] = []
    html: str = ""
    is_numbered: bool = False
    """Whether `html` has line numbers."""
    text: str = ""
    is_cut: bool = False
    size: tuple[int, int] = (0, 0)
    """The width and height of a picture, or zeros."""
    has_source: bool = False
    """Whether the view differs from the text of the part."""
    role: Role = ""
    content: bytes = b""
    """The picture that the page wants of a notebook."""


class Shown(Struct, frozen=True):
    """The views of a run, its inputs as facts and as indented JSON, and its code."""

    views: list[View]
    inputs: list[Fact]
    inputs_text: str
    code: str = ""
    """The code as HTML."""


class _TimeUp(BaseException):
    """Raised when a part has used up its time. No code of a library catches it."""


def show_parts(to_show: ToShow) -> Shown:
    """Return the views of all parts, or of one part. A part that takes too long or is too deep is shown as text."""
    parts = parts_of(to_show.output, to_show.files)
    if to_show.part:
        parts = [part for part in parts if part.name == to_show.part]
    args = decoded_json(to_show.args)
    pairs = args.items() if isinstance(args, dict) else ()
    inputs_text = json.dumps(args, ensure_ascii=False, indent=2)[:PLAIN_BYTES] if args else ""
    views = list(_views(parts, to_show))
    return Shown(views, facts_of(pairs), inputs_text, _code(to_show.code) if to_show.code else "")


def _code(code: Code) -> str:
    """Return the code as HTML, or "" if that takes too long or if the file is no text."""
    text = decoded(code.content, is_whole=False)
    try:
        with _time_limit(_PART_SECONDS):
            path = code.path if len(code.content) <= MOST_HIGHLIGHTED else ""
            return with_mark(text, path, code.frame, is_file=code.is_file) if text else ""
    except (_TimeUp, RecursionError, MemoryError):
        return ""


def plain_parts(to_show: ToShow) -> Shown:
    """Return the parts without any parsing: the start of each file and of the output as text."""
    parts = [Part(file.path or f"file {number}", file=file) for number, file in enumerate(to_show.files, 1)]
    if to_show.output not in EMPTY:
        parts.append(Part(to_show.part or WHOLE, role="whole"))
    views = [_plain(part, to_show, SLOW) for part in parts if to_show.part in {"", part.name}]
    return Shown(views, [], to_show.args[:PLAIN_BYTES].decode("utf-8", "replace"))


# -- Views -------------------------------------------------------------------------------------------------------------


def _views(parts: list[Part], to_show: ToShow) -> Iterator[View]:
    """Yield the views of the parts. The first PARTS and the whole output have a content, or all texts of a download."""
    end = time.process_time() + _PAGE_SECONDS
    for number, part in enumerate(parts):
        seconds = end - time.process_time()
        if number >= PARTS and part is not parts[-1] and to_show.form != "raw":
            yield _unread(part)
            continue
        try:
            with _time_limit(max(0.01, seconds if to_show.part else min(seconds, _PART_SECONDS))):
                view = _view(part, to_show)
                msgspec.msgpack.encode(view)
        except UnicodeEncodeError:  # JSON can have halves of characters
            view = _plain(part, to_show, "This part is not valid Unicode, so this is its start as text.")
        except _TimeUp:
            view = _plain(part, to_show, SLOW)
        except (RecursionError, MemoryError):
            view = _plain(part, to_show, "This part is too large or has too many levels, so this is its start as text.")
        yield replace(view, role=part.role)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Context manager that raises _TimeUp after `seconds` of processor time, between two instructions of Python."""

    def stop(*_: Any) -> None:
        raise _TimeUp

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _view(part: Part, to_show: ToShow) -> View:
    """Return the view of a part."""
    if part.file is None:
        return _value_view(part, to_show)
    file = part.file
    if file.content is None:
        return _unread(part)
    kind = kind_of(part.name, file.content[:HEAD_BYTES], file.size_bytes)
    view = View(part.name, "other", kind.words, file.size_bytes, file.blob_id)
    if kind.group == "image" and kind is not SVG:
        if file.size_bytes > MOST_PICTURE:
            return replace(view, note=f"Pictures over {MOST_PICTURE // 1_000_000} MB are not shown.")
        return replace(view, kind="picture", size=picture_size(file.content))
    if kind.group == "binary":
        is_pdf = file.content.startswith(b"%PDF-") and file.size_bytes <= MOST_PDF
        return replace(view, kind="pdf") if is_pdf and to_show.wanted.has_frames else view
    is_whole = len(file.content) >= file.size_bytes
    text = decoded(file.content, is_whole=is_whole)
    if text is None:
        return replace(view, words=BINARY.words)
    return _text_view(view, text, file.media_type, to_show, is_whole=is_whole)


def _text_view(view: View, text: str, media_type: str, to_show: ToShow, *, is_whole: bool) -> View:
    """Return the view of a text by its format, or the text itself if the view of its format is not possible."""
    text_format = format_of(view.name, media_type)
    view = replace(view, has_source=bool(text_format))
    if to_show.form != "view":
        return replace(_source(view, text, to_show, is_whole=is_whole), has_source=bool(text_format))
    table = table_of_text(text if is_whole else text.rpartition("\n")[0], text_format)
    if text_format == "json" and is_whole:
        value = decoded_json(text.encode())
        if is_notebook(value) and view.size_bytes <= MOST_NOTEBOOK:
            return _notebook_view(view, value, to_show)
        table = table_of_json(value)
        if table is None and isinstance(value, dict | list):
            return _tree_view(view, value, to_show)
    elif text_format == "svg" and view.size_bytes <= MOST_SVG and text.lstrip("\ufeff \t\r\n").startswith("<"):
        return replace(view, kind="svg", words="SVG", size=picture_size(text[:4096].encode()))
    elif text_format == "html" and view.blob_id and view.size_bytes <= MOST_HTML and to_show.wanted.has_frames:
        return replace(view, kind="html", words="web page, scripts are off")
    elif text_format == "markdown" and is_whole:
        made = rendered(split_frontmatter(text)[1], Place(to_show.base, view.name, to_show.folder))
        if made is not None:
            return replace(view, kind="markdown", words="Markdown", html=made.html)
    if table is not None and table.rows:
        return _table_view(view, table, to_show, is_whole=is_whole)
    return replace(_source(view, text, to_show, is_whole=is_whole), has_source=False)


def _table_view(view: View, table: Table, to_show: ToShow, *, is_whole: bool = True) -> View:
    wanted = to_show.wanted
    if not to_show.part and wanted.part != view.name:
        wanted = replace(wanted, chart="", x="", y="", agg="")
    types = types_of(table)
    rows = matching_rows(table, types, wanted.where)
    shown = table_view(table, types, rows, wanted)
    chart = chart_of(table, types, rows, wanted, 1200 if to_show.part else 780)
    if chart and not to_show.part:
        shown = replace(shown, rows=shown.rows[:ROWS_BELOW_CHART])
    words = f"table, {counted(shown.count, 'row')} × {counted(len(shown.columns), 'column')}"
    note = "" if is_whole else "The file is large, so these are the rows of its first part."
    return replace(view, kind="table", words=words, table=shown, chart=chart, note=note, has_source=True)


def _notebook_view(view: View, notebook: Any, to_show: ToShow) -> View:
    if to_show.wanted.picture:
        return replace(view, content=picture_of(notebook, to_show.wanted.picture))
    count = len(notebook["cells"])
    most = MOST_CELLS if to_show.part else MOST_ON_RUN
    cells = cells_of(notebook, Place(to_show.base, view.name, to_show.folder), most)
    words = f"notebook, {counted(count, 'cell')}"
    return replace(view, kind="notebook", words=words, cells=cells, is_cut=count > len(cells))


def _tree_view(view: View, value: Any, to_show: ToShow) -> View:
    tree = tree_of(value, MOST_NODES_ON_PAGE if to_show.part else MOST_NODES)
    return replace(view, kind="json", words="JSON", tree=tree, is_cut=is_cut(tree), has_source=True)


def _source(view: View, text: str, to_show: ToShow, *, is_whole: bool = True) -> View:
    """Return a text, highlighted by its ending, or plain if it is large. The page of a run shows its start."""
    if to_show.form == "raw":
        return replace(view, kind="text", text=text)
    most = MOST_TEXT if to_show.part else PLAIN_BYTES
    is_short = len(text) > most or not is_whole
    shown = text[:most].replace("\r\n", "\n")
    if is_short:
        shown = shown.rpartition("\n")[0] or shown
    is_large = len(shown) > MOST_HIGHLIGHTED
    notes = ["Line ends are CR LF."] if "\r\n" in text and to_show.part else []
    if is_large and has_lexer(view.name):
        notes.append(f"Texts over {MOST_HIGHLIGHTED // 1000} kB are shown without colours.")
    is_plain, shown = is_large or not has_lexer(view.name), shown.removesuffix("\n")
    lines = visible(shown, is_code=True).split("\n") if is_plain else highlighted_lines(shown, view.name)
    html = numbered(lines[:MOST_LINES]) if to_show.part and text else "\n".join(lines)
    view = replace(view, kind="text", words=TEXT.words if text else "empty text", html=html, note=" ".join(notes))
    return replace(view, is_numbered=bool(to_show.part), is_cut=is_short or (bool(html) and len(lines) > MOST_LINES))


def _value_view(part: Part, to_show: ToShow) -> View:
    """Return the view of a value of the output."""
    value, is_raw = part.value, to_show.form == "raw"
    if part.role == "values" and is_raw:
        return View(f"{part.name}.json", "values", "", 0, text=json.dumps(value, ensure_ascii=False, indent=2))
    if part.role == "values":
        numbers = ((name, grouped(name, number, to_show.wanted)) for name, number in value.items())
        return View(part.name, "values", f"{len(value):,}", 0, facts=facts_of(numbers))
    if isinstance(value, str):
        view = View(part.name, "text", TEXT.words, len(value.encode("utf-8", "replace")))
        return _text_view(view, value, "", to_show, is_whole=True)
    if value is None:
        return _plain(part, to_show, "The output is too large or has too many levels, so this is its start as text.")
    view = View(part.name, "json", "JSON", 0 if part.table else to_show.output_bytes, has_source=True)
    if part.table and to_show.form != "source":
        if is_raw:
            return replace(view, name=f"{part.name}.csv", kind="text", text=as_csv(part.table))
        return _table_view(view, part.table, to_show)
    if to_show.form == "view":
        return _tree_view(view, value, to_show)
    text = json.dumps(value, ensure_ascii=False, indent=2)
    source = _source(replace(view, name=WHOLE), text[: None if is_raw else MOST_JSON_TEXT], to_show)
    return replace(source, name=part.name, is_cut=source.is_cut or len(text) > MOST_JSON_TEXT)


def _unread(part: Part) -> View:
    """Return a part without its content: a link."""
    if part.file is None:
        return View(part.name, "other", "part of the output", 0)
    return View(part.name, "other", part.file.words, part.file.size_bytes, part.file.blob_id)


def _plain(part: Part, to_show: ToShow, note: str) -> View:
    """Return the start of a part as plain text, with a sentence. The cost is linear."""
    content: Any = part.file.content if part.file else part.value
    if isinstance(content, str):
        content = content[:PLAIN_BYTES].encode("utf-8", "replace")
    start = (content if isinstance(content, bytes) else b"" if part.file else to_show.output)[:PLAIN_BYTES]
    is_text = bool(start) and b"\0" not in start
    text = start.decode("utf-8", "replace") if is_text else ""
    return replace(_unread(part), kind="text" if is_text else "other", text=text, note=note, is_cut=True)
