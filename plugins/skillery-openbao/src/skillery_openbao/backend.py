"""The backend: Skillery's calls as requests to the server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from skillery.backends import Secrets
from skillery.errors import Conflict, InvalidParams, NotAllowed
from skillery_openbao.connection import Connection
from skillery_openbao.entries import Entries
from skillery_openbao.failures import ServiceFailed
from skillery_openbao.settings import OpenBaoSettings, is_name, location_of
from skillery_openbao.start import check_service

MOST_VALUE_BYTES = 64 * 1024
TRIES = 5
AT_ONCE = 8


class OpenBaoSecrets(Secrets):
    """Values of secrets in OpenBao. No value is kept after a method has returned."""

    def __init__(self, settings: OpenBaoSettings) -> None:
        self.read_only = settings.read_only
        self._settings = settings
        self._connection = Connection(settings)
        self._entries = Entries(settings, self._connection.session)

    async def start(self) -> None:
        """Log in, check the engine, and start to renew the token. Raise StartupError with the wrong setting."""
        await self._connection.start(partial(check_service, self._settings))

    async def close(self) -> None:
        """Revoke the token of an AppRole login, and close the connections."""
        await self._connection.close()

    def get(self, name: str) -> str | None:
        if not is_name(name):
            return None
        return self._connection.call(self._get(name), f"the secret '{name}' cannot be read now")

    def names(self) -> list[str]:
        return self._connection.call(self._names(), "the names of the secrets cannot be read now")

    def set(self, name: str, value: str) -> None:
        if not is_name(name):
            raise InvalidParams(f"'{name[:200]}' is not a name of a secret, such as 'API_KEY'")
        if self.read_only:
            raise self._elsewhere(name, "put")
        self._connection.call(self._set(name, value), f"the secret '{name}' cannot be set now")

    def remove(self, name: str) -> bool:
        if not is_name(name):
            return False
        if self.read_only:
            raise self._elsewhere(name, "delete")
        return self._connection.call(self._remove(name), f"the secret '{name}' cannot be removed now")

    async def _get(self, name: str) -> str | None:
        location = location_of(self._settings, name)
        entry = await self._entries.read(location.path)
        return _text_of(location.field, entry.fields.get(location.field)) or None

    async def _names(self) -> list[str]:
        """Return the names with a value: entries in the folder `prefix`, and the names in the setting `paths`."""
        stored_names = [name for name in await self._entries.list(self._settings.prefix) if is_name(name)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def has_value(name: str) -> bool:
            async with turns:
                return await self._has_value(name)

        names = sorted({*stored_names, *self._settings.paths})
        flags = await asyncio.gather(*map(has_value, names))
        return [name for name, is_set in zip(names, flags, strict=True) if is_set]

    async def _has_value(self, name: str) -> bool:
        location = location_of(self._settings, name)
        return bool((await self._entries.read(location.path)).fields.get(location.field))

    async def _set(self, name: str, value: str) -> None:
        """Write the field. Keep other fields of the entry, also if another program changes them at the same time."""
        location = location_of(self._settings, name)
        for _ in range(TRIES):
            entry = await self._entries.read(location.path)
            if await self._entries.write(location.path, entry.fields | {location.field: value}, entry.version):
                return
        raise _changed(name)

    async def _remove(self, name: str) -> bool:
        """Remove the field, and the entry if it has no other fields. Return whether the secret had a value."""
        location = location_of(self._settings, name)
        for _ in range(TRIES):
            entry = await self._entries.read(location.path)
            if not entry.fields.get(location.field):
                return False
            other_fields = {field: value for field, value in entry.fields.items() if field != location.field}
            if not other_fields:
                await self._entries.delete(location.path)
                return True
            if await self._entries.write(location.path, other_fields, entry.version):
                return True
        raise _changed(name)

    def _elsewhere(self, name: str, verb: str) -> NotAllowed:
        location = location_of(self._settings, name)
        namespace = f" -namespace={self._settings.namespace}" if self._settings.namespace else ""
        # `-` reads the value from stdin, so that it is in no list of processes. `patch` keeps other fields.
        value = f" {location.field}=-" if verb == "put" else ""
        verb = "patch" if verb == "put" and location.is_listed else verb
        return NotAllowed(
            "the secrets of this server are set in OpenBao",
            hint=f"Run there: bao kv {verb}{namespace} -mount={self._settings.mount} {location.path}{value}",
        )


def _changed(name: str) -> Conflict:
    return Conflict(f"another program changes the secret '{name}' in OpenBao at the same time", hint="Try again.")


def _text_of(field: str, value: Any) -> str:
    """Return the value of a field. Raise ServiceFailed if it cannot be an environment variable."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ServiceFailed("field", f"'{field}' contains no text: write the value as a JSON string")
    if "\0" in value or len(value.encode(errors="replace")) > MOST_VALUE_BYTES:
        raise ServiceFailed("field", f"the text in '{field}' contains a NUL, or has more than {MOST_VALUE_BYTES} bytes")
    return value
