"""The contract suites explain a failure: pytest shows the values and the rule in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import clean_environment

FAULTY = {
    "storage": (
        """
import io
from skillery.testing import StorageContract

class Shortens:
    def __init__(self): self.contents = {}
    def begin(self): return Upload(self)
    def open(self, digest): return io.BytesIO(self.contents[digest][:2])

class Upload:
    def __init__(self, storage): self.storage, self.parts = storage, []
    def write(self, chunk): self.parts.append(chunk)
    def commit(self, digest): self.storage.contents[digest] = b"".join(self.parts)

class TestShortens(StorageContract):
    @pytest.fixture
    def storage(self): return Shortens()
""",
        "test_the_same_content_twice",
        ["b'tw' == b'twice'", "Storing a content that is already stored succeeds and changes nothing."],
    ),
    "storage without renames": (
        """
from pathlib import Path
from skillery.errors import ContentMissing
from skillery.testing import StorageContract

class Overwrites:
    def __init__(self, folder): self.folder = folder
    def begin(self): return Upload(self)
    def local_path(self, digest): return self.folder / digest
    def open(self, digest):
        if not self.local_path(digest).exists(): raise ContentMissing(digest)
        return self.local_path(digest).open("rb")

class Upload:
    def __init__(self, storage): self.storage, self.parts = storage, []
    def write(self, chunk): self.parts.append(chunk)
    def commit(self, digest): self.storage.local_path(digest).write_bytes(b"".join(self.parts))

class TestOverwrites(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path): return Overwrites(tmp_path)
""",
        "test_a_crash",
        ["2 failed", "If the process ends during an upload, `open` finds the complete content or none"],
    ),
    "secrets": (
        """
from skillery.testing import SecretsContract

class Forgets:
    read_only = False
    def __init__(self): self.values = {}
    def get(self, name): return self.values.get(name, "").strip() or None
    def set(self, name, value): self.values[name] = value
    def names(self): return list(self.values)

class TestForgets(SecretsContract):
    @pytest.fixture
    def secrets(self): return Forgets()
""",
        "test_the_names_are_sorted or (stored_value and 2)",
        [
            "['B', 'a', '_C', 'A'] == ['A', 'B', '_C', 'a']",
            "`names` returns the names of all values, sorted by their characters.",
            "'spaces around' == ' spaces around '",
            "`get` returns exactly the text that was set, with all spaces, lines and characters.",
        ],
    ),
    "authenticator": (
        """
from skillery.backends import Credentials, Identity
from skillery.testing import AuthenticatorContract

class Admits:
    loopback_only = False
    async def authenticate(self, credentials): return Identity("ann", "robot")

class TestAdmits(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self): return Admits()
    @pytest.fixture
    def good(self): return Credentials({}, "127.0.0.1")
""",
        "good_credentials or loopback",
        [
            "assert 'robot' in {'agent', 'person'}",
            "Valid credentials give an Identity with a name, a known kind and known scopes.",
            "A backend that accepts callers without credentials has `loopback_only = True`.",
        ],
    ),
    "events": (
        """
from skillery.testing import EventsContract

class Expects:
    def events(self, event): event.data["version"]

class TestExpects(EventsContract):
    @pytest.fixture
    def listener(self): return Expects()
""",
        "test_members_may_be_null",
        ["KeyError: 'version'", "accepts members of `data` that are null or missing"],
    ),
    "sandbox": (
        """
from skillery.backends import Outcome
from skillery.testing import SandboxFunctions

class Invents:
    capabilities = frozenset({"python"})
    def probe(self): return []
    async def start(self): ...
    async def run(self, job, host): return Outcome(result=b"7")
    async def close(self): ...

class TestInvents(SandboxFunctions):
    @pytest.fixture
    async def sandbox(self): return Invents()
""",
        "test_null_is_a_result",
        ["b'7'", "b'null'", "The contract of skillery.testing says: Null is a result."],
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTY)
def test_a_failed_case_shows_the_rule_and_the_values(tmp_path: Path, kind: str) -> None:
    source, cases, wanted = FAULTY[kind]
    (tmp_path / "test_faulty.py").write_text(f"import pytest\n{source}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", cases],
        cwd=tmp_path,
        env=clean_environment({"COLUMNS": "200"}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    for text in wanted:
        assert text in ended.stdout, ended.stdout[-5000:]
    assert "cannot be rewritten" not in ended.stdout
