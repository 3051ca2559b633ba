"""Facts about plugins for `skillery plugins`: settings, capabilities and health (others: `skillery.plugins.facts`)."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.cli.database import open_database, service_problem
from skillery.errors import SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.backends import Offer, Sandbox
    from skillery.database import Database
    from skillery.plugins import Plugins
    from skillery.plugins.facts import PluginFacts, PluginOffer
    from skillery.settings.load import Settings

HIDDEN = "***"
_SECRET = re.compile(r"(password|secret|token|key)(?!.*_file$)", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether the values of a setting of this name must stay hidden."""
    return bool(_SECRET.search(name))


def visible(name: str, value: Any) -> Any:
    """Return the value of a setting as JSON, with secrets replaced, also those in tables."""
    if is_secret(name) and isinstance(value, str) and value:
        return HIDDEN
    builtins = msgspec.to_builtins(value, enc_hook=str)
    if isinstance(builtins, dict):
        return {key: visible(str(key), inner) for key, inner in builtins.items()}
    if isinstance(builtins, list):
        return [visible(name, inner) for inner in builtins]
    return builtins


def find_plugin(rows: list[PluginFacts], name: str) -> PluginFacts:
    """Return the row of the plugin `name`, or of the plugin with an offer of this name. Raise UsageError."""
    for row in rows:
        if row.name == name:
            return row
    for row in rows:
        if any(offer.name == name for offer in row.offers):
            return row
    names = ", ".join(row.name for row in rows)
    raise click.UsageError(f"there is no plugin '{name}'; the plugins are: {names}")


class OfferSetting(msgspec.Struct, frozen=True):
    """A setting of an offer, with its default and its current value as JSON. Values of secrets are hidden."""

    section: str
    name: str
    type: str
    required: bool
    default: Any
    value: Any
    description: str


class OfferHealth(msgspec.Struct, frozen=True):
    """The result of the check of a chosen offer."""

    kind: str
    name: str
    ok: bool
    detail: str


class PluginState(msgspec.Struct, frozen=True):
    """The settings of all offers of a plugin, and the state of the chosen ones."""

    settings: list[OfferSetting]
    capabilities: list[str]
    """Those of the sandbox."""
    health: list[OfferHealth]


def state_of(plugins: Plugins, settings: Settings, offers: list[PluginOffer]) -> PluginState:
    """Return the settings of the offers. Open the chosen offers as a server does, and check them."""
    fields: list[OfferSetting] = []
    capabilities: list[str] = []
    health: list[OfferHealth] = []
    for offer in offers:
        fields += _settings_of_offer(plugins, settings, offer.kind, offer.name)
        if offer.chosen:
            ok, detail, supported = _health_of(plugins, settings, offer.kind, offer.name)
            health.append(OfferHealth(offer.kind, offer.name, ok, detail))
            capabilities += supported
    return PluginState(fields, capabilities, health)


def _settings_of_offer(plugins: Plugins, settings: Settings, kind: str, name: str) -> Iterator[OfferSetting]:
    offer = _offer(plugins, kind, name)
    section = f"plugins.{name}" if kind == "plugin" else f"backends.{kind}.{name}"
    values = settings.plugins.get(name, {}) if kind == "plugin" else settings.backends.get(kind, {}).get(name, {})
    return _fields(offer, section, values)


def _offer(plugins: Plugins, kind: str, name: str) -> Offer:
    return plugins.objects[name] if kind == "plugin" else plugins.offers[kind][name]


def _fields(offer: Offer, section: str, values: Mapping[str, Any]) -> Iterator[OfferSetting]:
    texts = _docstrings(offer.settings)
    hints = typing.get_type_hints(offer.settings, include_extras=True)
    for field in msgspec.structs.fields(offer.settings):
        name = field.encode_name
        default = None if field.required else visible(name, _default(field))
        value = visible(name, values[name]) if name in values else default
        description = _meta(hints[field.name]) or texts.get(field.name, "")
        yield OfferSetting(section, name, _type_name(field.type), field.required, default, value, description)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def _type_name(kind: Any) -> str:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def _meta(kind: Any) -> str:
    metas = kind.__metadata__ if typing.get_origin(kind) is typing.Annotated else ()
    return next((meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description), "")


def _docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the text below each field, which Python itself does not keep. Empty if there is no source."""
    import ast
    import inspect
    import textwrap

    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    docstrings = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings[field.target.id] = " ".join(value.value.split())
    return docstrings


def _health_of(plugins: Plugins, settings: Settings, kind: str, name: str) -> tuple[bool, str, list[str]]:
    """Open a chosen offer as a server does, and check it. Return whether it works, a detail, and its capabilities."""
    try:
        return True, *_checked(plugins, settings, kind, name)
    except (StartupError, SkilleryError) as error:
        return False, str(error), []
    except OSError as error:
        return False, error.strerror or type(error).__name__, []
    except Exception as error:  # noqa: BLE001 - any error of a plugin
        return False, f"{type(error).__name__}: {' '.join(str(error).split())}", []


def _checked(plugins: Plugins, settings: Settings, kind: str, name: str) -> tuple[str, list[str]]:
    """Open an offer of a kind and check it. Return a detail, and the capabilities of a sandbox. Raise StartupError."""
    from skillery.plugins import settings_of

    if kind == "plugin":
        settings_of(f"plugins.{name}", plugins.objects[name], settings.plugins[name])
        return "its settings are valid", []
    if kind == "sandbox":
        import asyncio

        return "it starts", asyncio.run(_capabilities(plugins.open("sandbox", settings)))
    if kind == "storage":
        plugins.open("storage", settings).check()
        return "its check succeeds", []
    with open_database(settings) as database:
        problem = service_problem([_opened(plugins, settings, kind, name, database)])
    if problem is not None:
        raise StartupError(problem)
    return "it opens", []


def _opened(plugins: Plugins, settings: Settings, kind: str, name: str, database: Database) -> object:
    if kind == "authenticator":
        return plugins.open_authenticators(settings, database)[name]
    if kind == "verifier":
        from skillery.app.builders import documents_of

        return plugins.open_offered("verifier", settings, database, fetch=documents_of(settings).fetch)
    if kind == "sigstore":
        return plugins.open_offered(kind, settings, database)
    backend: object = plugins.open(kind, settings, database)
    return backend


async def _capabilities(sandbox: Sandbox) -> list[str]:
    try:
        await sandbox.start()
        return sorted(map(str, sandbox.capabilities))
    finally:
        await sandbox.close()
