"""The settings of the backends `openbao` and their checks: a common connection, the secrets, the signer."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

import msgspec

from skillery.errors import StartupError

_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?")
_PART = re.compile(r"[^/\x00-\x1f\x7f]+")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a connection to the server."""

    section: ClassVar[str]
    """The section of skillery.toml, for messages."""
    address: str = ""
    """The address of the server: `https://bao.example.org:8200`."""
    namespace: str = ""
    """The namespace of the engine and of the login. Empty means the root namespace."""
    token_file: str = ""
    """A file with a token. The file is read again when it changes."""
    role_id: str = ""
    """The role id of an AppRole, instead of `token_file`."""
    secret_id_file: str = ""
    """A file with the secret id of the AppRole. Empty means that the role needs none."""
    auth_mount: str = "approle"
    """The path of the AppRole engine."""
    ca_file: str = ""
    """A PEM file of the authorities that the server's certificate may come from. Empty means the usual authorities."""
    timeout_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 5.0
    """The time limit of one request."""
    retry_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 5.0
    """The time for which a failed request is repeated."""


class OpenBaoSettings(ServerSettings, frozen=True, forbid_unknown_fields=True):
    """The settings of the secrets backend, from `[backends.secrets.openbao]`."""

    section = "[backends.secrets.openbao]"
    mount: str = "secret"
    """The path of the KV engine. The engine must have version 2."""
    prefix: str = "skillery"
    """The folder of the secrets in the engine. Empty means the top of the engine."""
    field: str = "value"
    """The field of an entry that contains the value."""
    paths: dict[str, str] = {}
    """Names of secrets with an entry outside of `prefix`: `{ MAIL_PASSWORD = "team/mail#password" }`."""
    read_only: bool = True
    """True: values are set in OpenBao only. False: `skillery secret set` and `skillery secret rm` change them."""


class TransitSettings(ServerSettings, frozen=True, forbid_unknown_fields=True):
    """The settings of the signer, from `[backends.signer.openbao]`."""

    section = "[backends.signer.openbao]"
    mount: str = "transit"
    """The path of the transit engine."""
    key: str = "skillery"
    """The name of the key in the engine."""


class Location(msgspec.Struct, frozen=True):
    """The place of a secret: the path of an entry below the engine, and one field of the entry."""

    path: str
    field: str
    is_listed: bool = False
    """Whether `paths` names the location."""


def location_of(settings: OpenBaoSettings, name: str) -> Location:
    """Return the location of the secret `name`. The name must be valid."""
    if name in settings.paths:
        path, _, field = settings.paths[name].partition("#")
        return Location(path, field or settings.field, is_listed=True)
    return Location(f"{settings.prefix}/{name}" if settings.prefix else name, settings.field)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_secrets(settings: OpenBaoSettings) -> None:
    """Raise StartupError if a setting of the secrets is missing, not valid, or does not fit another setting."""
    _check_server(settings)
    _check_path(settings, "prefix", settings.prefix, may_be_empty=True)
    if not settings.field:
        raise _wrong(settings, "field: name the field that contains the value, such as 'value'")
    for name, place in settings.paths.items():
        if not is_name(name):
            raise _wrong(settings, f"paths: '{name}' is not a name of a secret, such as 'API_KEY'")
        _check_path(settings, "paths", place.partition("#")[0])


def check_transit(settings: TransitSettings) -> None:
    """Raise StartupError if a setting of the signer is missing, not valid, or does not fit another setting."""
    _check_server(settings)
    if not _KEY.fullmatch(settings.key):
        raise _wrong(settings, f"key: '{settings.key}' is not a name of a key, such as 'skillery'")


def _check_server(settings: OpenBaoSettings | TransitSettings) -> None:
    _check_address(settings)
    if not settings.namespace.isascii():
        raise _wrong(settings, f"namespace: '{settings.namespace}' has other characters than ASCII")
    _check_path(settings, "mount", settings.mount)
    _check_path(settings, "auth_mount", settings.auth_mount)
    _check_path(settings, "namespace", settings.namespace, may_be_empty=True)
    if bool(settings.token_file) == bool(settings.role_id):
        raise _wrong(settings, "token_file, role_id: set one of them, for the login at the server")
    if settings.secret_id_file and not settings.role_id:
        raise _wrong(settings, "secret_id_file: a secret id needs an AppRole: set role_id too")
    if settings.ca_file and not Path(settings.ca_file).is_file():
        raise _wrong(settings, f"ca_file: '{settings.ca_file}' is not a file")


def _wrong(settings: ServerSettings, text: str) -> StartupError:
    return StartupError(f"{settings.section} {text}")


def _check_address(settings: ServerSettings) -> None:
    address = settings.address
    if not address:
        raise _wrong(settings, "address: name the server, such as https://bao.example.org:8200")
    if not _ADDRESS.fullmatch(address) or not _has_port(address):
        raise _wrong(settings, f"address: '{address}' is not an address such as https://bao.example.org:8200")
    parts = urlsplit(address)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise _wrong(
            settings, f"address: '{address}' has no encryption: use https; http is only for loopback addresses"
        )


def _has_port(address: str) -> bool:
    """Return whether the host and the port of the address are valid."""
    try:
        return urlsplit(address).port != 0
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_path(settings: ServerSettings, name: str, path: str, *, may_be_empty: bool = False) -> None:
    if not path and may_be_empty:
        return
    if any(part in {".", ".."} or not _PART.fullmatch(part) for part in path.split("/")):
        raise _wrong(settings, f"{name}: '{path}' is not a path such as 'team/skills'")
