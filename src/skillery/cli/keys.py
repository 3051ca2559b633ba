"""`skillery key`: make and register the caller's key, and change the key of a registry."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CHECK_FAILED, CheckFailed
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
from skillery.cli.verbs import Table, Verb
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.attestations.signing import KeyChange
    from skillery.backends import Secrets
    from skillery.cli.storage import OpenRegistry
    from skillery.client import AsyncClient
    from skillery.proof.dsse import SigningKey
    from skillery.publishing.backfills import Backfill


@click.group("key")
def key() -> None:
    """Make and register your own key, and change the key of a registry."""


@key.command("new")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def new_key(file: Path) -> None:
    """Write a new private key to FILE, which only you can read. Then register it with skillery key add FILE."""
    from skillery.builtin.pem_signers import make_key_file
    from skillery.proof.dsse import SigningKey

    if file.exists():
        raise CheckFailed(f"{file} exists already: write the key to another file")
    made = SigningKey.new()
    try:
        make_key_file(file, made.pem)
    except OSError as error:
        raise CheckFailed(f"cannot write {file}: {error.strerror}") from None
    click.echo(made.keyid)


@key.command("add")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@target_options
@json_option
def add_key(file: Path, target: Target, as_json: bool) -> None:
    """Register the public key of FILE for you. The private key stays on this machine."""
    from skillery.cli.connection import with_client
    from skillery.proof.dsse import CHALLENGE

    own_key = read_key(file)
    public = base64.b64encode(own_key.public_der).decode()

    async def add(client: AsyncClient) -> Any:
        challenge = (await client.add_key(public))["challenge"] or ""
        if not challenge.startswith(CHALLENGE):
            raise CheckFailed("the server wants a signature of another text than a challenge: nothing is signed")
        signature = base64.b64encode(own_key.sign(challenge.encode())[1]).decode()
        return await client.add_key(public, challenge=challenge, signature=signature)

    added = with_client(target, add)
    if as_json:
        print_json(added)
    else:
        print_change(f"{added['keyid']} is registered")


key.add_command(
    Verb(
        "list",
        "list_keys",
        Table("keys", "keyid algorithm holder by added=added_at retired=retired_at revoked=revoked_at"),
        pages="all",
        help="List the keys of the registry and of identities.",
    )
)


# -- the key of a registry: commands in a home without a server --------------------------------------------------------


def _change(target: Target, change_of: Callable[[str | None, Path], KeyChange | None]) -> None:
    """Change the keys of the registry, and print the new keyid. `change_of` gets the present keyid and the file of the
    key, and returns the change, or None if an earlier command stored the change and was interrupted.

    Raise StartupError if the key is not in the home, or if a server uses the home.
    """
    from skillery.app.home import Home
    from skillery.attestations.signing import change_keys, find_registry_key
    from skillery.audit import local_actor
    from skillery.builtin.pem_signers import KEY_FILE
    from skillery.cli.database import migrated
    from skillery.database import Database

    settings = target.load().settings
    if settings.signing.key != "home":
        raise StartupError(f"skillery key changes the key of a home, and signing.key is {settings.signing.key!r}")
    file = settings.home / KEY_FILE
    with closing(Home(settings.home)), closing(migrated(Database(settings.database_url), settings)) as database:
        present = database.read_now(find_registry_key)
        change = change_of(present.keyid if present else None, file)
        if change is not None:
            database.write_now(partial(change_keys, actor=local_actor(user_of_this_machine()), change=change))
        if change is None or change.added:
            _next_file(file).replace(file)
            click.echo(read_key(file).keyid)


def _next_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _new_registry_key(path: Path) -> SigningKey:
    """Return the next key of the registry. Its file exists before the database knows it, so that no crash loses it."""
    from skillery.builtin.pem_signers import make_key_file
    from skillery.proof.dsse import SigningKey

    make_key_file(_next_file(path), SigningKey.new().pem)
    return read_key(_next_file(path))


@key.command("rotate")
@home_options
def rotate(target: Target) -> None:
    """Replace the key of the registry by a new one. Stop the server first.

    The old and the new key sign the change, so clients that know the old key trust the new one. What the old key has
    signed stays valid. Copy signing/ed25519.pem to the homes of other servers of this registry.
    """
    _change(target, _rotation)


def _rotation(present: str | None, path: Path) -> KeyChange | None:
    """Return the change to a new key. Raise StartupError if the home does not have the present key."""
    from skillery.attestations.signing import KeyChange
    from skillery.builtin.pem_signers import KEY_FILE

    old = read_key(path)
    if _next_file(path).exists() and read_key(_next_file(path)).keyid == present:
        return None  # the last rotation was interrupted after its transaction
    if old.keyid != present:
        raise StartupError(
            f"this registry signs with {present or 'no key'}, and this home has {old.keyid}: "
            f"copy {KEY_FILE} of a server that signs into the home"
        )
    new = _new_registry_key(path)
    return KeyChange("rotate_key", (old.sign, new.sign), new.public_der, retired=(old.keyid,))


@key.command("replace")
@click.option("--lost", is_flag=True, required=True, expose_value=False, help="The present key is lost.")
@home_options
def replace(target: Target) -> None:
    """Begin a new chain of keys, because the present key is lost. Stop the server first.

    Every client that knows the lost key reports another signer. Old signatures are no longer valid for new clients.
    """
    _change(target, _replacement)


def _replacement(present: str | None, path: Path) -> KeyChange:
    """Return the change to a new key, which begins a chain."""
    from skillery.attestations.signing import KeyChange

    new = _new_registry_key(path)
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


def _revocation(_: str | None, path: Path, *, keyid: str, since: str, reason: str) -> KeyChange:
    """Return the change that revokes a former key."""
    from datetime import UTC, datetime

    from skillery.attestations.signing import KeyChange
    from skillery.formats.timestamps import parse_timestamp

    from_time = parse_timestamp(since, "since", datetime.now(UTC)) if since else None
    return KeyChange("revoke_key", (read_key(path).sign,), revoked=(keyid,), since=from_time, reason=reason)


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
    from contextlib import AsyncExitStack

    from skillery import __version__
    from skillery.attestations.policies import make_policies
    from skillery.attestations.signing import open_signing
    from skillery.audit import local_actor
    from skillery.publishing.backfills import attest_existing

    settings, database = opened.settings, opened.database
    async with AsyncExitStack() as stack:
        secrets: Secrets = opened.plugins.open("secrets", settings, database)
        stack.push_async_callback(secrets.close)
        await secrets.start()
        signer = opened.plugins.open_signer(settings, database, secrets)
        if signer is None:
            raise StartupError("signing.key is 'off': nothing is signed")
        stack.push_async_callback(signer.close)
        await signer.start()
        signing = await asyncio.to_thread(open_signing, database, signer, settings.public_url, __version__)
        is_open = settings.authenticators == ("open",)
        policies = make_policies(settings.policy, settings.publishing, settings.signing.key, is_open=is_open)
        return await attest_existing(database, signing, policies, local_actor(user_of_this_machine()))
