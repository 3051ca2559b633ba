"""The built-in backends pass the contracts that plugins must pass."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from inspect import getattr_static
from pathlib import Path
from types import SimpleNamespace, new_class
from typing import Any, BinaryIO

import msgspec
import pytest
from sqlalchemy import select, update

from skillery.backends import (
    KINDS,
    Authenticator,
    Credentials,
    FollowsLog,
    Job,
    ListsContents,
    Outcome,
    Probe,
    Progress,
    RunHost,
    Sandbox,
    Secrets,
    Storage,
    Upload,
    UsesService,
)
from skillery.backends.outcomes import completed_host
from skillery.backends.storage import NO_MARKS
from skillery.backends.values import Completed
from skillery.builtin.database_secrets import DatabaseSecrets, Keys
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.builtin.environment_secrets import EnvironmentSecrets
from skillery.builtin.open_authenticator import OpenAuthenticator
from skillery.cli.database import service_problem
from skillery.database import Database, tables
from skillery.database.backend_values import BackendValues
from skillery.errors import StartupError, Unavailable
from skillery.plugins import load_plugins
from skillery.plugins.backends import Watch, Watched, problems
from skillery.plugins.calls import Failures
from skillery.settings.load import Settings
from skillery.testing import AuthenticatorContract, SecretsContract, StorageContract
from skillery.testing.storage import digest_of, put


class TestDirectoryStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> DirectoryStorage:
        return DirectoryStorage(tmp_path / "contents")

    def test_storage_start_deletes_incomplete_files_of_dead_server(self, tmp_path: Path) -> None:
        first = DirectoryStorage(tmp_path / "contents")
        first.begin().write(b"half")
        kept = put(first, b"whole")

        second = DirectoryStorage(tmp_path / "contents")

        assert list((tmp_path / "contents" / "incoming").iterdir()) == []
        assert second.local_path(kept) is not None

    def test_a_stored_file_is_read_only(self, storage: DirectoryStorage) -> None:
        path = storage.local_path(put(storage, b"x"))

        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o444
        assert path.name == digest_of(b"x")

    def test_other_users_reach_no_content(self, storage: DirectoryStorage) -> None:
        path = storage.local_path(put(storage, b"x"))

        assert path is not None
        for folder in (path.parent, storage.folder, storage.folder / "incoming"):
            assert folder.stat().st_mode & 0o777 == 0o700


class TestIncomplete(StorageContract):
    """A storage with the required methods alone, as a server gets it from a plugin."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        complete, incomplete = DirectoryStorage(tmp_path / "contents"), SimpleNamespace()
        for name in ("begin", "open", "local_path", "delete", "check"):
            setattr(incomplete, name, getattr(complete, name))
        storage: Storage = KINDS["storage"].completed(incomplete)
        return storage

    def test_it_has_the_defaults_of_optional_methods(self, storage: Storage) -> None:
        assert storage.mark("first") == storage.find_mark() == NO_MARKS
        assert storage.remove_unfinished(datetime.now(UTC), False) == 0
        assert not isinstance(storage, ListsContents)


def test_a_former_protocol_is_deprecated(tmp_path: Path) -> None:
    with pytest.deprecated_call(match="is a part of Storage now"):
        from skillery.backends import KnowsRegistry  # type: ignore[attr-defined]

    assert isinstance(DirectoryStorage(tmp_path), KnowsRegistry)
    assert not isinstance(OpenAuthenticator(), KnowsRegistry)


def test_methods_that_belong_together_are_replaced_together() -> None:
    """A backend of an earlier release may have a method `close` with another meaning."""

    class Vault:
        def close(self) -> None:
            raise AssertionError

    secrets: Secrets = KINDS["secrets"].completed(Vault())

    asyncio.run(secrets.close())


def test_a_subclass_of_a_protocol_must_have_the_required_methods() -> None:
    class Half(Storage):
        def begin(self) -> Upload:
            raise AssertionError

    assert list(problems(Half(), Storage)) == [  # type: ignore[abstract]
        "lacks the method 'def open(self, digest: str) -> BinaryIO'",
        "lacks the method 'def delete(self, digest: str) -> None'",
    ]


def test_a_subclass_of_a_protocol_may_leave_out_methods_that_do_nothing() -> None:
    class Runs(Sandbox):
        capabilities = frozenset({"python"})

        def probe(self) -> list[Probe]:
            return []

        async def run(self, job: Job, host: RunHost) -> Outcome:
            raise AssertionError

    async def started(sandbox: Sandbox) -> None:
        await sandbox.start()
        await sandbox.close()

    class Stores(Storage):
        def begin(self) -> Upload:
            raise AssertionError

        def open(self, digest: str) -> BinaryIO:
            raise AssertionError

        def delete(self, digest: str) -> None:
            raise AssertionError

    assert list(problems(Runs(), Sandbox)) == list(problems(Stores(), Storage)) == []
    asyncio.run(started(Runs()))
    assert Stores().local_path("0" * 64) is None
    Stores().check()


@pytest.mark.parametrize("protocol", [Authenticator, Secrets])
def test_a_class_may_inherit_from_uses_service_too(protocol: type) -> None:
    for bases in ((UsesService, protocol), (protocol, UsesService)):
        new_class("Backend", bases)
    assert issubclass(OpenAuthenticator, UsesService)
    assert not hasattr(UsesService, "authenticate")


REQUIRED = {
    "sandbox": "capabilities probe start run close",
    "storage": "begin open local_path delete check",
    "authenticator": "loopback_only authenticate",
    "secrets": "read_only get names set remove",
    "ranker": "revision vectors hold nearest",
}


@pytest.mark.parametrize("kind", REQUIRED)
def test_a_backend_without_optional_methods_is_an_instance_of_its_protocol(kind: str) -> None:
    def method(*_: object) -> None:
        raise AssertionError

    names = REQUIRED[kind].split()
    complete, incomplete = SimpleNamespace(), SimpleNamespace()
    for name in names:
        value = False if name in {"loopback_only", "read_only"} else method
        setattr(complete, name, value)
        if name != names[0]:
            setattr(incomplete, name, value)
    protocol = KINDS[kind].protocol
    unlike = new_class("Unlike", (protocol,))

    assert isinstance(complete, protocol)
    assert not isinstance(incomplete, protocol)
    assert not isinstance(complete, unlike)
    assert isinstance(watched(kind, complete), protocol)


@pytest.mark.parametrize(("kind", "name"), [("authenticator", "loopback_only"), ("secrets", "read_only")])
def test_a_watched_backend_has_the_data_of_its_protocol(kind: str, name: str) -> None:
    # Since Python 3.12, `isinstance` with a Protocol finds only attributes of the instance and of its class.
    backend = watched(kind, SimpleNamespace(**{name: True}))

    assert getattr_static(backend, name) is True


@pytest.mark.parametrize("kind", ["sandbox", "storage", "secrets"])
def test_an_empty_name_of_a_backend_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StartupError, match=f"setting '{kind}' is '', which no plugin offers"):
        load_plugins().open(kind, msgspec.structs.replace(Settings(home=tmp_path), **{kind: ""}))


def test_a_watched_verifier_has_the_methods_of_its_service() -> None:
    class Service:
        async def start(self) -> None:
            raise StartupError("the service is away")

        async def close(self) -> None:
            return

    verifier = watched("verifier", Service())

    assert getattr_static(verifier, "start")
    assert service_problem([verifier]) == "the service is away"


def test_a_completed_backend_can_be_copied() -> None:
    storage = KINDS["storage"].completed(SimpleNamespace(folder="here"))
    made = copy.copy(storage)

    assert made.folder == "here"
    assert not hasattr(Completed.__new__(Completed), "folder")


@pytest.mark.parametrize(("is_local", "is_limited"), [(True, False), (property(lambda _: True), True), ("no", True)])
def test_reads_have_no_limit_only_if_is_local_is_true(is_local: object, is_limited: bool) -> None:
    members = {"is_local": is_local, "get": lambda *_: threading.current_thread().name}
    secrets = watched("secrets", type("Vault", (), members)())

    assert (secrets.get("A") == "plugin get") is is_limited


def test_a_contract_checks_methods_of_the_instance() -> None:
    greedy = SimpleNamespace(loopback_only=False, recognizes=lambda credentials: True)
    for authenticator in (greedy, KINDS["authenticator"].completed(greedy)):
        contract: Any = TestOpenAuthenticator()
        with pytest.raises(AssertionError):
            asyncio.run(contract.test_it_recognizes_its_own_credentials(authenticator, Credentials({}, "127.0.0.1")))


def watched(kind: str, backend: object) -> Any:
    return Watched(backend, KINDS[kind], Watch("plugin", Failures(), 60))


def test_a_host_without_optional_methods_gets_the_defaults() -> None:
    class Reader:
        async def read_blob(self, blob_id: str) -> bytes:
            return blob_id.encode() * 1_000_000

    async def sizes() -> list[int]:
        host: Any = completed_host(Reader())  # type: ignore[arg-type]
        host.progressed(Progress(1))
        size, pieces = await host.blob_pieces("b")
        assert (size, isinstance(host, FollowsLog)) == (1_000_000, False)
        return [len(piece) async for piece in pieces]

    assert asyncio.run(sizes()) == [524_288, 475_712]


class TestOpenAuthenticator(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self) -> OpenAuthenticator:
        return OpenAuthenticator()

    @pytest.fixture
    def good(self) -> Credentials:
        return Credentials({}, "127.0.0.1")


class TestDatabaseSecrets(SecretsContract):
    @pytest.fixture
    def secrets(self, database: Database, tmp_path: Path) -> DatabaseSecrets:
        return DatabaseSecrets(
            BackendValues(database, "secrets.database"), Keys("", tmp_path / "secrets.key", may_make=True)
        )

    def test_secret_value_is_not_stored_in_plaintext(self, secrets: DatabaseSecrets, database: Database) -> None:
        secrets.set("API_KEY", "the-value-itself")

        stored = database.read_now(lambda connection: connection.execute(select(tables.backend_values)).all())

        assert "the-value-itself" not in str(stored)

    def test_a_stored_value_under_another_name_is_refused(self, secrets: DatabaseSecrets, database: Database) -> None:
        secrets.set("HARMLESS", "the-value-itself")
        database.write_now(lambda connection: connection.execute(update(tables.backend_values).values(key="API_KEY")))

        with pytest.raises(Unavailable, match="another name") as refused:
            secrets.get("API_KEY")
        assert "the-value-itself" not in str(refused.value)

    def test_a_changed_token_is_refused(self, secrets: DatabaseSecrets, database: Database) -> None:
        secrets.set("API_KEY", "the-value-itself")
        token = database.read_now(lambda connection: connection.scalar(select(tables.backend_values.c.value)))
        assert token is not None
        changed = token[:40] + bytes([token[40] ^ 1]) + token[41:]
        database.write_now(lambda connection: connection.execute(update(tables.backend_values).values(value=changed)))

        with pytest.raises(Unavailable):
            secrets.get("API_KEY")

    def test_concurrent_writers_create_single_key_file(self, database: Database, tmp_path: Path) -> None:
        several = [
            DatabaseSecrets(
                BackendValues(database, "secrets.database"), Keys("", tmp_path / "secrets.key", may_make=True)
            )
            for _ in range(8)
        ]
        threads = [threading.Thread(target=one.set, args=(f"N{i}", "value")) for i, one in enumerate(several)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [several[0].get(f"N{i}") for i in range(8)] == ["value"] * 8
        assert [path.name for path in tmp_path.iterdir() if "key" in path.name] == ["secrets.key"]


class TestEnvironmentSecrets(SecretsContract):
    @pytest.fixture
    def secrets(self) -> EnvironmentSecrets:
        return EnvironmentSecrets()

    @pytest.fixture
    def put(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
        return lambda name, value: monkeypatch.setenv(f"SKILLERY_SECRET_{name}", value)
