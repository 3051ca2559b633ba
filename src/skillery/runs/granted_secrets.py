"""The secrets of a run: the skill declares them, an admin grants them, and the server reads them when the run
starts.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from skillery.backends import Failure, FailureType, Secrets, SecretValues
from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.identity.secret_grants import granted

log = logging.getLogger(__name__)
T = TypeVar("T")


class SecretsRefused(Exception):
    """Raised before the code of a run starts. `failure` has the reason, and the commands of an admin that would help,
    if there are any.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class GrantedSecrets:
    """Reads the secrets of runs. Blocking: call the methods in worker threads."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database = database
        self._secrets = secrets

    def values(self, skill: str, declared: Sequence[str]) -> SecretValues:
        """Return the values of all declared secrets.

        Raise SecretsRefused if a secret is not granted to the skill, has no value or cannot be read.
        """
        allowed = _asked(lambda: self._database.read_now(lambda connection: granted(connection, skill, declared)))
        # Grants are checked before any value is read: a skill must not learn which other secrets exist.
        if refused := [name for name in declared if name not in allowed]:
            raise SecretsRefused(_not_granted(skill, refused))
        found = _asked(lambda: {name: self._secrets.get(name) for name in declared})
        values = SecretValues({name: value for name, value in found.items() if value})
        if missing := [name for name in declared if name not in values]:
            raise SecretsRefused(_missing(skill, missing))
        return values


def _asked(ask: Callable[[], T]) -> T:
    """Return the result of `ask`, a call of the database or the backend. Raise SecretsRefused if the call fails."""
    try:
        return ask()
    except SkilleryError as error:
        failure = Failure(FailureType.SECRET_UNAVAILABLE, error.message)
    except Exception as error:  # noqa: BLE001 - logged without its message, which may contain a value
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("the backend of secrets raised %s\n%s", type(error).__name__, frames)
        failure = Failure(FailureType.SECRET_UNAVAILABLE, "the secrets of this server cannot be read now")
    raise SecretsRefused(failure)


def _not_granted(skill: str, names: Sequence[str]) -> Failure:
    commands = "; ".join(f"skillery secret grant {name} {skill}" for name in names)
    return Failure(
        FailureType.SECRET_NOT_GRANTED,
        f"'{skill}' declares {_listed(names)}, but has no secret grant. "
        f"An admin of this server can grant it: {commands}",
    )


def _missing(skill: str, names: Sequence[str]) -> Failure:
    commands = "; ".join(f"skillery secret set {name}" for name in names)
    return Failure(
        FailureType.SECRET_MISSING,
        f"'{skill}' declares {_listed(names)}, but this server has no value. "
        f"An admin of this server can set it: {commands}",
    )


def _listed(names: Sequence[str]) -> str:
    return f"the secret{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
