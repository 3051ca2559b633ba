"""`environment`: the value of the secret NAME is the server's environment variable SKILLERY_SECRET_NAME."""

from __future__ import annotations

import os

from skillery import hookimpl
from skillery.backends import NoSettings, Offer, Place, Secrets
from skillery.errors import NotAllowed, Unavailable
from skillery.formats.names import SECRET_PREFIX, secret_name_problem
from skillery.formats.wording import has_surrogate


class EnvironmentSecrets(Secrets):
    """See `skillery.backends.Secrets`. Values can be read, and not be set."""

    read_only = True
    is_local = True

    def get(self, name: str) -> str | None:
        value = os.environ.get(SECRET_PREFIX + name)
        if value is not None and has_surrogate(value):
            raise Unavailable(f"the value of {SECRET_PREFIX}{name} is not UTF-8 text")
        return value or None

    def names(self) -> list[str]:
        variables = [variable for variable, value in os.environ.items() if value and variable.startswith(SECRET_PREFIX)]
        names = [variable.removeprefix(SECRET_PREFIX) for variable in variables]
        return sorted(name for name in names if not secret_name_problem(name))

    def set(self, name: str, value: str) -> None:
        del value
        raise self._elsewhere(name)

    def remove(self, name: str) -> bool:
        raise self._elsewhere(name)

    def _elsewhere(self, name: str) -> NotAllowed:
        return NotAllowed(
            "the secrets of this server come from its environment",
            hint=f"Set or unset {SECRET_PREFIX}{name} there, and start the server again.",
        )


def _open(_settings: NoSettings, _place: Place) -> EnvironmentSecrets:
    return EnvironmentSecrets()


@hookimpl
def skillery_secrets() -> Offer:
    return Offer("environment", _open)
