"""Login with a browser on another device (RFC 8628)."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.discovery import Provider, Refusal, ask_for_tokens, refusal, request
from skillery.client.logins.login import Login, LoginError, is_safe

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_SECONDS = 5.0
"""The default time between two requests, and the time that `slow_down` adds (RFC 8628 §3.2 and §3.5)."""
SHORTEST_SECONDS = 0.1
MAX_SECONDS = 1800.0
REMEDIES = {
    "access_denied": "the login was denied at the identity provider",
    "expired_token": "the code has expired before anyone logged in",
}


class DeviceCode(msgspec.Struct, frozen=True):
    """The response of a provider: a code, and the address at which the user enters it."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str = ""
    interval: float = INTERVAL_SECONDS


def log_in_with_device(
    provider: Provider, show: Callable[[DeviceCode], None], sleep: Callable[[float], None] = time.sleep
) -> Login:
    """Let the user log in on another device, and return the login. `show` gets the code to enter.

    Raise LoginError if the user denies the login or the code expires.
    """
    code = _device_code(provider)
    show(code)
    form = {"grant_type": GRANT, "device_code": code.device_code}
    interval, waited = max(code.interval, SHORTEST_SECONDS), 0.0
    while waited < min(code.expires_in, MAX_SECONDS):
        interval = min(interval, MAX_SECONDS)
        sleep(interval)
        waited += interval
        try:
            return ask_for_tokens(provider, form)
        except ConnectionFailed:
            interval *= 2  # RFC 8628 §3.5
        except Refusal as error:
            interval += _more_seconds(error)
    raise _ended("expired_token")


def _device_code(provider: Provider) -> DeviceCode:
    """Return a new device code of the provider. Raise LoginError if the provider does not support this."""
    metadata = provider.metadata
    address = metadata.device_authorization_endpoint
    if not address:
        raise LoginError(f"{metadata.issuer} does not support the login with a device", hint="Use --browser.")
    answer = request("POST", address, provider.parameters())
    if answer.status != 200:
        raise refusal(answer, address)
    try:
        code = msgspec.json.decode(answer.body, type=DeviceCode)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LoginError(f"{address} answered no valid device code") from None
    if not is_safe(code.verification_uri):
        raise LoginError(f"{address} answered the address '{code.verification_uri}', which is not encrypted")
    return code


def _more_seconds(error: Refusal) -> float:
    """Return the seconds to add to the interval after a refusal. Raise LoginError if the login has failed."""
    if error.error == "slow_down":
        return INTERVAL_SECONDS
    if error.error == "authorization_pending":
        return 0.0
    if error.error in REMEDIES:
        raise _ended(error.error) from None
    raise error


def _ended(error: str) -> LoginError:
    return LoginError(REMEDIES[error], hint="Log in again.")
