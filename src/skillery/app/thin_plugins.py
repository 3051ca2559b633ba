"""Thin plugins by the settings of a server."""

from __future__ import annotations

from skillery.backends import Authenticator, DescribesResource
from skillery.errors import InvalidName, StartupError
from skillery.exports.thin_plugins import ThinPlugins
from skillery.formats.names import parse_namespace
from skillery.settings import Settings


def thin_plugins_of(settings: Settings, authenticator: Authenticator) -> ThinPlugins:
    """Return the thin plugins of a server. Raise StartupError if a namespace is not valid, or `public_url` is unset."""
    for namespace in settings.thin_plugins:
        try:
            if parse_namespace(namespace):
                continue
            reason = "a namespace has at least one character"
        except InvalidName as error:
            reason = error.message
        raise StartupError(f"setting 'thin_plugins' has '{namespace}': {reason}")
    if settings.thin_plugins and not settings.public_url:
        raise StartupError(
            "setting 'thin_plugins' needs 'public_url': the plugins have the address of this server, for example "
            'public_url = "https://skills.example.org"'
        )
    can_log_in = isinstance(authenticator, DescribesResource) and authenticator.resource() is not None
    address = settings.public_url.rstrip("/")
    return ThinPlugins(tuple(sorted(set(settings.thin_plugins))), settings.marketplace_name, address, can_log_in)
