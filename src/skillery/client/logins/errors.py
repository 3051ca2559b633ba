"""Errors of logins."""

from __future__ import annotations

from skillery.client.errors import ClientError


class LoginError(ClientError):
    """Raised if a login fails. `hint` is a sentence with the remedy, or None."""

    type = "login_failed"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class LoginEnded(LoginError):
    """Raised if a kept login cannot be renewed: the user must log in again."""

    type = "login_ended"


class UnusableLogin(LoginError):
    """Raised if the file or the keyring with a login cannot be used."""

    type = "login_unusable"
