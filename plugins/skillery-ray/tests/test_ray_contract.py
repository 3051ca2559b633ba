"""The contract of sandboxes holds for code that runs on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from ray_fixtures import open_here
from skillery.backends import Sandbox
from skillery.testing import SandboxFunctions, SandboxTransport, SharedSandbox
from skillery.testing.sandbox.files import LayoutCases
from skillery.testing.sandbox.loopback import printed
from skillery.testing.sandbox.network import HERE, visited
from skillery.testing.sandbox.network_lists import opened
from skillery.testing.sandbox.posture import PostureCases
from skillery.testing.sandbox.trial import OpenWith, Trial, value_of
from skillery.testing.sandbox.unix_sockets import listening
from skillery.testing.upstreams import upstream
from skillery_ray.sandbox import RaySandbox
from tests.support.ray_cluster import RayCluster

pytest_plugins = ("ray_fixtures",)
pytestmark = pytest.mark.long
TRANSPORT = SandboxTransport.__bases__
OTHERS = [cases for cases in (*SandboxFunctions.__bases__, LayoutCases, PostureCases) if cases not in TRANSPORT]
"""The functions, and what the code sees of the node. Each node runs jobs in the sandbox `linux`, whose tests check all
other isolation. Ray could only change what the process of that sandbox has: its environment, descriptors and mounts,
which the two groups of isolation look for.
"""


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
    """Other cases of the contract, through the cluster."""

    async def test_lists_and_hosts_reach_the_node_and_uses_come_back(self, open_with: OpenWith, tmp_path: Path) -> None:
        code = """
        import urllib.error, urllib.request
        def status(url):
            try: return urllib.request.urlopen(url, timeout=300).status
            except urllib.error.HTTPError as error: return error.code
        def main(args): return [status(url) for url in args]
        """
        async with opened(open_with, {"api.test": HERE, "other.test": HERE}, HERE, tmp_path) as trial:
            with upstream() as server:
                urls = [f"http://{name}.test:{server.port}" for name in ("api", "other")]
                outcome = await trial.code(code, urls, network=(urls[0],))
        assert value_of(outcome) == [200, 403]
        assert [(use.host, use.allowed, use.connections) for use in outcome.network] == [
            ("api.test", True, 1),
            ("other.test", False, 1),
        ]

    async def test_no_unix_socket_is_made_if_a_mount_holds_a_socket(self, serving: Trial) -> None:
        """Nodes get copies of mounts, without their sockets."""
        skill = serving.skill("talks", {"code/main.py": ""})
        with listening(str(skill.folder / "socket")) as servers:
            code = "import pathlib\nprint(json.dumps([file.name for file in pathlib.Path('/skills').rglob('*.py')]))"
            assert "main.py" in await printed(serving, code, others=(skill,))
            code = code.replace("*.py", "socket*")
            assert await printed(serving, code, others=(skill,)) == []
            assert visited(servers) == []
