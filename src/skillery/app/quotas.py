"""Build the quotas from the settings."""

from __future__ import annotations

import msgspec

from skillery.errors import InvalidParams, StartupError
from skillery.formats.tokens import parse_grants
from skillery.formats.wording import quoted
from skillery.identity.quotas import IdentityQuota, Quotas
from skillery.settings import IdentityQuotas, Settings

MIB = 1024 * 1024


def quotas_of(settings: Settings) -> Quotas:
    """Return the quotas that the settings define. Raise StartupError if a pattern of names is not valid.

    With `auth = "open"`, the default quotas do not apply, because the only user is the owner of the computer.
    """
    asked = settings.quotas
    is_open = settings.authenticators == ("open",)
    for_all = IdentityQuota(
        asked.blobs,
        asked.blobs_mb * MIB,
        asked.runs_per_minute,
        asked.concurrent_runs,
        asked.session_tools,
        asked.workspaces,
        asked.workspaces_mb * MIB,
    )
    default = IdentityQuota() if is_open else for_all
    return Quotas(
        default=default,
        identities={_identity(pattern): _entry(default, entry) for pattern, entry in asked.identities.items()},
        bundle_bytes=0 if is_open else asked.bundles_mb * MIB,
        namespaces={_grant(pattern): entry.bundles_mb * MIB for pattern, entry in asked.namespaces.items()},
    )


def _entry(default: IdentityQuota, entry: IdentityQuotas) -> IdentityQuota:
    """Return the quota of an entry of the settings. Fields that the entry omits have the values of `default`."""
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    if "blobs_mb" in given:
        given["blob_bytes"] = given.pop("blobs_mb") * MIB
    if "workspaces_mb" in given:
        given["workspace_bytes"] = given.pop("workspaces_mb") * MIB
    return msgspec.structs.replace(default, **given)


def _identity(pattern: str) -> str:
    if pattern and "*" not in pattern[:-1]:
        return pattern
    raise StartupError(
        f"setting [quotas.identities.{quoted(pattern)}] is not a valid pattern: write a name, or a prefix and '*'"
    )


def _grant(pattern: str) -> str:
    try:
        return parse_grants([pattern])[0]
    except InvalidParams as error:
        raise StartupError(f"setting [quotas.namespaces.{quoted(pattern)}]: {error.message}; {error.hint}") from None
