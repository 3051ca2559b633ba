"""The signer: the key of the registry in a transit engine. The private key never leaves OpenBao."""

from __future__ import annotations

import base64
import hashlib
import logging
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from skillery.backends import Signer
from skillery_openbao.connection import Connection
from skillery_openbao.failures import NOT_OPENBAO, ServiceFailed, says
from skillery_openbao.service import Answer
from skillery_openbao.session import Session
from skillery_openbao.settings import TransitSettings

log = logging.getLogger(__name__)
_TYPES = ("ed25519", "ecdsa-p256")


class KeyVersion(NamedTuple):
    """A version of the key in OpenBao."""

    number: int
    public: Ed25519PublicKey | EllipticCurvePublicKey

    @property
    def public_der(self) -> bytes:
        return self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    @property
    def keyid(self) -> str:
        return f"sha256:{hashlib.sha256(self.public_der).hexdigest()}"

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        try:
            if isinstance(self.public, Ed25519PublicKey):
                self.public.verify(signature, data)
            else:
                self.public.verify(signature, data, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


class OpenBaoSigner(Signer):
    """See `skillery.backends.Signer`. Each signature is one request.

    After a rotation in OpenBao, the registry signs with its former version until `skillery key rotate`.
    """

    def __init__(self, settings: TransitSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._versions: dict[str, KeyVersion] = {}
        """The known versions by keyid, newest first."""

    async def start(self) -> None:
        """Log in, check the key, and start to renew the token. Raise StartupError with the wrong setting."""
        await self._connection.start(self._check)

    async def close(self) -> None:
        """Revoke the token of an AppRole login, and close the connections."""
        await self._connection.close()

    def public_keys(self) -> list[bytes]:
        versions = self._connection.call(self._read_versions(), "OpenBao does not show the key now")
        return [version.public_der for version in versions.values()]

    def sign(self, data: bytes) -> tuple[str, bytes]:
        return self._connection.call(self._sign("", data), "OpenBao does not sign now")

    def sign_with(self, keyid: str, data: bytes) -> tuple[str, bytes]:
        return self._connection.call(self._sign(keyid, data), "OpenBao does not sign now")

    async def _check(self, session: Session) -> None:
        """Raise ServiceFailed if the key cannot be read, or cannot sign."""
        await self._sign("", b"The signer of Skillery starts.")

    async def _sign(self, keyid: str, data: bytes) -> tuple[str, bytes]:
        """Sign with the version that has the keyid, or with the newest one for ""."""
        version = self._versions.get(keyid) or _chosen(await self._read_versions(), keyid)
        path = f"{self._settings.mount}/sign/{self._settings.key}"
        body = {
            "input": base64.b64encode(data).decode(),
            "key_version": version.number,
            "hash_algorithm": "sha2-256",  # of ECDSA: Ed25519 has its own
        }
        answer = await self._connection.session.send("POST", path, body)
        if answer.status == 200:
            signature = _from_base64(str(answer.part("data").get("signature")).rpartition(":")[2])
            if version.has_signed(signature, data):
                return version.keyid, signature
            # Another key with the same name, and the same numbers of versions.
            self._versions = {}
            raise ServiceFailed("key", f"'{self._settings.key}' is not the key that it was before: restore the key")
        if answer.status == 400:
            remedy = "lower its min_encryption_version, or run skillery key rotate"
            raise ServiceFailed("key", f"version {version.number} of the key does not sign: {remedy}")
        raise self._failure(answer, "update", path)

    async def _read_versions(self) -> dict[str, KeyVersion]:
        """Read the versions of the key, newest first."""
        path = f"{self._settings.mount}/keys/{self._settings.key}"
        answer = await self._connection.session.send("GET", path)
        if answer.status != 200:
            raise self._failure(answer, "read", path)
        data = answer.part("data")
        if data.get("type") not in _TYPES or data.get("derived"):
            raise ServiceFailed("key", f"'{self._settings.key}' is not a key of the type {' or '.join(_TYPES)}")
        if not self._versions and (data.get("exportable") or data.get("allow_plaintext_backup")):
            log.warning("OpenBao permits to export the key '%s': it can leave OpenBao", self._settings.key)
        public = {int(number): _public_of(version) for number, version in data["keys"].items()}
        versions = [KeyVersion(number, public[number]) for number in sorted(public, reverse=True)]
        self._versions = {version.keyid: version for version in versions}
        return self._versions

    def _failure(self, answer: Answer, right: str, path: str) -> ServiceFailed:
        settings = self._settings
        if answer.status == 403:
            return ServiceFailed("", f"the policy of the token must permit '{right}' on '{path}'")
        if says(answer.body, "no handler for route"):
            remedy = f"run bao secrets enable -path={settings.mount} transit"
            return ServiceFailed("mount", f"OpenBao has no engine '{settings.mount}': {remedy}")
        if answer.status == 404:
            remedy = f"run bao write {settings.mount}/keys/{settings.key} type=ed25519"
            return ServiceFailed("key", f"OpenBao has no key '{settings.key}' in '{settings.mount}': {remedy}")
        if answer.status == 200:
            return ServiceFailed("address", f"{settings.address} {NOT_OPENBAO}")
        return ServiceFailed("mount", f"OpenBao answers with status {answer.status} at '{path}'")


def _chosen(versions: dict[str, KeyVersion], keyid: str) -> KeyVersion:
    version = versions.get(keyid) if keyid else next(iter(versions.values()), None)
    if version is None:
        remedy = "lower its min_decryption_version, or restore the key"
        raise ServiceFailed("key", f"OpenBao shows no version of the key with the keyid {keyid}: {remedy}")
    return version


def _public_of(version: Any) -> Ed25519PublicKey | EllipticCurvePublicKey:
    """Return the public key of a version. OpenBao shows those of Ed25519 as base64, and others as PEM."""
    text = str(version.get("public_key"))
    try:
        public = load_pem_public_key(text.encode()) if "-----" in text else None
        public = public or Ed25519PublicKey.from_public_bytes(_from_base64(text))
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey | EllipticCurvePublicKey):
        raise ServiceFailed("address", f"the server {NOT_OPENBAO}")
    return public


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ServiceFailed("address", f"the server {NOT_OPENBAO}") from None
