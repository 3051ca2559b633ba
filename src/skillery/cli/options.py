"""Options that commands share."""

from __future__ import annotations

import functools
import getpass
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from skillery.cli.output import clean

if TYPE_CHECKING:
    from skillery.settings.load import LoadedSettings

F = TypeVar("F", bound=Callable[..., Any])
URL_VARIABLE = "SKILLERY_URL"


HOME = "home"
"""Text that names the home in the place of a URL."""
_TARGET = "skillery.target"


class Target(NamedTuple):
    """The registry that a command uses: the server at `url`, or a home."""

    home: str | None = None
    config: str | None = None
    url: str | None = None
    token: str | None = None
    origin: str = ""
    """Where the target comes from: `--url`, `SKILLERY_URL`, `skillery use`, or "" for a home."""
    has_token_option: bool = False
    """Whether the token was given with --token, and not by SKILLERY_TOKEN."""

    @property
    def shown_url(self) -> str:
        """The address of the server without user and password, for messages."""
        return without_user(self.url or "")

    @property
    def options(self) -> str:
        """The options of another command for the same target, with a space before each."""
        if self.origin == "--url":
            return f" --url {self.shown_url}"
        values = (("--home", self.home), ("--config", self.config)) if not self.url else ()
        return "".join(f" {option} {shlex.quote(value)}" for option, value in values if value)

    def place(self, preposition: str = "at") -> str:
        """Return the place of a change: `at https://skills.example.org`, or `in the home /home/ann/skills`."""
        return f"{preposition} {self.shown_url}" if self.url else f"in the home {self.load().settings.home}"

    def check_token(self, authenticators: Sequence[str]) -> None:
        """Raise UsageError if --token is given, and no authenticator of the home reads it."""
        if self.has_token_option and tuple(authenticators) in {(), ("open",)}:
            raise click.UsageError(
                "this command uses the home, which checks no tokens: name a server with --url, or leave --token out"
            )

    def load(self, **flags: Any) -> LoadedSettings:
        """Return the settings of this computer. `flags` are settings from the command line. Raise StartupError if a
        setting is not valid.
        """
        from skillery.settings.load import load_settings

        return load_settings({"home": self.home, **flags}, config=self.config)


def filled(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the value of an option. Raise BadParameter for an empty value: an unset variable of a shell must not lift
    a limit.
    """
    if text is not None and not text.strip():
        raise click.BadParameter("it is empty: leave the option out")
    return text


def folders_argument(command: F) -> F:
    """Add the argument DIR... to a command. The default is the folder `.`."""
    return click.argument(
        "folders",
        metavar="[DIR...]",
        nargs=-1,
        type=click.Path(path_type=Path),
        callback=lambda _ctx, _argument, folders: folders or (Path(),),
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def allow_unknown_option(command: F) -> F:
    return click.option(
        "--allow-unknown", is_flag=True, help="Keep keys of skill.toml that are similar to a known key."
    )(command)


def home_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --home and --config to a command. The command gets them as `target`."""

    @click.option("--home", metavar="DIR", help="The home: the folder of the embedded registry.")
    @click.option("--config", metavar="FILE", help="The settings file.  [default: skillery.toml in the home]")
    @functools.wraps(command)
    def with_target(*, home: str | None, config: str | None, **others: Any) -> Any:
        return command(target=_remembered(Target(home, config)), **others)

    return with_target


def work_dir_option(command: F) -> F:
    return click.option(
        "--work-dir",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Send the files of DIR to the server for the tools of skills, and apply the changes of the tools to DIR.",
    )(command)


def token_option(command: F) -> F:
    """Add the option --token to a command. Other users of the computer can see a command line, but not
    SKILLERY_TOKEN.
    """
    return click.option(
        "--token",
        metavar="TOKEN",
        envvar="SKILLERY_TOKEN",
        help="The token for a server that requires authentication.  [default: SKILLERY_TOKEN]",
    )(command)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --home, --config and --url to a command. The command gets them as `target`.

    The server is the value of --url, else of SKILLERY_URL, else of `skillery use`. --home, --config and `--url home`
    select a home.
    """

    @click.option("--home", metavar="DIR", help="The home: the folder of the embedded registry.")
    @click.option("--config", metavar="FILE", help="The settings file.  [default: skillery.toml in the home]")
    @click.option(
        "--url",
        metavar="URL",
        callback=_check_url,
        help="The server, or 'home' for the home.  [default: SKILLERY_URL, else the server of `skillery use`]",
    )
    @functools.wraps(command)
    def with_target(*, home: str | None, config: str | None, url: str | None, **others: Any) -> Any:
        origin = "--url"
        if url is None and home is None and config is None:
            url, origin = current_server()
        target = Target(home, config) if url in {None, HOME} else Target(home, config, url, origin=origin)
        return command(target=_remembered(target), **others)

    return with_target


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --home, --config, --url and --token to a command. The command gets them as `target`."""

    @server_options
    @token_option
    @functools.wraps(command)
    def with_token(*, target: Target, token: str | None, **others: Any) -> Any:
        by_option = click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE
        return command(target=_remembered(target._replace(token=token, has_token_option=by_option)), **others)

    return with_token


def current_server() -> tuple[str | None, str]:
    """Return the current server of the user, and where it comes from: SKILLERY_URL, else `skillery use`.

    Return None and "" for the home. Raise UsageError if SKILLERY_URL is not an address.
    """
    if address := os.environ.get(URL_VARIABLE, "").strip():
        try:
            return address_in(address), URL_VARIABLE
        except ValueError as error:
            raise click.UsageError(f"{URL_VARIABLE}: {error}") from None
    from skillery.client.logins.kept import current_server as kept_server

    server = kept_server()
    return server, "skillery use" if server else ""


def without_user(address: str) -> str:
    """Return an address without user and password, for messages. The address need not be valid."""
    return re.sub(r"^(\w+://)?.*@", r"\1", address, flags=re.DOTALL)


def address_in(text: str) -> str:
    """Return the address of a server without the path of an endpoint, or HOME. Raise ValueError."""
    if text == HOME:
        return HOME
    if not text.lower().startswith(("http://", "https://")):
        raise ValueError(f"'{without_user(text)}' is not an http:// or https:// address, nor the word '{HOME}'")
    return text.rstrip("/").removesuffix("/rpc")


def _check_url(_ctx: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    try:
        return address_in(url) if url else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _remembered(target: Target) -> Target:
    """Return the target. `target_of` then returns it, for messages about the target of the running command."""
    if context := click.get_current_context(silent=True):
        context.meta[_TARGET] = target
    return target


def target_of(context: click.Context) -> Target | None:
    """Return the target of the running command, or None if the command has no target."""
    target: Target | None = context.meta.get(_TARGET)
    return target


def print_change(text: str, preposition: str = "at", *, err: bool = False) -> None:
    """Print the change that the running command has made, and its place: `yanked greet 1.0.0 at
    https://skills.example.org`.
    """
    target = target_of(click.get_current_context())
    assert target is not None, "a command that changes something has the options of its target"
    click.echo(clean(f"{text} {target.place(preposition)}"), err=err)


def confirm(question: str) -> None:
    """Ask the user, and raise Abort if the answer is no. Raise UsageError if stdin ends without an answer."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # ends the line of the question
        raise click.UsageError("nothing was changed: stdin has no answer, so repeat the command with --yes") from None
    if not agreed:
        raise click.Abort


def user_of_this_machine() -> str:
    """Return the name of the operating system's user, for audit entries of commands that work on the home directly."""
    try:
        return getpass.getuser()[:200]
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def name_and_version(text: str, version: str | None) -> tuple[str, str | None]:
    """Return the name and the version spec of `NAME@SPEC` or of NAME and --version.

    The version spec is None if none is given. Raise UsageError if both `text` and `version` give one.
    """
    name, at, spec = text.partition("@")
    if at and version is not None:
        raise click.UsageError(f"'{text}' contains a version and --version gives another: use only one of them")
    return name, (spec if at else version)
