"""How a command fails: an exit code that scripts can use and a line or two for the person, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
import msgspec

from skillery.cli.output import clean, print_json
from skillery.errors import SkilleryError, StartupError

RUN_FAILED = 1
CHECK_FAILED = 1
WRONG_USAGE = 2
ANSWERED_ERROR = 3
CANNOT_START = 4
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES = """\b
Exit codes:
  0    ok
  1    the run failed (run, code, tool call) or its script did, or a check (publish and import --dry-run, doctor,
       db check, audit verify, lock, install, demo)
  2    the command line is wrong
  3    the server answered an error
  4    cannot start, or cannot connect; an import finds no skill
  130  interrupted

With --json the answer is one JSON document on stdout, errors included: {"error": {"code", "message", "data"}}."""


class AnsweredError(Exception):
    """A method said no; `error` is the error object of its answer."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


class CheckFailed(Exception):
    """What was to be checked is not as it should be; the message says what."""


class Commands(click.Group):
    """The root of all commands, and the only place where an exception becomes an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        # Whether a command was asked for JSON must be known before its command line turns out to be wrong.
        as_json = "--json" in sys.argv[1:]
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _leave_pipe()
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(INTERRUPTED)
        except click.exceptions.Exit:
            sys.stdout.flush()
            raise
        except click.ClickException as error:
            if not as_json:
                raise
            _fail(ctx, WRONG_USAGE, {"message": error.format_message(), "data": {"type": "usage"}}, as_json)
        except AnsweredError as error:
            _fail(ctx, ANSWERED_ERROR, error.error, as_json)
        except SkilleryError as error:
            _fail(ctx, ANSWERED_ERROR, object_of(error), as_json)
        except StartupError as error:
            _fail(ctx, CANNOT_START, {"message": str(error), "data": {"type": "cannot_start"}}, as_json)
        except CheckFailed as error:
            _fail(ctx, CHECK_FAILED, {"message": str(error), "data": {"type": "check_failed"}}, as_json)
        except Exception as error:
            if os.environ.get("SKILLERY_LOG_LEVEL", "").lower() == "debug":
                raise
            message = f"unexpected {type(error).__name__}: {error}"
            hint = "This is a bug in Skillery; set SKILLERY_LOG_LEVEL=debug for a traceback."
            _fail(ctx, CANNOT_START, {"message": message, "data": {"type": "unexpected", "hint": hint}}, as_json)


def object_of(error: SkilleryError) -> dict[str, Any]:
    """The error object that a server would answer for `error`."""
    from skillery.api.errors import error_object

    built: dict[str, Any] = msgspec.to_builtins(error_object(error))
    return built


def print_error(error: Mapping[str, Any]) -> None:
    """To stderr: the message, every problem that it lists, and the hint. One problem that says what the message says is
    told once, with its place."""
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    problems: Sequence[Any] = data.get("problems") or data.get("findings") or ()
    said = str(error.get("message", "")).rstrip(".")
    if len(problems) == 1 and said == str(problems[0].get("message", "")).rstrip("."):
        error, problems = {**error, "message": _problem_line(problems[0])}, ()
    click.echo(f"{click.style('error:', fg='red', bold=True)} {clean(_headline(error, problems))}", err=True)
    for problem in problems:
        click.echo(f"  {_problem_line(problem)}", err=True)
    if data.get("hint"):
        click.echo(f"{click.style('hint:', fg='yellow')} {clean(data['hint'])}", err=True)


def _headline(error: Mapping[str, Any], problems: Sequence[Any]) -> str:
    """The message; of several problems only their number, because the message repeats the first of them."""
    subject = f"{error['subject']}: " if error.get("subject") else ""
    return f"{subject}{len(problems)} problems" if len(problems) > 1 else f"{subject}{error.get('message', '')}"


def _problem_line(problem: Mapping[str, Any]) -> str:
    """`code/main.py:3: what is wrong`, or the key of the manifest, which most messages begin with already."""
    message = str(problem.get("message", ""))
    where = str(problem.get("file") or problem.get("path") or problem.get("rule") or "")
    if problem.get("line"):
        return clean(f"{where}:{problem['line']}: {message.removeprefix(where).lstrip(': ')}")
    return clean(message if not where or message.startswith(where) else f"{where}: {message}")


def _fail(ctx: click.Context, code: int, error: Mapping[str, Any], as_json: bool) -> NoReturn:
    try:
        if as_json:
            print_json({"error": error})
        else:
            print_error(error)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_pipe()
    ctx.exit(code)


def _leave_pipe() -> NoReturn:
    """End as a process does that writes to `| head` after it has gone. The interpreter would flush once more at exit
    and complain, so what is left to write goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(PIPE_CLOSED)
