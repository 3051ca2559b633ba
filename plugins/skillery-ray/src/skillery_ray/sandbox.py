"""The backend `ray`: it sends each job to the engine of a node of the Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial, reduce

import msgspec

from skillery.backends import Job, Outcome, Place, Probe, RunHost, Sandbox
from skillery.errors import Busy, SandboxUnavailable, Unavailable
from skillery_ray.cluster import Cluster, ReportedNode
from skillery_ray.jobs import FileGone, failed, pack
from skillery_ray.members import Member, NotStarted
from skillery_ray.placement import allowed, by_load
from skillery_ray.settings import RaySettings, key_of
from skillery_ray.trees import Trees
from skillery_ray.versions import versions

RETRY_AFTER_MS = 500
POLL_SECONDS = 0.1
LOCAL_PROBE = Probe(
    "local sandbox", True, "not needed: all runs are on nodes of the Ray cluster, and none is on this machine"
)


class RaySandbox(Sandbox):
    """See `skillery.backends.Sandbox`."""

    def __init__(self, settings: RaySettings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._trees = Trees()
        self._cluster: Cluster | None = None
        self._starting = asyncio.Lock()
        self._is_started = False
        self._capabilities: frozenset[str] = frozenset()

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that all ready nodes have. Without ready nodes, the capabilities of the last ones."""
        capabilities_of_nodes = [member.capabilities for member in self._members() if member.is_ready]
        if capabilities_of_nodes:
            self._capabilities = reduce(frozenset.intersection, capabilities_of_nodes)
        return self._capabilities

    def _members(self) -> list[Member]:
        return list(self._cluster.members.values()) if self._cluster is not None else []

    async def start(self) -> None:
        """See `Sandbox.start`. After the first node, raise Unavailable while there is no node."""
        if self._is_started:
            self._check_cluster()
            return
        async with self._starting:
            if not self._is_started:
                await self._wait_for_node()
                self._is_started = True

    async def _wait_for_node(self) -> None:
        """Connect to the cluster, and return when a node is ready. Raise SandboxUnavailable after `start_seconds`."""
        cluster = self._cluster = self._cluster or self._open_cluster()
        cluster.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.start_seconds):
                while await self._is_waiting(cluster):
                    pass
        if not any(member.is_ready for member in self._members()):
            problem = self._problem(cluster)
            await cluster.close()
            self._cluster = None
            raise SandboxUnavailable(f"the sandbox `ray` cannot be used: {problem}")

    async def _is_waiting(self, cluster: Cluster) -> bool:
        """Wait for the next report. Return whether a node can become ready after it."""
        if any(member.is_ready for member in cluster.members.values()):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await cluster.reported.wait()
            cluster.reported.clear()
            return not cluster.lost and bool(cluster.members or cluster.is_starting)
        return True

    def _open_cluster(self) -> Cluster:
        """Return a cluster that is not started yet, with the settings for its link process."""
        settings = self._settings
        nodes = settings.of_nodes(allow_degraded=self._place.allow_degraded)
        order = {
            "address": settings.address,
            "namespace": settings.namespace,
            "labels": settings.labels,
            "settings": msgspec.to_builtins(nodes),
            "key": key_of(nodes),
            "versions": versions(),
        }
        return Cluster(order, self._new_member)

    def _new_member(self, node: ReportedNode) -> Member:
        assert self._cluster is not None
        assert node.door is not None
        return Member(node.name, node.labels, node.door, partial(self._cluster.ask_again, node.id))

    def _problem(self, cluster: Cluster) -> str:
        if cluster.lost:
            return f"{cluster.lost}; check [backends.sandbox.ray] address"
        if cluster.refused:
            return "; ".join(f"the node {name} {problem}" for name, problem in sorted(cluster.refused.items()))
        return f"the cluster at {self._settings.address} has no node with the labels of [backends.sandbox.ray] labels"

    def _check_cluster(self) -> None:
        """Raise Unavailable if the cluster is lost or has no node."""
        cluster = self._cluster
        if cluster is None:
            raise Unavailable("the sandbox `ray` is closed")
        if cluster.lost or not any(member.is_ready for member in self._members()):
            raise Unavailable(
                "no machine of the Ray cluster can run code at present", hint="Try again in a few seconds."
            )

    def check_room(self, job: Job) -> None:
        """See `skillery.backends.LimitsRuns`."""
        if not self._is_started:
            return
        self._check_cluster()
        nodes = by_load(allowed(self._members(), self._settings.routes, job))
        if not nodes:
            raise Unavailable("no machine that may run this job is available", hint="Try again in a few seconds.")
        if all(node.pending >= self._settings.pending for node in nodes):
            raise Busy("all machines that may run this job are busy", retry_after_ms=RETRY_AFTER_MS)

    async def run(self, job: Job, host: RunHost) -> Outcome:
        await self.start()
        try:
            packed = await pack(job, self._trees)
        except FileGone as gone:
            return failed(str(gone))
        except OSError as error:
            return failed(f"the files of the run cannot be read: {error.strerror}")
        for node in by_load(allowed(self._members(), self._settings.routes, job)):
            with contextlib.suppress(NotStarted):  # no code has started, so the next node may run the job
                return await node.run(job, packed, host)
        return failed("no machine of the Ray cluster that may run this job is available")

    def probe(self) -> list[Probe]:
        return asyncio.run(self._probe())

    async def _probe(self) -> list[Probe]:
        """Return the state of the cluster as a new connection sees it, without the state of this object."""
        fresh = RaySandbox(self._settings, self._place)
        try:
            await fresh.start()
        except SandboxUnavailable as error:
            return [LOCAL_PROBE, Probe("ray", False, str(error), "Check [backends.sandbox.ray] and the cluster.")]
        try:
            return [LOCAL_PROBE, *fresh._nodes_probes()]
        finally:
            await fresh.close()

    def _nodes_probes(self) -> list[Probe]:
        assert self._cluster is not None
        names = ", ".join(sorted(member.name for member in self._members()))
        refused = [
            Probe(f"node {name}", False, problem, "Install the same versions on all nodes.", required=False)
            for name, problem in sorted(self._cluster.refused.items())
        ]
        return [Probe("ray", True, f"{self._settings.address}: {len(self._members())} nodes ({names})"), *refused]

    def figures(self) -> dict[str, float]:
        """See `skillery.backends.Sandbox`."""
        members = self._members()
        return {
            "ray_nodes_ready": sum(member.is_ready for member in members),
            "ray_nodes_marked": sum(member.is_marked for member in members),
            "ray_nodes_refused": len(self._cluster.refused) if self._cluster is not None else 0,
            "ray_runs_pending": sum(member.pending for member in members),
        }

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._is_started = False
        if cluster is not None:
            await cluster.close()
