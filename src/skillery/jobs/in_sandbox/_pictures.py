"""Figures of matplotlib and images of PIL as blobs.

This module never imports these packages; only the code does. Methods of figures and images are called without checks:
they can do only what the run can do anyway.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellblock.runtime import _failure, _host
    from cellblock.runtime._run import InvalidOutput
else:
    from . import _failure, _host
    from ._run import InvalidOutput

MOST_FIGURES = 20
"""Most open figures that are stored. matplotlib warns at this number."""
SHOWN_AS_RGB = ("CMYK", "HSV", "RGBX", "YCbCr")
"""Image modes that PNG does not support. Such images are converted to RGB."""
PNG, JPEG = "image/png", "image/jpeg"

_kept: dict[int, tuple[object, dict[str, Any]]] = {}
"""Stored pictures by `id()`: the object, so that no other object gets this id, and the reference in the output."""
_counted = {"figure": 0, "image": 0}


FONTS = ("/usr/share/fonts", "/usr/local/share/fonts")


def state_of_fonts() -> str:
    """Return a text that changes if a font is added to the system or removed."""
    state = hashlib.sha256()
    for root in FONTS:
        for folder, folders, _ in os.walk(root):
            folders.sort()
            state.update(os.fsencode(f"{folder} {Path(folder).stat().st_mtime_ns}\n"))
    return state.hexdigest()[:16]


def link_list_of_fonts(packages: str) -> None:
    """Link the list of fonts in the folder of the packages to the path where matplotlib looks for it.

    Without a list of the present fonts, matplotlib makes one, which takes seconds.
    """
    try:
        files = list(Path(packages, ".caches", f"matplotlib-{state_of_fonts()}").iterdir())
        target = Path(os.environ["XDG_CACHE_HOME"], "matplotlib")
        target.mkdir(parents=True)
        for file in files:
            (target / file.name).symlink_to(file)
    except (OSError, KeyError):
        pass


def keep_open_figures() -> str:
    """Store each open pyplot figure as a blob. Return a line about figures that could not be stored; "" if there are
    none.
    """
    left_out = []
    try:
        pyplot = sys.modules["matplotlib.pyplot"]
        for number in pyplot.get_fignums()[:MOST_FIGURES]:
            problem = try_keeping(pyplot.figure(number))
            if problem:
                left_out.append(f"figure {number}: {problem}")
        past = len(pyplot.get_fignums()) - MOST_FIGURES
        if past > 0:
            left_out.append(f"{past} more, a run keeps {MOST_FIGURES} that are left open: close them, or return them")
    except Exception as error:  # noqa: BLE001 - the code may have replaced matplotlib
        left_out.append(f"{_failure.type_name(error)}: {_failure.message(error)}")
    return f"not kept of the open figures: {'; '.join(left_out)}" if left_out else ""


def try_keeping(figure: Any) -> str:
    try:
        keep_figure(figure)
    except Exception as error:  # noqa: BLE001 - drawing may raise anything
        return f"{_failure.type_name(error)}: {_failure.message(error)}"
    return ""


def reference(value: Any) -> Any:
    """Store a picture, and return the reference that replaces it in the output. Return another value as `plain` does.

    Raise InvalidOutput if it cannot be stored, TypeError if the value is neither a picture nor `plain`.
    """
    is_figure = is_a(value, "matplotlib.figure", "Figure")
    if not is_figure and not is_a(value, "PIL.Image", "Image"):
        return plain(value)
    try:
        return keep_figure(value) if is_figure else keep_image(value)
    except Exception as error:  # noqa: BLE001 - an unsupported mode, or no room for blobs
        problem = f"{_failure.type_name(error)}: {_failure.message(error)}"
    raise InvalidOutput(f"a picture of the output ({type(value).__name__}) could not be kept: {problem}")


def is_a(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def keep_figure(figure: Any) -> dict[str, Any]:
    if id(figure) in _kept:
        return _kept[id(figure)][1]
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return keep(figure, "figure", PNG, content)


def keep_image(image: Any) -> dict[str, Any]:
    """Store an image as PNG. An image that was opened from a JPEG file is stored as JPEG."""
    if id(image) in _kept:
        return _kept[id(image)][1]
    content = io.BytesIO()
    if image.format == "JPEG":
        image.save(content, "JPEG", quality="keep")
        return keep(image, "image", JPEG, content)
    shown = image.convert("RGB") if image.mode in SHOWN_AS_RGB else image
    shown.save(content, "PNG")
    return keep(image, "image", PNG, content)


def keep(picture: object, prefix: str, kind: str, content: io.BytesIO) -> dict[str, Any]:
    path = f"{prefix}-{_counted[prefix] + 1}.{'jpg' if kind == JPEG else 'png'}"
    with content.getbuffer() as view:
        blob_id = _host.ask("blob_write", {"kind": kind, "path": path}, view).decode()
        blob = {"blob_id": blob_id, "kind": kind, "size_bytes": len(view)}
    _counted[prefix] += 1
    _kept[id(picture)] = picture, blob
    return blob


# -- other values --------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str | None:
    """Return a date or time as text, NaT of pandas as None."""
    return None if type(value).__name__ == "NaTType" else value.isoformat()


PLAIN: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("numpy", "ndarray"): lambda value: value.tolist(),
    ("numpy", "generic"): lambda value: value.item(),
    ("datetime", "date"): as_text,
    ("datetime", "time"): as_text,
    ("decimal", "Decimal"): str,
    ("pathlib", "PurePath"): str,
}
"""JSON values for objects, by the module and the name of their class or of a base class."""


def plain(value: Any) -> Any:
    """Return the JSON value for an object of a class in PLAIN. Raise TypeError for another object."""
    for kind in type(value).__mro__:
        convert = PLAIN.get((kind.__module__.partition(".")[0], kind.__name__))
        if convert is not None:
            converted = convert(value)
            if type(converted) is not type(value):  # a scalar of numpy may have no plain value
                return converted
    raise not_json(value)


WAYS = {
    ("builtins", "bytes"): "keep them with runtime.blobs.write_bytes(…) and return the id",
    ("builtins", "bytearray"): "keep them with runtime.blobs.write_bytes(…) and return the id",
    ("builtins", "set"): "sorted(…) or list(…) makes a list of it",
    ("builtins", "frozenset"): "sorted(…) or list(…) makes a list of it",
    ("builtins", "generator"): "list(…) makes a list of it",
    ("pandas", "DataFrame"): ".to_dict('records') makes a list of objects of it; a large one is better a file in out/",
    ("pandas", "Series"): ".tolist() or .to_dict() makes plain values of it",
    ("pandas", "Index"): ".tolist() makes a list of it",
    ("pandas", ""): ".tolist(), .item() or str(…) makes plain values of it",
    ("polars", "DataFrame"): ".to_dicts() makes a list of objects of it; a large one is better a file in out/",
    ("polars", "Series"): ".to_list() makes a list of it",
    ("matplotlib", ""): "return its figure (.figure), which becomes a picture",
}


def not_json(value: Any) -> TypeError:
    """Return the error for a value that is not JSON. If a usual remedy exists, the message contains it."""
    name = _failure.type_name(value)
    package = str(type.__dict__["__module__"].__get__(type(value))).partition(".")[0]
    remedy = WAYS.get((package, name)) or WAYS.get((package, ""))
    return TypeError(f"Object of type {name} is not JSON serializable{': ' + remedy if remedy else ''}")
