"""`home` and `secret`: the registry signs with a private key in PEM, from a file in the home or from a secret."""

from __future__ import annotations

import os
import secrets as random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import NoSettings, Offer, Place, Signer
from skillery.errors import SkilleryError, StartupError, Unavailable

if TYPE_CHECKING:
    from skillery.proof.dsse import SigningKey

KEY_FILE = Path("signing", "ed25519.pem")
"""The file of the key in the home."""


class PemSigner(Signer):
    """See `skillery.backends.Signer`. The key stays in memory."""

    is_local = True

    def __init__(self, key: SigningKey | None, make: Callable[[], SigningKey]) -> None:
        """`make` makes the key at the first signature, if `key` is None."""
        self._key = key
        self._make = make
        self._lock = threading.Lock()

    def public_keys(self) -> list[bytes]:
        return [self._key.public_der] if self._key is not None else []

    def sign(self, data: bytes) -> tuple[str, bytes]:
        with self._lock:
            key = self._key = self._key or self._make()
        return key.sign(data)


def read_key_file(path: Path) -> SigningKey | None:
    """Return the key in a file, or None if there is no file. Raise StartupError if the file is not usable."""
    from skillery.proof.dsse import ProofError, SigningKey

    try:
        if path.stat().st_mode & 0o077:
            raise StartupError(f"other users of this machine can open the signing key {path}: chmod it to 600")
        return SigningKey.read(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartupError(f"the signing key {path} cannot be read: {error.strerror}") from None
    except ProofError as error:
        raise StartupError(f"the signing key {path} {error}") from None


def make_key_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read. If another process wrote it first, keep that file.

    The folder is flushed to the disk, so that a crash cannot lose a key that is already in use.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{random.token_hex(8)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _link(partial: Path, file: Path) -> None:
    """Give a finished file its final name, unless that file exists."""
    try:
        file.hardlink_to(partial)
    except FileExistsError:
        return
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _from_home(_: NoSettings, place: Place) -> PemSigner:
    path = place.home / KEY_FILE

    def make() -> SigningKey:
        from skillery.proof.dsse import SigningKey

        try:
            make_key_file(path, SigningKey.new().pem)
        except OSError as error:
            raise Unavailable(f"the signing key {path} cannot be written: {error.strerror}") from None
        key = read_key_file(path)
        if key is None:
            raise Unavailable(f"the signing key {path} is gone")
        return key

    return PemSigner(read_key_file(path), make)


def _from_secret(_: NoSettings, place: Place) -> PemSigner:
    from skillery.proof.dsse import ProofError, SigningKey

    remedy = "skillery secret set NAME --value-from-stdin < key.pem"
    if place.key_secret is None:
        raise StartupError("the signer 'secret' needs the setting signing.key = \"secret:NAME\"")
    try:
        value = place.key_secret()
    except SkilleryError as error:
        raise StartupError(f"the secret of signing.key cannot be read: {error.message}") from None
    if value is None:
        raise StartupError(f"the secret of signing.key has no value: {remedy}")
    try:
        key = SigningKey.read(value.encode())
    except ProofError as error:
        raise StartupError(f"the secret of signing.key {error}: {remedy}") from None
    return PemSigner(key, lambda: key)


class _Plugin:
    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    @hookimpl
    def skillery_signer(self) -> Offer:
        return self._offer


home, secret = _Plugin(Offer("home", _from_home)), _Plugin(Offer("secret", _from_secret))
