"""The check that the running server of a home uses the tokens that commands on this home create."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skillery.settings import Settings


def problem_of_server(settings: Settings) -> str | None:
    """Return why the server that holds the home does not use the tokens in the database of `settings`. Return None if
    the server uses them, or if no server holds the home.
    """
    from skillery.app.home import holder_of
    from skillery.database import without_password

    server = holder_of(settings.home)
    if server is None or not server.url:
        return None
    if server.auth == "open":
        return (
            f'The server at {server.url} does not check tokens: its setting auth is "open". Restart it with '
            'auth = "tokens".'
        )
    if server.database not in {None, without_password(settings.database_url)}:
        return (
            f"The server at {server.url} does not accept this token: it uses a different database. Name the "
            "configuration of the server with --config or SKILLERY_CONFIG, and create the token again."
        )
    return None
