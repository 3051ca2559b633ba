"""`skillery plugins` and `skillery plugin new`: the plugins of this installation, and the package of a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_fields, print_json, print_rows
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.authoring.scaffold import PluginKind
    from skillery.cli.plugin_facts import OfferHealth, OfferSetting, PluginState
    from skillery.plugins import Plugins
    from skillery.plugins.facts import PluginFacts, PluginOffer
    from skillery.settings.load import Settings


class _ListByDefault(click.Group):
    """A group that runs `list` if the command line names no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        has_subcommand = bool(args) and (args[0] == "--help" or not args[0].startswith("-"))
        return super().parse_args(ctx, args if has_subcommand else ["list", *args])


@click.group(cls=_ListByDefault)
def plugins() -> None:
    """Show the installed plugins. Without a subcommand, list them."""


@plugins.command("list")
@home_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List the plugins, with their version, kinds, backends, hooks and commands.

    The list marks the backends and objects that the settings choose.
    """
    _, _, rows = _load(target)
    if as_json:
        print_json({"plugins": rows})
        return
    print_rows(
        ["plugin", "version", "kind", "active", "offers", "chosen", "listens to", "commands"],
        [
            (
                row.name,
                row.version or "",
                ", ".join(row.kinds),
                "yes" if row.active else "no",
                _names(row.offers),
                _names([offer for offer in row.offers if offer.chosen]),
                ", ".join(row.moments),
                ", ".join(row.commands),
            )
            for row in rows
        ],
    )


def _names(offers: list[PluginOffer]) -> str:
    return ", ".join(f"{offer.kind} {offer.name}" for offer in offers)


@plugins.command()
@click.argument("name")
@home_options
@json_option
def show(name: str, target: Target, as_json: bool) -> None:
    """Show one plugin: its settings, and the health of its active backends.

    NAME is the name of a plugin, or of one of its backends. Values of secrets are hidden.
    """
    from skillery.cli.plugin_facts import find_plugin, state_of

    loaded, settings, rows = _load(target)
    facts = find_plugin(rows, name)
    state = state_of(loaded, settings, facts.offers)
    if as_json:
        print_json(asdict(facts) | asdict(state))
        return
    _print(facts, state)


def _load(target: Target) -> tuple[Plugins, Settings, list[PluginFacts]]:
    """Return the plugins, the settings, and the facts about all plugins."""
    from skillery.plugins import load_plugins
    from skillery.plugins.facts import list_plugins

    settings = target.load().settings
    loaded = load_plugins(settings.plugins_folder)
    context = click.get_current_context().find_root()
    assert isinstance(context.command, click.Group)
    commands: dict[str, list[str]] = {}
    for plugin, command in commands_of(loaded, context.command.commands):
        commands.setdefault(plugin, []).append(command.name or "")
    return loaded, settings, list_plugins(loaded, settings, commands)


def _print(facts: PluginFacts, state: PluginState) -> None:
    fields = [
        ("name", facts.name),
        ("version", facts.version or "none"),
        ("from", facts.package or facts.path or ""),
        ("hook API", str(facts.api_version)),
        ("kind", ", ".join(facts.kinds)),
        ("active", "yes" if facts.active else "no"),
        ("offers", _names(facts.offers)),
        ("listens to", ", ".join(facts.moments)),
        ("commands", ", ".join(facts.commands)),
        ("capabilities", ", ".join(state.capabilities)),
        *(("health", f"{check.kind} {check.name}: {_health(check)}") for check in state.health),
    ]
    print_fields((name, text) for name, text in fields if text)
    if state.settings:
        click.echo()
        print_rows(["setting", "value", "default", "what"], map(_row, state.settings))


def _health(check: OfferHealth) -> str:
    return f"{'ok' if check.ok else 'FAILED'}, {check.detail}"


def _row(setting: OfferSetting) -> tuple[str, str, str, str]:
    default = "required" if setting.required else as_json_text(setting.default, -1)
    return f"{setting.section}.{setting.name}", as_json_text(setting.value, -1), default, setting.description


# -- Commands of plugins: the hook `commands` --------------------------------------------------------------------------


def load_commands(arguments: Sequence[str], built_in: Mapping[str, click.Command]) -> dict[str, click.Command]:
    """Return the commands of all plugins by name. `arguments` is the command line, which may name a home.

    Raise StartupError if the settings or a plugin are not valid, or if a name is taken.
    """
    from skillery.plugins import load_plugins
    from skillery.settings.load import load_settings

    home, config = _value_of("--home", arguments), _value_of("--config", arguments)
    settings = load_settings({"home": home}, config=config).settings
    return {command.name or "": command for _, command in commands_of(load_plugins(settings.plugins_folder), built_in)}


def commands_of(plugins: Plugins, built_in: Mapping[str, click.Command]) -> list[tuple[str, click.Command]]:
    """Return each plugin's name with each of its commands. Raise StartupError if a plugin fails or a name is taken."""
    origin = dict.fromkeys(built_in, "Skillery")
    commands: list[tuple[str, click.Command]] = []
    for implementation in plugins.manager.hook.commands.get_hookimpls():
        plugin = implementation.plugin_name
        for command in _made_by(plugin, implementation.function):
            name = command.name or ""
            if not name or name in origin:
                raise StartupError(f"plugin '{plugin}' adds the command '{name}', which {origin.get(name)} has already")
            origin[name] = f"the plugin '{plugin}'"
            commands.append((plugin, command))
    return commands


def _made_by(plugin: str, function: Any) -> list[click.Command]:
    try:
        commands = function()
    except Exception as error:
        raise StartupError(f"plugin '{plugin}' failed to add commands: {' '.join(str(error).split())}") from error
    if not isinstance(commands, list) or not all(isinstance(command, click.Command) for command in commands):
        raise StartupError(
            f"plugin '{plugin}' must return a list of click commands from its hook 'commands', not {commands!r:.80}"
        )
    return commands


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option on the command line, which is not parsed yet."""
    for number, argument in enumerate(arguments):
        if argument == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


# -- `skillery plugin new`: the package of a new plugin ----------------------------------------------------------------


@click.group()
def plugin() -> None:
    """Make the package of a new plugin."""


@plugin.command()
@click.argument("name")
@click.option(
    "--kind",
    required=True,
    type=click.Choice(["storage", "sandbox", "authenticator", "secrets", "events"]),
    help="The backend that the plugin offers; events: an object that reacts to events.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder of the package.  [default: NAME]"
)
@json_option
def new(name: str, kind: PluginKind, folder: Path | None, as_json: bool) -> None:
    """Make a working package NAME, with tests that pass. Nothing is downloaded, and no file is overwritten."""
    from skillery import __version__
    from skillery.authoring.scaffold import FilesExist, make_plugin
    from skillery.errors import InvalidName

    new_folder = folder or Path(name)
    try:
        paths = make_plugin(new_folder, kind, name, __version__)
    except InvalidName as error:
        raise click.UsageError(f"{error.message} {error.hint}") from None
    except FilesExist as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"'{new_folder}' cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"folder": str(new_folder), "name": name, "kind": kind, "files": paths})
        return
    click.echo(f"{name} in {clean(new_folder)}:")
    for path in paths:
        click.echo(f"  {path}")
    click.echo(
        clean(f"next: cd {new_folder}, then python -m pytest (with skillery[testing]); README.md has the settings"),
        err=True,
    )
