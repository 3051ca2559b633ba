"""For the tests of Skillery and of the plugins beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.conftest import ServerPool

pytest_plugins = [
    f"tests.support.{name}" for name in ("parallel", "chromium", "forms", "durations", "postgres_statements")
]

# The speed of an example, and of making it, is not part of a test: it depends on the machine. Each run has the same
# examples, so that a change is not refused for an earlier bug. `make fuzz` looks for further ones.
settings.register_profile(
    "skillery",
    settings(),
    deadline=None,
    derandomize="SKILLERY_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("skillery")


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    """Yield the only pool of this process, for `configured_server` and for servers with a configuration file."""
    from tests.conftest import ServerPool  # after pytest has prepared that module for assertions

    pool = ServerPool()
    yield pool
    pool.close()
