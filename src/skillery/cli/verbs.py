"""Commands that call one method and print its answer. Each is a row: a `Verb`.

The generated client has the params of the method, their types and their docs. Required params are arguments, all others
are options. A row has only the differences: a help text, a shorter name, the columns of a table.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, confirm, json_option, name_and_version, print_change, target_options
from skillery.cli.output import clean, print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient

MAX_PAGE = 1000
EMPTY: Sequence[object] = (None, "", [])
TEXTS = ("description", "error")
"""Fields that stay empty if they are empty. Other empty fields are shown as -."""
KEY = "idempotency_key"


class Table:
    """How an answer with many rows is printed. `key` is the field of the answer with the rows.

    A word of `columns` is a heading and a field of the row; `last_error` has the heading "last error", and `created=at`
    shows the field `at`. `cells` has functions for other columns. An empty field and None are shown as "-".
    """

    def __init__(
        self,
        key: str,
        columns: str,
        *,
        noun: str = "",
        none: str = "",
        headed: bool = False,
        notes: Callable[[Mapping[str, Any]], None] | None = None,
        **cells: Callable[[Any], object],
    ) -> None:
        """`noun` is the word for the rows in messages, and `none` the message for no rows. `notes` prints more to
        stderr, after the rows.
        """
        self.key, self.columns, self.noun = key, columns, noun or key.replace("_", " ")
        self._none, self._headed, self._notes, self._cells = none or f"No {self.noun}.", headed, notes, cells

    def __call__(self, answer: Mapping[str, Any]) -> None:
        columns = [column.partition("=")[::2] for column in self.shown().split()]
        rows = [[self._cell(row, heading, field) for heading, field in columns] for row in answer[self.key]]
        headings = [heading.replace("_", " ") for heading, _ in columns]
        print_rows(headings, rows, none=self._none, headed=self._headed)
        if self._notes is not None:
            self._notes(answer)
        print_cursor(answer, self.noun)

    def shown(self) -> str:
        """Return the columns that the command shows."""
        return self.columns

    def _cell(self, row: Mapping[str, Any], heading: str, field: str) -> object:
        if heading in self._cells:
            value = self._cells[heading](row)
            return "-" if value is None else value
        value = row[field or heading]
        if (field or heading) in TEXTS:
            return value
        if value in EMPTY:
            return "-"
        return ", ".join(value) if isinstance(value, list) else value


def print_cursor(answer: Mapping[str, Any], noun: str = "entries") -> None:
    """Print how to get the next page, if there is one."""
    if answer.get("next_cursor"):
        all_option = "--all, or " if "everything" in click.get_current_context().params else ""
        click.echo(f"More {noun}: {all_option}--cursor {clean(answer['next_cursor'])}", err=True)


def changed(text: str) -> Callable[[Any], None]:
    """Return a function that prints a change with the fields of the answer, and where it took place."""
    return lambda answer: print_change(text.format_map(answer))


def printed(key: str, done: str) -> Callable[[Any], None]:
    """Return a function that prints the field `key` of the answer to stdout, and the change to stderr."""

    def prints(answer: Mapping[str, Any]) -> None:
        click.echo(clean(answer[key]))
        print_change(done, err=True)

    return prints


def argument(name: str, metavar: str | None = None, *, required: bool = True) -> click.Argument:
    return click.Argument([name], metavar=metavar, required=required)


def option(*flags: str, **settings: Any) -> click.Option:
    """Return an option for the param of the same name. An option without a help text has the docs of the param."""
    return click.Option(list(flags), **settings)


def values_option(flag: str, name: str, metavar: str, help: str, **settings: Any) -> click.Option:
    """Return an option that can be repeated. A value with commas is split into several values."""

    def split(_ctx: click.Context, _option: click.Parameter, values: Sequence[str]) -> list[str]:
        return [part.strip() for text in values for part in text.split(",") if part.strip()]

    return click.Option([flag, name], multiple=True, metavar=metavar, callback=split, help=help, **settings)


def param_of(parameter: click.Parameter) -> str:
    """Return the param of the method for an argument or option. `url_` is the param `url`: `--url` is an option of the
    target.
    """
    return (parameter.name or "").rstrip("_")


class Verb(click.Command):
    """A command that calls a method.

    replaced: the parameters that differ from the derived ones of the same names.
    fixed: the params that are no options, with their values.
    pages: "all" if the command reads all pages, "choice" if it has the option --all.
    takes: returns the part of the answer that is printed.
    at_home: answers from the home, without a client, if the command has no URL.
    fails: returns whether the exit code is 1, after the output.
    bundled: whether a home gets the bundled skills before the call.
    asks: the question before the call, unless there is --yes.
    """

    def __init__(
        self,
        name: str,
        method: str,
        prints: Callable[[Any], None],
        *replaced: click.Parameter,
        help: str = "",
        fixed: Mapping[str, Any] = types.MappingProxyType({}),
        pages: Literal["", "all", "choice"] = "",
        takes: Callable[[Any], Any] | None = None,
        at_home: Callable[[Target, dict[str, Any]], Any] | None = None,
        fails: Callable[[Any], bool] | None = None,
        asks: str = "",
        bundled: bool = True,
    ) -> None:
        super().__init__(name)
        self.method, self._prints, self._replaced, self._help = method, prints, replaced, inspect.cleandoc(help)
        self.fixed, self._pages, self._takes, self._at_home = fixed, pages, takes, at_home
        self._fails, self._asks, self._bundled = fails, asks, bundled

    @property
    def stub(self) -> Callable[..., Any]:
        # Only a command that is shown or called loads the client: the start of the process stays fast.
        from skillery.client import generated

        stub: Callable[..., Any] = getattr(generated, self.method)
        return stub

    @property
    def help(self) -> str | None:
        """The help text of the row, or else the first line of the method's docs."""
        return self._help or (inspect.getdoc(self.stub) or "").partition("\n")[0]

    @help.setter
    def help(self, text: str | None) -> None:
        self._help = text or ""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            self.callback, self.params = self._made()
        return super().get_params(ctx)

    def _made(self) -> tuple[Callable[..., Any], list[click.Parameter]]:
        """Return the function that click calls, and its parameters in the order of the help."""

        @target_options
        @json_option
        def call(*, target: Target, as_json: bool, **values: Any) -> None:
            self._call(target, as_json, values)

        params = list(self._own_params())
        params.sort(key=_rank)
        if self._asks:
            params.append(click.Option(["--yes"], is_flag=True, help="Do not ask for confirmation."))
        if self._pages == "choice":
            params.append(click.Option(["--all", "everything"], is_flag=True, help="List all pages."))
        return call, [*params, *reversed(getattr(call, "__click_params__"))]  # noqa: B009 - click's own attribute

    def _own_params(self) -> Iterator[click.Parameter]:
        """Yield the parameters of the method: replaced ones, and derived ones for the others."""
        docs = dict(line.split(": ", 1) for line in (inspect.getdoc(self.stub) or "").splitlines()[2:])
        remaining = {param_of(param): param for param in self._replaced}
        for name, param in inspect.signature(self.stub).parameters.items():
            if name in {"self", KEY} or name in self.fixed:
                continue
            required = param.default is param.empty
            has_both = "(false)" in docs.get(name, "")
            parameter = remaining.pop(name, None) or self._derived(name, param.annotation, required, has_both)
            if parameter is None:
                continue
            if isinstance(parameter, click.Option) and not parameter.help:
                parameter.help = f"{docs[name]}."
            yield parameter
        yield from remaining.values()

    def _derived(self, name: str, annotation: Any, required: bool, has_both: bool) -> click.Parameter | None:
        """Return the argument or option for a param of the method, or None if the command reads all pages.

        If a boolean `has_both` values, there is an option for each.
        """
        if name in {"limit", "cursor"}:
            return None if self._pages == "all" else self._page_option(name)
        if name == "name" and required and self._versioned:
            return argument("name", "NAME@VERSION" if self._versioned == "exact" else "NAME[@VERSION]")
        if name == "version" and self._versioned == "exact":
            return click.Option(["--version"], help="The exact version, if NAME does not include it.")
        if name == "version" and self._versioned == "spec":
            names_all = "omit for all versions" in (inspect.getdoc(self.stub) or "")
            text = f"Version, range or digest.  [default: {'all versions' if names_all else 'the latest release'}]"
            return click.Option(["--version"], help=text)
        kind = _without_none(annotation)
        choices = click.Choice(get_args(kind)) if get_origin(kind) is Literal else None
        if required:
            return click.Argument([name], type=choices, metavar="|".join(choices.choices) if choices else None)
        flag = "--" + name.replace("_", "-")
        if kind is bool and has_both:
            return click.Option([f"{flag}/--no-{flag.removeprefix('--')}", name], default=None)
        if kind is bool:
            return click.Option([flag, name], is_flag=True)
        if kind == list[str]:
            return click.Option([flag.removesuffix("s"), name], multiple=True)
        return click.Option([flag, name], type=choices or (int if kind is int else str))

    @property
    def _versioned(self) -> Literal["", "exact", "spec"]:
        """Whether the first argument is NAME@VERSION: "exact" for an exact version, "spec" for an optional one."""
        params = inspect.signature(self.stub).parameters
        if "version" not in params or not {"name", "version"}.isdisjoint(map(param_of, self._replaced)):
            return ""
        return "exact" if params["version"].default is inspect.Parameter.empty else "spec"

    def _page_option(self, name: str) -> click.Option:
        if name == "cursor":
            return click.Option(["--cursor"], help="Continue after the page that returned this next_cursor.")
        noun = self._prints.noun if isinstance(self._prints, Table) else "entries"
        help = f"Maximum number of {noun}.  [default: 50]"
        return click.Option(["--limit"], type=click.IntRange(1, MAX_PAGE), help=help)

    def _call(self, target: Target, as_json: bool, values: dict[str, Any]) -> None:
        """Confirm, call the method, and print the answer."""
        params = self._params_of(values)
        if self._asks and not values["yes"]:
            confirm(self._asks.format_map(params))
        if values.get("everything") and params["limit"] is not None:
            raise click.UsageError("--all and --limit exclude each other: use only one of them")
        answer = self._answer(target, params, everything=bool(values.get("everything")))
        if self._takes is not None:
            answer = self._takes(answer)
        if as_json:
            print_json(answer)
        else:
            self._prints(answer)
        if self._fails is not None and self._fails(answer):
            raise click.exceptions.Exit(CHECK_FAILED)

    def _params_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of the call. Options that are no params of the method are left out."""
        names = inspect.signature(self.stub).parameters
        values = {name.rstrip("_"): value for name, value in values.items()}
        params = {name: value for name, value in values.items() if name in names} | dict(self.fixed)
        if self._versioned:
            params["name"], params["version"] = name_and_version(values["name"], values["version"])
        if self._versioned == "exact" and not params["version"]:
            raise click.UsageError(f"'{params['name']}' has no version: write NAME@VERSION")
        # A flag that is not set, and a repeated option that is not given, are left out of the call.
        has_both = {param.name for param in self.params if param.secondary_opts}
        empty = [name for name, value in params.items() if value == () or (value is False and name not in has_both)]
        params |= dict.fromkeys(empty)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}

    def _answer(self, target: Target, params: dict[str, Any], *, everything: bool) -> Any:
        """Return the answer of the method, with the rows of all pages if `everything` is true."""
        if self._at_home is not None and not target.url:
            return self._at_home(target, params)
        from skillery.cli.connection import with_client

        async def answer(client: AsyncClient) -> Any:
            call = getattr(client, self.method)
            if self._pages != "all" and not everything:
                return await call(**params)
            assert isinstance(self._prints, Table), "only the rows of a table have pages"
            page, rows = await read_pages(call, params, self._prints.key)
            return {self._prints.key: rows} if self._pages == "all" else {**page, self._prints.key: rows}

        return with_client(target, answer, bundled=self._bundled)


async def read_pages(call: Callable[..., Any], params: Mapping[str, Any], key: str) -> tuple[Any, list[Any]]:
    """Call a method until it has no further page, or until the rows are `limit`. Return the last page and all rows."""
    limit, rows, cursor = params.get("limit"), list[Any](), params.get("cursor")
    while True:
        size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(rows))
        page = await call(**{**params, "limit": size, "cursor": cursor})
        rows += page[key]
        cursor = page["next_cursor"]
        if cursor is None or len(rows) == limit:
            return page, rows


def _rank(param: click.Parameter) -> int:
    """Return the rank in the help: arguments, then options, then those for pages."""
    return 0 if isinstance(param, click.Argument) else 2 if param.name in {"limit", "cursor"} else 1


def _without_none(annotation: Any) -> Any:
    """Return the type of a param that may be omitted, without None."""
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation
    return next(member for member in get_args(annotation) if member is not types.NoneType)
