"""Options that commands share."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from skillery.settings import LoadedSettings

F = TypeVar("F", bound=Callable[..., Any])


class Target(NamedTuple):
    """The registry that a command uses: the server at `url`, or a home."""

    home: str | None = None
    config: str | None = None
    url: str | None = None
    token: str | None = None

    def load(self, **flags: Any) -> LoadedSettings:
        """Return the settings of this computer. `flags` are settings from the command line. Raise StartupError if a
        setting is not valid.
        """
        from skillery.settings import load_settings

        return load_settings({"home": self.home, **flags}, config=self.config)


def filled(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the value of an option. Raise BadParameter if it is empty: an unset variable of a shell lifts no limit."""
    if text is not None and not text.strip():
        raise click.BadParameter("it is empty: leave the option out")
    return text


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
        return command(target=Target(home, config), **others)

    return with_target


def work_dir_option(command: F) -> F:
    return click.option(
        "--work-dir",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Send the files of DIR to the server, let tools of skills work on them, and change DIR as the tools do.",
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


def url_option(command: F) -> F:
    return click.option("--url", metavar="URL", callback=_check_url, help="Use the server at this address instead.")(
        command
    )


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --home, --config, --url and --token to a command. The command gets them as `target`."""

    @click.option("--home", metavar="DIR", help="The home: the folder of the embedded registry.")
    @click.option("--config", metavar="FILE", help="The settings file.  [default: skillery.toml in the home]")
    @url_option
    @token_option
    @functools.wraps(command)
    def with_target(*, home: str | None, config: str | None, url: str | None, token: str | None, **others: Any) -> Any:
        return command(target=Target(home, config, url, token), **others)

    return with_target


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


def _check_url(_ctx: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    if url is not None and not url.lower().startswith(("http://", "https://")):
        raise click.BadParameter(f"'{url}' is not an http:// or https:// address")
    return url.rstrip("/").removesuffix("/rpc") if url else None
