"""Values that all kinds of backends share: identities, the place and the offer of a backend, and what it keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from inspect import get_annotations, isfunction, unwrap
from pathlib import Path
from types import MethodType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

import msgspec

API_VERSION = 1
"""The version of the hook API. A release with another version may break plugins for an earlier version. A plugin states
its version as `api_version` in its module.
"""


Scope = Literal["read", "run", "publish", "review", "metrics", "audit", "accounts", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


class Provenance(msgspec.Struct, frozen=True):
    """The CI job that published a version, from signed claims. A field without a claim is ""."""

    issuer: str
    subject: str
    repository: str = ""
    repository_id: str = ""
    owner_id: str = ""
    workflow: str = ""
    ref: str = ""
    commit: str = ""
    environment: str = ""
    run: str = ""
    """Id of the run or pipeline."""


class Identity(msgspec.Struct, frozen=True):
    """The name, kind, scopes and namespace grants of a caller.

    The grants are in `namespaces`: `sales.*` covers every skill name that starts with `sales.`, `sales.report` only
    this skill, and `*` all names. A grant for one skill applies to publishing, not to listings.
    """

    name: str
    kind: Literal["person", "agent"] = "person"
    scopes: frozenset[Scope] = frozenset()
    namespaces: tuple[str, ...] = ()
    provenance: Provenance | None = None
    """The CI job, if the caller is a CI job. Versions that the job publishes record this value."""
    through_mcp: bool = False
    """True for a call through MCP. Such a caller is a model, also if a person owns the token."""


class Transaction(Protocol):
    """An open transaction of the registry's database. A backend only passes the transaction to a method of `Values`."""


class Values(Protocol):
    """Small values by key in the registry's database: sessions, keys, cached answers. A backend gets this object as
    `Place.values`.

    Each backend has its own keys, which all servers of one database share. The methods block: a coroutine calls them
    with `asyncio.to_thread`. After the time `expires_at`, a value no longer exists. The methods raise ValueError if a
    key does not have 1 to 255 characters or a value has more than 1 MiB, and Unavailable if the database is
    unavailable.
    """

    def get(self, key: str) -> bytes | None: ...

    def get_many(self, keys: Collection[str]) -> dict[str, bytes]:
        """Return the values of several keys by key, without the keys that have no value."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`, sorted by their bytes."""
        ...

    def set(
        self, key: str, value: bytes, expires_at: datetime | None = None, within: Transaction | None = None
    ) -> bool:
        """Store a value, and replace the present value if there is one. Return whether there was one.

        If `within` is given, the change is a part of this transaction.
        """
        ...

    def add(self, key: str, value: bytes, expires_at: datetime | None = None) -> bytes:
        """Store a value if the key has none. Return the value that the key has afterwards.

        If several servers call this method at the same time, one value is stored, and all servers get this value.
        """
        ...

    def take(self, key: str, within: Transaction | None = None) -> bytes | None:
        """Remove the value and return it, or return None if there is none.

        If several callers call this method at the same time, one gets the value and the others get None.
        """
        ...

    def change_many(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, bytes | None] = {},
        expires_at: datetime | None = None,
        within: Transaction | None = None,
    ) -> bool:
        """Store several values in one transaction, and remove the values of the keys with None.

        If a key of `expected` does not have this value (None: no value), change nothing and return False. No other
        caller changes a value of the backend between the comparison and the change.
        """
        ...


class VerifiedToken(msgspec.Struct, frozen=True):
    """A token of the registry that has not expired and was not revoked."""

    token_id: str
    identity: Identity
    expires_at: datetime | None
    """None if the token never expires."""


class Tokens(Protocol):
    """The tokens of the registry, which admins create with `create_token`. A backend gets this object as
    `Place.tokens`.
    """

    async def verify(self, token: str) -> VerifiedToken:
        """Return the token with its identity. `token` is the text that the caller sent.

        Raise NotAuthenticated with a message for the caller if the token is not valid. Raise Unavailable if the
        database is unavailable. Each call reads the database. An authenticator may cache the result for a second, if it
        has `forget` (`KeepsTokens`) for revocations.
        """
        ...

    async def note_use(self, token_id: str) -> None:
        """Record that the token was used at the present time. At most one record per minute is stored."""
        ...

    def first_token(self) -> str | None:
        """Create an admin token and return its text, or return None if there was ever a token. Blocking.

        If several servers start at the same time, only one of them gets the token.
        """
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings type of a backend without settings."""


class Place(msgspec.Struct, frozen=True):
    """The folder and the services that a server gives to a backend, when the server opens the backend."""

    home: Path
    """The home of the server. A backend stores its data in a folder with its own name in the home."""
    allow_degraded: bool = False
    values: Values | None = None
    """Values of the backend in the registry's database. None if there is no database, as in some checks of `skillery
    doctor`.

    Use `values` only after `open` has returned, because the database may not be migrated before.
    """
    tokens: Tokens | None = None
    """The tokens of the registry, for authenticators. None if there is no database."""
    end_identities: Callable[[Sequence[str], Identity], None] | None = None
    """End the tokens of the registry, the sessions and the runs of identities, as `revoke_identity` does. The second
    argument is the caller, for the audit trail. Unknown names are ignored.

    Call it after the authenticator refuses the identities. The function blocks for 1.5 s: a server that does not know
    the change yet may create tokens in this time, which end too. For authenticators; None without a database.
    """
    popular_skills: Callable[[int], Sequence[str]] | None = None
    """Return the names of the public skills with the most runs, at most the given number. For objects of
    `skillery_plugin`; None for backends. The function blocks.
    """
    fetch: Callable[[str], Awaitable[bytes]] | None = None
    """Return the document at an http(s) address, at most 512 KiB within 5 seconds, without redirects. For verifiers;
    None for other backends.

    Private addresses are refused, except for those in the setting `trust.allow_private`. `http` is permitted on
    loopback only. Raise Unavailable with the reason if the document cannot be read.
    """
    key_secret: Callable[[], str | None] | None = None
    """Return the value of the secret NAME of the setting `signing.key = "secret:NAME"`, or None if it has no value. For
    signers; None for other backends.
    """


class Offer(msgspec.Struct, frozen=True):
    """A backend that a plugin offers, or the object of `skillery_plugin`. The settings choose a backend by its `name`.

    `open(settings, place)` returns the backend. The argument `settings` is an instance of the type `settings`: a frozen
    msgspec Struct that forbids unknown fields. Its values come from the section `[backends.<kind>.<name>]` of
    skillery.toml (`[plugins.<name>]` for an object), and are checked at start.
    """

    name: str
    open: Callable[[Any, Place], Any]
    settings: type[msgspec.Struct] = NoSettings
    unsafe: bool = False
    """True: the backend does not isolate runs. The server refuses such a backend unless `allow_unsafe_sandbox` is
    set.
    """


Method = TypeVar("Method", bound=Callable[..., Any])


def default(*together: str) -> Callable[[Method], Method]:
    """Mark a method of a Protocol as optional: a backend without this method gets the method of the Protocol.

    `together` are the names of methods that belong together: a backend that does not have all of them gets all of them
    from the Protocol.
    """

    def mark(method: Method) -> Method:
        method.__together__ = together or (method.__name__,)  # type: ignore[attr-defined]  # mypy knows no attributes of functions
        return method

    return mark


class WithDefaults(type(Protocol)):  # type: ignore[misc]  # the class of Protocol has no public name
    """The class of Protocols for which `isinstance` needs only the members without a default."""

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        return cls._is_protocol and all(hasattr(instance, name) for name in _required(cls))


def _required(protocol: type) -> Iterator[str]:
    for name, member in (get_annotations(protocol) | dict(vars(protocol))).items():
        if not name.startswith("_") and not hasattr(member, "__together__"):
            yield name


def methods_of(protocol: type) -> Mapping[str, Callable[..., Any]]:
    """Return the methods of a Protocol, by name."""
    members = vars(protocol).items()
    return {name: member for name, member in members if isfunction(member) and not name.startswith("_")}


def is_left_out(backend: object, method: Callable[..., Any]) -> bool:
    """Return whether a method of a Protocol is optional and the backend does not have it."""
    return not all(hasattr(backend, name) for name in getattr(method, "__together__", ()))


def has_default(backend: object, method: Callable[..., Any]) -> bool:
    """Return whether a backend does not have a method of a Protocol, or inherits the default of the Protocol."""
    own_method = getattr(backend, method.__name__, None)
    return own_method is None or getattr(unwrap(own_method), "__func__", None) is method


@runtime_checkable
class UsesService(Protocol):
    """A backend that may use a service over the network, for example an identity provider.

    A server calls `start` before it accepts requests, and `close` at its end. `skillery doctor` and `skillery plugins
    show` call both. Commands that open a home without a server call both for a Secrets, and only `close` for an
    Authenticator. `skillery secret` calls only `close`. Without `start`, a backend connects when a method needs the
    service. Default of both: do nothing.
    """

    @default("start", "close")
    async def start(self) -> None:
        """Connect to the service. Raise StartupError with a message that names the wrong setting."""
        return

    @default("start", "close")
    async def close(self) -> None:
        return


class Completed:
    """A backend with all methods of its Protocols: its own methods, and the Protocols' defaults for the others."""

    def __init__(
        self,
        backend: object,
        protocols: Sequence[type],
        wrapped: Callable[[str, Callable[..., Any]], Callable[..., Any]] = lambda _, method: method,
    ) -> None:
        """`wrapped(name, method)` returns the method that callers get."""
        self._backend = backend
        # Attributes of the instance: since Python 3.12, `isinstance` with a Protocol does not use `__getattr__`.
        # Annotated data of a Protocol, such as `read_only`, does not change. `capabilities` is a property: it does.
        for protocol in protocols:
            for name in get_annotations(protocol):
                if hasattr(backend, name):
                    setattr(self, name, getattr(backend, name))
            for name, method in methods_of(protocol).items():
                own_method = MethodType(method, self) if is_left_out(backend, method) else getattr(backend, name, None)
                if own_method is not None:
                    setattr(self, name, wrapped(name, own_method))

    def __getattr__(self, name: str) -> Any:
        # A copy that is being made has no `_backend` yet, and special methods of the backend are not those of the copy.
        if name == "_backend" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._backend, name)


class Kind(NamedTuple):
    """One kind of backends. `skillery.backends.KINDS` has a row for each kind, which the module of the kind defines."""

    name: str
    protocol: type
    optional: tuple[type, ...] = ()
    """Protocols that a backend may implement too. A backend that has all methods of such a Protocol is checked."""
    setting: str = ""
    """The setting that chooses the backend. "": every server uses the backend that a plugin offers, if there is one."""
    absent: str | None = None
    """The value of the setting with which a server has no backend of this kind. None: every server has one."""
    reads: tuple[str, ...] = ()
    """The methods that only read. Their calls have a time limit."""
    read_seconds: float = 60.0
    """The time limit of these calls. The setting `hook_seconds` may lower it."""

    @property
    def hook(self) -> str:
        """The hook with which a plugin offers a backend."""
        return f"skillery_{self.name}"

    def completed(self, backend: object) -> Any:
        """Return the backend with the defaults of the methods that it leaves out."""
        return Completed(backend, (self.protocol, *self.optional))
