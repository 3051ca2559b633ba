"""GET /metrics: the format for Prometheus, the authorised callers, and the bounded number of time series."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Server, manifest, skill_files


def figures(http: httpx.Client) -> dict[str, float]:
    """Return the metrics as `name{label="value"}` -> value."""
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_metrics_count_calls_runs_bytes_and_queues(start_server: Callable[..., Server]) -> None:
    server = start_server()
    rpc = server.rpc
    rpc("create_skill", manifest=manifest("a.b"), skill_md="# A\n", files=skill_files())
    for number in range(3):
        assert rpc("execute_skill", name="a.b", args={"n": number})["status"] == "completed"
        rpc.error("describe_skill", name=f"no.such{number}")
        rpc.error(f"no_method_{number}")
    blob_id = rpc.http.post("/blobs", content=b"x" * 100_000).json()["blob_id"]
    rpc.http.get(f"/blobs/{blob_id}")

    found = figures(rpc.http)

    assert found["skillery_rpc_calls_total{code=0,method=execute_skill}"] == 3
    assert found["skillery_rpc_calls_total{code=-32003,method=describe_skill}"] == 3
    assert found["skillery_rpc_calls_total{code=-32601,method=unknown}"] == 3
    assert found["skillery_rpc_seconds_count{method=execute_skill}"] == 3
    assert found["skillery_runs_total{method=execute_skill,status=completed}"] == 3
    assert found["skillery_runs_active"] == found["skillery_runs_queued"] == 0
    assert found["skillery_http_bytes_total{direction=in,endpoint=/blobs}"] == 100_000
    assert found["skillery_http_bytes_total{direction=out,endpoint=/blobs}"] >= 100_000
    assert found["skillery_http_requests_total{endpoint=/blobs,status=201}"] == 1
    assert found["skillery_sandbox_degraded{limit=disk}"] == 0
    assert found["skillery_sandbox_zygotes"] >= 1
    assert found["skillery_database_connections{state=idle}"] >= 0
    assert found["process_resident_memory_bytes"] > 0


def test_whatever_callers_name_makes_no_series_of_its_own(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    rpc.error("warm_up")
    rpc.http.get("/blobs/blob:warm-up")
    figures(rpc.http)
    before = set(figures(rpc.http))
    for number in range(5):
        rpc.error(f"method{number}")
        rpc.http.get(f"/blobs/blob:{number}")
    assert set(figures(rpc.http)) == before


def test_where_tokens_are_wanted_only_an_admin_reads_it(tokens_server: Server, database_kind: str) -> None:
    http = httpx.Client(base_url=tokens_server.url)
    assert http.get("/metrics").status_code == 401


@pytest.mark.full
def test_it_can_be_open_and_off(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_METRICS": "open"})
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert httpx.get(f"{server.url}/metrics", headers={"host": "evil.example"}).status_code == 403
    off = start_server(home="off", env={"SKILLERY_METRICS": "off"})
    assert httpx.get(f"{off.url}/metrics").status_code == 404
