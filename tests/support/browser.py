"""A browser for the tests: an HTTP client with cookies, which sends forms like a browser."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

import httpx

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server

_HIDDEN = re.compile(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">')
_NAME = re.compile(r"signed in as <strong>(.*?)</strong>")


def hidden_fields(page: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in _HIDDEN.findall(page)}


class Browser:
    def __init__(self, url: str, **headers: str) -> None:
        """`headers` are in every request, for example those of a proxy."""
        self.url = url
        self.http = httpx.Client(base_url=url, headers=headers, verify=Rpc.tls, limits=Rpc.limits, timeout=300)

    def cookie(self, name: str = "skillery") -> str | None:
        return self.http.cookies.get(name)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def fields(self, page: str = "/login") -> dict[str, str]:
        """Return the hidden fields of a page."""
        return hidden_fields(self.get(page).text)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return self.http.post(path, data=fields, headers={"origin": self.url, **headers})

    def sign_in(self, token: str, page: str = "/login") -> httpx.Response:
        return self.post("/login", self.fields(page) | {"token": token})

    def sign_out(self) -> httpx.Response:
        return self.post("/logout", self.fields())

    def who(self) -> str | None:
        """Return the name of the signed-in identity, or None."""
        found = _NAME.search(self.get("/login").text)
        return html.unescape(found[1]) if found else None

    def follow(self, address: str) -> httpx.Response:
        """Open an address and follow redirects on all hosts, until the browser is on a page of this server.

        Each host gets only its own cookies, and httpx does not compare ports: so the other hosts have another client.
        """
        with httpx.Client(verify=Rpc.tls, timeout=300) as elsewhere:
            for _ in range(20):
                is_ours = urlsplit(address).netloc in {"", urlsplit(self.url).netloc}
                response = (self.http if is_ours else elsewhere).get(address)
                if not response.is_redirect:
                    return response
                address = str(response.url.join(response.headers["location"]))
        raise AssertionError(f"too many redirects, the last one to {address}")


def token_of(server: Server, name: str, *scopes: str, namespaces: Sequence[str] = (), is_agent: bool = False) -> str:
    """Return a new token of an identity with these scopes and namespace grants."""
    made: str = administrator(server)(
        "create_token",
        name=name,
        scopes=list(scopes),
        namespaces=list(namespaces),
        kind="agent" if is_agent else "person",
    )["token"]
    return made


@cache
def administrator(server: Server) -> Rpc:
    """Return the client of an administrator: a call takes 0.01 s, and a command that makes a token 0.15 s."""
    create = ("token", "create", "--name", "tests", "--scope", "admin", "--json", "--home", str(server.home))
    return Rpc(server.url, skillery(*create, SKILLERY_DATABASE=server.database).json["token"])


def part_of(page: str, pattern: str) -> str:
    """Return the text of the first group of a pattern, at its first match in a page."""
    match = re.search(pattern, page, re.S)
    assert match is not None, f"{pattern} is not in {page}"
    return match[1]


def attributes(response: httpx.Response, name: str) -> set[str]:
    """Return the attributes of a cookie that a response sets, without its value."""
    for header in response.headers.get_list("set-cookie"):
        first, *rest = header.split("; ")
        if first.partition("=")[0] == name:
            return set(rest)
    raise AssertionError(f"the response sets no cookie {name}: {response.headers}")
