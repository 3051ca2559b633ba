"""Secrets: values by name, for runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from skillery.backends.values import Kind, Transaction, WithDefaults, default


@runtime_checkable
class Secrets(Protocol, metaclass=WithDefaults):
    """Stores the values of secrets by name. Blocking: several worker threads call the methods at the same time.

    A backend must not put a value into an exception or the log. A backend that cannot be reached raises Unavailable.
    """

    read_only: bool
    """True: users set the values in another system. `set` and `remove` then raise NotAllowed, with a hint about that
    system.
    """

    def get(self, name: str) -> str | None:
        """Return the value of a secret, or None if the secret has no value."""
        ...

    def names(self) -> list[str]:
        """Return the sorted names of all secrets that have a value."""
        ...

    def set(self, name: str, value: str) -> None:
        """Store the value of a secret, and replace the present value if there is one."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the value of a secret. Return whether there was one."""
        ...

    @default("start", "close")
    async def start(self) -> None:
        """See `UsesService`."""
        return

    @default("start", "close")
    async def close(self) -> None:
        return


@runtime_checkable
class KeepsSecrets(Protocol):
    """A Secrets that stores its values in `Place.values`, so that a change and its audit entry are in one transaction.

    The methods and the returned functions block. The caller calls a returned function in the transaction of the audit
    entry.
    """

    def setting(self, name: str, value: str) -> Callable[[Transaction], bool]:
        """Return a function that stores the value in a transaction, and returns whether it replaced a value."""
        ...

    def removing(self, name: str) -> Callable[[Transaction], bool]:
        """Return a function that removes the value in a transaction, and returns whether there was one."""
        ...


class SecretValues(dict[str, str]):
    """The values of secrets by name, for a run. Printing this dict shows only the names."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


KIND = Kind("secrets", Secrets, (KeepsSecrets,), setting="secrets", reads=("get", "names"))
