"""The cluster as a server sees it: the reports of the link process, and the nodes that runs can use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable

import msgspec

from skillery_ray.channels import Door
from skillery_ray.members import Member

logger = logging.getLogger(__name__)

SILENT_SECONDS = 15.0
"""If the link process reports nothing for this time, it is replaced."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
END_SECONDS = 5.0


class ReportedNode(msgspec.Struct, frozen=True):
    """A node in a report: its address and token if its engine runs, else the problem."""

    id: str
    name: str
    problem: str
    starting: bool
    labels: dict[str, str]
    door: Door | None = None


class Report(msgspec.Struct, frozen=True):
    """One line of the link process."""

    lost: str = ""
    nodes: tuple[ReportedNode, ...] = ()


class Cluster:
    """Keeps a link process running, and creates and closes members as its reports say."""

    def __init__(self, order: dict[str, object], new_member: Callable[[ReportedNode], Member]) -> None:
        self._order = order
        self._new_member = new_member
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._was_connected = False
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        """The reasons why nodes are not used, by the name of the node."""
        self.lost = "the connection to the cluster has not been made yet"
        """The reason why the cluster cannot be used at present, or ""."""
        self.reported = asyncio.Event()
        """Set after each report."""
        self.is_starting = False
        """Whether a node is starting its engine."""

    def start(self) -> None:
        """Begin to follow the cluster. A second call does nothing."""
        if self._following is None:
            self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while True:
            had_reports = await self._follow_one()
            pause = FIRST_PAUSE if had_reports else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _follow_one(self) -> bool:
        """Follow one link process until it ends. Return whether it has ever been connected."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skillery_ray.link",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
            start_new_session=True,
        )
        was_connected = False
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._order).encode() + b"\n")
            while (report := await self._next_report(first=not was_connected)) is not None:
                was_connected = was_connected or not report.lost
                self._take(report)
        finally:
            await self._end_process()
        if not self.lost:
            self._take(Report(lost="the connection to the cluster was lost"))
        return was_connected

    async def _next_report(self, *, first: bool) -> Report | None:
        """Return the next report, or None if the process has ended or is silent."""
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            seconds = SILENT_SECONDS * (4 if first else 1)  # joining a cluster takes long on a busy machine
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
            return msgspec.json.decode(line, type=Report) if line else None
        return None

    def _take(self, report: Report) -> None:
        """Note what a report says about the nodes; log when the connection to the cluster is lost or back."""
        if report.lost != self.lost and self._was_connected:
            logger.log(logging.WARNING if report.lost else logging.INFO, "ray: %s", report.lost or "connected again")
        self._was_connected = self._was_connected or not report.lost
        self.lost = report.lost
        if not report.lost:
            self.is_starting = any(node.starting for node in report.nodes)
            self._take_nodes(report.nodes)
        self.reported.set()

    def _take_nodes(self, nodes: tuple[ReportedNode, ...]) -> None:
        """Create and close members, so that they are the usable nodes of a report. Log each node
        that is newly refused.
        """
        usable = {node.id: node for node in nodes if node.door is not None}
        for node_id in [
            member_id for member_id, member in self.members.items() if member.door != _door(usable.get(member_id))
        ]:
            self.members.pop(node_id).lose()
        for node_id, node in usable.items():
            if node_id not in self.members:
                self.members[node_id] = self._new_member(node)
        refused = {node.name: node.problem for node in nodes if node.problem and not node.starting}
        for name in refused.keys() - self.refused.keys():
            logger.warning("ray: the node %s is not used: it %s", name, refused[name])
        self.refused = refused

    def ask_again(self, node_id: str) -> None:
        """Let the link process start the engine of a node again, because the engine does not answer."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(node_id.encode() + b"\n")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        members, self.members = list(self.members.values()), {}
        for member in members:
            await member.close()

    async def _end_process(self) -> None:
        """End the link process: it ends when its stdin closes, and is killed after END_SECONDS."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _door(node: ReportedNode | None) -> Door | None:
    return node.door if node is not None else None
