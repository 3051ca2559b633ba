"""The contract of sandboxes holds for code that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from ray_fixtures import open_here
from skillery.backends import Sandbox
from skillery.testing import SandboxContract, SharedSandbox
from skillery.testing.sandbox.base import OpenWith
from skillery_ray.sandbox import RaySandbox
from tests.support.ray_cluster import RayCluster

pytest_plugins = ("ray_fixtures",)
pytestmark = pytest.mark.long
ALL_CASES = os.environ.get("SKILLERY_RAY_CONTRACT") == "all"
"""Cases with a network start an engine for each of their settings, and take minutes: `make ray-contract` runs them."""


class TestRay(SharedSandbox, SandboxContract):  # type: ignore[misc]
    """One cluster and one backend for all cases."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, near_ray: RayCluster, node_folder: Path, closed: None) -> AsyncIterator[RaySandbox]:  # type: ignore[override]
        sandbox = open_here(near_ray, node_folder, labels={"node": "one"})
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    @pytest.fixture
    def open_with(self, near_ray: RayCluster, node_folder: Path) -> OpenWith | None:
        if not ALL_CASES:
            return None

        async def opened(hosts: Mapping[str, tuple[str, ...]], private: tuple[str, ...]) -> Sandbox:
            node = {"hosts": dict(hosts), "allow_private": list(private)}
            sandbox = open_here(near_ray, node_folder, labels={"node": "one"}, node=node)
            await sandbox.start()
            return sandbox

        return opened
