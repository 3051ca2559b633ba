"""`skillery try`: a foreign skill is shown and run, and nothing of it stays on the computer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.test_cli import skillery, started, wait_for_run
from tests.cli.test_mirrors import GitServer
from tests.conftest import clean_environment
from tests.support.prefork import FORKED
from tests.support.processes import eventually
from tests.support.terminal import on_terminal

COUNT = "import sys\nprint('usage: count FILE' if '--help' in sys.argv else len(open(sys.argv[1]).read().split()))\n"
ALPHA = "---\nname: alpha\ndescription: Count the words of a text file.\nlicense: MIT\n---\n# Alpha\n"
BETA = "---\nname: beta\ndescription: Write a letter in plain words.\n---\n# Beta\n\nWrite short sentences.\n"
ACTION = """\
name = "net.get"
version = "1.0.0"
description = "Get a page of a host."
kind = "action"
[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"
[permissions]
network = ["https://api.example.com"]
[[examples]]
name = "adds"
expect = 2
[[examples]]
name = "asks the host"
needs_permissions = true
"""


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """Return a folder with two Agent Skills and a skill with permissions."""
    files = {
        "alpha/SKILL.md": ALPHA,
        "alpha/scripts/count.py": COUNT,
        "beta/SKILL.md": BETA,
        "net/SKILL.md": "# Net\n",
        "net/skill.toml": ACTION,
        "net/code/main.py": "def main(args):\n    return 1 + 1\n",
    }
    for name, text in files.items():
        path = tmp_path / "skills" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "skills"


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a user with an empty home and an empty folder for temporary files."""
    folders = {"HOME": "home", "TMPDIR": "temporary"}
    for folder in folders.values():
        (tmp_path / folder).mkdir()
    return {name: str(tmp_path / folder) for name, folder in folders.items()}


def left_in(own: dict[str, str]) -> list[Path]:
    return [path for folder in own.values() for path in Path(folder).rglob("*")]


def test_try_prints_the_contents_of_a_skill_and_runs_its_script(skills: Path, tmp_path: Path) -> None:
    shown = skillery("try", str(skills / "alpha"), "--home", str(tmp_path / "home"))

    assert shown.code == 0, shown.err
    assert "skill: alpha 1.0.0\n" in shown.out
    assert "license: MIT\ncontains: 2 files, 1 of them code, 1 kB\nnetwork: none\nsecrets: none\n" in shown.out
    assert "script: scripts/count.py --help\nexit code: 0 in " in shown.out
    assert "\nstdout: usage: count FILE\n" in shown.out
    assert not (tmp_path / "home").exists()


@pytest.mark.full
def test_try_leaves_no_file_in_the_home_and_in_the_temporary_folder(skills: Path, own: dict[str, str]) -> None:
    words = ("try", str(skills), "--script", "scripts/count.py", "--", "/skills/alpha/SKILL.md")
    tried = started(words, clean_environment(own))

    assert tried.code == 0, tried.err
    assert tried.out.startswith("skills: 3: alpha, beta, net (--skill NAME chooses one)\n")
    assert f"stdout: {len(ALPHA.split())}\n" in tried.out
    assert left_in(own) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_try_leaves_no_file(skills: Path, own: dict[str, str], number: signal.Signals) -> None:
    (skills / "alpha" / "scripts" / "count.py").write_text("import time\ntime.sleep(600)\n")
    # A shell starts commands in the background with SIGINT ignored.
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "skillery"]
    command = [*(ignoring if number == signal.SIGTERM else [FORKED]), "try", str(skills / "alpha")]
    with subprocess.Popen(command, env=clean_environment(own), stderr=subprocess.PIPE) as process:
        home = eventually(lambda: next(Path(own["TMPDIR"]).glob("*/skillery.db"), None), of=process).parent
        wait_for_run(home, process)
        process.send_signal(number)
        process.communicate()

    assert process.returncode == 130
    assert left_in(own) == []


@pytest.mark.full
@pytest.mark.parametrize("words", [("run", "{}/", "--arg", "text=x"), ("test", "{}")])
def test_a_terminated_command_leaves_no_file(words: tuple[str, ...], own: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "greet"
    assert skillery("new", str(folder)).code == 0
    (folder / "code" / "main.py").write_text("import time\n\ndef main(args):\n    time.sleep(600)\n")
    command = [FORKED, *(word.format(folder) for word in words)]
    with subprocess.Popen(command, env=clean_environment(own), stderr=subprocess.PIPE) as process:
        eventually(lambda: any(Path(own["TMPDIR"]).iterdir()), of=process)
        process.terminate()
        process.communicate()

    assert process.returncode == 130
    assert list(Path(own["TMPDIR"]).iterdir()) == []


@pytest.mark.full
def test_try_gives_files_to_a_script(skills: Path, tmp_path: Path) -> None:
    (tmp_path / "form.txt").write_text("one two three")
    words = ("--script", "scripts/count.py", "--file", str(tmp_path / "form.txt"), "--", "form.txt")
    shown = skillery("try", str(skills / "alpha"), "--home", str(tmp_path / "home"), *words)

    assert shown.code == 0, shown.err
    assert "stdout: 3\n" in shown.out


@pytest.mark.full
def test_try_grants_no_permissions(skills: Path, tmp_path: Path) -> None:
    shown = skillery("try", str(skills), "--skill", "net", "--home", str(tmp_path / "home"))

    assert shown.code == 0, shown.err
    assert "network: https://api.example.com (not in this trial)\n" in shown.out
    assert "examples: 1 passed, 1 need permissions\nexample: adds\ncompleted: in " in shown.out
    assert "\noutput: 2\n" in shown.out


@pytest.mark.full
def test_try_lists_the_tools_of_a_skill_and_runs_their_examples(tmp_path: Path) -> None:
    assert skillery("new", str(tmp_path / "count"), "--kind", "tools", "--name", "count").code == 0

    shown = skillery("try", str(tmp_path / "count"), "--home", str(tmp_path / "home"), "--json")

    assert (shown.json["tools"], shown.json["examples"]) == ("count_words", "2 passed")
    assert shown.json["run"]["output"] == {"count": 2}


@pytest.mark.full
def test_try_prints_the_instructions_of_a_skill_without_code(skills: Path, tmp_path: Path) -> None:
    shown = skillery("try", str(skills), "--skill", "beta", "--home", str(tmp_path / "home"))

    assert shown.code == 0, shown.err
    assert "contains: 1 file, 0 of them code, 1 kB\n" in shown.out
    assert "# Beta\n  \n  Write short sentences.\n" in shown.out


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("skills", "--skill", "gamma"), 2, "has no skill 'gamma', only 4: alpha, beta, broken, net"),
        (("skills/alpha/scripts",), 2, "no folder in it has a SKILL.md"),
        (("nowhere",), 2, "neither a folder nor the https address of a git repository"),
        (("skills/alpha", "--", "x"), 2, "'x' requires --script PATH"),
        (("skills/alpha", "--script", "scripts/no.py"), 3, "scripts/no.py"),
        (("http://example.com/x.git",), 3, "is not encrypted"),
        (("skills/broken",), 1, "SKILL.md"),
    ],
)
def test_try_reports_invalid_arguments_and_skills(
    skills: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (skills / "broken").mkdir()
    (skills / "broken" / "skill.toml").write_text(ACTION)
    source, *more = arguments
    source = source if "//" in source else str(tmp_path / source)
    ended = skillery("try", source, "--home", str(tmp_path / "home"), *more)

    assert (ended.code, message in ended.err) == (code, True), ended.err


@pytest.mark.full
def test_try_names_the_remedy_for_a_bare_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "x.git")], check=True)
    ended = skillery("try", str(tmp_path / "x.git"))

    assert (ended.code, f"git clone {tmp_path}/x.git DIR" in ended.err) == (2, True)


@pytest.mark.full
def test_try_takes_a_git_repository(skills: Path, own: dict[str, str], tmp_path: Path) -> None:
    git = ["git", "-C", str(skills), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    handler = type("Served", (GitServer,), {"folder": tmp_path})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/skills"
        tried = started(("try", url, "--skill", "alpha"), clean_environment(own))
        server.shutdown()

    assert tried.code == 0, tried.err
    assert "stdout: usage: count FILE\n" in tried.out
    assert left_in(own) == []


@pytest.mark.full
def test_names_of_foreign_files_control_no_terminal(skills: Path) -> None:
    (skills / "beta").rename(skills / "b\x1b[2Jc")
    code, shown = on_terminal("try", str(skills), "--skill", "none", columns=200)
    assert code == 2
    assert "b\\x1b[2Jc" in shown
    assert "\x1b[2J" not in shown
