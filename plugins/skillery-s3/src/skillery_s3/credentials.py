"""The credentials for the service, from the first source that has some: the chain that the AWS tools use."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from obstore.store import S3Credential

RENEW_BEFORE = timedelta(minutes=5)
PROCESS_SECONDS = 60
Environment = Mapping[str, str]


class NoCredentials(Exception):
    """Raised if no source has credentials, or if a source is faulty. The message is one line without a secret."""


class Credentials(msgspec.Struct, frozen=True):
    """The keys for the service, and when they expire."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires_at: datetime | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key})"


Source = Callable[[Environment], Credentials | None]


class CredentialChain:
    """Finds credentials in the sources in order, and renews them before they expire. Several threads may call it."""

    def __init__(self, sources: tuple[Source, ...], environment: Environment = os.environ) -> None:
        self._sources = sources
        self._environment = environment
        self._found: Credentials | None = None
        self._lock = threading.Lock()

    def find(self) -> Credentials:
        """Return valid credentials. Raise NoCredentials if there are none."""
        with self._lock:
            if self._found is None or _is_old(self._found):
                self._found = self._ask()
            return self._found

    def __call__(self) -> S3Credential:
        """Return the credentials for obstore."""
        credentials = self.find()
        return {
            "access_key_id": credentials.access_key,
            "secret_access_key": credentials.secret_key,
            "token": credentials.token,
            "expires_at": credentials.expires_at,
        }

    def _ask(self) -> Credentials:
        for source in self._sources:
            credentials = source(self._environment)
            if credentials is not None:
                return credentials
        raise NoCredentials(
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the "
            "server, or `profile`"
        )


def _is_old(credentials: Credentials) -> bool:
    return credentials.expires_at is not None and credentials.expires_at - RENEW_BEFORE < datetime.now(UTC)


def from_environment(environment: Environment) -> Credentials | None:
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    return Credentials(key, secret, environment.get("AWS_SESSION_TOKEN") or None) if key and secret else None


def from_profile(environment: Environment, name: str = "") -> Credentials | None:
    """Return the credentials of a profile in the files `credentials` and `config` of the AWS tools.

    `name` "" means AWS_PROFILE or `default`. Raise NoCredentials if a named profile has none.
    """
    profile_name = name or environment.get("AWS_PROFILE", "")
    values = _profile(environment, profile_name or "default")
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        token = values.get("aws_session_token") or None
        return Credentials(values["aws_access_key_id"], values["aws_secret_access_key"], token)
    if "credential_process" in values:
        return _from_process(values["credential_process"])
    if profile_name:
        raise NoCredentials(f"the profile '{profile_name}' has no aws_access_key_id and no credential_process")
    return None


def _profile(environment: Environment, name: str) -> dict[str, str]:
    """Return the values of a profile. The file `credentials` has precedence over the file `config`."""
    folder = Path(environment.get("HOME") or "~").expanduser() / ".aws"
    config = environment.get("AWS_CONFIG_FILE") or folder / "config"
    credentials_file = environment.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"
    sections = (config, name if name == "default" else f"profile {name}"), (credentials_file, name)
    values: dict[str, str] = {}
    for path, section in sections:
        values |= _section(Path(path).expanduser(), section)
    return values


def _section(path: Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except (configparser.Error, UnicodeDecodeError):
        raise NoCredentials(f"the file {path} is not a file of AWS profiles") from None
    return dict(parser.items(section)) if parser.has_section(section) else {}


def _from_process(command: str) -> Credentials:
    """Run a command that prints credentials as JSON, as `aws configure export-credentials --format process` does."""
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, timeout=PROCESS_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
        return read_answer(done.stdout, session_member="SessionToken")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoCredentials(f"the credential_process of the profile failed: {type(error).__name__}") from None


def read_answer(text: bytes | str, *, session_member: str = "Token") -> Credentials:
    """Return the credentials in a JSON object. Raise NoCredentials if the text is not a JSON object with credentials.

    `session_member` is the name of the member with the session token, if the credentials need one.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        expires = values.get("Expiration")
        instant = datetime.fromisoformat(expires) if expires else None
        return Credentials(
            values["AccessKeyId"], values["SecretAccessKey"], values.get(session_member) or None, instant
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NoCredentials("a source of credentials gave an answer without credentials") from None
