"""Pages and endpoints of plugins: `/x/<plugin>/` has the guards of Skillery's own endpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis

from tests.app.test_plugins import folder, refusal
from tests.conftest import Server
from tests.support.people import Caller, Who, people_settings
from tests.support.raw_http import RawConnection

ROUTES = '''
    import time
    from pathlib import Path
    from skillery.errors import NotFound
    from skillery.routes import HTML, Request, Response, Route, json_response

    HERE = Path(__file__).parent
    ANSWERS = {
        "raise": lambda: 1 / 0,
        "none": lambda: None,
        "cookie": lambda: Response("x", headers={"Set-Cookie": "skillery=mine"}),
        "split": lambda: Response("x", headers={"x-a": "b\\r\\nset-cookie: a=b"}),
        "missing": lambda: (_ for _ in ()).throw(NotFound("no such page", hint="Ask for another.")),
        "name": lambda: Response("x", headers={"x-a\\r\\nset-cookie:a": "b"}),
        "list": lambda: Response("x", headers=[("x-a", "b")]),
        "number": lambda: Response("x", headers={1: "b"}),
        "sniffed": lambda: Response("\\ud800", headers={"X-Content-Type-Options": "no", "X-More": "y"}),
        "204": lambda: Response("content", status=204),
        "205": lambda: Response("content", status=205),
        "304": lambda: Response("content", status=304, headers={"ETag": '"a"'}),
        "moved": lambda: Response(status=303, headers={"Location": "/x/mine/"}),
    }

    def show(request: Request) -> Response:
        """Show a request.

        More words."""
        return json_response({
            "name": request.identity and request.identity.name, "method": request.method, "path": request.path,
            "parameters": request.parameters, "query": request.query, "headers": sorted(request.headers),
            "body": request.body.decode(),
        })

    def wait(request: Request) -> Response:
        HERE.joinpath("waiting").touch()
        while not HERE.joinpath("go on").exists():
            time.sleep(0.02)
        return Response("done")

    @hookimpl
    def routes() -> list[Route]:
        return [
            Route("", lambda request: Response("<h1>Hi</h1>", HTML), needs="public"),
            Route("show/{who}", show, needs="read"),
            Route("show", show, needs="publish", method="POST", max_body_bytes=100),
            Route("open", show, needs="public", method="POST", kinds=("*/*",)),
            Route("odd/{what}", lambda request: ANSWERS[request.parameters["what"]](), needs="read"),
            Route("wait", wait, needs="public", seconds=0.2),
            Route("wait/long", wait, needs="public"),
        ]
'''


class Client:
    """Requests of one identity, or of an unknown caller, below `/x/mine`."""

    def __init__(self, server: Server, name: str = "", scopes: str = "read") -> None:
        self._server = server
        self._headers = {"x-who": f"{name};person;{scopes};", "authorization": "x"} if name else {}

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = self._headers | more.pop("headers", {})
        return httpx.request(method, f"{self._server.url}/x/mine{path}", headers=headers, timeout=300, **more)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    return Path(folder(tmp_path, mine=ROUTES))


@pytest.fixture
def own_server(plugins: Path, start_server: Callable[..., Server]) -> Server:
    """Return a server that no other test uses."""
    return start_server(env=people_settings(plugins))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return people_settings(Path(folder(tmp_path_factory.mktemp("routes"), mine=ROUTES)))


@pytest.fixture
def server(configured_server: Callable[..., Server], settings: dict[str, str]) -> Server:
    return configured_server(**settings)


@pytest.fixture
def ann(server: Server) -> Client:
    return Client(server, "ann")


@pytest.fixture
def pam(server: Server) -> Client:
    return Client(server, "pam", "read publish")


def admin(server: Server) -> Caller:
    return Caller(server.url, Who("root", "read admin"))


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["data"]["type"]


def test_a_route_gets_the_request_and_the_caller_but_no_credentials(server: Server, ann: Client) -> None:
    shown = ann("GET", "/show/b%2Fob?a=1&a=2&e=", headers={"cookie": "a=b", "x-more": "y"}).json()

    assert (shown["name"], shown["method"], shown["path"]) == ("ann", "GET", "show/b/ob")
    assert (shown["parameters"], shown["query"]) == ({"who": "b/ob"}, {"a": "2", "e": ""})
    assert "x-more" in shown["headers"]
    assert not {"authorization", "cookie"} & set(shown["headers"])
    assert ann("HEAD", "/show/bob").status_code == 200


def test_a_route_needs_its_scope_or_is_public(server: Server, ann: Client, pam: Client) -> None:
    nobody = Client(server)

    assert nobody("GET", "").text == nobody("GET", "/").text == "<h1>Hi</h1>"
    assert error_of(nobody("GET", "/show/x")) == (401, "not_authenticated")
    assert "www-authenticate" in nobody("GET", "/show/x").headers
    assert error_of(ann("POST", "/show", json={})) == (403, "not_allowed")
    assert pam("POST", "/show", json={"a": 1}).json()["body"] == '{"a":1}'
    assert nobody("POST", "/open", content=b"x").json()["name"] is None


@pytest.mark.full
def test_openapi_describes_the_routes(server: Server) -> None:
    document = admin(server).http.get("/v1/openapi.json").json()
    paths = {path.removeprefix("/x/mine/"): item for path, item in document["paths"].items() if "/x/" in path}
    shown, posted = paths["show/{who}"]["get"], paths["show"]["post"]

    assert list(paths) == ["", "show/{who}", "show", "open", "odd/{what}", "wait", "wait/long"]
    assert (shown["summary"], shown["tags"]) == ("Show a request.", ["plugin mine"])
    assert "`read`" in shown["description"]
    assert [one["name"] for one in shown["parameters"]] == ["who"]
    assert list(posted["requestBody"]["content"]) == ["application/json"]
    assert {"401", "404", "413", "415"} <= set(posted["responses"])
    assert paths[""]["get"]["security"] == []
    assert "401" not in paths[""]["get"]["responses"]
    schemathesis.openapi.from_dict(document).validate()


def test_requests_are_limited_as_on_other_endpoints(server: Server, pam: Client) -> None:
    assert error_of(pam("POST", "/show", json=["x" * 100])) == (413, "body_too_large")
    assert error_of(pam("POST", "/show", content=b"x", headers={"content-type": "text/plain"})) == (
        415,
        "unsupported_media_type",
    )
    assert error_of(pam("GET", "/", headers={"host": "evil.example"})) == (403, "host_not_allowed")
    assert error_of(pam("POST", "/open", headers={"origin": "http://evil.example"})) == (403, "origin_not_allowed")
    assert error_of(pam("DELETE", "/show/x")) == (405, "method_not_allowed")
    assert pam("DELETE", "/show/x").headers["allow"] == "GET"
    for path in ("/nothing", "/show/x/y", "/show//", "s", "/show/%ff"):
        assert error_of(pam("GET", path)) == (404, "not_found"), path


def test_answers_have_security_headers(server: Server) -> None:
    answer = Client(server)("GET", "/")

    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-request-id"]


def test_a_route_keeps_the_security_headers(ann: Client) -> None:
    answer = ann("GET", "/odd/sniffed")

    assert (answer.status_code, answer.text) == (200, "?")
    assert (answer.headers["x-content-type-options"], answer.headers["x-more"]) == ("nosniff", "y")


@pytest.mark.parametrize("status", ["204", "205", "304"])
def test_an_answer_without_content_is_not_followed_by_content(server: Server, status: str) -> None:
    """Otherwise a proxy would take the content for the answer to the next request, perhaps of another user."""
    connection = RawConnection(server.url)
    headers = {"x_who": "ann;person;read;", "authorization": "x", "connection": "close"}
    connection.send(connection.head(f"GET /x/mine/odd/{status}", **headers))
    head, _, content = connection.socket.makefile("rb").read().partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 " + status.encode())
    assert content == b""


@pytest.mark.full
def test_errors_of_a_route_are_error_objects_without_details(own_server: Server) -> None:
    ann = Client(own_server, "ann")
    assert ann("GET", "/odd/missing").json() == {
        "error": {
            "code": -32003,
            "message": "no such page",
            "data": {"type": "not_found", "hint": "Ask for another."},
        }
    }
    assert (ann("GET", "/odd/moved").status_code, ann("GET", "/odd/moved").headers["location"]) == (303, "/x/mine/")
    for what in ("raise", "none", "cookie", "split", "name", "list", "number"):
        failed = ann("GET", f"/odd/{what}")
        assert error_of(failed) == (500, "plugin_failed"), what
        assert "ZeroDivision" not in failed.text
        assert "set-cookie" not in failed.headers
    counted = admin(own_server).http.get("/metrics").text
    assert 'skillery_plugin_failures_total{function="GET odd/{what}",plugin="mine",reason="raised"} 1.0' in counted
    assert 'skillery_plugin_failures_total{function="GET odd/{what}",plugin="mine",reason="invalid"} 6.0' in counted
    assert 'skillery_http_requests_total{endpoint="/x",status="500"} 7.0' in counted
    assert "plugin 'mine' failed in GET odd/{what}: ZeroDivisionError" in own_server.log.read_text()


def test_changes_and_refusals_are_in_the_audit_trail(own_server: Server) -> None:
    ann = Client(own_server, "ann")
    pam = Client(own_server, "pam", "read publish")
    ann("POST", "/show", json={})
    pam("POST", "/show", json={})
    pam("GET", "/show/x")

    entries: list[dict[str, Any]] = []
    while len(entries) < 2:  # a refusal is written after its answer
        entries = admin(own_server)("list_audit", action="plugin_request")["entries"]
    assert {(one["identity"]["name"], one["outcome"], one["subject"]) for one in entries} == {
        ("ann", "refused", ""),
        ("pam", "done", "POST /x/mine/show"),
    }


@pytest.mark.full
def test_a_route_that_hangs_meets_its_time_limit(own_server: Server, plugins: Path) -> None:
    answers = [Client(own_server)("GET", "/wait") for _ in range(5)]

    assert {error_of(answer) for answer in answers} == {(503, "unavailable")}
    assert Client(own_server)("GET", "/").status_code == 200
    assert admin(own_server)("list_skills")["skills"]
    (plugins / "go on").touch()


@pytest.mark.full
def test_a_single_caller_cannot_occupy_a_plugin(own_server: Server, plugins: Path) -> None:
    ann = Client(own_server, "ann")
    with ThreadPoolExecutor(24) as pool:
        waiting = [pool.submit(Client(own_server), "GET", "/wait/long") for _ in range(24)]
        busy = threading.Event()
        while sum(one.done() for one in waiting) < 8:
            busy.wait(0.02)
        refused = [one.result() for one in waiting if one.done()]
        assert ann("GET", "/show/x").status_code == 200
        (plugins / "go on").touch()
        assert sorted(one.result().status_code for one in waiting) == [200] * 16 + [503] * 8
    assert {error_of(answer) for answer in refused} == {(503, "busy")}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_a_server_without_routes_has_no_addresses_of_plugins(sqlite_server: Server) -> None:
    assert httpx.get(f"{sqlite_server.url}/x/mine/").status_code == 404


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("3", "must return a list of Route from its hook"),
        ("[Route('/a', f, needs='read')]", "the route '/a' has no valid path"),
        ("[Route('a', f, needs='root')]", "the route 'a' has no valid needs"),
        ("[Route('a', g, needs='read')]", "the route 'a' needs a blocking function"),
        ("[Route('a/{x}', f, needs='read'), Route('a/{y}', f, needs='read')]", "has two routes for GET 'a/{y}'"),
        ("1 / 0", "failed to add routes: division by zero"),
    ],
)
@pytest.mark.full(after=1)
def test_a_wrong_route_stops_the_start(tmp_path: Path, made: str, said: str) -> None:
    source = f"""
        from skillery.routes import Route

        def f(request): ...
        async def g(request): ...

        @hookimpl
        def routes():
            return {made}
    """
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=source))

    assert line[line.index("plugin '") :].startswith("plugin 'mine'")
    assert said in line


OBJECT = """
    from skillery.routes import Request, Route, json_response

    class WordSettings(NoSettings, frozen=True, forbid_unknown_fields=True):
        word: str = "hi"

    class Words:
        def __init__(self, settings, place):
            self.settings, self.values = settings, place.values

        def say(self, request: Request):
            return json_response([self.settings.word, self.values.add("key", b"kept").decode()])

        @hookimpl
        def routes(self) -> list[Route]:
            return [Route("say", self.say, needs="public")]

    @hookimpl
    def skillery_plugin() -> Offer:
        return Offer("words", Words, WordSettings)
"""


def test_an_object_with_settings_adds_routes(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=OBJECT), "SKILLERY_PLUGINS_WORDS_WORD": "hello"}
    server = start_server(env=env)

    assert json.loads(httpx.get(f"{server.url}/x/words/say").content) == ["hello", "kept"]
