"""Commands of plugins: the hook `commands`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.plugins import Plugins


def load_commands(arguments: Sequence[str], built_in: Mapping[str, click.Command]) -> dict[str, click.Command]:
    """Return the commands of all plugins by name. `arguments` is the command line, which may name a home.

    Raise StartupError if the settings or a plugin are not valid, or if a name is taken.
    """
    from skillery.plugins import load_plugins
    from skillery.settings import load_settings

    home, config = _value_of("--home", arguments), _value_of("--config", arguments)
    settings = load_settings({"home": home}, config=config).settings
    return {command.name or "": command for _, command in commands_of(load_plugins(settings.plugins_folder), built_in)}


def commands_of(plugins: Plugins, built_in: Mapping[str, click.Command]) -> list[tuple[str, click.Command]]:
    """Return each plugin's name with each of its commands. Raise StartupError if a plugin fails or a name is taken."""
    origin = dict.fromkeys(built_in, "Skillery")
    found: list[tuple[str, click.Command]] = []
    for implementation in plugins.manager.hook.commands.get_hookimpls():
        plugin = implementation.plugin_name
        for command in _made_by(plugin, implementation.function):
            name = command.name or ""
            if not name or name in origin:
                raise StartupError(f"plugin '{plugin}' adds the command '{name}', which {origin.get(name)} has already")
            origin[name] = f"the plugin '{plugin}'"
            found.append((plugin, command))
    return found


def _made_by(plugin: str, function: Any) -> list[click.Command]:
    try:
        made = function()
    except Exception as error:
        raise StartupError(f"plugin '{plugin}' failed to add commands: {' '.join(str(error).split())}") from error
    if not isinstance(made, list) or not all(isinstance(one, click.Command) for one in made):
        raise StartupError(
            f"plugin '{plugin}' must return a list of click commands from its hook 'commands', not {made!r:.80}"
        )
    return made


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option on the command line, which is not parsed yet."""
    for number, argument in enumerate(arguments):
        if argument == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None
