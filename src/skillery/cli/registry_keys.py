"""`skillery key rotate`, `replace` and `revoke`, and `skillery attest`: the key of a registry, in a stopped home."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.keys import key
from skillery.cli.options import (
    Target,
    home_options,
    json_option,
    print_change,
    target_options,
    user_of_this_machine,
)
from skillery.cli.output import clean, print_json
from skillery.cli.proof import find_keys, read_key
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.attestations.signing import KeyChange
    from skillery.backends import Secrets, Signer
    from skillery.cli.storage import OpenRegistry
    from skillery.client import AsyncClient
    from skillery.database import Database
    from skillery.plugins import Plugins
    from skillery.proof.dsse import Sign, SigningKey
    from skillery.publishing.backfills import Backfill
    from skillery.settings.load import Settings


class _Key(NamedTuple):
    """A key of a signer, with the members of a SigningKey."""

    keyid: str
    public_der: bytes
    sign: Sign


class _HomeKeys:
    """The keys of a registry in a file of its home."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = file.with_name(f"{file.name}.new")

    def present(self, keyid: str | None) -> SigningKey:
        """Return the key with which the registry signs. Raise StartupError if it is not in the home."""
        key = read_key(self._file)
        if key.keyid != keyid:
            raise StartupError(
                f"this registry signs with {keyid or 'no key'}, and this home has {key.keyid}: "
                f"copy signing/{self._file.name} of a server that signs into the home"
            )
        return key

    def new(self, keyid: str | None) -> SigningKey:
        """Return the next key. Its file exists before the database knows it, so that no crash loses it."""
        from skillery.builtin.pem_signers import make_key_file
        from skillery.proof.dsse import SigningKey

        make_key_file(self._next, SigningKey.new().pem)
        return read_key(self._next)

    def is_interrupted(self, keyid: str | None) -> bool:
        """Return whether a rotation to the present key was interrupted after its transaction."""
        return self._next.exists() and read_key(self._next).keyid == keyid

    def finish(self) -> None:
        self._next.replace(self._file)


class _SignerKeys:
    """The keys of a registry in the signer of a plugin, which makes new ones itself."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def present(self, keyid: str | None) -> _Key:
        """Return the key with which the registry signs. Raise StartupError if the signer does not have it."""
        from skillery.proof.dsse import keyid_of

        keys = {keyid_of(public_der): public_der for public_der in self._signer.public_keys()}
        if keyid not in keys:
            raise StartupError(f"this registry signs with {keyid or 'no key'}, and the signer has {', '.join(keys)}")
        return _Key(keyid, keys[keyid], partial(self._signer.sign_with, keyid))

    def new(self, keyid: str | None) -> _Key:
        """Return the newest key. Raise StartupError if it is the present one."""
        newest, _ = self._signer.sign(b"skillery key")
        if newest == keyid:
            raise StartupError(f"{keyid} is the newest key of the signer: rotate the key there first")
        return self.present(newest)

    def is_interrupted(self, keyid: str | None) -> bool:
        return False

    def finish(self) -> None:
        """The transaction is the whole change."""


Keys = _HomeKeys | _SignerKeys
ChangeOf = Callable[[str | None, Keys], "KeyChange | None"]


def _change(target: Target, change_of: ChangeOf) -> None:
    """Change the keys of the registry, and print the new keyid. `change_of` gets the present keyid and the keys of the
    signer, and returns the change, or None if an earlier command stored the change and was interrupted.

    Raise StartupError if the signer does not have the keys, or if a server uses the home.
    """
    import asyncio

    from skillery.app.home import Home
    from skillery.builtin.pem_signers import KEY_FILE
    from skillery.cli.database import migrated
    from skillery.database import Database

    settings = target.load().settings
    chosen = settings.signing.key
    if chosen == "off" or chosen.startswith("secret:"):
        raise StartupError(f"skillery key changes the key of a home or of a plugin, and signing.key is {chosen!r}")
    with closing(Home(settings.home)), closing(migrated(Database(settings.database_url), settings)) as database:
        if chosen == "home":
            _store_change(database, change_of, _HomeKeys(settings.home / KEY_FILE))
        else:
            asyncio.run(_change_with_signer(settings, database, change_of))


async def _change_with_signer(settings: Settings, database: Database, change_of: ChangeOf) -> None:
    import asyncio

    from skillery.plugins import load_plugins

    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    async with _opened_signer(settings, plugins, database) as signer:
        await asyncio.to_thread(_store_change, database, change_of, _SignerKeys(signer))


def _store_change(database: Database, change_of: ChangeOf, keys: Keys) -> None:
    from skillery.attestations.signing import change_keys, find_registry_key
    from skillery.audit import local_actor

    def present() -> str | None:
        row = database.read_now(find_registry_key)
        return row.keyid if row else None

    change = change_of(present(), keys)
    if change is not None:
        database.write_now(partial(change_keys, actor=local_actor(user_of_this_machine()), change=change))
    if change is None or change.added:
        keys.finish()
        click.echo(present())


@key.command("rotate")
@home_options
def rotate(target: Target) -> None:
    """Replace the key of the registry by a new one. Stop the server first.

    The old and the new key sign the change, so clients that know the old key trust the new one. What the old key has
    signed stays valid. Copy signing/ed25519.pem to the homes of other servers of this registry. If a plugin signs,
    rotate the key there before this command.
    """
    _change(target, _rotation)


def _rotation(present: str | None, keys: Keys) -> KeyChange | None:
    """Return the change to a new key. Raise StartupError if the signer does not have the present key."""
    from skillery.attestations.signing import KeyChange

    if keys.is_interrupted(present):
        return None
    old, new = keys.present(present), keys.new(present)
    return KeyChange("rotate_key", (old.sign, new.sign), new.public_der, retired=(old.keyid,))


@key.command("replace")
@click.option("--lost", is_flag=True, required=True, expose_value=False, help="The present key is lost.")
@home_options
def replace(target: Target) -> None:
    """Begin a new chain of keys, because the present key is lost. Stop the server first.

    Every client that knows the lost key reports another signer. Old signatures are no longer valid for new clients.
    """
    _change(target, _replacement)


def _replacement(present: str | None, keys: Keys) -> KeyChange:
    """Return the change to a new key, which begins a chain."""
    from skillery.attestations.signing import KeyChange

    new = keys.new(present)
    retired = (present,) if present else ()
    return KeyChange("replace_key", (new.sign,), new.public_der, retired, begins_chain=True)


@key.command("revoke")
@click.argument("keyid", metavar="KEYID")
@click.option("--reason", required=True, help="Reason, for all readers.")
@click.option("--since", metavar="TIME", default="", help="Time of the theft, for all readers.")
@target_options
def revoke(keyid: str, reason: str, since: str, target: Target) -> None:
    """Revoke a stolen key: no statement that it has signed is valid any more.

    KEYID is your own key, or, in the home of a stopped server, a former key of the registry: rotate it first.
    """
    from skillery.cli.connection import with_client

    async def is_of_registry(client: AsyncClient) -> bool:
        rows = await find_keys(client, [keyid])
        if keyid in rows and rows[keyid]["holder"] == "server":
            return True
        await client.revoke_key(keyid, reason, since=since)
        return False

    if with_client(target, is_of_registry):
        if target.url:
            raise CheckFailed(f"{keyid} is a key of the registry: run the command in its home")
        _change(target, partial(_revocation, keyid=keyid, since=since, reason=reason))
    print_change(f"{keyid} is revoked")


def _revocation(present: str | None, keys: Keys, *, keyid: str, since: str, reason: str) -> KeyChange:
    """Return the change that revokes a former key."""
    from datetime import UTC, datetime

    from skillery.attestations.signing import KeyChange
    from skillery.formats.timestamps import parse_timestamp

    from_time = parse_timestamp(since, "since", datetime.now(UTC)) if since else None
    return KeyChange("revoke_key", (keys.present(present).sign,), revoked=(keyid,), since=from_time, reason=reason)


@click.command("attest", short_help="Sign statements about versions of earlier releases, or of a stolen key.")
@click.option(
    "--existing", is_flag=True, required=True, expose_value=False, help="All versions without a valid statement."
)
@home_options
@json_option
def attest(target: Target, as_json: bool) -> None:
    """Sign who published and approved the versions that were stored before the registry signed statements, and that the
    published ones of them meet their policy. Sign the statements of a revoked key of the registry again.

    The facts come from the database, so each new statement says `backfilled`, or which earlier statement it `replaces`.
    Servers continue to run. If the command is interrupted, run it again. The exit code is 1 if the files of a version
    do not have its digest, or if its facts are not those that the revoked key has signed.
    """
    import asyncio

    from skillery.cli.storage import open_registry

    with open_registry(target) as opened:
        result = asyncio.run(_attest_existing(opened))
    if as_json:
        print_json({"signed": result.signed, "wrong": result.wrong})
    else:
        click.echo(f"{result.signed} versions have new statements")
        for line in result.wrong:
            click.echo(clean(f"not signed: {line}"), err=True)
    if result.wrong:
        raise click.exceptions.Exit(CHECK_FAILED)


async def _attest_existing(opened: OpenRegistry) -> Backfill:
    """Sign with the signer of the settings. Raise StartupError if there is none."""
    import asyncio

    from skillery import __version__
    from skillery.attestations.policies import make_policies
    from skillery.attestations.signing import open_signing
    from skillery.audit import local_actor
    from skillery.publishing.backfills import attest_existing

    settings, database = opened.settings, opened.database
    async with _opened_signer(settings, opened.plugins, database) as signer:
        signing = await asyncio.to_thread(open_signing, database, signer, settings.public_url, __version__)
        is_open = settings.authenticators == ("open",)
        policies = make_policies(settings.policy, settings.publishing, settings.signing.key, is_open=is_open)
        return await attest_existing(database, signing, policies, local_actor(user_of_this_machine()))


@asynccontextmanager
async def _opened_signer(settings: Settings, plugins: Plugins, database: Database) -> AsyncIterator[Signer]:
    """Context manager: start the signer of the settings. Raise StartupError if there is none."""
    async with AsyncExitStack() as stack:
        secrets: Secrets = plugins.open("secrets", settings, database)
        stack.push_async_callback(secrets.close)
        await secrets.start()
        signer = plugins.open_signer(settings, database, secrets)
        if signer is None:
            raise StartupError("signing.key is 'off': nothing is signed")
        stack.push_async_callback(signer.close)
        await signer.start()
        yield signer
