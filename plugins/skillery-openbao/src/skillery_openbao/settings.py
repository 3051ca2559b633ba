"""The settings of the secrets backend `openbao`, from `[backends.secrets.openbao]`, and their checks."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from skillery.errors import StartupError

SECTION = "[backends.secrets.openbao]"
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~/-]*)?")
_PART = re.compile(r"[^/\x00-\x1f\x7f]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class OpenBaoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the backend, from `[backends.secrets.openbao]`."""

    address: str = ""
    """The address of the server: `https://bao.example.org:8200`."""
    mount: str = "secret"
    """The path of the KV engine. The engine must have version 2."""
    prefix: str = "skillery"
    """The folder of the secrets in the engine. Empty means the top of the engine."""
    field: str = "value"
    """The field of an entry that contains the value."""
    paths: dict[str, str] = {}
    """Names of secrets with an entry outside of `prefix`: `{ MAIL_PASSWORD = "team/mail#password" }`."""
    namespace: str = ""
    """The namespace of the engine and of the login. Empty means the root namespace."""
    read_only: bool = True
    """True: values are set in OpenBao only. False: `skillery secret set` and `skillery secret rm` change them."""
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


def check_settings(settings: OpenBaoSettings) -> None:
    """Raise StartupError if a setting is missing, not valid, or does not fit another setting."""
    _check_address(settings.address)
    if not settings.namespace.isascii():
        raise StartupError(f"{SECTION} namespace: '{settings.namespace}' has other characters than ASCII")
    for name in ("mount", "auth_mount", "prefix", "namespace"):
        _check_path(name, getattr(settings, name), may_be_empty=name in {"prefix", "namespace"})
    if not settings.field:
        raise StartupError(f"{SECTION} field: name the field that contains the value, such as 'value'")
    for name, place in settings.paths.items():
        if not is_name(name):
            raise StartupError(f"{SECTION} paths: '{name}' is not a name of a secret, such as 'API_KEY'")
        _check_path("paths", place.partition("#")[0])
    _check_login(settings)
    if settings.ca_file and not Path(settings.ca_file).is_file():
        raise StartupError(f"{SECTION} ca_file: '{settings.ca_file}' is not a file")


def _check_address(address: str) -> None:
    if not address:
        raise StartupError(f"{SECTION} address: name the server, such as https://bao.example.org:8200")
    if not _ADDRESS.fullmatch(address) or not _has_port(address):
        raise StartupError(f"{SECTION} address: '{address}' is not an address such as https://bao.example.org:8200")
    parts = urlsplit(address)
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise StartupError(
            f"{SECTION} address: '{address}' has no encryption: use https; http is only for loopback addresses"
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


def _check_path(name: str, path: str, *, may_be_empty: bool = False) -> None:
    if not path and may_be_empty:
        return
    if any(part in {".", ".."} or not _PART.fullmatch(part) for part in path.split("/")):
        raise StartupError(f"{SECTION} {name}: '{path}' is not a path such as 'team/skills'")


def _check_login(settings: OpenBaoSettings) -> None:
    if bool(settings.token_file) == bool(settings.role_id):
        raise StartupError(f"{SECTION} token_file, role_id: set one of them, for the login at the server")
    if settings.secret_id_file and not settings.role_id:
        raise StartupError(f"{SECTION} secret_id_file: a secret id needs an AppRole: set role_id too")
