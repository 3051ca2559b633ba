"""Requests of commands to addresses that answer one JSON object."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from skillery.errors import NotAuthenticated, SkilleryError, Unavailable

SECONDS = 30.0
MOST_BYTES = 1024 * 1024


def json_answer(method: str, address: str, **request: Any) -> dict[str, Any]:
    """Return the JSON object of an answer. The errors name the host only: the address may contain a secret.

    Raise NotAuthenticated if the server refuses the caller, Unavailable for each other failure.
    """
    import httpx

    from skillery.client.answer_sizes import bounded
    from skillery.client.errors import StrangeAnswer

    host = urlsplit(address).netloc
    try:
        with httpx.Client(timeout=SECONDS, event_hooks=bounded(MOST_BYTES)) as http:
            http.headers["accept-encoding"] = "identity"
            answer = http.request(method, address, **request)
        found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, StrangeAnswer, ValueError) as error:
        raise Unavailable(f"{host} gives no usable answer ({type(error).__name__})", hint="Try again.") from None
    if not isinstance(found, dict):
        raise Unavailable(f"{host} does not answer with a JSON object", hint="Try again.")
    if answer.status_code != 200:
        raise _error(host, answer.status_code, found)
    return found


def _error(host: str, status: int, answer: dict[str, Any]) -> SkilleryError:
    error = answer.get("error")
    if not isinstance(error, dict):
        return Unavailable(f"{host} answers with status {status}", hint="Try again.")
    data = error.get("data")
    hint = data.get("hint") if isinstance(data, dict) else None
    kind = NotAuthenticated if status in {401, 429} else Unavailable
    return kind(str(error.get("message", status))[:1000], hint=str(hint)[:1000] if hint else None)
