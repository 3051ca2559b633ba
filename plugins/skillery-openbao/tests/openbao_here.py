"""Engines of the server of the tests, with logins that may use them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skillery.errors import Unavailable
from skillery_openbao.backend import OpenBaoSecrets
from tests.support.openbao import OpenBao
from tests.support.processes import eventually

_numbers = itertools.count()
Open = Callable[..., OpenBaoSecrets]
ALL_RIGHTS = """
path "{mount}/data/*" {{ capabilities = ["create", "read", "update", "delete"] }}
path "{mount}/metadata/*" {{ capabilities = ["list"] }}
"""
READ_ONLY = """
path "{mount}/data/skillery/*" {{ capabilities = ["read"] }}
path "{mount}/metadata/skillery" {{ capabilities = ["list"] }}
"""
SIGN = """
path "{mount}/keys/skillery" {{ capabilities = ["read"] }}
path "{mount}/sign/skillery" {{ capabilities = ["update"] }}
"""
RECOVERY_SECONDS = 300


def get_when_available(secrets: OpenBaoSecrets, name: str) -> str | None:
    """Return the value of a secret after a failure. Until a request succeeds, other requests fail at once."""

    def answered() -> list[str | None]:
        try:
            return [secrets.get(name)]
        except Unavailable:
            return []

    [value] = eventually(answered)
    return value


def write(file: Path, text: str) -> str:
    """Write a file that only this user can open, and return its path."""
    partial = file.with_name(f"{file.name}.new")
    partial.touch(0o600)
    partial.write_text(text + "\n")
    partial.rename(file)
    return str(file)


class Engine:
    """A new engine, and settings of the backend for it."""

    def __init__(self, bao: OpenBao, folder: Path, namespace: str = "") -> None:
        self.bao, self._folder, self.namespace = bao, folder, namespace
        self.mount = bao.new_engine(namespace=namespace)

    def settings(self, **changed: Any) -> dict[str, Any]:
        """Return settings with a token that has all rights, unless the changes contain a login."""
        values: dict[str, Any] = {"address": self.bao.address, "mount": self.mount, "read_only": False}
        values |= {"retry_seconds": 3.0, "namespace": self.namespace}
        if not {"token_file", "role_id"} & changed.keys():
            values["token_file"] = self.token_file()
        return values | changed

    def token(self, policy: str = ALL_RIGHTS, **more: Any) -> str:
        name = self.bao.new_policy(policy.format(mount=self.mount), namespace=self.namespace)
        return self.bao.new_token(name, namespace=self.namespace, **more)

    def token_file(self, text: str = "") -> str:
        return self.write("token", text or self.token())

    def app_role(self, policy: str = ALL_RIGHTS, **more: Any) -> dict[str, str]:
        """Return the settings of a login by a new AppRole."""
        mount = f"approle-{self.mount}-{next(_numbers)}"
        name = self.bao.new_policy(policy.format(mount=self.mount), namespace=self.namespace)
        self._ask("POST", f"sys/auth/{mount}", {"type": "approle"})
        self._ask("POST", f"auth/{mount}/role/test", {"token_policies": [name], **more})
        role_id = self._ask("GET", f"auth/{mount}/role/test/role-id")["data"]["role_id"]
        return {"auth_mount": mount, "role_id": role_id, "secret_id_file": self.new_secret_id(mount)}

    def new_secret_id(self, mount: str) -> str:
        made = self._ask("POST", f"auth/{mount}/role/test/secret-id", {})
        return self.write(f"secret-id-{mount}", made["data"]["secret_id"])

    def revoke_all(self, auth_mount: str) -> None:
        """Revoke all tokens of an AppRole engine."""
        self._ask("POST", f"sys/leases/revoke-prefix/auth/{auth_mount}", {})

    def count_tokens(self, auth_mount: str) -> int:
        """Return the number of tokens that logins at an AppRole engine have made, and no request has revoked."""
        accessors = self._ask("GET", "auth/token/accessors?list=true")["data"]["keys"]
        paths = [self._path_of(accessor) for accessor in accessors]
        return paths.count(f"auth/{auth_mount}/login")

    def put(self, name: str, value: str, **fields: Any) -> None:
        """Set a value as an admin of OpenBao does."""
        self.put_entry(f"skillery/{name}", {"value": value, **fields})

    def put_entry(self, path: str, fields: dict[str, Any]) -> None:
        self._ask("POST", f"{self.mount}/data/{path}", {"data": fields})

    def delete(self, path: str) -> None:
        """Delete the newest version of an entry, as `bao kv delete` does."""
        self._ask("DELETE", f"{self.mount}/data/{path}")

    def read(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"{self.mount}/data/{path}")["data"]["data"]
        return found

    def write(self, name: str, text: str) -> str:
        return write(self._folder / name, text)

    def _path_of(self, accessor: str) -> str:
        """Return the path of the login that made a token, or "" if the token has ended."""
        try:
            return str(self._ask("POST", "auth/token/lookup-accessor", {"accessor": accessor})["data"]["path"])
        except AssertionError:
            return ""

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self.bao.ask(method, path, body, namespace=self.namespace)


class Transit:
    """A new transit engine, and settings of the signer for it."""

    def __init__(self, bao: OpenBao, folder: Path) -> None:
        self.bao, self._folder, self.mount = bao, folder, f"transit-{next(_numbers)}"
        bao.ask("POST", f"sys/mounts/{self.mount}", {"type": "transit"})

    def settings(self, policy: str = SIGN, **changed: Any) -> dict[str, Any]:
        token = self.bao.new_token(self.bao.new_policy(policy.format(mount=self.mount)))
        values = {"address": self.bao.address, "mount": self.mount, "retry_seconds": 0.3}
        return values | {"token_file": write(self._folder / "transit-token", token)} | changed

    def make_key(self, kind: str = "ed25519", **more: Any) -> None:
        self.bao.ask("POST", f"{self.mount}/keys/skillery", {"type": kind, **more})

    def rotate(self) -> None:
        self.bao.ask("POST", f"{self.mount}/keys/skillery/rotate", {})

    def remake_key(self) -> None:
        """Replace the key by another one with the same name."""
        self.bao.ask("POST", f"{self.mount}/keys/skillery/config", {"deletion_allowed": True})
        self.bao.ask("DELETE", f"{self.mount}/keys/skillery")
        self.make_key()
