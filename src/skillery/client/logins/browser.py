"""Login with a browser, on this computer or on another device."""

from __future__ import annotations

import base64
import hashlib
import hmac
import queue
import secrets
import socketserver
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.discovery import Provider, Refusal, ask_for_tokens, refusal, refused, request
from skillery.client.logins.login import Login, LoginError, is_safe

# -- A browser on this computer: authorization code with PKCE and a loopback redirect (RFC 7636, RFC 8252) -------------


PATH = "/callback"
OTHER_LOGIN = "This is not the answer to the login that waits in the terminal. Go on with the window of that login."
MOST_FIELDS = 50
LOGIN_SECONDS = 300.0
"""The time in seconds that a user has for the login."""
REQUEST_SECONDS = 10.0
PAGE = (
    b"<!doctype html><meta charset=utf-8><title>Skillery</title>"
    b"<p>Skillery has received the answer of the identity provider. Close this window and continue in the terminal."
)


def log_in_with_browser(provider: Provider, show: Callable[[str], None], seconds: float = LOGIN_SECONDS) -> Login:
    """Let the user log in with a browser, and return the login. `show` gets the address to open.

    Raise LoginError if the user denies the login, if the answer belongs to another login, or after `seconds`.
    """
    _check(provider)
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(32)
    with _Listener(state) as listener:
        show(_address(provider, listener.address, verifier, state))
        answer = listener.wait(seconds)
    form = {
        "grant_type": "authorization_code",
        "code": _code(answer, provider),
        "redirect_uri": listener.address,
        "code_verifier": verifier,
    }
    return ask_for_tokens(provider, form)


def _check(provider: Provider) -> None:
    """Raise LoginError if the provider does not support this kind of login."""
    metadata = provider.metadata
    if not metadata.authorization_endpoint:
        raise LoginError(f"{metadata.issuer} has no authorization endpoint", hint="Use --device.")
    if not is_safe(metadata.authorization_endpoint):
        raise LoginError(f"'{metadata.authorization_endpoint}' of {metadata.issuer} is not encrypted")
    methods = metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise LoginError(f"{metadata.issuer} does not support PKCE with S256", hint="Use --device.")


def _address(provider: Provider, redirect: str, verifier: str, state: str) -> str:
    """Return the address at which the user logs in."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    parameters = provider.parameters() | {
        "response_type": "code",
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    if provider.wants_refresh_token:
        # The scope offline_access needs the consent of the user (OpenID Connect Core 1.0 §11).
        parameters["prompt"] = "consent"
    endpoint = provider.metadata.authorization_endpoint
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(parameters)}"


def _code(answer: Mapping[str, str], provider: Provider) -> str:
    """Return the code in the answer of the provider. Raise LoginError if it is an error or is from another provider."""
    metadata = provider.metadata
    # The answer of another provider is not for this login (RFC 9207).
    issuer = answer.get("iss")
    if issuer != metadata.issuer and (issuer is not None or metadata.authorization_response_iss_parameter_supported):
        raise LoginError(f"the answer in the browser is from {issuer or 'no issuer'!r}, not from '{metadata.issuer}'")
    if "error" in answer:
        raise refused(answer["error"], answer.get("error_description", ""), metadata.authorization_endpoint)
    if not answer.get("code"):
        raise LoginError("the answer in the browser has no 'code'", hint="Log in again.")
    return answer["code"]


class _Listener:
    """Listens on 127.0.0.1 for one answer of a browser: the first one with the right `state`.

    Other answers change nothing, because each web page and each user of this computer can send one.
    """

    def __init__(self, state: str) -> None:
        self._answers: queue.Queue[Mapping[str, str]] = queue.Queue(1)
        # Threads, because browsers also open connections that they do not use.
        self._server = _Server(("127.0.0.1", 0), _handler(self._answers, state))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def __enter__(self) -> _Listener:
        Thread(target=self._server.serve_forever, args=(0.05,), name="login", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self, seconds: float) -> Mapping[str, str]:
        """Return the parameters of the answer. Raise LoginError after `seconds`."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            raise LoginError(f"no user has logged in within {seconds:g} s", hint="Log in again.") from None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break."""


def _handler(answers: queue.Queue[Mapping[str, str]], state: str) -> type[BaseHTTPRequestHandler]:
    """Return the class that puts the first right answer into the queue `answers`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            """Keep the answer of the provider, and send the page that says so. Refuse requests of another login."""
            parts = urlsplit(self.path)
            if parts.path != PATH or answers.full():
                self.send_error(404)
                return
            answer = _once(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=MOST_FIELDS))
            if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
                self.send_error(400, explain=OTHER_LOGIN)
                return
            self.send_response(200)
            for name, value in (
                ("content-type", "text/html; charset=utf-8"),
                ("content-length", str(len(PAGE))),
                ("cache-control", "no-store"),
                ("referrer-policy", "no-referrer"),
                ("content-security-policy", "default-src 'none'"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(PAGE)
            self.wfile.flush()
            _put(answers, answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            """Write no log: the requests contain codes."""

    return Handler


def _put(answers: queue.Queue[Mapping[str, str]], answer: Mapping[str, str]) -> None:
    try:
        answers.put_nowait(answer)
    except queue.Full:
        return


def _once(parameters: list[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters that occur once. A repeated parameter counts as missing (RFC 6749 §3.1)."""
    names = [name for name, _ in parameters]
    return {name: value for name, value in parameters if names.count(name) == 1}


# -- A browser on another device (RFC 8628) ----------------------------------------------------------------------------


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
