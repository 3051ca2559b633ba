"""The settings of the sandbox `ray`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from skillery_ray.versions import versions


class NodeSettings(msgspec.Struct, frozen=True):
    """The settings of an engine. All servers with the same settings share it."""

    backend: str
    backend_settings: dict[str, Any]
    folder: str
    cache_mb: int
    allow_degraded: bool
    idle_seconds: int


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `[[backends.sandbox.ray.routes]]`: which runs may use only nodes with certain labels.

    A run matches if it matches all conditions that are given. The first route that matches a run is used.
    """

    labels: dict[str, str]
    """The Ray labels of the nodes: each name with its value."""
    namespaces: tuple[str, ...] = ()
    """Namespaces of the first skill of the run, with all namespaces below them."""
    skills: tuple[str, ...] = ()
    """Names of the first skill of the run."""
    memory_mb: int = 0
    """The least `memory_mb` of the limits of the run."""
    cpus: float = 0.0
    """The least `cpus` of the limits of the run."""


class RaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sandbox `ray`, from `[backends.sandbox.ray]`."""

    address: str
    """The address of the Ray cluster: `host:port` of its head. This machine must be a node of the cluster."""
    namespace: str = "skillery"
    """The Ray namespace of the actors. Servers with the same namespace and settings share the engines of the nodes."""
    labels: dict[str, str] = {}
    """Only nodes with all of these Ray labels run jobs. Empty: all nodes of the cluster."""
    backend: str = "linux"
    """The sandbox that each node uses."""
    node: dict[str, Any] = {}
    """The settings of this sandbox, as in `[backends.sandbox.<backend>]`."""
    routes: tuple[Route, ...] = ()
    """Which runs may use which nodes. A run that matches no route may use all nodes."""
    pending: int = 64
    """The most runs that this server has on one node at a time. If all nodes of a run are full, the answer is busy."""
    folder: str = "~/.cache/skillery-ray"
    """The folder on each node for the files of skills, packages and blobs."""
    cache_mb: int = 4096
    """The most megabytes of this folder. The node then deletes the files that were not used for the longest time."""
    start_seconds: int = 60
    """How long the server waits for the first node when it starts."""
    idle_seconds: int = 300
    """How long an engine without connected servers stays on its node."""

    def of_nodes(self, *, allow_degraded: bool) -> NodeSettings:
        return NodeSettings(
            self.backend, self.node, self.folder, self.cache_mb, allow_degraded, max(1, self.idle_seconds)
        )


def key_of(settings: NodeSettings) -> str:
    """Return a short text that is the same for all servers that can share an engine."""
    state = msgspec.json.encode([msgspec.to_builtins(settings), versions()], order="sorted")
    return hashlib.sha256(state).hexdigest()[:12]


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
