"""Groups of settings. docs/reference/settings.md explains each setting."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated

import msgspec

from skillery.settings.versions import ModelSettings, Natural, PolicyRules, Positive


class RunLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Default limits of a run. `skillery.backends.Limits` explains each limit."""

    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 300_000
    memory_mb: Positive = 512
    processes: Positive = 64
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    disk_mb: Positive = 256
    disk_files: Positive = 16_384
    tmp_mb: Positive = 64
    blobs: Positive = 1_000
    blobs_mb: Positive = 256
    calls: Annotated[int, msgspec.Meta(ge=0)] = 100
    log_kb: Positive = 1_024
    result_mb: Positive = 16
    callbacks_per_second: Positive = 8_000


class MaxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest limits that a skill or a caller may request.

    Some limits cannot be requested. For such a limit, this is the highest value that the setting `limits` may have.
    """

    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 3_600_000
    memory_mb: Positive = 4_096
    processes: Positive = 256
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    disk_mb: Positive = 2_048
    disk_files: Positive = 131_072
    tmp_mb: Positive = 512
    blobs: Positive = 10_000
    blobs_mb: Positive = 2_048
    calls: Annotated[int, msgspec.Meta(ge=0)] = 1_000
    log_kb: Positive = 16_384
    result_mb: Positive = 64
    callbacks_per_second: Positive = 100_000


class Audit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`otlp` is the address of an OpenTelemetry collector, which gets each entry of the audit trail. "": no export."""

    otlp: Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`max_days` is the longest lifetime of a new token, and the default one. 0 means no limit."""

    max_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 0


class Scan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The archive of known vulnerabilities. "": no check. `osv_seconds` is the time between two looks at its files."""

    osv_dir: str = ""
    osv_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 60.0


Streams = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class RunRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long records of runs are stored, how long a run waits for its workspace, how many clients may follow runs,
    and when a tool call of MCP becomes a task.

    A run is deleted after `keep_days`. With `keep_count`, a run is deleted earlier if it is not among this many newest
    runs. 0 means no limit. With `keep_code`, the code of `run_code` is a part of the record.
    """

    keep_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 90
    keep_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    keep_code: bool = True
    streams: Streams = 500
    streams_per_identity: Streams = 200
    streams_per_run: Streams = 200
    workspace_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 30.0
    """Time that a run waits for the run that writes its workspace. A run in the background waits without a limit."""
    task_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """Time after which a run becomes a task for MCP clients that support tasks."""


MaybeNatural = Natural | msgspec.UnsetType


class IdentityQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of the identities that match a pattern. An unset field has the value of the general quota."""

    blobs: MaybeNatural = msgspec.UNSET
    blobs_mb: MaybeNatural = msgspec.UNSET
    runs_per_minute: MaybeNatural = msgspec.UNSET
    concurrent_runs: MaybeNatural = msgspec.UNSET
    session_tools: MaybeNatural = msgspec.UNSET
    workspaces: MaybeNatural = msgspec.UNSET
    workspaces_mb: MaybeNatural = msgspec.UNSET


class NamespaceQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of one namespace."""

    bundles_mb: Natural


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of identities and namespaces. 0 means no limit.

    With `auth = "open"`, only the entries in `identities` and `namespaces` apply.
    """

    blobs: Natural = 20_000
    blobs_mb: Natural = 10_240
    runs_per_minute: Natural = 1_200
    concurrent_runs: Natural = 100
    session_tools: Natural = 100
    workspaces: Natural = 200
    workspaces_mb: Natural = 10_240
    bundles_mb: Natural = 10_240
    identities: dict[str, IdentityQuotas] = {}
    namespaces: dict[str, NamespaceQuotas] = {}


class Insight(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server records for insight: the words of searches, and who searched. With `callers = false`, answers
    name no callers.
    """

    keep_searches: bool = True
    callers: bool = True


class BlobLifetimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Default lifetimes of blobs. 0 means no end."""

    input_hours: Natural = 720
    output_hours: Natural = 720


class DefinedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for the tools that agents define."""

    session_hours: Positive = 24


class Garbage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of sweeps, which remove unreferenced and expired data."""

    interval_minutes: Natural = 60
    grace_minutes: Natural = 60
    cache_days: Natural = 7


class Backups(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Incremental backups in the storage `storage`. "": there are none.

    Of each of the last `keep_daily` days and `keep_weekly` weeks with backups, the newest backup is kept. Both 0: all
    are kept.
    """

    storage: str = ""
    keep_daily: Natural = 7
    keep_weekly: Natural = 5


class Imports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of an archive of skills. `at_once` limits the number of imports at the same time."""

    max_mb: Positive = 1_024
    max_unpacked_mb: Positive = 4_096
    max_entries: Positive = 100_000
    at_once: Positive = 2


class Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sources and limits of packages."""

    index_urls: tuple[str, ...] = ()
    wheelhouse: str = ""
    exclude_newer: Annotated[
        str, msgspec.Meta(pattern=r"^(\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d))?|[1-9]\d{0,3} (day|week)s?)?$")
    ] = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    reuse_hours: Natural = 24
    lock_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    build_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 600.0
    max_mb: Positive = 2_048
    total_mb: Positive = 20_480
    optional_mb: Natural = 256
    file_hosts: tuple[str, ...] = ()
    build_from_source: tuple[str, ...] = ()
    infer: typing.Literal["off", "suggest", "lock"] = "suggest"
    npm_url: str = ""
    npm_file_hosts: tuple[str, ...] = ()
    npm_allowed: tuple[str, ...] = ()
    npm_denied: tuple[str, ...] = ()
    npm_store: str = ""


class Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How events are sent to webhooks."""

    allow_private: tuple[str, ...] = ()
    """Addresses and networks (`10.1.0.0/16`) of webhooks that are not public addresses, such as loopback."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=30)] = 15.0
    retry_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    """The shortest pause after a failed attempt."""
    retry_max_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """The longest pause. In between, a pause is a quarter of the time for which the target has failed."""
    give_up_hours: Annotated[float, msgspec.Meta(ge=0, le=720)] = 24.0


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of trusted publishing."""

    allow_private: tuple[str, ...] = ()
    """Addresses and networks (`10.1.0.0/16`) of issuers that are not public addresses, such as a GitLab server."""


class NamedEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment of packages that runs can request by its name."""

    dependencies: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    description: str = ""
    default: bool = False


# Tables whose keys are patterns or names that the operator chooses. Patterns are allowed in skillery.toml only.
ENTRIES: Mapping[str, type[msgspec.Struct]] = {
    "quotas.identities": IdentityQuotas,
    "quotas.namespaces": NamespaceQuotas,
    "environments": NamedEnvironment,
    "policy": PolicyRules,
    "models": ModelSettings,
}
