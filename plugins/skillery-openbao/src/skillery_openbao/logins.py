"""Two ways to get a token: an AppRole, or a file that another program keeps up to date."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from skillery_openbao.failures import ServiceFailed
from skillery_openbao.service import Answer, Service
from skillery_openbao.settings import ServerSettings

MOST_BYTES = 8192
RENEW_AT = 2 / 3
"""The part of its life after which a token is renewed."""


class Token(NamedTuple):
    """A token of the server, and when it ends."""

    text: str
    ends: float
    """The time (monotonic) at which the token ends, or infinity if it never ends."""
    renew_at: float
    """The time at which the token must be renewed or replaced."""
    seconds: float
    """The life of the token at its login."""
    is_renewable: bool

    def __repr__(self) -> str:
        return "Token(…)"


class Login(Protocol):
    """A way to get a token."""

    makes_tokens: bool
    """Whether each login makes a new token, which this server may revoke."""

    async def begin(self) -> Token:
        """Return a token. Raise ServiceFailed with the setting that is wrong."""
        ...

    def has_changed(self) -> bool:
        """Return whether another token has replaced the present token."""
        ...


def login_of(settings: ServerSettings, service: Service) -> Login:
    return AppRole(settings, service) if settings.role_id else TokenFile(settings, service)


class AppRole:
    """A login with the settings `role_id` and `secret_id_file`."""

    makes_tokens = True

    def __init__(self, settings: ServerSettings, service: Service) -> None:
        self._settings = settings
        self._service = service

    async def begin(self) -> Token:
        """Log in and return the token. Raise ServiceFailed with the wrong setting."""
        settings = self._settings
        body = {"role_id": settings.role_id}
        if settings.secret_id_file:
            body["secret_id"] = read_secret("secret_id_file", settings.secret_id_file)
        answer = await self._service.send("POST", f"auth/{settings.auth_mount}/login", body=body)
        auth = answer.part("auth")
        if answer.status == 200 and isinstance(auth.get("client_token"), str):
            return token_of(auth["client_token"], auth)
        if answer.status in {403, 404}:
            engine = f"OpenBao has no AppRole engine at 'auth/{settings.auth_mount}'"
            raise ServiceFailed("auth_mount", f"{engine}, or permits no login from this machine's address")
        raise ServiceFailed(
            "role_id, secret_id_file",
            "OpenBao refuses the login: one of the two is wrong, or the secret id has ended, has no uses left, or is "
            "not for this machine's address",
        )

    def has_changed(self) -> bool:
        return False


class TokenFile:
    """The token in the file of the setting `token_file`, which another program renews."""

    makes_tokens = False

    def __init__(self, settings: ServerSettings, service: Service) -> None:
        self._path = settings.token_file
        self._service = service
        self._seen: tuple[int, ...] = ()

    async def begin(self) -> Token:
        """Read the token and ask the server for its lifetime. Raise ServiceFailed if the server does not accept it."""
        self._seen = _stamp_of(self._path)
        text = read_secret("token_file", self._path)
        answer = await look_up(self._service, text)
        if answer.status != 200:
            raise ServiceFailed(
                "token_file",
                "OpenBao does not accept the token: it is wrong, has ended, was revoked, or belongs to another "
                "namespace; write a new token into the file",
            )
        data = answer.part("data")
        # `ttl` is 0 in the last second of a token, and for a token that never ends.
        seconds = max(data.get("ttl") or 0, 1) if data.get("expire_time") else 0
        return token_of(text, {"lease_duration": seconds, "renewable": data.get("renewable")})

    def has_changed(self) -> bool:
        stamp = _stamp_of(self._path)
        # Another program may replace the file right now: without a file, the present token stays in use.
        return bool(stamp) and stamp != self._seen


async def look_up(service: Service, token: str) -> Answer:
    """Ask the server about a token. The policy `default` permits this request."""
    return await service.send("GET", "auth/token/lookup-self", token)


def token_of(text: str, auth: dict[str, Any]) -> Token:
    """Return the token with the lifetime that the server has stated in `auth`. A lifetime of 0 seconds means no end."""
    seconds = auth.get("lease_duration")
    life = float(seconds) if isinstance(seconds, int) and seconds > 0 else math.inf
    now = time.monotonic()
    return Token(text, now + life, now + life * RENEW_AT, life, auth.get("renewable") is True)


def read_secret(setting: str, path: str) -> str:
    """Return the word in the file of a setting. Raise ServiceFailed if every user can read the file, or if it is not a
    single word.
    """
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise ServiceFailed(setting, "every user of this machine can open the file: chmod it to 600")
            text = file.read(MOST_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise ServiceFailed(setting, f"the file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > MOST_BYTES or not all("!" <= character <= "~" for character in text):
        raise ServiceFailed(setting, "the file must contain one word of ASCII characters, and nothing else")
    return text


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        stat = Path(path).stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
