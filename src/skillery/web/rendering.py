"""The templates: autoescape for all of them, and no undefined names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from skillery.web import display


class Templates:
    """All templates of the package, compiled at start."""

    def __init__(self) -> None:
        self._environment = compiled_templates()

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Return a page. `values` are the names of the template. Raise UndefinedError if a name is missing."""
        return self._environment.get_template(name).render(values)


@cache
def compiled_templates() -> Environment:
    """Return the templates, compiled once in each process. They depend on no setting."""
    environment = Environment(
        loader=PackageLoader("skillery.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(
        number=_localised(display.number),
        size=_localised(display.size),
        duration=_localised(display.duration),
        ago=display.ago,
        time=display.time_tag,
        visible=display.visible,
        sentence=display.sentence,
        foreign=display.foreign,
        short_digest=display.short_digest,
        decoded=msgspec.json.decode,
    )
    for name in environment.list_templates(["html"]):
        environment.get_template(name)
    return environment


def _localised(function: Any) -> Any:
    """Return a filter that writes numbers in the language of the reader."""

    @pass_context
    def localised(context: Context, value: Any, *args: Any) -> str:
        text: str = function(value, context.resolve("language"), *args)
        return text

    return localised
