"""Logins that `skillery login` keeps on this computer: at the identity provider of a server, or with a token.

`kept_token(url)` returns an object that returns the token of the login for a server. Use the object as the token of a
client: `Client(url, token=kept_token(url))`. The object renews the login before its token ends.
"""

from skillery.client.logins.login import LoginEnded, LoginError, UnusableLogin
from skillery.client.logins.tokens import KeptToken, kept_token

__all__ = ["KeptToken", "LoginEnded", "LoginError", "UnusableLogin", "kept_token"]
