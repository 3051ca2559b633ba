"""`skillery key`: make and register the caller's key. `registry_keys.py` has the commands for the key of a registry."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CheckFailed
from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import print_json
from skillery.cli.proof import read_key
from skillery.cli.verbs import Table, Verb

if TYPE_CHECKING:
    from skillery.client import AsyncClient


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
