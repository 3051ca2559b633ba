"""The contract of sandboxes holds for code that runs on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from ray_fixtures import open_here
from skillery.backends import Sandbox
from skillery.testing import SandboxFunctions, SandboxIsolation, SandboxTransport, SharedSandbox
from skillery.testing.sandbox.loopback import printed
from skillery.testing.sandbox.network import visited
from skillery.testing.sandbox.trial import OpenWith, Trial
from skillery.testing.sandbox.unix_sockets import listening
from skillery_ray.sandbox import RaySandbox
from tests.support.ray_cluster import RayCluster

pytest_plugins = ("ray_fixtures",)
pytestmark = pytest.mark.long
TRANSPORT = SandboxTransport.__bases__
OTHERS = [cases for cases in (*SandboxFunctions.__bases__, *SandboxIsolation.__bases__) if cases not in TRANSPORT]
"""The rest of the contract."""


class OnRay(SharedSandbox):
    """One cluster and one backend for all cases of a class."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, near_ray: RayCluster, node_folder: Path, closed: None) -> AsyncIterator[RaySandbox]:  # type: ignore[override]
        sandbox = open_here(near_ray, node_folder, labels={"node": "one"})
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    @pytest.fixture
    def open_with(self, near_ray: RayCluster, node_folder: Path) -> OpenWith:
        """Start another engine on the node for each of these settings."""

        async def opened(hosts: Mapping[str, tuple[str, ...]], private: tuple[str, ...]) -> Sandbox:
            node = {"hosts": dict(hosts), "allow_private": list(private)}
            sandbox = open_here(near_ray, node_folder, labels={"node": "one"}, node=node)
            await sandbox.start()
            return sandbox

        return opened


class TestRay(OnRay, SandboxTransport):
    """Ray only carries the jobs: the tests of `linux` run the whole contract."""


@pytest.mark.full
class TestRayLikeLinux(OnRay, *OTHERS):  # type: ignore[misc]
    """The other cases of the contract, through the cluster."""

    async def test_no_unix_socket_is_made_if_a_mount_holds_a_socket(self, serving: Trial) -> None:
        """Nodes get copies of mounts, without their sockets."""
        skill = serving.skill("talks", {"code/main.py": ""})
        with listening(str(skill.folder / "socket")) as servers:
            code = "import pathlib\nprint(json.dumps([file.name for file in pathlib.Path('/skills').rglob('*.py')]))"
            assert "main.py" in await printed(serving, code, others=(skill,))
            code = code.replace("*.py", "socket*")
            assert await printed(serving, code, others=(skill,)) == []
            assert visited(servers) == []
