"""Failures of the server: a text that names the wrong setting and contains no part of an answer."""

from __future__ import annotations

from typing import Any

import httpx

from skillery_openbao.settings import ServerSettings

NOT_OPENBAO = "does not answer like OpenBao: check the address"


class ServiceFailed(Exception):
    """Raised if the server gives no usable answer. The message names the setting and the remedy."""

    def __init__(self, setting: str, text: str, *, is_temporary: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(f"{setting}: {text}" if setting else text)
        self._setting = setting
        self.is_temporary = is_temporary
        """Whether the same request may succeed a little later."""
        self.retry_after = retry_after
        """The time in seconds after which the server accepts another request."""

    def line_in(self, section: str) -> str:
        """Return the line of the log, which begins with the section of the settings."""
        return f"{section} {self}" if self._setting else f"{section}: {self}"


def connection_failure(settings: ServerSettings, error: Exception) -> ServiceFailed:
    """Return the reason why a request got no answer."""
    text = " ".join(str(error).split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        _, _, reason = text.partition("certificate verify failed: ")
        reason = reason.partition(" (_ssl")[0]
        return ServiceFailed(
            "address",
            f"the certificate of {settings.address} is not valid: {reason}; renew it, or set ca_file for its authority",
        )
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return ServiceFailed("address", f"{settings.address} does not answer in time", is_temporary=True)
    if isinstance(error, httpx.ConnectError):
        remedy = "check the address, and that OpenBao runs"
        return ServiceFailed("address", f"{settings.address} cannot be reached: {remedy}", is_temporary=True)
    return ServiceFailed("address", f"the connection to {settings.address} failed", is_temporary=True)


def status_failure(settings: ServerSettings, status: int, body: dict[str, Any] | None) -> ServiceFailed | None:
    """Return the failure if every further request would fail in the same way (sealed, busy, no token), else None."""
    address = settings.address
    if 300 <= status < 400:
        return ServiceFailed(
            "address", f"{address} redirects to another address, which is not followed: name the active server"
        )
    if status == 503 and says(body, "sealed"):
        return ServiceFailed("", f"OpenBao at {address} is sealed: unseal it", is_temporary=True)
    if status == 429:
        return ServiceFailed("", f"OpenBao at {address} limits the rate of requests", is_temporary=True)
    if status in {412, *range(500, 600)}:
        return ServiceFailed("", f"OpenBao at {address} answers with status {status}", is_temporary=True)
    if says(body, "namespace not found"):
        return ServiceFailed("namespace", f"OpenBao has no namespace '{settings.namespace}': create it, or correct it")
    if body is None and status != 204:
        # The answer of a proxy for an unavailable server, or a cut answer.
        return ServiceFailed("address", f"{address} {NOT_OPENBAO}", is_temporary=status == 200)
    return None


def says(body: dict[str, Any] | None, text: str) -> bool:
    """Return whether an error of the answer contains the text."""
    errors = (body or {}).get("errors")
    return isinstance(errors, list) and any(text in error.lower() for error in errors if isinstance(error, str))
