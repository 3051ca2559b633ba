"""Runs sweeps: one sweep at a time for a database, step by step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from skillery import audit
from skillery.audit import SERVER
from skillery.backends import Identity
from skillery.database import Database, migrate
from skillery.errors import Busy, InvalidParams
from skillery.formats.wording import did_you_mean, quoted
from skillery.method import Method, Params, about

BUSY_RETRY_MS = 5_000


class Swept(msgspec.Struct, frozen=True):
    """The number and bytes of the items that a step removed. In a dry run, the items that it would remove."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.count + other.count, self.bytes + other.bytes)


class Garbage(msgspec.Struct, frozen=True):
    """The result of a sweep: the removed items by step. In a dry run, the items that would be removed."""

    dry_run: bool
    removed: dict[str, Swept]


class Sweep(NamedTuple):
    """The sweep to which a step belongs."""

    dry_run: bool
    stopped: Callable[[], bool]
    """Function that returns whether the server is stopping. A step then ends after its current item."""


class SweepStep(NamedTuple):
    """A step of a sweep: its name and its function."""

    name: str
    work: Callable[[Sweep], Swept]
    """The work of the step. Blocking. If the process is killed at any time, the data stays consistent."""
    own: bool = False
    """True if the step concerns only this machine. Every server then executes it."""


class Collector:
    """Runs sweeps on request."""

    def __init__(self, database: Database, steps: Iterable[SweepStep]) -> None:
        self._database = database
        self._steps = tuple(steps)
        self._stopping = threading.Event()
        self._at_work = threading.Lock()

    def collect(self, *, by: Identity = SERVER, dry_run: bool = False, only: Sequence[str] = ()) -> dict[str, Swept]:
        """Execute all steps, or only those named in `only`. `by` is the caller who requested the sweep. Blocking.

        Return the number and bytes of the removed items by step. With `dry_run`, nothing is removed, and the result has
        the items that would be removed. Raise Busy if another sweep of this database is running or a newer release
        has migrated it, and InvalidParams if `only` names an unknown step.
        """
        steps = self._chosen(only)
        with self._database.alone("garbage") as is_alone:
            if not is_alone:
                raise Busy(
                    "another sweep is under way",
                    hint="That sweep removes the same data. Try again after retry_after_ms.",
                    retry_after_ms=BUSY_RETRY_MS,
                )
            self._database.read_now(migrate.refuse_newer)
            return self._take(steps, by, dry_run)

    def collect_own(self) -> dict[str, Swept]:
        """Execute the steps that concern only this machine. Return the removed items by step. Blocking."""
        return self._take([step for step in self._steps if step.own], SERVER, dry_run=False)

    def _chosen(self, only: Sequence[str]) -> list[SweepStep]:
        names = [step.name for step in self._steps]
        unknown = next((name for name in only if name not in names), None)
        if unknown is not None:
            message = f"a sweep has no step {quoted(unknown)}{did_you_mean(unknown, names)}"
            raise InvalidParams(message, hint=f"The steps are {', '.join(names)}.", param="steps")
        return [step for step in self._steps if not only or step.name in only]

    def close(self) -> None:
        """End the current sweep after its current item, and wait for its end. No further step starts. Blocking."""
        self._stopping.set()
        with self._at_work:
            return

    def _take(self, steps: Iterable[SweepStep], by: Identity, dry_run: bool) -> dict[str, Swept]:
        """Execute the steps until `close` is called. Record the removed items, even if a step raises an error."""
        swept: dict[str, Swept] = {}
        with self._at_work:
            sweep = Sweep(dry_run, self._stopping.is_set)
            try:
                for step in steps:
                    if not self._stopping.is_set():
                        swept[step.name] = step.work(sweep)
            finally:
                # What was removed is recorded and erased even if a later step fails.
                if not dry_run:
                    self._record(by, swept)
                    self._database.empty_log()
        return swept

    def _record(self, by: Identity, swept: dict[str, Swept]) -> None:
        """Add one audit entry with the items that each step removed.

        Steps for this machine only are omitted: they remove cached data, which is not lost.
        """
        local_steps = {step.name for step in self._steps if step.own}
        after = {
            name: msgspec.structs.asdict(amount)
            for name, amount in swept.items()
            if amount.count and name not in local_steps
        }
        if after:
            self._database.write_now(
                lambda connection: audit.record(connection, by, "collect_garbage", "", after=after)
            )


# -- collect_garbage ---------------------------------------------------------------------------------------------------


class CollectGarbage(Params, frozen=True, kw_only=True):
    """Remove unreferenced and expired data."""

    dry_run: Annotated[bool, about("Only report what a sweep would remove", default=False)] = False
    steps: Annotated[list[str], about("Only these steps of a sweep, by their names; omit for all")] = []


async def collect_garbage(collector: Collector, identity: Identity, params: CollectGarbage) -> Garbage:
    collect = partial(collector.collect, by=identity, dry_run=params.dry_run, only=params.steps)
    return Garbage(params.dry_run, await asyncio.to_thread(collect))


METHODS = (Method(collect_garbage, "admin", audits=""),)
