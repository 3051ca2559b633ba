"""The effect of attacks on the memory of a server, and on its answers to other clients.

`python -m bench attack` is bounded and uses only loopback. Attacker, prober and server are separate processes. Each
attack has a new server. The short form (`--small`) uses one server for all attacks.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.attackers import (
    ATTACKS,
    BASELINE,
    FILE_MIB,
    FILE_SKILL,
    LIST_INPUT_BYTES,
    LIST_NAMESPACE,
    LIST_SKILLS,
    MCP,
    Attack,
    tool_call,
)
from bench.crowd import LOCKED_OUT
from bench.report import Report
from bench.victim import MIB, Victim, mib, post
from bench.watching import Memory, Prober, Silence, settled
from skillery.settings.load import Settings
from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files

ATTACK_SECONDS = 90
DESCRIPTORS = 1024
GROWN_MIB, SILENT_MS, LOADED_SILENT_MS = 150, 100, 200
BUDGETS = ("bodies_mb", "answers_mb")
LARGE_BLOB_MIB = 48
FORMER_DEFAULT_MIB = 256
"""Assumed value of a budget that the settings do not have."""


class Seen(NamedTuple):
    attack: Attack
    budgets: str
    allowed: int
    """Allowed growth of the memory in bytes."""
    grown: int
    children: int
    silence: Silence
    outcome: str

    def row(self) -> list[object]:
        figures = [mib(self.grown), mib(self.children), f"{self.silence.longest_ms:.0f}", f"{self.silence.p99_ms:.1f}"]
        return [self.attack.point or "", self.attack.what, self.budgets, *figures, self.verdict(), self.outcome]

    def verdict(self) -> str:
        loud = self.silence.longest_ms
        missed = [
            *(["memory"] if self.grown > self.allowed else []),
            *(["silence"] if loud > LOADED_SILENT_MS else []),
            *(["other clients"] if LOCKED_OUT in self.outcome else []),
        ]
        if missed:
            return "no: " + " and ".join(missed)
        late = f"no: {loud:.0f} ms (the limit is {SILENT_MS} ms; {LOADED_SILENT_MS} ms on a loaded machine)"
        return "yes" if loud <= SILENT_MS else late


class Budgets(NamedTuple):
    """The memory budgets of a server under attack."""

    name: str
    env: dict[str, str]
    total: int
    """Bytes of both budgets, or 0 if they must not count as allowed growth."""


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Under attack")
    report.text(
        f"The server has {DESCRIPTORS} descriptors. The columns:\n\n"
        "- `point`: group of the attack. 1: trailers and chunk extensions without an end. 3: slow connections. 4: "
        "large responses. 7: code that is slow to compile. 8: bodies with many values. 9: foreign text that makes "
        "superlinear code slow, from eight attackers at once.\n"
        "- `budgets`: the settings `bodies_mb` and `answers_mb`: 64 MiB each, or their defaults.\n"
        "- `MiB`: growth of the server's memory over that of the idle server, at its peak. `MiB of children` is "
        "sampled.\n"
        "- `silent ms`: the longest time without an answer of `/healthz`, which is polled every 10 ms on a separate "
        "connection. `p99 ms`: the 99th percentile of these answers. The first row is without an attack.\n"
        f"- `target met`: the memory grows by at most {GROWN_MIB} MiB, plus `bodies_mb` and `answers_mb` if they have "
        f"their defaults. The silence is at most {SILENT_MS} ms, or {LOADED_SILENT_MS} ms on a loaded machine. Slow "
        "connections lock out another client at most for the time limits of the server.\n"
        "- `outcome`: the HTTP status, in brackets the number of errors by code, and the size of the response. Slow "
        "connections are of three kinds: (a) the head of a second request arrives slowly, (b) the body of a request "
        "that got 401 arrives slowly, (c) the client does not read a blob."
        + ("\n\nThe short form sends about a tenth of the amounts in the table." if small else "")
    )
    victim = prepare(folder / "home", small=small)
    seen = list(all_seen(folder / "home", victim))
    head = ["point", "attack", "budgets", "MiB", "MiB of children", "silent ms", "p99 ms", "target met", "outcome"]
    report.table(head, [one.row() for one in seen])


def all_seen(home: Path, victim: Victim) -> Iterator[Seen]:
    """Yield the result of every attack on a server with small budgets.

    Attacks whose memory a budget limits are repeated with the default budgets.
    """
    attacks = {"busy": BASELINE, **ATTACKS}
    if victim.small:
        with serving(home, tight()) as server:
            yield from (attacked(server, victim, name, attack, tight()) for name, attack in attacks.items())
        return
    for budgets in (tight(), default()):
        for name, attack in attacks.items():
            if attack.has_budget or not budgets.total:
                with serving(home, budgets) as server:
                    yield attacked(server, victim, name, attack, budgets)


def tight() -> Budgets:
    """Return small budgets: 64 MiB for request bodies and 64 MiB for responses. A release without these settings gets
    none.
    """
    known = [name for name in BUDGETS if name in Settings.__struct_fields__]
    return Budgets("64 and 64", {f"SKILLERY_{name.upper()}": "64" for name in known}, 0)


def default() -> Budgets:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    return Budgets("default", {}, sum(int(defaults.get(name, FORMER_DEFAULT_MIB)) for name in BUDGETS) * MIB)


def attacked(server: Server, prepared: Victim, name: str, attack: Attack, budgets: Budgets) -> Seen:
    print(f"   {budgets.name}: {attack.what}", file=sys.stderr, flush=True)
    address = Victim.at(server.url, prepared.token)
    victim = prepared._replace(host=address.host, port=address.port)
    warm_up(victim)
    settled(server.process.pid)
    memory = Memory(server.process.pid)
    with memory, Prober(server.url) as prober:
        outcome = assault(name, victim)
    allowed = GROWN_MIB * MIB + budgets.total
    return Seen(attack, budgets.name, allowed, memory.grown, memory.children_grown, prober.silence, outcome)


def assault(name: str, victim: Victim) -> str:
    """Run an attack in a separate process and return its outcome."""
    command = [sys.executable, "-m", "bench.attackers", name]
    try:
        stdin = json.dumps(victim)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=ATTACK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {ATTACK_SECONDS} s"
    return done.stdout if done.returncode == 0 else f"the attacker failed: {done.stderr.splitlines()[-1:]}"


def warm_up(victim: Victim) -> None:
    """Send the first requests, so that imports and first connections do not count as growth."""
    post(victim, "/mcp", tool_call(10), *MCP)
    post(victim, "/rpc", b'{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{}}')


# -- the server ------------------------------------------------------------------------------------------------------


@contextmanager
def serving(home: Path, budgets: Budgets) -> Iterator[Server]:
    """Start a server with few descriptors and with tokens. Its limit equals `ulimit -n`, soft and hard."""
    few = ("sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wrapper = few if allowed in {resource.RLIM_INFINITY} or allowed >= DESCRIPTORS else ()
    server = Server(home, env={"SKILLERY_AUTH": "tokens", **budgets.env}, wrapper=wrapper)
    try:
        yield server
    finally:
        server.stop()


def prepare(home: Path, *, small: bool) -> Victim:
    """Publish the skills and blobs that attackers read. The token has the scopes read, run and publish, but not
    admin."""
    server = Server(home, env={"SKILLERY_AUTH": "tokens"})
    try:
        token = new_token(home)
        victim = Victim.at(server.url, token)
        publish(Rpc(server.url, token), 4 if small else LIST_SKILLS)
        blob, large_blob = upload(victim, 1), upload(victim, 8 if small else LARGE_BLOB_MIB)
    finally:
        server.stop()
    return victim._replace(small=small, blob=blob, large_blob=large_blob)


def publish(rpc: Rpc, lists: int) -> None:
    big = [{"path": "big.txt", "content": "f" * (FILE_MIB * MIB)}]
    rpc("create_skill", manifest=manifest(FILE_SKILL, kind="instruction"), skill_md="# File", files=big)
    inputs = {f"input{one}": {"type": "string", "description": "d" * 900} for one in range(LIST_INPUT_BYTES // 1000)}
    for number in range(lists):
        made = manifest(f"{LIST_NAMESPACE}.skill{number}", inputs=inputs)
        rpc("create_skill", manifest=made, skill_md="# List", files=skill_files())


def upload(victim: Victim, size: int) -> str:
    """Store so many MiB of text. Return the id of the blob."""
    answer = post(victim, "/blobs", b"b" * (size * MIB))
    found = re.search(rb'"blob_id":"([^"]+)"', answer.start)
    if found is None:
        raise RuntimeError(f"no blob was made: {answer.start!r}")
    return found[1].decode()


def new_token(home: Path) -> str:
    options = ["--name", "attacker", "--scope", "read,run,publish", "--namespace", "*", "--json", "--home", str(home)]
    command = [sys.executable, "-m", "skillery", "token", "create", *options]
    env = clean_environment({"SKILLERY_AUTH": "tokens"})
    token: str = json.loads(subprocess.run(command, capture_output=True, check=True, env=env).stdout)["token"]
    return token
