"""The shell blocks (```sh) of the README and of the tutorial run in the printed order, in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import ASKS_FOR_TOKENS, IMPORT_CHECK, Rpc, Server, clean_environment
from tests.support.fake_model import FakeModel, Heard, Wanted
from tests.support.prefork import PROGRAMS
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]
PRINTED_ADDRESS = "http://127.0.0.1:8080"


def blocks_of(page: str, section: str = "") -> list[str]:
    """Return the shell blocks of a page, or of the section with this heading."""
    text = (ROOT / page).read_text("utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks, (page, section)
    return blocks


def script_of(page: str, url: str) -> str:
    """Return the joined shell blocks of a page, with the address of the server under test."""
    return "".join(blocks_of(page)).replace(PRINTED_ADDRESS, url)


def run_page(page: str, server: Server, folder: Path, **more: str) -> str:
    """Run the page as a user of the server's home and return the output. Any failing command fails the test."""
    return run_as_user(script_of(page, server.url), server, folder, **more)


def run_as_user(script: str, server: Server, folder: Path, **more: str) -> str:
    """Run a script as a user of the server's home and return the output. Any failing command fails the test."""
    environment = {
        "SKILLERY_HOME": str(server.home),
        "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
        **more,
    }
    ended = run_script(script, folder, environment)
    assert ended.returncode == 0, f"{script[:200]}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    return ended.stdout + ended.stderr


def run_script(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script with Bash. Fail if it prints nothing for a long time. Processes that it has started end with it."""
    printed = [folder.with_name("stdout"), folder.with_name("stderr")]
    with printed[0].open("w") as stdout, printed[1].open("w") as stderr:
        command = ["bash", "-euo", "pipefail", "-c", script]
        environment = clean_environment(environment)
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
        )
    bytes_seen = 0

    def has_more() -> bool:
        return process.poll() is not None or sum(path.stat().st_size for path in printed) > bytes_seen

    try:
        while process.poll() is None:
            eventually(has_more)
            bytes_seen = sum(path.stat().st_size for path in printed)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.wait(), *(path.read_text() for path in printed))


@pytest.mark.full
@pytest.mark.long
def test_the_plugin_guide_runs_from_package_to_server_and_back(folder: Path, tmp_path: Path) -> None:
    # The server chooses a free port, and prints it.
    script = script_of("docs/guide/plugins.md", "$(grep --only-matching --max-count=1 'http://[0-9.:]*' server.log)")
    environment = {
        "SKILLERY_HOME": str(tmp_path / "home"),
        "SKILLERY_PORT": "0",
        "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
    }
    ended = run_script(script, folder, environment)
    printed = ended.stdout

    assert ended.returncode == 0, f"{printed[-3000:]}\n{ended.stderr[-3000:]}"
    assert " passed in " in printed
    assert 'plugins.notes.file\t"events.jsonl"\trequired' in printed
    assert '"type":"published"' in printed
    assert "SKILL.md: finish this first" in ended.stderr, ended.stderr
    before, _, after = printed.partition("refused with exit code 3")
    assert "skillery_notes" in before
    assert "published greet 0.1.1 " in after
    assert "skillery_notes" not in after
    assert len((folder / "skillery-notes" / "events.jsonl").read_text().splitlines()) > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    empty = tmp_path / "empty"
    empty.mkdir()
    return empty


@pytest.mark.smoke
@pytest.mark.long
def test_the_readme_runs_in_order(start_server: Callable[..., Server], folder: Path) -> None:
    server = start_server(env=IMPORT_CHECK)
    printed = run_page("README.md", server, folder)
    # The commands of the page are forked. The installed program is started once.
    command = [str(Path(sys.executable).with_name("skillery")), "list", "--home", str(server.home)]
    listed = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True).stdout

    assert listed in printed
    assert "4993 rows, 13 columns" in printed
    assert (folder / "skills" / "text.csv.profile" / "SKILL.md").is_file()


def lists(_: Sequence[Heard]) -> Sequence[Wanted]:
    return [Wanted("list_skills", {"namespace": "team"})]


def runs(heard: Sequence[Heard]) -> Sequence[Wanted]:
    name = heard[-1].content["skills"][0]["name"]
    return [Wanted("execute_skill", {"name": name, "args": {"text": "the cat and the hat"}})]


def ends(heard: Sequence[Heard]) -> str:
    return f"The text has {heard[-1].content['output']['words']} words."


@pytest.mark.full
@pytest.mark.long
def test_the_tutorial_runs_from_first_skill_to_reviewed_version(
    start_server: Callable[..., Server], folder: Path
) -> None:
    server = start_server(env=IMPORT_CHECK)
    first = run_page("docs/tutorial/1-first-skill.md", server, folder)
    second = run_page("docs/tutorial/2-versions.md", server, folder)
    with FakeModel(lists, runs, ends) as model:
        third = run_page(
            "docs/tutorial/3-agent.md",
            server,
            folder,
            SKILLERY_URL=server.url,
            OPENAI_BASE_URL=f"{model.url}/v1",
            OPENAI_API_KEY="none",
        )
        assert model.turns == []
    server.stop()
    fourth = run_page("docs/tutorial/4-review.md", start_server(env=ASKS_FOR_TOKENS), folder)

    assert "exit code 1" in first
    assert "refused: exit code 3" in second
    assert "The text has 5 words." in third
    assert "in_review" in fourth
    assert "approve_version" in fourth


PROOF = "docs/guide/proof.md"


@pytest.mark.full
@pytest.mark.long
def test_the_story_of_a_reviewer_publishes_after_two_approvals(
    start_server: Callable[..., Server], folder: Path, tmp_path: Path
) -> None:
    [policy] = re.findall(r"^```toml\n(.*?)^```", (ROOT / PROOF).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(policy)
    server = start_server(env={**IMPORT_CHECK, **ASKS_FOR_TOKENS})
    printed = run_as_user("".join(blocks_of(PROOF, "The story of a reviewer")), server, folder)

    assert "0 of 2 approvals" in printed
    assert "still missing: 1 of 2 approvals" in printed
    assert "signed with sha256:" in printed
    assert "policy payments.*: passed" in printed


@pytest.mark.full
@pytest.mark.long
def test_the_story_of_an_auditor_ends_without_a_server(start_server: Callable[..., Server], folder: Path) -> None:
    server = start_server(env={**ASKS_FOR_TOKENS, "SKILLERY_SEALS_SECONDS": "0.3"})
    token = run_as_user("skillery token create --name agent --agent --scope read,run", server, folder).split()[0]
    runs, exports, verifies, sums = blocks_of(PROOF, "The story of an auditor")
    run_as_user(runs, server, folder, SKILLERY_TOKEN=token)
    agent = Rpc(server.url, token)
    [run] = agent("list_runs")["runs"]
    eventually(lambda: "result" in agent.send("get_run_statement", {"run_id": run["run_id"]}))
    run_as_user(exports.replace(PRINTED_ADDRESS, server.url), server, folder, SKILLERY_TOKEN=token)
    server.stop()
    printed = run_as_user(verifies, server, folder)

    assert f"ok\t{run['run_id']}\tcompleted\tagent\ttext.csv.profile@1.0.0\t" in printed
    assert "skillery.lock: 1 skill is verified" in printed
    assert run_as_user(sums, server, folder) == "profile.files: OK\norders.csv: OK\n"
    statement = folder / "runs.jsonl"
    content = statement.read_bytes()
    statement.write_bytes(content.replace(b'"sig":"', b'"sig":"A', 1))
    refused = run_script(verifies, folder, {"SKILLERY_HOME": str(server.home), "PATH": f"{PROGRAMS}:/usr/bin:/bin"})
    assert (refused.returncode, "FAILED" in refused.stdout) == (1, True), refused.stderr
