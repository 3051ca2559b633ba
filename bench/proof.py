"""Proof: the cost of evidence in a run and in its seal, of signing in a publication, and of verification."""

from __future__ import annotations

import hashlib
import itertools
import os
import resource
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, insert

from bench.load import call, send, wait_until_idle
from bench.processor_time import processor_seconds
from bench.report import Report, format_ms, median
from skillery.attestations.seals import make_draft, store_seal
from skillery.attestations.signing import open_signing
from skillery.backends import KINDS, Identity, Job, SkillCall, SkillMount
from skillery.builtin.pem_signers import PemSigner
from skillery.cli.lock_files import check_digest
from skillery.database import Database, migrate
from skillery.database.tables import runs
from skillery.formats.bundle import BundleFile, digest_of
from skillery.proof.dsse import SigningKey, seal
from skillery.proof.locks import (
    Lock,
    LockedSkill,
    check_lock,
    digest_of_envelope,
    encode_lock,
    encode_proofs,
    read_lock,
)
from skillery.proof.seals import check_run, make_run_statement, make_seal
from skillery.proof.statements import make_statement
from skillery.runs.statements import make_evidence, make_predicate
from tests.conftest import Server, clean_environment

ROUNDS = 9
MAIN = "def main(args):\n    return {'ok': True}\n"
KEY = SigningKey.new()
BATCH = 1 << 32
FILES, FILE_BYTES = 8, 15_000
"""The files of a locked skill: 1,000 skills have 120 MB."""


class _Row(NamedTuple):
    """A figure, and the figure of the same measurement with which it is compared. Both have the same unit."""

    subject: str
    unit: str
    taken: float
    compared: str
    other: float

    def cells(self) -> Sequence[object]:
        figures = [f"{format_ms(value)} {self.unit}" for value in (self.taken, self.other)]
        return [self.subject, figures[0], self.compared, figures[1], format_ms(self.taken / self.other)]


def measure(report: Report, folder: Path, small: bool) -> None:
    skills, sealed = (100, 500) if small else (1000, 5000)
    report.heading("Proof of versions and runs")
    report.text(
        f"Medians of {ROUNDS} rounds on SQLite, in which each figure and the one that it is compared with take turns. "
        "Processor times, except for `wall`. A publication has an example and four statements: `publication`, `scan`, "
        f"`tests`, `passed`. The seal covers {sealed:,} runs. The locked skills have {FILES} files of "
        f"{FILE_BYTES // 1000} kB each."
    )
    rows = [*_servers(folder, small), *_statements(folder, sealed), *_locks(folder / "lock", skills)]
    report.table(["figure", "measured", "compared with", "measured", "ratio"], [row.cells() for row in rows])


def _in_turns(*works: Callable[[], float]) -> list[float]:
    """Return the median figure of each work. In every second round, the order is reversed."""
    figures: list[list[float]] = [[] for _ in works]
    for number in range(ROUNDS + 1):
        order = range(len(works)) if number % 2 else reversed(range(len(works)))
        for at in order:
            figure = works[at]()
            if number:  # the first round only warms up
                figures[at].append(figure)
    return [median(each) for each in figures]


def _processor_us(work: Callable[[], object], times: int) -> float:
    """Return the processor time of this process for one call, in microseconds."""
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times * 1e6


# -- a server that signs, and one that does not ------------------------------------------------------------------------


def _servers(folder: Path, small: bool) -> list[_Row]:
    environments = [{}, {"SKILLERY_SIGNING_KEY": "off"}]
    servers = [
        Server(folder / f"home{number}", env=environment, wrapper=("/usr/bin/env",))
        for number, environment in enumerate(environments)
    ]
    try:
        for server in servers:
            _publish(server, "bench.noop", 1, 0)
            wait_until_idle(server.process.pid)
        requests, versions = (100, 10) if small else (400, 40)
        run_ms, plain_run_ms = _in_turns(*(partial(_runs, server, requests) for server in servers))
        counter = itertools.count()
        walls: dict[int, list[float]] = {0: [], 1: []}

        def publish(at: int) -> float:
            before = processor_seconds(servers[at].process.pid)
            walls[at].append(_publish(servers[at], f"bench.p{next(counter)}", versions, 1))
            return (processor_seconds(servers[at].process.pid) - before) * 1000 / versions

        publish_ms, plain_publish_ms = _in_turns(partial(publish, 0), partial(publish, 1))
        signed, unsigned = median(walls[0][1:]), median(walls[1][1:])
        verify_ms, describe_ms = _in_turns(
            partial(_command, "verify", "bench.noop", "--url", servers[0].url),
            partial(_command, "describe", "bench.noop", "--url", servers[0].url),
        )
    finally:
        for server in servers:
            server.stop()
    evidence_us = _evidence_us()
    return [
        _Row("evidence at the end of a run", "µs", evidence_us, "the server, for a run", run_ms * 1000),
        _Row("the server, for a run with evidence", "ms", run_ms, "for one without", plain_run_ms),
        _Row("publish with signing, `wall`", "ms", signed, "without", unsigned),
        _Row("the server, for a publish with signing", "ms", publish_ms, "without", plain_publish_ms),
        _Row("`skillery verify NAME`", "ms", verify_ms, "`skillery describe NAME`", describe_ms),
    ]


def _publish(server: Server, name: str, versions: int, examples: int) -> float:
    """Publish versions of a skill. Return the median time in milliseconds."""
    manifest = {
        "name": name,
        "kind": "action",
        "description": "A skill that does nothing.",
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
        "examples": [{"args": {}, "expect": {"ok": True}}] * examples,
    }
    files = [{"path": "code/main.py", "content": MAIN}]
    more = {"skill_md": "# Nothing\n", "files": files}
    load = send(
        server.url,
        lambda number: call("create_skill", manifest={**manifest, "version": f"1.0.{number}"}, **more),
        versions,
        1,
    )
    return median(load.latencies)


def _runs(server: Server, requests: int) -> float:
    """Return the processor time of the server process for a run in milliseconds. The sandbox is not counted."""
    before = processor_seconds(server.process.pid)
    send(server.url, lambda _: call("execute_skill", name="bench.noop"), requests, 4)
    return (processor_seconds(server.process.pid) - before) * 1000 / requests


def _command(*words: str) -> float:
    """Return the processor time of a command in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "skillery", *words]
    subprocess.run(command, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


# -- evidence and statements of runs -----------------------------------------------------------------------------------


def _ended_run() -> tuple[Any, ...]:
    """Return the arguments of make_evidence for a run of a skill."""
    mount = SkillMount("bench.noop", Path("/x"), "main.py", version="1.0.0", digest=f"sha256:{'0' * 64}")
    job = Job("run_1", SkillCall("bench.noop", "main"), b'{"text":"hello"}', skills=(mount,))
    run = SimpleNamespace(job=job, prepared=SimpleNamespace(secrets=()), host=SimpleNamespace(written=[]))
    answer = SimpleNamespace(logs_preview="hello\n", output=msgspec.Raw(b'{"ok":true}'))
    return run, "linux", "0.1.0", answer, SimpleNamespace(result=b'{"ok":true}'), None


def _evidence_us() -> float:
    """Return the time that the evidence adds to a run: its text, and two columns and an index in the last statement."""
    ended = _ended_run()
    evidence = make_evidence(*ended)
    made, with_evidence, without = _in_turns(
        lambda: _processor_us(lambda: make_evidence(*ended), 5000),
        lambda: _ends_us(evidence),
        lambda: _ends_us(None),
    )
    return made + with_evidence - without


def _ends_us(evidence: str | None, amount: int = 5000) -> float:
    """Return the time of the statement that ends a run."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, status TEXT, output TEXT, log TEXT, at TEXT, "
                       "evidence_json TEXT, seal_batch INTEGER)")  # fmt: skip
    more, values = ("", ()) if evidence is None else (", evidence_json = ?, seal_batch = ?", (evidence, BATCH))
    if evidence is not None:
        connection.execute("CREATE INDEX batches ON runs (seal_batch) WHERE seal_batch IS NOT NULL")
    ids = [f"run_{secrets.token_hex(12)}" for _ in range(amount)]
    connection.executemany("INSERT INTO runs (id, status) VALUES (?, 'started')", [(run_id,) for run_id in ids])
    started = time.process_time()
    for run_id in ids:
        row = ("completed", "{}", "x" * 200, "2026", *values, run_id)
        connection.execute(f"UPDATE runs SET status = ?, output = ?, log = ?, at = ?{more} WHERE id = ?", row)
    taken = (time.process_time() - started) / amount * 1e6
    connection.close()
    return taken


def _statements(folder: Path, amount: int) -> list[_Row]:
    database = Database(f"sqlite:///{folder / 'runs.db'}")
    try:
        migrate.upgrade(database)
        open_signing(database, KINDS["signer"].completed(PemSigner(KEY, SigningKey.new)))
        database.write_now(partial(_insert_runs, amount=amount))
        plain = "SELECT * FROM runs"
        draft_us, read_us = _in_turns(
            lambda: _processor_us(lambda: database.read_now(lambda c: make_draft(c, BATCH)), 1),
            lambda: _processor_us(lambda: database.read_now(lambda c: c.exec_driver_sql(plain).all()), 1),
        )
        draft = database.read_now(lambda connection: make_draft(connection, BATCH))
        envelope = seal(make_seal(draft.seal), KEY.sign).decode()
        database.write_now(lambda connection: store_seal(connection, draft, envelope))
        work = partial(make_predicate, identity=Identity("bench"), run_id=f"run_{amount // 2}", with_args=False,
                       is_signing=True, retry_ms=1)  # fmt: skip
        statement = seal(make_run_statement(database.read_now(work)[1]), KEY.sign)
    finally:
        database.close()
    keys = {KEY.keyid: KEY.public_der}
    verify_us, bare_us = _in_turns(
        lambda: _processor_us(lambda: check_run(statement, keys), 200), lambda: _processor_us(_bare_verification(), 200)
    )
    return [
        _Row("evidence in the seal, for a run", "µs", draft_us / amount, "reading its row", read_us / amount),
        _Row(
            f"statement about a run ({len(statement):,} bytes), verified", "µs", verify_us, "one Ed25519 check", bare_us
        ),
    ]


def _insert_runs(connection: Connection, amount: int) -> None:
    evidence, at = make_evidence(*_ended_run()), datetime.now(UTC)
    row = {
        "method": "execute_skill",
        "status": "completed",
        "identity": "bench",
        "identity_kind": "person",
        "server": "bench",
        "output_json": '{"ok":true}',
        "limits_json": '{"timeout_ms":30000,"memory_mb":512}',
        "used_json": '{"memory_bytes":1}',
        "args_json": "{}",
        "started_at": at,
        "finished_at": at,
        "duration_ms": 4.6,
        "evidence_json": evidence,
        "seal_batch": BATCH,
    }
    connection.execute(insert(runs), [{"id": f"run_{number}", **row} for number in range(amount)])


def _bare_verification() -> Callable[[], object]:
    key = Ed25519PrivateKey.generate()
    message = os.urandom(1500)
    return partial(key.public_key().verify, key.sign(message), message)


# -- locks -------------------------------------------------------------------------------------------------------------


def _locks(folder: Path, amount: int) -> list[_Row]:
    """Return the figures of a lock, and of its files."""
    folder.mkdir()
    skills, envelopes = [], []
    for number in range(amount):
        name = f"bench.s{number}"
        digest = _write_skill(folder / name)
        envelope = seal(make_statement("passed", name, "1.0.0", digest, _passed(name)), KEY.sign)
        envelopes.append(envelope)
        skills.append(
            LockedSkill(name=name, version="1.0.0", digest=digest, signer="bench", proof=digest_of_envelope(envelope))
        )
    lock = Lock(lock_version=2, keys={KEY.keyid: KEY.public_der}, skills=tuple(skills))
    text, proofs, path = encode_lock(lock), encode_proofs(envelopes), folder / "skillery.lock"
    path.write_bytes(text)
    path.with_name("skillery.lock.proofs").write_bytes(proofs)
    bare = _bare_verification()
    contents = [file.read_bytes() for skill in skills for file in sorted((folder / skill.name).iterdir())]
    proofs_us, bare_us = _in_turns(
        lambda: _processor_us(lambda: check_lock(read_lock(text), proofs), 1), lambda: _processor_us(bare, amount)
    )
    files_us, hashes_us = _in_turns(
        lambda: _processor_us(lambda: _check_files(skills, folder), 1),
        lambda: _processor_us(lambda: [hashlib.sha256(content).digest() for content in contents], 1),
    )
    command_ms, help_ms = _in_turns(
        partial(_command, "verify", str(path), "--offline"), partial(_command, "verify", "--help")
    )
    name = f"{amount:,} locked skills"
    return [
        _Row(f"{name}, proofs verified", "ms", proofs_us / 1000, "as many Ed25519 checks", bare_us * amount / 1000),
        _Row(f"{name}, files verified", "ms", files_us / 1000, "SHA-256 of their contents", hashes_us / 1000),
        _Row(f"{name}, `skillery verify --offline`", "ms", command_ms, "`skillery verify --help`", help_ms),
    ]


def _check_files(skills: Sequence[LockedSkill], folder: Path) -> None:
    for skill in skills:
        check_digest({"name": skill.name, "version": skill.version, "digest": skill.digest, "status": ""}, folder)


def _write_skill(folder: Path) -> str:
    """Write a skill with random files, and return its digest."""
    folder.mkdir()
    files = [BundleFile(f"file{number}", os.urandom(FILE_BYTES), executable=False) for number in range(FILES)]
    for file in files:
        (folder / file.path).write_bytes(file.content)
    return digest_of(files)


def _passed(name: str) -> dict[str, Any]:
    """Return the predicate of a version that has met a policy with two reviews."""
    inputs = [{"digest": {"sha256": hashlib.sha256(f"{name}{number}".encode()).hexdigest()}} for number in range(5)]
    return {
        "verifier": {"id": "https://skills.example.org"},
        "timeVerified": "2026-11-28T09:00:00Z",
        "resourceUri": f"skillery:{name}@1.0.0",
        "policy": {"uri": "skillery:policy:bench.*", "digest": {"sha256": "0" * 64}},
        "inputAttestations": inputs,
        "verificationResult": "PASSED",
        "verifiedLevels": ["SKILLERY_TESTS", "SKILLERY_REVIEW"],
        "signer": "bench",
    }
