"""The SDKs of OpenAI and Anthropic in two major versions: the current ones in this process, the former ones in another.

Two versions of one package cannot share a process. The objects of the other process look like local ones: attributes,
calls and iteration work.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FORMER = ROOT / ".tools" / "former-sdks"


class Sdks(NamedTuple):
    """The SDKs of one generation."""

    are_current: bool
    load: Callable[[str], Any]

    def openai(self, url: str, token: str = "none") -> Any:
        return self.load("openai").OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)

    def anthropic(self, url: str, token: str) -> Any:
        return self.load("anthropic").Anthropic(base_url=url, api_key=token, max_retries=0)


CURRENT = Sdks(True, importlib.import_module)


class FarError(Exception):
    """An exception of the other process."""

    def __init__(self, kind: str, message: str, status_code: int | None) -> None:
        super().__init__(f"{kind}: {message}")
        self.status_code = status_code


class Far:
    """An object of the other process."""

    def __init__(self, process: FormerProcess, number: int) -> None:
        self._process, self._number = process, number

    def __getattr__(self, name: str) -> Any:
        return self._process.ask("get", self._number, name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._process.ask("call", self._number, *args, **named)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._process.ask("values", self._number))


class FormerProcess:
    """A process of the environment with the former SDKs."""

    def __init__(self) -> None:
        command = [str(FORMER / "bin" / "python"), str(Path(__file__).with_name("sdk_process.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def load(self, module: str) -> Any:
        return self.ask("import", 0, module)

    def ask(self, action: str, number: int, *args: Any, **named: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((action, number, args, named), self._process.stdin)
        self._process.stdin.flush()
        return self._received(*pickle.load(self._process.stdout))

    def _received(self, kind: str, value: Any) -> Any:
        match kind:
            case "error":
                raise FarError(*value)
            case "object":
                return Far(self, value)
            case "values":
                return [self._received(*one) for one in value]
            case _:
                return value

    def stop(self) -> None:
        self._process.communicate()


@contextmanager
def former_sdks() -> Iterator[Sdks]:
    """Yield the SDKs of the former major versions. Skip without their environment, except in CI."""
    if not (FORMER / ".installed").exists():
        reason = "the former SDKs are not installed: `make .tools/former-sdks/.installed` (52 MB)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    process = FormerProcess()
    try:
        yield Sdks(False, process.load)
    finally:
        process.stop()


@contextmanager
def refused(status: int) -> Iterator[None]:
    """Expect that an SDK raises the error for this HTTP status."""
    with pytest.raises(Exception) as caught:
        yield
    assert getattr(caught.value, "status_code", None) == status, caught.value
