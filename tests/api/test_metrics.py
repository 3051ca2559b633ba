"""GET /metrics: the format for Prometheus, the authorised callers, and the bounded number of time series."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from skillery import __version__
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "packaging/alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
PANELS = json.loads((ROOT / "packaging/grafana.json").read_text("utf-8"))["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]


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
    assert found["skillery_http_seconds_count{endpoint=/rpc}"] == 10
    assert found["skillery_http_seconds_bucket{endpoint=/rpc,le=+Inf}"] == 10
    assert found["skillery_queue_wait_seconds_count"] == 3
    assert found["skillery_queue_wait_seconds_bucket{le=0.1}"] == 3
    assert found["skillery_database_bytes"] > 100_000
    assert 0 < found["skillery_disk_free_bytes{folder=home}"] < found["skillery_disk_size_bytes{folder=home}"]
    assert found["skillery_event_loop_silence_seconds_total"] >= 0
    version, python = __version__, platform.python_version()
    assert found[f"skillery_build_info{{database=sqlite,python={python},version={version}}}"] == 1


@pytest.mark.full
def test_metrics_show_waiting_reviews_near_quotas_and_failed_logins(
    start_server: Callable[..., Server], database_kind: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""
    env = {
        "SKILLERY_AUTH": "tokens",
        "SKILLERY_METRICS": "open",
        "SKILLERY_DATABASE": database,
        "SKILLERY_QUOTAS_BLOBS": "5",
        "SKILLERY_PUBLISHING_PEOPLE": "review",
    }
    server = start_server(env=env)
    anonymous = httpx.Client(base_url=server.url)
    create = ("token", "create", "--name", "root", "--scope", "admin", "--home", str(server.home), "--json")
    rpc = Rpc(server.url, skillery(*create, stdin=b"", **env).json["token"])
    rpc("create_skill", manifest=manifest("a.b"), skill_md="# A\n", files=skill_files())
    for number in range(4):
        rpc("create_blob", content=f"{number}", kind="text/plain")
    for headers in ({}, {"authorization": "Bearer sky_wrong"}, {"authorization": "Basic x"}):
        assert anonymous.post("/rpc", json={}, headers=headers).status_code == 401

    values = figures(anonymous)

    assert values["skillery_review_waiting"] == 1
    assert 0 < values["skillery_review_oldest_seconds"] < 3600
    assert values["skillery_quotas_near{quota=blobs}"] == 1
    assert values["skillery_quotas_near{quota=bundle_bytes}"] == 0
    assert values["skillery_failed_logins_total{reason=missing}"] == 1
    assert values["skillery_failed_logins_total{reason=refused}"] == 2
    assert values["skillery_failed_logins_total{reason=limited}"] == 0


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


def test_alerts_and_dashboard_name_metrics_of_the_server(sqlite_server: Server) -> None:
    types = re.findall(r"^# TYPE (\w+) (\w+)$", httpx.get(f"{sqlite_server.url}/metrics").text, re.MULTILINE)
    names = {f"{name}_bucket" if kind == "histogram" else name for name, kind in types}
    texts = [*(rule["expr"] for rule in RULES), *QUERIES]

    assert {name for text in texts for name in re.findall(r"\b(?:skillery|process)_\w+", text)} <= names


def test_the_page_of_alerts_explains_each_alert() -> None:
    page = (ROOT / "docs/operate/alerts.md").read_text("utf-8")

    for part in page.split("\n## ")[1:]:
        severity = {"Critical": "critical", "Warnings": "warning", "Information": "info"}[part.split("\n")[0]]
        headings = set(re.findall(r"^### (\w+)$", part, re.MULTILINE))
        assert headings == {rule["alert"] for rule in RULES if rule["labels"]["severity"] == severity}


def test_promtool_accepts_the_alerts_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    queries = [query.replace("$__rate_interval", "5m") for query in QUERIES]
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    files = [str(ROOT / "packaging/alerts.yaml"), str(tmp_path / "queries.yaml")]
    command = ["promtool", "check", "rules", *files]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode == 0, ended.stderr
