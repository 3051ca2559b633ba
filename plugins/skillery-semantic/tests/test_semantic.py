"""The ranker `semantic` with its real model, in its helper process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillery.backends import KINDS, Ranker
from skillery.errors import StartupError, Unavailable
from skillery.testing import RankerContract
from skillery.testing.contracts import TEXTS
from skillery_semantic import Semantic
from skillery_semantic.messages import SOCKET
from tests.support.processes import eventually, eventually_async

ROOT = Path(__file__).parents[3]
MODEL = ROOT / ".tools/semantic"
REASON = "the model is not installed: `make .tools/semantic/.installed` (50 MB)"
SKILLS = {
    1: "pptx\nCreate and edit PowerPoint presentations: layouts, speaker notes, charts.\npowerpoint, office",
    2: "data protection\nCheck a website against GDPR: consent banners, personal data, retention.\nprivacy, law",
    3: "cluster deploy\nRoll out services to a Kubernetes cluster without downtime.\nkubernetes, devops",
    4: "bread\nBake sourdough bread: starter, hydration, oven temperatures.\ncooking",
    5: "sql tuning\nFind slow queries of PostgreSQL and add the right indexes.\npostgres, performance",
}
QUERIES = {
    "slides for the board meeting": 1,
    "Folien für den Vorstand": 1,
    "is our cookie notice legal in Europe": 2,
    "隐私合规检查": 2,
    "publicar una nueva versión del servicio sin interrupciones": 3,
    "how hot must it be to make a loaf": 4,
    "my database takes forever to answer": 5,
}

pytestmark = pytest.mark.skipif(not (MODEL / ".installed").exists(), reason=REASON)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", f"{MODEL}{os.pathsep}{ROOT / 'plugins/skillery-semantic/src'}")
    return tmp_path


@pytest.fixture
async def ranker(home: Path) -> AsyncIterator[Ranker]:
    ranker: Ranker = KINDS["ranker"].completed(Semantic(home))
    await ranker.start()
    yield ranker
    await ranker.close()


@pytest.mark.full
class TestSemantic(RankerContract):
    @pytest.fixture(scope="class")
    def shared_home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the home of all cases. Its helper, which loads its model in a second, waits for the next case."""
        return tmp_path_factory.mktemp("helper")

    @pytest.fixture
    async def ranker(self, home: Path, shared_home: Path) -> AsyncIterator[Ranker]:
        ranker: Ranker = KINDS["ranker"].completed(Semantic(shared_home))
        await ranker.start()
        yield ranker
        await ranker.hold([(skill_id, None) for skill_id in TEXTS])
        await ranker.close()


async def hold_skills(ranker: Ranker) -> None:
    await ranker.hold(list(zip(SKILLS, await ranker.vectors(list(SKILLS.values())), strict=True)))


def helpers_of(home: Path) -> list[int]:
    """Return the pids of the helpers of a home."""
    listed = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if line.endswith(f"skillery_semantic.helper {home}")]


@pytest.mark.full
async def test_queries_find_skills_by_meaning_in_several_languages(ranker: Ranker) -> None:
    await hold_skills(ranker)

    nearest = {query: (await ranker.nearest(query, 1))[0][0] for query in QUERIES}
    assert nearest == QUERIES


@pytest.mark.full
async def test_workers_share_a_helper_until_all_have_ended(ranker: Ranker, home: Path) -> None:
    other = Semantic(home)
    await other.start()
    await hold_skills(ranker)

    assert len(helpers_of(home)) == 1
    assert (await other.nearest("sourdough", 1))[0][0] == 4
    assert stat.S_IMODE((home / SOCKET).stat().st_mode) == 0o600
    await other.close()
    await ranker.close()
    eventually(lambda: not helpers_of(home))
    assert not (home / SOCKET).exists()


@pytest.mark.full
async def test_a_killed_helper_is_replaced_and_gets_all_vectors_again(ranker: Ranker, home: Path) -> None:
    await hold_skills(ranker)
    [pid] = helpers_of(home)
    os.kill(pid, signal.SIGKILL)

    async def is_unavailable() -> bool:
        try:
            await ranker.nearest("sourdough", 1)
        except Unavailable:
            return True
        return False

    async def is_restarted() -> bool:
        try:
            await ranker.hold([])
        except Unavailable as error:  # the first call may still reach the socket of the killed helper
            return "was restarted" in str(error)
        return False

    await eventually_async(is_unavailable)
    await eventually_async(is_restarted)
    await hold_skills(ranker)
    assert (await ranker.nearest("sourdough", 1))[0][0] == 4


@pytest.mark.full
async def test_a_request_that_fails_in_the_helper_is_answered(ranker: Ranker) -> None:
    with pytest.raises(Unavailable, match="ValueError"):
        await ranker.hold([(1, b"too short")])

    await hold_skills(ranker)
    assert (await ranker.nearest("sourdough", 1))[0][0] == 4


async def test_a_helper_without_its_model_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "plugins/skillery-semantic/src"))

    with pytest.raises(StartupError, match="does not start"):
        await Semantic(tmp_path).start()
