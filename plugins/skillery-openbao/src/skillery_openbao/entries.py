"""Entries of the KV engine, version 2: fields by name, with a version number that reveals changes by others."""

from __future__ import annotations

from typing import Any, NamedTuple

from skillery_openbao.failures import NOT_OPENBAO, ServiceFailed, says
from skillery_openbao.service import Answer
from skillery_openbao.session import Session
from skillery_openbao.settings import OpenBaoSettings


class Entry(NamedTuple):
    """The fields of an entry and its version. Printing it shows no values."""

    fields: dict[str, Any]
    """Empty if no entry exists, or if the entry is deleted."""
    version: int
    """0 if no entry has ever existed."""

    def __repr__(self) -> str:
        return f"Entry(version={self.version})"


class Entries:
    """The entries of the engine at the setting `mount`."""

    def __init__(self, settings: OpenBaoSettings, session: Session) -> None:
        self._settings = settings
        self._session = session

    async def read(self, path: str) -> Entry:
        """Return an entry. Raise ServiceFailed if the entry cannot be read."""
        answer = await self._session.send("GET", self._path("data", path))
        data = answer.part("data")
        if answer.status == 200 and isinstance(data.get("data"), dict):
            return Entry(data["data"], _version_of(data))
        if answer.status == 404 and (data or _is_absent(answer)):
            return Entry({}, _version_of(data))
        raise self._failure(answer, "read", "data", path)

    async def write(self, path: str, fields: dict[str, Any], version: int) -> bool:
        """Write an entry, if its present version is `version`. Return whether it was written."""
        body = {"data": fields, "options": {"cas": version}}
        answer = await self._session.send("POST", self._path("data", path), body)
        if answer.status == 400 and says(answer.body, "check-and-set"):
            return False
        if answer.status not in {200, 204}:
            raise self._failure(answer, "create and update", "data", path)
        return True

    async def delete(self, path: str) -> None:
        """Delete the newest version of an entry."""
        answer = await self._session.send("DELETE", self._path("data", path))
        if answer.status != 204:
            raise self._failure(answer, "delete", "data", path)

    async def list(self, folder: str) -> list[str]:
        """Return the names of the entries in a folder, also of deleted entries, without the names of folders."""
        answer = await self._session.send("GET", self._path("metadata", folder) + "?list=true")
        keys = answer.part("data").get("keys")
        if answer.status == 200 and isinstance(keys, list):
            return [key for key in keys if isinstance(key, str) and not key.endswith("/")]
        if answer.status == 404 and _is_absent(answer):
            return []
        raise self._failure(answer, "list", "metadata", folder)

    def _path(self, part: str, path: str) -> str:
        return f"{self._settings.mount}/{part}" + (f"/{path}" if path else "")

    def _failure(self, answer: Answer, right: str, part: str, path: str) -> ServiceFailed:
        if answer.status == 403:
            full_path = self._path(part, path)
            return ServiceFailed("", f"the policy of the token must permit '{right}' on '{full_path}'")
        if says(answer.body, "no handler for route"):
            return ServiceFailed("mount", f"OpenBao has no engine '{self._settings.mount}'")
        if answer.status in {200, 404}:
            return ServiceFailed("address", f"{self._settings.address} {NOT_OPENBAO}")
        return ServiceFailed("mount", f"OpenBao answers with status {answer.status} at '{self._path(part, path)}'")


def _is_absent(answer: Answer) -> bool:
    return answer.body is not None and answer.body.get("errors") == []


def _dict_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _version_of(data: dict[str, Any]) -> int:
    version = _dict_of(data.get("metadata")).get("version")
    return version if isinstance(version, int) else 0
