"""OpenTelemetry: spans arrive at a real collector. If its packages are missing, the server reports that."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import Server, clean_environment, manifest, skill_files

URI = "skill://a/b/SKILL.md"


class Collector(ThreadingHTTPServer):
    """A collector that receives OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.received: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.paths.add(self.path)
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.full
@pytest.mark.parametrize("way", ["address", "variables"])
def test_requests_calls_database_and_runs_are_spans_of_the_same_trace(
    collector: Collector, start_server: Callable[..., Server], way: str
) -> None:
    variables = {"SKILLERY_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "mine"}
    server = start_server(env=variables if way == "variables" else {"SKILLERY_TRACES": collector.url})
    server.rpc("create_skill", manifest=manifest("a.b"), skill_md="# A\n", files=skill_files())
    trace = "0af7651916cd43dd8448eb211c80319c"
    server.rpc.http.headers["traceparent"] = f"00-{trace}-b7ad6b7169203331-01"
    assert server.rpc("execute_skill", name="a.b", args={"word": "unheard-of"})["status"] == "completed"
    server.rpc.error("describe_skill", name="unheard-of")
    server.rpc("describe_skill", name="a.b", version="1.x")
    server.rpc("list_skills")
    server.rpc("list_versions", name="a.b")
    code = "def main(args): return 1"
    server.rpc("run_code", language="python", code=code, mount_skills=["a.b"])
    assert server.stop() == 0

    spans = [span for span in collector.spans() if span.trace_id.hex() == trace]
    assert {span.name for span in spans} == {"POST /rpc", "rpc", "database read", "database write", "sandbox run"}
    rpcs = [{one.key: one.value for one in span.attributes} for span in spans if span.name == "rpc"]
    tools = ["execute_skill", "describe_skill", "describe_skill", "list_skills", "run_code"]
    methods = [*tools[:4], "list_versions", "run_code"]
    assert [rpc["rpc.method"].string_value for rpc in rpcs] == methods
    used = {"gen_ai.skill.name": "a.b", "gen_ai.skill.version": "1.0.0", "gen_ai.skill.source.uri": URI}
    assert [_texts(rpc, "gen_ai.skill.") for rpc in rpcs] == [used, {}, used, {}, {}, {}]
    called = [_texts(rpc, "gen_ai.tool.name", "gen_ai.operation.name") for rpc in rpcs]
    of_tools = [{"gen_ai.tool.name": tool, "gen_ai.operation.name": "execute_tool"} for tool in tools]
    assert called == [*of_tools[:4], {}, of_tools[4]]
    assert rpcs[1]["rpc.jsonrpc.error_code"].int_value == -32003
    ids = {span.span_id for span in spans}
    assert all(span.parent_span_id in ids or span.name == "POST /rpc" for span in spans)
    assert collector.paths == {"/v1/traces"}
    assert not any(b"unheard-of" in request.SerializeToString() for request in collector.received)
    services = {
        one.value.string_value
        for request in collector.received
        for resource in request.resource_spans
        for one in resource.resource.attributes
        if one.key == "service.name"
    }
    assert services == {"mine" if way == "variables" else "skillery"}


def _texts(attributes: dict[str, Any], *beginnings: str) -> dict[str, str]:
    return {key: value.string_value for key, value in attributes.items() if key.startswith(beginnings)}


@pytest.mark.full
@pytest.mark.parametrize("names", ["", "http/dup"])
def test_a_trace_has_no_query(collector: Collector, start_server: Callable[..., Server], names: str) -> None:
    """The query may contain the code of a login. `http/dup` adds the attributes of `http` to the usual ones."""
    server = start_server(env={"SKILLERY_TRACES": collector.url, "OTEL_SEMCONV_STABILITY_OPT_IN": names})
    httpx.get(f"{server.url}/login/oidc/callback?code=unheard-of&state=x")
    assert server.stop() == 0

    assert "GET elsewhere" in {span.name for span in collector.spans()}
    assert not any(b"unheard-of" in request.SerializeToString() for request in collector.received)


@pytest.mark.full
def test_an_unreachable_collector_stops_no_request(start_server: Callable[..., Server]) -> None:
    # While the server stops, the exporter retries for this many seconds (default: ten).
    server = start_server(env={"SKILLERY_TRACES": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    assert server.rpc("list_skills")["skills"]
    assert server.stop() == 0


@pytest.mark.full
@pytest.mark.parametrize(("value", "says"), [("jaeger", "write off, otlp"), ("otlp", "pip install 'skillery[otel]'")])
def test_unusable_trace_settings_are_refused_in_a_single_line(tmp_path: Path, value: str, says: str) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError(name='opentelemetry')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "skillery", "serve", "--home", str(tmp_path / "home"), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment({"SKILLERY_TRACES": value, "PYTHONPATH": str(tmp_path)}),
    )
    assert ended.returncode == 4
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
