"""Fixtures of the tests of skillery-s3. A test module loads them with `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.weed import KEYS, Weed, running_weed


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """Return the object store of this process. Tests use different prefixes of its bucket."""
    with running_weed(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the credentials of the object store in the environment."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(weed: Weed) -> Iterator[FaultProxy]:
    running = FaultProxy(weed.endpoint)
    yield running
    running.close()
