"""Errors of commands. A script gets an exit code, a person gets a short message without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from skillery.cli.output import clean, print_json
from skillery.errors import DatabaseUnreachable, SkilleryError, StartupError
from skillery.formats.words import words_of_shell

if TYPE_CHECKING:
    from types import FrameType

    from skillery.client import AnsweredError, StrangeAnswer

T = TypeVar("T")
RUN_FAILED = 1
CHECK_FAILED = 1
WRONG_USAGE = 2
ANSWERED_ERROR = 3
CANNOT_START = 4
CANNOT_REACH_DATABASE = 5
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES = """\b
Exit codes:
  0    ok
  1    the run failed (run, code, tool call) or its script did, or a check (test, publish and import --dry-run,
       doctor, db check, audit verify, lock, install, demo)
  2    the command line is wrong
  3    the server answered an error, or a login failed
  4    cannot start, or cannot connect; an import finds no skill
  5    Postgres cannot be reached: try again later
  130  interrupted
  141  the reader of the output closed the pipe

With --json the answer is one JSON document on stdout, errors included: {"error": {"code", "message", "data"}}."""


class CheckFailed(Exception):
    """Raised if a check finds a problem. The message names the problem."""


class Commands(click.Group):
    """The root of all commands. Only this class turns exceptions into exit codes."""

    sections: Mapping[str, Sequence[click.Command]] = {}
    """The commands in the order of the help text, by heading."""
    load_more: Callable[[Sequence[str], Mapping[str, click.Command]], Mapping[str, click.Command]]
    """Returns the commands of plugins. Loading plugins is slow, so this is called only if no built-in command fits."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            plugin_commands = self.load_more(args, self.commands)
            if args[0] in plugin_commands:
                return args[0], plugin_commands[args[0]], args[1:]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands of the first screen, for completion. The others are listed by their groups."""
        return [command.name or "" for commands in self.sections.values() for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, and the commands of plugins."""
        sections = dict(self.sections)
        try:
            plugin_commands = self.load_more(sys.argv[1:], self.commands)
        except StartupError as error:
            plugin_commands = {}
            click.echo(f"warning: commands of plugins are missing: {error}", err=True)
        if plugin_commands:
            sections["Plugins"] = tuple(plugin_commands.values())
        width = max(len(command.name or "") for commands in sections.values() for command in commands)
        for heading, commands in sections.items():
            limit = formatter.width - 6 - width
            rows = [((command.name or "").ljust(width), command.get_short_help_str(limit)) for command in commands]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Turn each exception into a message and an exit code."""
        # --json is searched in argv, because the parsing of the command line itself may fail.
        as_json = "--json" in sys.argv[1:]
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _exit_on_closed_pipe()
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(INTERRUPTED)
        except click.exceptions.Exit:
            sys.stdout.flush()
            raise
        except click.ClickException as error:
            message = error.format_message()
            if not as_json and clean(message) == message:
                raise
            if not as_json:  # names of foreign files could control the terminal
                context = error.ctx if isinstance(error, click.UsageError) else None
                raise click.UsageError(clean(message), context) from None
            _fail(ctx, WRONG_USAGE, {"message": message, "data": {"type": "usage"}}, as_json)
        except SkilleryError as error:
            _fail(ctx, ANSWERED_ERROR, object_of(error), as_json)
        except StartupError as error:
            code = CANNOT_REACH_DATABASE if isinstance(error, DatabaseUnreachable) else CANNOT_START
            _fail(ctx, code, {"message": str(error), "data": {"type": "cannot_start"}}, as_json)
        except CheckFailed as error:
            _fail(ctx, CHECK_FAILED, {"message": str(error), "data": {"type": "check_failed"}}, as_json)
        except Exception as error:
            code_and_error = _of_client(ctx, error)
            if code_and_error is None and os.environ.get("SKILLERY_LOG_LEVEL", "").lower() == "debug":
                raise
            _fail(ctx, *(code_and_error or _unexpected(error)), as_json)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine. The first Ctrl-C cancels it, the second one ends the process at once."""
    import asyncio

    async def watched() -> T:
        cancel = signal.getsignal(signal.SIGINT)  # the handler of asyncio

        def interrupt(number: int, frame: FrameType | None) -> None:
            # The end of the event loop would report each task that a second exception interrupts.
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
            if callable(cancel):
                cancel(number, frame)

        # A shell can start commands in the background with SIGINT ignored.
        if callable(cancel):
            signal.signal(signal.SIGINT, interrupt)
        return await work

    return asyncio.run(watched())


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Context manager: SIGTERM and the end of the terminal act as Ctrl-C, so that temporary files are deleted."""

    def interrupt(_number: int, frame: FrameType | None) -> None:
        # A shell can start commands in the background with SIGINT ignored.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def answered(error: AnsweredError | StrangeAnswer) -> dict[str, Any]:
    """Return the error object that a server answered. For a response that is not from Skillery, return a new error
    object.
    """
    from skillery.client import AnsweredError

    if isinstance(error, AnsweredError):
        return error.object
    message = f"{error.server} answered HTTP {error.status} with a body that is not a Skillery response"
    return {"code": None, "message": message, "data": {"type": "no_skillery", "hint": "Check --url."}}


def _of_client(ctx: click.Context, error: Exception) -> tuple[int, Mapping[str, Any]] | None:
    """Return the exit code and the error object for an error that the client raises. Return None for any other
    error.
    """
    # These imports are slow, so they are not at the top of the module.
    import httpx

    from skillery.client import AnsweredError, ConnectionFailed, LoginError, StrangeAnswer

    if isinstance(error, AnsweredError | StrangeAnswer):
        return ANSWERED_ERROR, answered(error)
    if isinstance(error, LoginError):
        data = {"type": error.type} | ({"hint": error.hint} if error.hint else {})
        return ANSWERED_ERROR, {"code": None, "message": error.message, "data": data}
    if isinstance(error, ConnectionFailed | httpx.InvalidURL):  # an id of a blob can be too long for an address
        hint = _what_to_check(ctx) if isinstance(error, ConnectionFailed) and not error.sent else None
        return CANNOT_START, {
            "message": str(error),
            "data": {"type": "cannot_start"} | ({"hint": hint} if hint else {}),
        }
    return None


def _what_to_check(ctx: click.Context) -> str | None:
    """Return a hint for a command that cannot connect to its server, or None."""
    from skillery.cli.options import target_of

    target = target_of(ctx)
    if target is None or not target.url:
        return None
    change = {
        "SKILLERY_URL": " It is from SKILLERY_URL: unset the variable, or use --url.",
        "skillery use": " It is from `skillery use`: `skillery use home` goes back to the home.",
    }.get(target.origin, "")
    return f"Check that the address is right, and that a server answers there: curl {target.shown_url}/healthz.{change}"


def _unexpected(error: Exception) -> tuple[int, Mapping[str, Any]]:
    message = f"unexpected {type(error).__name__}: {error}"
    hint = "This is a bug in Skillery; set SKILLERY_LOG_LEVEL=debug for a traceback."
    return CANNOT_START, {"message": message, "data": {"type": "unexpected", "hint": hint}}


def object_of(error: SkilleryError) -> dict[str, Any]:
    """Return the error object that a server would answer for `error`."""
    from skillery.methods.errors import error_object

    built: dict[str, Any] = msgspec.to_builtins(error_object(error))
    return built


def print_error(error: Mapping[str, Any]) -> None:
    """Print the message of an error, all listed problems, and the hint to stderr.

    If the only problem repeats the message, print it once, with its location.
    """
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    problems: Sequence[Any] = data.get("problems") or data.get("findings") or ()
    text = str(error.get("message", "")).rstrip(".")
    is_repeated = False
    if len(problems) == 1:
        only_message = str(problems[0].get("message", "")).rstrip(".")
        is_repeated = text.endswith(only_message)
        if is_repeated:
            error = {**error, "message": text.removesuffix(only_message) + _problem_line(problems[0])}
    click.echo(f"{click.style('error:', fg='red', bold=True)} {clean(_headline(error, problems))}", err=True)
    for problem in problems:
        if not is_repeated:
            click.echo(f"  {_problem_line(problem)}", err=True)
        toml = str(problem.get("toml") or "")
        for line in ["for example:", *toml.splitlines()] if toml else ():
            click.echo(f"      {clean(line)}", err=True)
    if data.get("hint"):
        hint = words_of_shell(str(data["hint"]))
        click.echo(f"{click.style('hint:', fg='yellow')} {clean(hint)}", err=True)


def _headline(error: Mapping[str, Any], problems: Sequence[Any]) -> str:
    """Return the first line of an error: the message, or the number of problems if there are several.

    With several problems, the message only repeats the first one.
    """
    subject = f"{error['subject']}: " if error.get("subject") else ""
    return f"{subject}{len(problems)} problems" if len(problems) > 1 else f"{subject}{error.get('message', '')}"


def _problem_line(problem: Mapping[str, Any]) -> str:
    """Return one line with the location and the message of a problem: `code/main.py:3: message`.

    For a manifest, the location is the key. Most messages about a manifest start with the key, which is then not
    repeated. The line in skill.toml follows the message.
    """
    message = str(problem.get("message", ""))
    location = str(problem.get("file") or problem.get("path") or problem.get("rule") or "")
    if problem.get("line") and problem.get("toml"):
        return clean(f"{message} ({location}:{problem['line']})")
    if problem.get("line"):
        return clean(f"{location}:{problem['line']}: {message.removeprefix(location).lstrip(': ')}")
    return clean(message if not location or message.startswith(location) else f"{location}: {message}")


def _fail(ctx: click.Context, code: int, error: Mapping[str, Any], as_json: bool) -> NoReturn:
    try:
        if as_json:
            print_json({"error": error})
        else:
            print_error(error)
        sys.stdout.flush()
    except BrokenPipeError:
        _exit_on_closed_pipe()
    ctx.exit(code)


def _exit_on_closed_pipe() -> NoReturn:
    """End the process with the usual exit code for a closed pipe, as in `skillery list | head`.

    At exit, the interpreter flushes stdout and would report an error, so stdout is redirected to /dev/null first.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(PIPE_CLOSED)
