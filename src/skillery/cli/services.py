"""Backends that use a service over the network: check them, and close them after a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from skillery.errors import StartupError

T = TypeVar("T")


def service_problem(backends: Iterable[object]) -> str | None:
    """Start and close the backends that use a service. Return the message of the first one that fails."""
    import asyncio

    from skillery.backends import UsesService

    async def started() -> None:
        for backend in backends:
            if isinstance(backend, UsesService):
                try:
                    await backend.start()
                finally:
                    await backend.close()

    try:
        asyncio.run(started())
    except StartupError as error:
        return str(error)
    return None


@contextlib.contextmanager
def closing_service(backend: T) -> Iterator[T]:
    """Context manager: yield the backend, and close it at the end if it uses a service."""
    import asyncio

    from skillery.backends import UsesService

    try:
        yield backend
    finally:
        if isinstance(backend, UsesService):
            asyncio.run(backend.close())
