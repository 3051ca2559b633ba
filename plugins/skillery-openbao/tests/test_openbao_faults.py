"""Faults between the backend and the server: the backend repeats the request or reports the fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from openbao_here import RECOVERY_SECONDS, Engine, Open, get_when_available
from skillery.errors import SkilleryError, Unavailable
from skillery_openbao.backend import OpenBaoSecrets
from skillery_openbao.service import DOWN_SECONDS
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.processes import eventually

pytest_plugins = ["openbao_fixtures"]
VALUE = "the-value-4711"
READ = "GET .*/data/"
SEALED = b'{"errors":["Vault is sealed"]}'


@pytest.mark.parametrize(
    "fault",
    [
        Fault(READ, 2, status=500),
        Fault(READ, 2, status=502, body=b"<html>bad gateway</html>"),
        Fault(READ, 2, status=503, body=SEALED),
        Fault(READ, status=429, headers=(("retry-after", "1"),)),
        Fault(READ, 2, refuse=True),
        Fault(READ, 2, cut_after=100),
        Fault(READ, 2, shorten=True),
        Fault(READ, seconds=1),
    ],
    ids=["500", "502", "sealed", "429", "refused", "cut", "shortened", "slow"],
)
@pytest.mark.full(after=4)
def test_a_read_survives_a_fault(engine: Engine, proxy: FaultProxy, open_here: Open, fault: Fault) -> None:
    engine.put("API_KEY", VALUE)
    # Only the late answer needs a short limit: a loaded machine may take as long for an answer.
    secrets = open_here(address=proxy.url, timeout_seconds=0.7 if fault.seconds else 20, retry_seconds=60)
    secrets.names()
    proxy.faults = [fault]

    assert secrets.get("API_KEY") == VALUE
    assert proxy.faults[0].times == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(READ, -1, status=500), "answers with status 500"),
        (Fault(READ, -1, status=503, body=SEALED), "is sealed: unseal it"),
        (Fault(READ, -1, status=429, headers=(("retry-after", "90"),)), "limits the rate of requests"),
        (Fault(READ, -1, status=404, body=b"<html>not found</html>"), "does not answer like OpenBao"),
        (Fault(READ, -1, status=404, body=b"{}"), "does not answer like OpenBao"),
        (Fault(READ, -1, status=200, body=b'{"data":{}}'), "does not answer like OpenBao"),
        (Fault(READ, -1, status=400, body=b'{"errors":["odd"]}'), "answers with status 400"),
        (Fault(READ, -1, status=302, headers=(("location", "http://127.0.0.1:9/"),)), "redirects to another address"),
        (Fault(READ, -1, shorten=True), "does not answer like OpenBao"),
        (Fault(READ, -1, cut_after=100), "the connection to"),
        (Fault(READ, -1, status=200, body=b'{"data":{"data":{"value":17}}}'), "contains no text"),
    ],
    ids=["500", "sealed", "429", "404", "404 JSON", "no data", "400", "redirect", "shortened", "cut", "no text"],
)
@pytest.mark.full(after=4)
def test_a_fault_that_stays_is_unavailable_and_the_backend_recovers(
    engine: Engine,
    proxy: FaultProxy,
    open_here: Open,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    said: str,
) -> None:
    engine.put("API_KEY", VALUE)
    secrets = open_here(address=proxy.url, retry_seconds=0.3)
    assert secrets.get("API_KEY") == VALUE
    proxy.faults = [fault]

    with pytest.raises(Unavailable) as refused:
        secrets.get("API_KEY")
    assert refused.value.message == "the secret 'API_KEY' cannot be read now"
    assert said in caplog.text
    proxy.faults = []
    assert get_when_available(secrets, "API_KEY") == VALUE
    assert VALUE not in caplog.text


CALLS: dict[str, Callable[[OpenBaoSecrets], object]] = {
    "get": lambda secrets: secrets.get("API_KEY"),
    "names": lambda secrets: secrets.names(),
    "set": lambda secrets: secrets.set("API_KEY", VALUE),
    "remove": lambda secrets: secrets.remove("API_KEY"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_each_call_reports_an_unavailable_server(
    engine: Engine, proxy: FaultProxy, open_here: Open, call: Callable[[OpenBaoSecrets], object]
) -> None:
    secrets = open_here(address=proxy.url, retry_seconds=0.0)
    proxy.faults = [Fault("", -1, refuse=True)]

    with pytest.raises(SkilleryError) as refused:
        call(secrets)
    assert refused.value.type == "unavailable"
    assert proxy.url not in f"{refused.value.message} {refused.value.hint}"


def test_an_answer_to_a_write_that_is_lost_writes_once(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    proxy.faults = [Fault("POST .*/data/", cut_after=0)]
    open_here(address=proxy.url).set("API_KEY", VALUE)

    assert engine.read("skillery/API_KEY") == {"value": VALUE}


def test_callers_do_not_queue_while_the_server_is_unavailable(
    engine: Engine, proxy: FaultProxy, open_here: Open
) -> None:
    """Requests of many runs at one time would otherwise occupy the threads of Skillery's server."""
    engine.put("API_KEY", VALUE)
    secrets = open_here(address=proxy.url, retry_seconds=0.0)
    assert secrets.get("API_KEY") == VALUE
    proxy.faults = [Fault(READ, -1, refuse=True)]
    with pytest.raises(Unavailable):
        secrets.get("API_KEY")
    before = len(proxy.seen)
    failures: list[bool] = []

    def ask() -> None:
        with pytest.raises(Unavailable):
            secrets.get("API_KEY")
        failures.append(True)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    windows = (time.monotonic() - began) / DOWN_SECONDS

    assert len(failures) == 40
    assert len(proxy.seen) - before <= windows + 1, "one request in each second"
    proxy.faults = []
    assert get_when_available(secrets, "API_KEY") == VALUE


def test_a_closed_backend_can_be_used_again(engine: Engine, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    secrets = open_here()
    assert secrets.get("API_KEY") == VALUE
    asyncio.run(secrets.close())

    assert secrets.get("API_KEY") == VALUE


def test_the_end_of_the_backend_ends_the_calls_that_wait(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    """A thread that waits would otherwise keep the process of the server alive."""
    engine.put("API_KEY", VALUE)
    secrets = open_here(address=proxy.url, timeout_seconds=60)
    proxy.faults = [Fault(READ, -1, seconds=60)]
    ended: list[Exception] = []

    def ask() -> None:
        with pytest.raises(Unavailable) as refused:
            secrets.get("API_KEY")
        ended.append(refused.value)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    eventually(lambda: any("/data/" in line for line in tuple(proxy.seen)))
    asyncio.run(secrets.close())
    thread.join(RECOVERY_SECONDS)

    assert len(ended) == 1


def test_the_environment_chooses_no_proxy(
    engine: Engine, proxy: FaultProxy, open_here: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put("API_KEY", VALUE)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)

    assert open_here().get("API_KEY") == VALUE
    assert proxy.seen == []
