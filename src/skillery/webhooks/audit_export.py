"""The export of the audit trail as OpenTelemetry logs: OTLP over HTTP in JSON, which needs no further package.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.audit import head
from skillery.database import Database
from skillery.database.leases import Lease, claim, release, renew
from skillery.database.tables import event_readers
from skillery.errors import SkilleryError
from skillery.registry.audit_trail import AuditEntry, AuditFilter, read_audit_after

log = logging.getLogger(__name__)
EXPORTER = "audit-otlp"
"""The id of the row in `event_readers` with the lease of the exporting server."""
START = 2**62
"""The position before the first entry. It is behind all events, so the outbox keeps no events for this reader."""
SECONDS = 1.0
"""Seconds between two looks for new entries."""
LONGEST_PAUSE = 60.0
TIMEOUT = 15.0
BATCH = 500
INFO, WARN = (9, "INFO"), (13, "WARN")
_ADD = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(event_readers).on_conflict_do_nothing(index_elements=["id"])
    for dialect in (sqlite, postgresql)
}


class AuditExport:
    """Sends each entry of the trail to a collector, in order, from `start` to `close`. One server at a time sends."""

    def __init__(self, database: Database, server: str, address: str) -> None:
        """`address` is the collector, such as `http://host:4318`."""
        self._database = database
        self._server = server
        self._url = f"{address.rstrip('/')}/v1/logs"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._database.write(_add)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Send new entries until the task is cancelled. After a failure, wait longer each time."""
        pause = SECONDS
        async with httpx.AsyncClient(timeout=TIMEOUT, headers=_headers(os.environ)) as client:
            while True:
                await asyncio.sleep(pause)
                try:
                    await self._send_new(client)
                    pause = SECONDS
                except (SkilleryError, httpx.HTTPError) as error:
                    pause = min(pause * 2, LONGEST_PAUSE)
                    log.warning("entries of the audit trail wait for %s: %s", self._url, str(error) or repr(error))
                except Exception:
                    pause = LONGEST_PAUSE
                    log.exception("the export of the audit trail failed")

    async def _send_new(self, client: httpx.AsyncClient) -> None:
        if not await self._database.read(_is_behind):
            return
        taking = partial(claim, table=event_readers, row_id=EXPORTER, server=self._server)
        lease = await self._database.write(taking)
        if lease is None:
            return
        try:
            while await self._send_batch(client, lease):
                pass
        finally:
            await asyncio.shield(self._database.write(partial(release, lease=lease)))

    async def _send_batch(self, client: httpx.AsyncClient, lease: Lease) -> bool:
        """Send the next entries. Return False if there are none, or if the lease is lost."""
        entries = await asyncio.to_thread(self._database.read_now, _next)
        if not entries:
            return False
        response = await client.post(self._url, content=msgspec.json.encode(_request(entries)))
        response.raise_for_status()
        if b"rejectedLogRecords" in response.content:
            log.warning("%s has rejected entries of the audit trail: %s", self._url, response.text[:500])
        return await self._database.write(partial(_move, lease=lease, seq=entries[-1].seq))


def _add(connection: Connection) -> None:
    connection.execute(_ADD[connection.dialect.name], {"id": EXPORTER, "position": START})


def _position(connection: Connection) -> int:
    """Return the number of the last entry that the collector has accepted."""
    return int(connection.execute(select(event_readers.c.position).filter_by(id=EXPORTER)).scalar_one()) - START


def _is_behind(connection: Connection) -> bool:
    return _position(connection) < head(connection).seq


def _next(connection: Connection) -> Sequence[AuditEntry]:
    return read_audit_after(connection, AuditFilter(), after=_position(connection), limit=BATCH).entries


def _move(connection: Connection, lease: Lease, seq: int) -> bool:
    return renew(connection, lease, position=START + seq)


def _headers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request, with those of OTEL_EXPORTER_OTLP_HEADERS (`name=value,…`, percent-encoded)."""
    pairs = (part.partition("=") for part in variables.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if "=" in part)
    return {"content-type": "application/json"} | {name.strip(): unquote(value.strip()) for name, _, value in pairs}


# -- The request -------------------------------------------------------------------------------------------------------


def _request(entries: Sequence[AuditEntry]) -> dict[str, Any]:
    resource = {"attributes": [_attribute("service.name", os.environ.get("OTEL_SERVICE_NAME", "skillery"))]}
    logs = {"scope": {"name": "skillery.audit"}, "logRecords": [_record(entry) for entry in entries]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [logs]}]}


def _record(entry: AuditEntry) -> dict[str, Any]:
    number, text = INFO if entry.outcome == "done" else WARN
    return {
        "timeUnixNano": str(_nanoseconds(entry.at)),
        "severityNumber": number,
        "severityText": text,
        "eventName": "skillery.audit",
        "body": {"stringValue": f"{entry.action} {entry.subject} {entry.outcome}"},
        "attributes": list(_attributes(entry)),
    }


def _nanoseconds(at: str) -> int:
    time = datetime.fromisoformat(at)
    return int(time.replace(microsecond=0).timestamp()) * 10**9 + time.microsecond * 1000


def _attributes(entry: AuditEntry) -> Iterator[dict[str, Any]]:
    """Yield the fields of an entry that have a value. `before` and `after` are JSON."""
    fields = {name: getattr(entry, name) for name in AuditEntry.__struct_fields__ if name not in {"at", "identity"}}
    if entry.identity is not None:
        fields |= {"identity": entry.identity.name, "identity_kind": entry.identity.kind}
    for name in ("before", "after"):
        text = bytes(fields[name]).decode()
        fields[name] = None if text == "null" else text
    for name, value in fields.items():
        if value is not None:
            yield _attribute(f"skillery.audit.{name}", value)


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    # OTLP writes 64-bit numbers as texts.
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
