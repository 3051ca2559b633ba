"""The calls of one run of the suite. Equal calls are sent once, and samples are published when they are needed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Any

from skills_protocol_conformance.connection import Connection, Reply, Unreachable
from skills_protocol_conformance.samples import FOLDER_NAMESPACE, MANY_NAMESPACE, SAMPLES, Sample, many
from skills_protocol_conformance.statement import Failed, Skipped, at, expect, shortened

METHODS = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
)
GUIDE = "skills.protocol.guide"
UNKNOWN_METHOD = -32601
INVALID_PARAMS = -32602


class Session:
    """Threads may share a session. `suffix` makes the names of published skills new; without it, none is published."""

    def __init__(self, connection: Connection, suffix: str | None = None) -> None:
        self.connection = connection
        self.publishes = suffix is not None
        self.namespace = f"conformance{suffix}" if suffix is not None else FOLDER_NAMESPACE
        self.made_blobs: set[str] = set()
        self._kept: dict[Hashable, Future[Any]] = {}
        self._lock = Lock()
        self._ids = itertools.count(1)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned, or raise what it raised, at the first call with this key."""
        with self._lock:
            future = self._kept.get(key)
            is_first = future is None
            if future is None:
                future = self._kept[key] = Future()
        if is_first:
            try:
                future.set_result(make())
            except BaseException as error:  # noqa: BLE001 - each waiting thread raises it
                future.set_exception(error)
        return future.result()

    def send(self, method: str, params: object) -> Reply:
        """Send a call that no other statement shares."""
        number = f"c{next(self._ids)}"
        reply = self.connection.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        if isinstance(reply.result, dict):
            blobs = reply.result.get("output_blobs")
            made = [reply.result.get("blob_id"), *(blobs if isinstance(blobs, list) else ())]
            self.made_blobs.update(blob for blob in made if isinstance(blob, str))
        return reply

    def try_to_send(self, method: str, params: object) -> None:
        """Send a call whose answer does not matter."""
        with suppress(Unreachable):
            self.send(method, params)

    def ask(self, method: str, params: dict[str, Any]) -> Reply:
        """Send a call, or return the reply to an equal call."""
        key = (method, json.dumps(params, sort_keys=True))
        reply: Reply = self.once(key, lambda: self.send(method, params))
        return reply

    def result(self, method: str, /, **params: Any) -> Any:
        return result_of(self.ask(method, params))

    def error(self, method: str, /, **params: Any) -> Any:
        return error_of(self.ask(method, params))

    # -- samples -------------------------------------------------------------------------------------------------------

    def skill(self, key: str) -> str:
        """Return the name of a sample that the server has. Raise Skipped if it does not have it."""
        return str(self.once(("skill", key), lambda: self._skill(key)))

    def _skill(self, key: str) -> str:
        sample = SAMPLES[key]
        name = sample.full_name(self.namespace)
        if f"{key} 0.1.0" in SAMPLES:
            self.skill(f"{key} 0.1.0")
        reply = self.publish(sample) if self.publishes else None
        if reply is not None and reply.error:
            raise Skipped(f"create_skill refuses the sample {name}: {shortened(reply.error)}")
        self._expect_visible(name, sample.version, reply)
        return name

    def _expect_visible(self, name: str, version: str, published: Reply | None) -> None:
        if self._has(name):
            return
        if published is None:
            raise Skipped(f"the server does not have {name}: write the samples with --write-skills, and load them")
        # A server that reviews versions says so in `status`, or finds the version by its number only.
        status = result_of(published).get("status", "published")
        if status != "published" or self._has(name, version=version):
            raise Skipped(
                "create_skill succeeds, but the latest version is not visible: the server may review versions"
            )
        raise Failed(f"create_skill succeeds, but describe_skill does not find {name}", published.text)

    def _has(self, name: str, **more: Any) -> bool:
        return not self.send("describe_skill", {"name": name, "detail": "manifest", **more}).error

    def publish(self, sample: Sample, namespace: str | None = None) -> Reply:
        own = namespace or self.namespace
        return self.create(sample.full_manifest(own), sample.files, sample.skill_md(own))

    def create(self, manifest: dict[str, Any], files: dict[str, str], skill_md: str = "# Sample\n") -> Reply:
        """Send `create_skill`. Raise Skipped if the profile does not publish."""
        if not self.publishes:
            raise Skipped("the profile `core` publishes no skills")
        listed = [{"path": path, "content": content} for path, content in files.items()]
        return self.send("create_skill", {"manifest": manifest, "skill_md": skill_md, "files": listed})

    def manifest(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the manifest of an instruction skill that a statement publishes itself."""
        own = {
            "name": f"{self.namespace}.{name}",
            "version": "0.1.0",
            "description": "A sample.",
            "kind": "instruction",
        }
        return {**own, "namespace": self.namespace, **more}

    def many(self) -> str:
        """Return a namespace with more skills than the default limit of `list_skills`."""
        return str(self.once("many", self._many))

    def _many(self) -> str:
        samples = many()
        # Not by `list_skills`, whose faults would look like missing samples.
        if self._has(samples[-1].full_name(MANY_NAMESPACE)):
            return MANY_NAMESPACE
        if not self.publishes:
            raise Skipped(f"the server does not have {len(samples)} skills in {MANY_NAMESPACE}: see --write-skills")
        for sample in samples:
            reply = None if self._has(sample.full_name(MANY_NAMESPACE)) else self.publish(sample, MANY_NAMESPACE)
            if reply is not None and reply.error:
                raise Skipped(f"create_skill refuses the sample {sample.name}: {shortened(reply.error)}")
        self._expect_visible(samples[-1].full_name(MANY_NAMESPACE), "0.1.0", reply)
        return MANY_NAMESPACE

    # -- lists, runs and blobs -----------------------------------------------------------------------------------------

    def walk(self, limit: int, **params: Any) -> list[dict[str, Any]]:
        """Return the rows of all pages of `list_skills`. Raise Failed if the pages do not end."""
        rows: list[dict[str, Any]] = []
        cursors: set[str] = set()
        page = result_of(self.send("list_skills", {**params, "limit": limit}))
        while True:
            rows += rows_of(page)
            cursor = page.get("next_cursor")
            if cursor is None:
                return rows
            expect(isinstance(cursor, str), "`next_cursor` is neither a string nor null", cursor)
            expect(cursor not in cursors, "the same `next_cursor` comes twice, so the pages do not end", cursor)
            cursors.add(cursor)
            page = result_of(self.send("list_skills", {**params, "limit": limit, "cursor": cursor}))

    def code(self, body: str, args: object = None, **params: Any) -> dict[str, Any]:
        """Return the completed run of `run_code` with this code. Raise Failed if it does not complete."""
        return completed(self.result("run_code", language="python", code=body, args=args or {}, **params))

    def blob(self, content: str, kind: str = "text/plain") -> str:
        return str(at(self.result("create_blob", content=content, kind=kind), "blob_id"))


def result_of(reply: Reply) -> Any:
    """Return the result as an object. Raise Failed if the reply has none."""
    problem = reply.problem()
    expect(problem is None, str(problem), reply.text)
    expect(reply.error is None, "the answer is a JSON-RPC error", reply.error)
    expect(isinstance(reply.result, dict), "`result` is not an object", reply.text)
    return reply.result


def error_of(reply: Reply) -> Any:
    """Return the JSON-RPC error as an object. Raise Failed if the reply has none."""
    expect(isinstance(reply.error, dict), "the answer is not a JSON-RPC error", reply.text)
    return reply.error


def rows_of(page: Any) -> list[dict[str, Any]]:
    """Return the `skills` of a page of `list_skills`."""
    rows = at(page, "skills")
    expect(
        isinstance(rows, list) and all(isinstance(row, dict) for row in rows), "`skills` is not a list of objects", page
    )
    return list(rows)


def completed(run: Any) -> dict[str, Any]:
    if at(run, "status") != "completed":
        raise Failed("the run did not complete", run)
    return dict(run)


def failed(run: Any) -> dict[str, Any]:
    if at(run, "status") != "failed":
        raise Failed('the run does not have the status "failed"', run)
    return dict(run)
