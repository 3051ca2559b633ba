"""`database`: secrets in the server's own database, encrypted with a key outside it.

A stored value is a Fernet token (AES in CBC mode, authenticated by HMAC-SHA256) of name and value together. A person
who can write the database without the key can neither read a value nor move a value to another name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place, Secrets, Transaction, Values
from skillery.builtin.pem_signers import make_key_file
from skillery.errors import Conflict, StartupError, Unavailable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

KEY_FILE = "secrets.key"


class DatabaseSecretsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of `[backends.secrets.database]`."""

    key: str = ""
    """32 random bytes in base64. Several keys are separated by spaces: the first encrypts, all of them decrypt."""
    key_file: str = ""
    """A file with one such key on each line.

    Empty means `secrets.key` in the home, which is created when the first secret is set.
    """


class _Plain(msgspec.Struct, array_like=True, frozen=True):
    """The decrypted content: name and value of a secret."""

    name: str
    value: str


class Keys:
    """The encryption keys. Each use reads them again, so a new or changed key file takes effect at once."""

    def __init__(self, text: str, file: Path, may_make: bool) -> None:
        self._given = text
        self._file = file
        self._may_make = may_make

    def check(self) -> None:
        """Raise StartupError if a key exists and is unusable. A missing key is not an error."""
        try:
            self.read()
        except _NoKey:
            return
        except Unavailable as error:
            key_name = "[backends.secrets.database] key" if self._given else f"the key file {self._file}"
            raise StartupError(f"{key_name}: {error}") from None

    def read(self) -> MultiFernet:
        """Return the keys. Raise _NoKey if no key exists, Unavailable if it is not usable. The message contains neither
        key nor path.
        """
        from cryptography.fernet import Fernet, MultiFernet

        try:
            return MultiFernet([Fernet(key) for key in (self._given or self._read_file()).split()])
        except ValueError:
            # Not chained: the cause may contain the invalid key.
            raise Unavailable("a key in the key file of secrets is not 32 bytes in base64") from None

    def make(self) -> None:
        """Create the key file. If another process created it first, keep that file."""
        if not self._may_make:
            raise Unavailable("the key file of secrets in the settings does not exist")
        from cryptography.fernet import Fernet

        try:
            make_key_file(self._file, Fernet.generate_key() + b"\n")
        except OSError as error:
            raise Unavailable(f"the key file of secrets cannot be written: {error.strerror}") from None

    def add(self) -> None:
        """Put a new key into the first line of the key file: it encrypts, and the old keys still decrypt."""
        from cryptography.fernet import Fernet

        self._replace(Fernet.generate_key().decode() + "\n" + self._read_file())

    def drop_old(self) -> None:
        """Remove all keys but the first from the key file."""
        self._replace(self._read_file().split()[0] + "\n")

    def _replace(self, text: str) -> None:
        """Replace the key file in one step, with the same owner and mode. Raise Unavailable if that is not possible."""
        if self._given:
            raise Unavailable("the key of secrets is a setting", hint="Change the setting: the first key encrypts.")
        new = self._file.with_name(f"{self._file.name}.new")
        try:
            stat = self._file.stat()
            new.unlink(missing_ok=True)
            make_key_file(new, text.encode("ascii"))
            os.chown(new, stat.st_uid, stat.st_gid)
            new.chmod(stat.st_mode & 0o770)
            new.replace(self._file)
        except OSError as error:
            raise Unavailable(f"the key file of secrets cannot be written: {error.strerror}") from None

    def _read_file(self) -> str:
        """Return the text of the key file; `_NoKey` if it does not exist, `Unavailable` if all users can open it."""
        try:
            if self._file.stat().st_mode & 0o007:
                raise Unavailable("every user of this machine can open the key file of secrets; chmod it to 600")
            return self._file.read_text("ascii")
        except FileNotFoundError:
            raise _NoKey("the key of this server's secrets is not there") from None
        except OSError as error:
            raise Unavailable(f"the key file of secrets cannot be read: {error.strerror}") from None


class _NoKey(Unavailable):
    """Raised if the key file does not exist."""


class DatabaseSecrets(Secrets):
    """See `skillery.backends.Secrets`. The values are encrypted in the server's database."""

    read_only = False
    is_local = True

    def __init__(self, values: Values, keys: Keys) -> None:
        self._values = values
        self._keys = keys

    def get(self, name: str) -> str | None:
        token = self._values.get(name)
        return None if token is None else _opened(self._keys.read(), name, token)

    def names(self) -> list[str]:
        return self._values.keys()

    def set(self, name: str, value: str) -> None:
        self._values.set(name, self._encrypted(name, value))

    def remove(self, name: str) -> bool:
        return self._values.take(name) is not None

    def setting(self, name: str, value: str) -> Callable[[Transaction], bool]:
        token = self._encrypted(name, value)
        return lambda transaction: self._values.set(name, token, within=transaction)

    def removing(self, name: str) -> Callable[[Transaction], bool]:
        return lambda transaction: self._values.take(name, within=transaction) is not None

    def rekey(self, new_key: bool) -> int:
        """Encrypt all secrets again with the first key. Return their number. With `new_key`, first add a key to the key
        file, and remove the old keys afterwards.

        If the process is killed in between, the file has the new and the old keys, and a second call goes on.
        """
        if new_key:
            self._keys.add()
        names = self.names()
        for name in names:
            value = self.get(name)
            if value is not None:
                self.set(name, value)
        if new_key:
            self._keys.drop_old()
        return len(names)

    def _encrypted(self, name: str, value: str) -> bytes:
        return self._keys_for_writing().encrypt(msgspec.json.encode(_Plain(name, value)))

    def _keys_for_writing(self) -> MultiFernet:
        """Return the keys for encryption, if they can decrypt a stored secret. Raise Unavailable if they cannot.

        If there is no secret and no key, create the key file. Without the test, only a run would notice that a key was
        lost.
        """
        tokens = ((name, self._values.get(name)) for name in self.names())
        stored = next(((name, token) for name, token in tokens if token is not None), None)
        try:
            keys = self._keys.read()
        except _NoKey:
            if stored is not None:
                raise Unavailable(
                    "the key that encrypted the secrets of this database is missing",
                    hint="Bring the key file back, or remove the secrets and set them again.",
                ) from None
            self._keys.make()
            keys = self._keys.read()
        if stored is not None:
            _check_opens(keys, *stored)
        return keys


def _check_opens(keys: MultiFernet, name: str, token: bytes) -> None:
    """Raise `Conflict` if none of the keys decrypts the token of the secret with this name."""
    try:
        _opened(keys, name, token)
    except Unavailable:
        raise Conflict(
            "the secrets of this database were encrypted with another key",
            hint="Put that key into the key file, alone or below a new key; or remove the secrets and set them again.",
        ) from None


def _opened(keys: MultiFernet, name: str, token: bytes) -> str:
    """Return the decrypted value of the secret; `Unavailable` if no key fits or the token belongs to another secret."""
    from cryptography.fernet import InvalidToken

    try:
        content = msgspec.json.decode(keys.decrypt(token), type=_Plain)
    except InvalidToken:
        raise Unavailable(f"the secret '{name}' cannot be decrypted with this server's key") from None
    if content.name != name:
        raise Unavailable(f"the stored value of the secret '{name}' belongs to another name")
    return content.value


def _open(settings: DatabaseSecretsSettings, place: Place) -> DatabaseSecrets:
    file = Path(settings.key_file).expanduser() if settings.key_file else place.home / KEY_FILE
    keys = Keys(settings.key, file, may_make=not settings.key_file)
    keys.check()
    if place.values is None:
        raise StartupError(
            "the secrets backend 'database' needs the server's database, and was opened without a database"
        )
    return DatabaseSecrets(place.values, keys)


@hookimpl
def skillery_secrets() -> Offer:
    return Offer("database", _open, DatabaseSecretsSettings)
