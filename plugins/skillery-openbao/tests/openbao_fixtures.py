"""Fixtures of the tests of skillery-openbao. A test module loads them with `pytest_plugins`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from openbao_here import Engine, Open
from skillery.backends import Place
from skillery_openbao import open_secrets
from skillery_openbao.backend import OpenBaoSecrets
from skillery_openbao.settings import OpenBaoSettings
from tests.support.fault_proxy import FaultProxy
from tests.support.openbao import OpenBao, running_openbao


@pytest.fixture(scope="session")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """Return the server of this process. Tests use different engines."""
    with running_openbao(tmp_path_factory.mktemp("openbao")) as server:
        yield server


@pytest.fixture
def engine(bao: OpenBao, tmp_path: Path) -> Engine:
    return Engine(bao, tmp_path)


@pytest.fixture
def proxy(bao: OpenBao) -> Iterator[FaultProxy]:
    running = FaultProxy(bao.address)
    yield running
    running.close()


@pytest.fixture
def open_here(engine: Engine, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the backend at the engine, as a command does. The test closes it."""
    with ExitStack() as stack:

        def opened(**changed: Any) -> OpenBaoSecrets:
            secrets = open_secrets(OpenBaoSettings(**engine.settings(**changed)), Place(tmp_path))
            stack.callback(lambda: asyncio.run(secrets.close()))
            return secrets

        yield opened
