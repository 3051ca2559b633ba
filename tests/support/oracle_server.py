"""A server with one zygote that serves orders, for a tracer.

    python tests/support/oracle_server.py JSON

The JSON object has `preloaded` and `landlock`. The server prints the pid of the process that forks runs. Each line of
its input is an order, a JSON object with `memory_mb`, `affinity`, `port` and `sockets`: the server orders a run, closes
its channel as soon as the run is ready or has failed, and prints how the run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from cellblock import Limits
from cellblock.filter import rules
from cellblock.filter.rules import Filters, Sockets
from cellblock.host import groups
from cellblock.host.cells import Cell, Demand
from cellblock.host.plan import Preload, base_python, make_plan
from cellblock.host.zygotes import Zygote
from tests.support.processes import eventually_async

UID = 100_500


async def serve(server: dict[str, Any], folder: Path) -> None:
    found = groups.find()
    root, held = os.geteuid() == 0, found is not None and "memory" in found.controllers
    machine = platform.machine()
    # A filter kills a process whose call the tracer replaces. So the filter of this zygote allows everything, and runs
    # load the whole filter.
    runs = tuple(rules.program(machine, cgroups=held, sockets=sockets) for sockets in Sockets)
    filters = Filters(runs, struct.pack("=HBBI", rules.RETURN, 0, 0, rules.ALLOW))
    plan = make_plan(root=root, filters=filters, cgroups=held, without_landlock=not server["landlock"])
    if server["preloaded"]:
        preload = Preload("0" * 64, str(folder), ("json",))
        zygote = Zygote(base_python(), plan, preload, UID if root else None)
    else:
        zygote = Zygote(base_python(), plan)
    await zygote.prepare()
    say(zygote.pid if zygote.trusted else zygote._inner[0])
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        group = found.make() if found is not None else None
        limits = Limits(memory_mb=order["memory_mb"], disk_mb=256, disk_files=16_384, tmp_mb=64)
        cell = await zygote.cell(
            Demand(limits, order["port"], Sockets[order["sockets"]]), UID, order["affinity"], group, ahead=False
        )
        say(json.dumps(await ending(cell)))
        await cell.end()
        await cell.close()
        if group is not None:
            await group.remove()
    await zygote.close()


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def ending(cell: Cell) -> list[Any]:
    """Return how the run ended: its event, wait status and message."""
    channel, content = cell.bare_channel, b""
    channel.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while b"ready" not in content and (piece := await asyncio.get_running_loop().sock_recv(channel, 4096)):
            content += piece
    await eventually_async(lambda: not cell.lives or is_waiting(cell.pid))
    channel.close()
    event = await cell.event()
    await eventually_async(lambda: not cell.lives)
    broken = content.decode(errors="replace") if b"broken" in content else ""
    return [event.event, event.status, event.message, broken] if event else ["lost", 0, "", broken]


def is_waiting(pid: int) -> bool:
    """Return whether the process is `init` and sleeps."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        name, state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[::2]
        return name.endswith("(init") and state.split()[0] == "S"
    return False


with tempfile.TemporaryDirectory() as folder:
    Path(folder).chmod(0o755)
    asyncio.run(serve(json.loads(sys.argv[1]), Path(folder)))
