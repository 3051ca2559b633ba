"""The cluster of the tests of skillery-ray. A test module loads it with `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skillery.backends import Place
from skillery_ray import open_sandbox
from skillery_ray.sandbox import RaySandbox
from skillery_ray.settings import RaySettings
from tests.support.ray_cluster import RayCluster, ray_environment, running_cluster, settings_of


@pytest.fixture(scope="session")
def ray() -> Iterator[RayCluster]:
    """Return the cluster of this process, with the node `one`."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def two_nodes(ray: RayCluster) -> RayCluster:
    """Return the cluster with the nodes `one` and `two`."""
    ray.add_node("two", zone="b")
    return ray


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="session")
def near_ray(ray: RayCluster) -> Iterator[RayCluster]:
    """Let sandboxes of this process find Ray."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_environment().items():
            patch.setenv(name, value)
        yield ray


def open_here(cluster: RayCluster, folder: Path, **more: Any) -> RaySandbox:
    """Open the sandbox as a server does."""
    settings = msgspec.convert(settings_of(cluster, folder, **more), RaySettings)
    return open_sandbox(settings, Place(folder / "home"))
