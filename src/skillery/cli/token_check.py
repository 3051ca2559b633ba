"""The check that the running server of a home accepts a token that a command has just created."""

from __future__ import annotations

from pathlib import Path

SECONDS = 2.0
"""Limit of the wait for one response."""


def problem_of_token(home: Path, token: str) -> str | None:
    """Return why the server that holds the home does not use the token. Return None if the server accepts the token, if
    no server holds the home, or if the server does not respond.
    """
    from skillery.app.home import holder_of
    from skillery.client import ClientError

    holder = holder_of(home)
    if holder is None or not holder.url:
        return None
    try:
        if _accepts(holder.url, ""):
            return (
                f'The server at {holder.url} does not check tokens: its setting auth is "open". Restart it with '
                'auth = "tokens".'
            )
        if not _accepts(holder.url, token):
            return (
                f"The server at {holder.url} does not accept this token: it uses a different database. Name the "
                "configuration of the server with --config or SKILLERY_CONFIG, and create the token again."
            )
    except ClientError:
        return None
    return None


def _accepts(url: str, token: str) -> bool:
    from skillery.client import Client, NotAuthenticated, Retries

    with Client(url, token, timeout=SECONDS, retries=Retries(attempts=1)) as client:
        try:
            client.prompt()
        except NotAuthenticated:
            return False
    return True
