"""A person with a browser, and a command that waits for the person."""

from __future__ import annotations

import html
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin

import httpx

from tests.conftest import Rpc
from tests.support.prefork import Forked, prefork

SECONDS = 300
_INPUT = re.compile(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"')
_ACTION = re.compile(r'action="([^"]+)"')


class Browser:
    """The browser of a person: it follows redirects, keeps cookies, and submits forms."""

    def __init__(self, trusted: ssl.SSLContext = Rpc.tls) -> None:
        self._http = httpx.Client(
            verify=trusted, timeout=300, limits=Rpc.limits, follow_redirects=True, trust_env=False
        )

    def open(self, address: str) -> httpx.Response:
        return self._http.get(address)

    def stop_before_callback(self, address: str) -> str:
        """Open an address and follow redirects. Return the address of the command to which the last redirect leads."""
        answer = self._http.get(address, follow_redirects=False)
        while answer.next_request is not None:
            if answer.next_request.url.path == "/callback":
                return str(answer.next_request.url)
            answer = self._http.send(answer.next_request, follow_redirects=False)
        raise AssertionError(answer.text)

    def enter_code(self, address: str, **answer: str) -> httpx.Response:
        """Open the address of a device login that contains the code, and answer the question of the provider."""
        return self._submit(self._submit(self.open(address)), **answer)

    def _submit(self, page: httpx.Response, **more: str) -> httpx.Response:
        form = {name: html.unescape(value) for name, value in _INPUT.findall(page.text)}
        found = _ACTION.search(page.text)
        assert found, page.text
        return self._http.post(urljoin(str(page.url), html.unescape(found[1])), data=form | more)


class Waiting:
    """A running command that has asked its user to open an address."""

    def __init__(self, process: Forked, stderr: int) -> None:
        self._process = process
        self._stderr = open(stderr, encoding="utf-8")  # noqa: SIM115 - a descriptor, closed by `end`
        self._said = ""

    def address(self, before: str) -> str:
        """Read stderr until a line contains `before`, and return the address after it."""
        for line in self._stderr:
            self._said += line
            if before in line:
                return line.partition(before)[2].split()[0]
        raise AssertionError(self._said)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end, and return exit code, stdout and stderr."""
        assert self._process.stdout is not None
        err = self._said + self._stderr.read()
        out = self._process.stdout.read().decode()
        return self._process.wait(SECONDS), out, err

    def close(self) -> None:
        assert self._process.stdout is not None
        self._stderr.close()
        self._process.stdout.close()
        if self._process.poll() is None:
            self._process.send_signal(9)
            self._process.wait(SECONDS)


@contextmanager
def waiting(environment: Mapping[str, str], *arguments: str) -> Iterator[Waiting]:
    """Context manager: run a command in the background."""
    read, written = os.pipe()
    process = prefork().start(arguments, environment, written)
    os.close(written)
    command = Waiting(process, read)
    try:
        yield command
    finally:
        command.close()
