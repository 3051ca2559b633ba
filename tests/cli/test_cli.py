"""The command `skillery` as a process: on a home directly, and with a server."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from skillery.app.home import Home
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.cli import commands
from skillery.cli.verbs import Verb
from skillery.database import Database, migrate
from skillery.maintenance.backup_archives import FORMAT, ArchiveHead, ArchiveWriter
from skillery.maintenance.backup_stores import BackupStore, Document
from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.support.durations import shared_work
from tests.support.forms import ROOT, rounds
from tests.support.parallel import is_first
from tests.support.prefork import FORKED, prefork
from tests.support.processes import eventually

HEAVY = ("litestar", "sqlalchemy", "alembic", "httpx", "rich", "asyncio", "uvicorn", "psycopg", "yaml", "packaging")
ADDER = "def main(args):\n    print('adding')\n    return args['a'] + args['b']\n"
BINARY = bytes(range(256)) * 900


GROUPS = {name for name, command in commands.commands.items() if isinstance(command, click.Group)}


class Ended:
    """The result of a finished command: exit code, stdout and stderr."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.raw = process.stdout
        self.out = process.stdout.decode("utf-8", "replace")
        self.err = process.stderr.decode()
        assert "Traceback" not in self.err or "/run/" in self.err, self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def skillery(*arguments: str, stdin: bytes = b"", **variables: str) -> Ended:
    """Run a forked command: see tests/support/prefork.py.

    In `make test-all`, the first use of each verb starts a process, which has imported nothing.
    """
    environment = clean_environment({"NO_COLOR": "1", **variables})
    if any(name.startswith("PYTHON") for name in variables):
        return started(arguments, environment, stdin)
    if rounds(0, long=1) and is_first(verb(arguments)):
        with shared_work():  # it proves the start of the verb for all tests
            return started(arguments, environment, stdin)
    return Ended(prefork().run(arguments, environment, stdin))


def started(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdin: bytes = b"",
    *program: str,
) -> Ended:
    command = [*(program or (sys.executable, "-m", "skillery")), *arguments]
    return Ended(subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=300, check=False))


def verb(arguments: Sequence[str]) -> str:
    """Return the verb of a command line, for example `list` or `token create`."""
    words = itertools.takewhile(lambda word: not word.startswith("-"), arguments)
    return " ".join(itertools.islice(words, 2 if arguments[:1] and arguments[0] in GROUPS else 1))


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


@pytest.fixture(scope="module")
def served(sqlite_server: Server) -> Callable[..., Ended]:
    """Return a function that runs a command on the home of a running server."""

    def call(*arguments: str, **more: Any) -> Ended:
        return skillery(*arguments, "--home", str(sqlite_server.home), **more)

    return call


@pytest.fixture
def skill_folder(tmp_path: Path, new_name: str) -> Path:
    folder = tmp_path / new_name  # an import stores the folder's name as its source
    (folder / "code").mkdir(parents=True)
    (folder / "resources").mkdir()
    (folder / "skill.toml").write_text(
        f'name = "{new_name}.add"\nversion = "1.0.0"\ndescription = "Adds."\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
    )
    (folder / "SKILL.md").write_text("# Add\n\nAdds a and b. Größe: ein Umlaut.\n")
    (folder / "code" / "main.py").write_text(ADDER)
    (folder / "resources" / "table.bin").write_bytes(BINARY)
    return folder


# -- the command line ------------------------------------------------------------------------------------------------


def test_version_and_help_import_no_heavy_modules() -> None:
    code = (
        "import sys\nfrom skillery.cli import commands\n"
        "commands.main(['--version'], standalone_mode=False)\n"
        "commands.main(['yank', '--help'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines()[0].startswith("skillery 0.")
    assert "  Withdraw a published version. " in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.full
def test_forked_and_started_commands_behave_the_same(home: str, tmp_path: Path) -> None:
    """The other tests of this module use forked commands, so forked and started commands must behave the same."""
    environment = clean_environment({"SKILLERY_HOME": home, "NO_COLOR": "1"})
    for arguments, stdin in (
        (["list", "--json"], b""),
        (["read", "no.such"], b""),
        (["code", "-"], b"def main(args):\n    print('\xc3\xbc')\n    raise KeyError(1)\n"),
        (["config", "--json"], b""),
        (["serve", "--host", "0.0.0.0"], b""),
    ):
        one, other = started(arguments, environment, stdin), Ended(prefork().run(arguments, environment, stdin))
        third = started(arguments, environment, stdin, FORKED)
        assert (one.code, stable(one.out), stable(one.err)) == (other.code, stable(other.out), stable(other.err))
        assert (one.code, stable(one.out), stable(one.err)) == (third.code, stable(third.out), stable(third.err))


@pytest.mark.full
def test_a_forked_command_gets_signals_and_ends_with_its_client(home: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef main(args):\n    time.sleep(600)\n")
    ends = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        command = [FORKED, "code", str(slow), "--home", f"{home}-{number}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=clean_environment()) as client:
            wait_for_run(Path(f"{home}-{number}"), client)
            client.send_signal(number)
            client.communicate()  # until the command has closed its stdout
            ends[number] = client.returncode

    assert ends == {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}


def stable(said: str) -> str:
    """Return the text without homes, ids, times of statements and durations, which differ between runs."""
    return re.sub(
        r"(?<=in the home )\S+|(?:run|att)_[0-9A-Za-z_-]+|(?<=\"at\": \")[^\"]+|\d+(\.\d+)? ?ms|(?<=_ms\": )[\d.]+",
        "…",
        said,
    )


def test_the_help_lists_25_verbs_and_its_groups_all_others() -> None:
    said = skillery("--help").out
    shown = set(re.findall(r"^  ([a-z]+) ", said.partition("skills:")[2].partition("Plugins:")[0], re.MULTILINE))
    groups = {name: commands.commands[name] for name in ("review", "admin", "more")}
    grouped = {name for group in groups.values() if isinstance(group, click.Group) for name in group.commands}

    assert len(shown) <= 25
    assert "...\n" not in said.partition("skills:")[2], "no summary of a command is cut"
    assert {"publish", "list", "describe", "run", "code", "serve", "use"} <= shown
    assert shown | grouped == commands.commands.keys()
    assert not shown & grouped
    assert "130" in said
    assert skillery("admin", "config", "show", "--json").json == skillery("config", "show", "--json").json


@pytest.mark.full
def test_opening_a_home_imports_no_unused_modules(home: str) -> None:
    unused = ("pydantic", "attrs", "opentelemetry", "jinja2", "psycopg", "greenlet")
    code = (
        "import sys\nfrom skillery.cli import commands\n"
        f"commands.main(['list', '--home', {home!r}], standalone_mode=False)\n"
        f"print([name for name in {unused!r} if name in sys.modules], file=sys.stderr)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stderr == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("lisst",),
        ("list", "--nope"),
        ("run",),
        ("run", "x", "--arg", "novalue"),
        ("run", "x", "--args-json", "[1]"),
        ("run", "x", "--blob", "/no/such/file"),
        ("run", "x@1", "--version", "2"),
        ("blob", "put", "/no/such/file"),
        ("list", "--url", "ftp://example.org"),
        ("list", "--all", "--limit", "3"),
        ("serve", "--port", "65536"),
    ],
)
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    ended = skillery(*arguments)

    assert ended.code == 2
    assert "Error:" in ended.err
    assert ended.out == ""


def test_wrong_usage_is_json_with_the_json_option() -> None:
    ended = skillery("list", "--nope", "--json")

    assert ended.code == 2
    assert ended.json["error"]["data"]["type"] == "usage"


def test_a_server_that_cannot_be_reached_exits_4() -> None:
    plain = skillery("list", "--url", "http://127.0.0.1:1")
    as_json = skillery("list", "--url", "http://127.0.0.1:1", "--json")

    assert plain.code == as_json.code == 4
    assert plain.err.startswith("error: cannot connect to http://127.0.0.1:1")
    assert "cannot connect" in as_json.json["error"]["message"]


def test_a_server_that_is_no_skillery_is_recognised() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>hello</h1>")

        def log_message(self, *_: Any) -> None: ...

    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        ended = skillery("list", "--url", f"http://127.0.0.1:{other.server_port}")
    finally:
        other.shutdown()
        other.server_close()

    assert ended.code == 3
    assert "--url" in ended.err


def test_a_closed_pipe_is_silent(sqlite_server: Server) -> None:
    command = f"'{sys.executable}' -m skillery list --json --home '{sqlite_server.home}' | head -c 1"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=clean_environment(), check=False
    )

    assert ended.stdout == "{"
    assert ended.stderr == ""


@pytest.mark.smoke
def test_ctrl_c_exits_130_and_leaves_no_run_behind(home: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef main(args):\n    time.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "skillery", "code", str(slow), "--home", home],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        process_group=0,
    )
    wait_for_run(Path(home), process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)

    assert (process.returncode, out) == (130, b"")
    assert re.fullmatch(rb"cancelled run_\w+\n", err), err
    with sqlite3.connect(Path(home) / "skillery.db") as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("failed",)]


@pytest.mark.full
def test_ctrl_c_at_any_time_leaves_no_run_open(home: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef main(args):\n    time.sleep(600)\n")
    for milliseconds in (0, 6, 25):
        command = [FORKED, "code", str(slow), "--home", home]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=clean_environment(), **quiet)  # type: ignore[call-overload]
        wait_for_run(Path(home), process)
        time.sleep(milliseconds / 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130

    with sqlite3.connect(Path(home) / "skillery.db") as connection:
        assert connection.execute("SELECT DISTINCT status FROM runs").fetchall() == [("failed",)]


def wait_for_run(home: Path, process: subprocess.Popen[bytes]) -> None:
    def has_started() -> bool:
        if not (home / "skillery.db").exists():
            return False
        with sqlite3.connect(home / "skillery.db") as connection:
            return bool(
                connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchall()
                and connection.execute("SELECT 1 FROM runs WHERE status = 'started'").fetchall()
            )

    eventually(has_started, of=process)


# -- without a server ------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_without_a_server_a_command_works_on_the_home_by_itself(home: str, skill_folder: Path, new_name: str) -> None:
    published = skillery("publish", str(skill_folder), "--home", home)
    listed = skillery("list", "--home", home)
    ran = skillery("run", f"{new_name}.add", "--arg", "a=2", "--arg", "b=3", "--home", home, "--json")

    assert published.code == listed.code == ran.code == 0
    assert published.out == f"published {new_name}.add 1.0.0 in the home {home}\n"
    assert f"{new_name}.add\t1.0.0\taction\tAdds." in listed.out.splitlines()
    assert ran.json["output"] == 5
    assert ran.json["logs_preview"] == "adding\n"


@pytest.mark.full
def test_without_a_server_an_error_of_a_method_is_reported_as_usual(home: str) -> None:
    ended = skillery("describe", "no.such.skill", "--home", home)

    assert ended.code == 3
    assert "no.such.skill" in ended.err


@pytest.mark.full
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_verb_prints_the_same_with_and_without_a_server(
    served: Callable[..., Ended], home: str, skill_folder: Path, new_name: str, form: tuple[str, ...]
) -> None:
    name = f"{new_name}.add"
    for arguments in (
        ["publish", str(skill_folder)],
        ["list", "--namespace", new_name],
        ["describe", name, "--detail", "full"],
        ["read", name, "SKILL.md"],
        ["read", name, "nope"],
        ["run", name, "--arg", "a=2", "--arg", "b=3"],
        ["import", str(skill_folder)],
        ["blob", "get", "blob:none", *(["-o", "x"] if form else [])],
    ):
        one, other = served(*arguments, *form), skillery(*arguments, *form, "--home", home)
        assert (one.code, stable(one.out), stable(one.err)) == (other.code, stable(other.out), stable(other.err))


@pytest.mark.full
def test_concurrent_commands_on_a_home_wait_for_each_other(home: str) -> None:
    command = [FORKED, "list", "--home", home, "--json"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        for _ in range(3)
    ]
    ended = [process.communicate(timeout=300) for process in started]

    assert [process.returncode for process in started] == [0, 0, 0], ended
    assert len({out for out, _ in ended}) == 1


HOLD_AGAIN_AND_AGAIN = """
import random, sys, time
from pathlib import Path
from skillery.app.home import Home
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.errors import StartupError
print("ready", flush=True)
end = time.monotonic() + 20
while time.monotonic() < end:
    try:
        home = Home(Path(sys.argv[1]))
    except StartupError:  # the command holds it
        continue
    time.sleep(random.uniform(0.01, 0.03))
    home.close()
    time.sleep(random.uniform(0, 0.01))
"""


@pytest.mark.full
def test_commands_succeed_while_another_process_repeatedly_holds_the_home(home: str) -> None:
    skillery("list", "--home", home)
    command = [sys.executable, "-c", HOLD_AGAIN_AND_AGAIN, home]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        ended = [skillery("list", "--home", home) for _ in range(4)]
        other.kill()

    assert [(one.code, one.err) for one in ended] == [(0, "")] * 4


@pytest.mark.full
def test_a_blob_goes_round_without_a_server(home: str) -> None:
    put = skillery("blob", "put", "-", "--kind", "application/x-thing", "--home", home, stdin=BINARY)
    got = skillery("blob", "get", put.out.strip(), "--home", home)

    assert put.out.startswith("blob:")
    assert got.raw == BINARY


# -- with a server ---------------------------------------------------------------------------------------------------


def test_published_files_come_back_byte_for_byte(
    served: Callable[..., Ended], skill_folder: Path, new_name: str
) -> None:
    first = served("publish", str(skill_folder), "--json")
    again = served("publish", str(skill_folder), "--json")
    text = served("read", f"{new_name}.add", "SKILL.md")
    binary = served("read", f"{new_name}.add@1.0.0", "resources/table.bin")
    missing = served("read", f"{new_name}.add", "nope")

    assert [{**first.json[0], "unchanged": True}] == again.json
    assert first.json[0]["name"] == f"{new_name}.add"
    assert text.raw == (skill_folder / "SKILL.md").read_bytes()
    assert binary.raw == BINARY
    assert missing.code == 3
    assert missing.err.startswith("error: ")
    assert "\nhint: The files are SKILL.md, " in missing.err


def test_a_skill_is_described_as_text_and_as_json(
    served: Callable[..., Ended], skill_folder: Path, new_name: str
) -> None:
    assert served("publish", str(skill_folder)).code == 0

    plain = served("describe", f"{new_name}.add", "--detail", "full")
    as_json = served("describe", f"{new_name}.add", "--version", "^1.0", "--detail", "full", "--json")

    assert f"name: {new_name}.add\nversion: 1.0.0\n" in plain.out
    assert "\nresources/table.bin\t230400\t-\t" in plain.out
    assert "Größe" in plain.out
    assert as_json.json["skill"]["manifest"]["description"] == "Adds."


def test_lists_warn_of_deprecated_skills_and_visibility_is_confirmed(
    served: Callable[..., Ended], skill_folder: Path, new_name: str
) -> None:
    name = f"{new_name}.add"
    assert served("publish", str(skill_folder)).code == 0
    assert served("deprecate", name, "--message", "too slow", "--successor", "text.csv.query").code == 0

    for listed in (served("list", "--namespace", new_name), served("search", "adds", "--namespace", new_name)):
        assert listed.err == f"warning: {name}: deprecated: too slow. Use 'text.csv.query' instead.\n"
    done = served("visibility", name, "private")
    assert done.out.startswith(f"{name} is visible to its publishers, reviewers and admins")


@pytest.mark.full
def test_list_and_search_take_the_filters_of_the_catalogue(
    served: Callable[..., Ended], sqlite_rpc: Rpc, new_name: str
) -> None:
    """Options of booleans have both values, and a filter that is not given selects nothing."""
    for name, licence, hosts in (("far", "own terms", ["https://x.example"]), ("near", "MIT", [])):
        description = f"Sums {name} rows of {new_name}."
        skill = manifest(f"{new_name}.{name}", description=description, permissions={"network": hosts})
        text = f"---\nname: {name}\ndescription: Sums {name} rows.\nlicense: {licence}\n---\n# Sum\n"
        sqlite_rpc("create_skill", manifest=skill, skill_md=text, files=skill_files())

    selected = {
        (): ["far", "near"],
        ("--contains", "action"): ["far", "near"],
        ("--contains", "scripts"): [],
        ("--network",): ["far"],
        ("--no-network", "--no-reviewed"): ["near"],
        ("--licence", "MIT"): ["near"],
        ("--reviewed",): [],
    }
    for options, names in selected.items():
        for command in (("list",), ("search", new_name)):
            listed = served(*command, "--namespace", new_name, *options, "--json")
            skills = sorted(skill["name"] for skill in listed.json["skills"])
            assert skills == [f"{new_name}.{name}" for name in names], (command, options, listed.err)


@pytest.mark.full
def test_describe_prints_a_line_for_each_input(home: str) -> None:
    printed = skillery("describe", "text.csv.profile", "--home", home).out

    line = "  has_header   boolean  Whether the first row names the columns (default true)\n"
    assert line in printed
    assert "\nexamples: an uploaded CSV; the first hundred rows of the bundled orders; no CSV\n" in printed


def test_publish_says_that_an_unchanged_folder_is_unchanged(
    served: Callable[..., Ended], sqlite_server: Server, skill_folder: Path, new_name: str
) -> None:
    printed = [served("publish", str(skill_folder)).out for _ in range(2)]
    dry = served("publish", str(skill_folder), "--dry-run")

    assert printed[0] == f"published {new_name}.add 1.0.0 in the home {sqlite_server.home}\n"
    assert printed[1] == f"unchanged {new_name}.add 1.0.0 in the home {sqlite_server.home}\n"
    assert dry.out.endswith(" would be unchanged\n")


def test_publish_lists_every_problem_with_its_place(
    served: Callable[..., Ended], skill_folder: Path, tmp_path: Path, new_name: str
) -> None:
    broken = tmp_path / "broken"
    (broken / "code").mkdir(parents=True)
    (broken / "skill.toml").write_text('name = "Not A Name"\nversion = "one"\ndescription = "d"\n')
    (broken / "SKILL.md").write_text("# Broken\n")
    unparsable = tmp_path / "unparsable"
    unparsable.mkdir()
    (unparsable / "skill.toml").write_text('name = "x"\nversion =\n')
    (unparsable / "SKILL.md").write_text("# Unparsable\n")

    plain = served("publish", str(broken), str(unparsable), str(skill_folder))
    as_json = served("publish", str(broken), str(tmp_path / "absent"), "--json")

    assert plain.code == as_json.code == 3
    assert plain.out.startswith(f"published {new_name}.add 1.0.0 "), "a refused skill does not stop the other skills"
    assert "\n  name: 'Not A Name'" in plain.err
    assert "\n  version: 'one'" in plain.err
    assert plain.err.count("skill.toml:2: ") == 1, "one problem is reported once, with its line"
    paths = [problem["path"] for problem in as_json.json[0]["error"]["data"]["problems"]]
    assert {"name", "version"} <= set(paths)
    assert "absent" in as_json.json[1]["error"]["message"]


def test_code_that_does_not_compile_is_named_with_file_and_line(
    served: Callable[..., Ended], skill_folder: Path
) -> None:
    (skill_folder / "code" / "main.py").write_text("x = 1\ndef main(args)\n    return 1\n")

    ended = served("publish", str(skill_folder))

    assert ended.code == 3
    assert ended.err.count("does not compile") == ended.err.count(": code/main.py:2: ") == 1


def test_every_page_is_listed_with_all(served: Callable[..., Ended]) -> None:
    everything = served("list", "--all", "--json").json
    first = served("list", "--limit", "2", "--json").json
    second = served("list", "--limit", "2", "--cursor", first["next_cursor"], "--json").json
    plain = served("list", "--limit", "1")

    assert everything["next_cursor"] is None
    assert everything["skills"][:4] == first["skills"] + second["skills"]
    assert len(plain.out.splitlines()) == 1
    assert "--cursor" in plain.err


def test_a_namespace_can_be_listed_with_its_tags(served: Callable[..., Ended]) -> None:
    listed = served("list", "--namespace", "skills", "--detail", "summary", "--json").json["skills"]

    assert [row["name"] for row in listed] == ["skills.protocol.guide"]
    assert listed[0]["tags"] == ["guide", "bootstrap"]


def test_a_blob_goes_round_with_a_server(served: Callable[..., Ended], tmp_path: Path) -> None:
    source = tmp_path / "data.csv"
    source.write_bytes(BINARY * 5)
    target = tmp_path / "out" / "copy.csv"
    target.parent.mkdir()

    put = served("blob", "put", str(source), "--json").json
    got = served("blob", "get", put["blob_id"], "-o", str(target), "--json").json
    to_stdout = served("blob", "get", put["blob_id"])

    assert (put["kind"], put["size_bytes"]) == ("text/csv", len(BINARY) * 5)
    assert put.pop("expires_at")
    assert got == {**put, "path": str(target)}
    assert target.read_bytes() == to_stdout.raw == BINARY * 5


def test_a_blob_that_is_not_there_leaves_no_file(served: Callable[..., Ended], tmp_path: Path) -> None:
    ended = served("blob", "get", "blob:nope", "-o", str(tmp_path / "out"))

    assert ended.code == 3
    assert "blob:nope" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_code_gets_args_from_json_text_files_and_blobs(served: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("two\nlines")
    (tmp_path / "data=1.bin").write_bytes(b"12345")
    code = "from runtime import blobs\ndef main(args):\n    return [args, len(blobs.read_bytes(args['data']))]\n"

    ended = served(
        *(
            "code",
            "-",
            "--json",
            "--args-json",
            '{"list": [1], "number": 1}',
            "--arg",
            "number=2.5",
            "--arg",
            "text=a=b",
        ),
        *(
            "--arg",
            'quoted="1"',
            "--arg",
            f"file=@{tmp_path / 'note.txt'}",
            "--blob",
            f"data={tmp_path / 'data=1.bin'}",
        ),
        stdin=code.encode(),
    )

    args, size = ended.json["output"]
    assert size == 5
    assert args.pop("data").startswith("blob:")
    assert args == {"list": [1], "number": 2.5, "text": "a=b", "quoted": "1", "file": "two\nlines"}


def test_a_failed_run_exits_1_with_its_reason_and_logs_on_stderr(served: Callable[..., Ended], tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text("def main(args):\n    print('so far')\n    raise KeyError('missing \\x1b[31m')\n")

    plain = served("code", str(file))
    as_json = served("code", str(file), "--json")

    assert plain.code == as_json.code == 1
    assert plain.out == ""
    assert "failed: KeyError" in plain.err
    assert "so far" in plain.err
    assert "\x1b" not in plain.err
    assert as_json.json["error"]["type"] == "KeyError"


def test_a_run_past_its_time_fails(served: Callable[..., Ended], tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef main(args):\n    time.sleep(600)\n")

    ended = served("code", str(file), "--timeout-ms", "300", "--json")

    assert ended.code == 1
    assert ended.json["error"]["type"] == "TimeoutError"


def test_code_accepts_mounted_skills_and_blob_ids(
    served: Callable[..., Ended], skill_folder: Path, new_name: str
) -> None:
    assert served("publish", str(skill_folder)).code == 0
    blob_id = served("blob", "put", "-", stdin=b"7").out.strip()
    code = (
        f"from skills.{new_name}.add import main as add\nfrom runtime import blobs\n"
        "def start(args):\n    return add({'a': int(blobs.read_text(args['b'])), 'b': 1})\n"
    )

    ended = served(
        *("code", "-", "--mount", f"{new_name}.add@1.x", "--blob", f"b={blob_id}", "--entrypoint", "start"),
        stdin=code.encode(),
    )

    assert ended.code == 0
    assert "\noutput: 8\n" in ended.out


def test_run_exits_3_for_unknown_and_instruction_skills(served: Callable[..., Ended]) -> None:
    unknown = served("run", "no.such.skill")
    instruction = served("run", "skills.protocol.guide", "--json")

    assert unknown.code == instruction.code == 3
    assert "no.such.skill" in unknown.err
    assert instruction.json["error"]["code"] == -32602


def test_url_reaches_the_server_without_its_home(sqlite_server: Server, home: str) -> None:
    ended = skillery("list", "--url", f"{sqlite_server.url}/", "--home", home, "--json")

    assert ended.code == 0
    assert ended.json["skills"]
    assert not Path(home).exists()


# -- db, plugins, doctor, config -------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_db_migrates_and_checks_the_embedded_database(home: str) -> None:
    before = skillery("db", "current", "--home", home, "--json")
    unready = skillery("db", "check", "--home", home)
    assert not (Path(home) / "skillery.db").exists(), "reading commands create no database"
    upgraded = skillery("db", "migrate", "--home", home, "--json")
    ready = skillery("db", "check", "--home", home, "--json")

    assert before.json["revision"] is None
    assert unready.code == 1
    assert "skillery db migrate" in unready.err
    assert upgraded.json == {"before": None, "revision": before.json["head"]}
    assert ready.code == 0
    assert ready.json["ok"] is True

    with sqlite3.connect(Path(home) / "skillery.db") as connection:
        connection.execute("INSERT INTO registry (key, value) VALUES ('rebuild', x'')")
    pending = skillery("db", "check", "--home", home, "--json")
    assert pending.code == 1
    assert [("derived from versions" in text, "when it starts" in text) for text in pending.json["problems"]] == [
        (True, True)
    ]
    assert "skillery db migrate" in skillery("db", "check", "--home", home).err
    skillery("db", "migrate", "--home", home)
    assert skillery("db", "check", "--home", home, "--json").json["problems"] == []

    with sqlite3.connect(Path(home) / "skillery.db") as connection:
        connection.execute("ALTER TABLE runs ADD COLUMN extra TEXT")
    changed = skillery("db", "check", "--home", home)
    assert changed.code == 1
    assert "extra" in changed.err


def test_db_works_on_postgres_next_to_a_server(new_postgres_database: Callable[[], str], home: str) -> None:
    url = new_postgres_database()

    assert skillery("db", "migrate", "--home", home, SKILLERY_DATABASE=url).code == 0
    checked = skillery("db", "check", "--home", home, SKILLERY_DATABASE=url)
    assert checked.code == 0, checked.err


def at_revision(url: str, revision: str) -> None:
    with contextlib.closing(Database(url)) as database:
        migrate.upgrade(database, revision)


@pytest.mark.full(after=1)
def test_db_migrate_dry_run_prints_statements_and_locks(
    database_kind: str, new_postgres_database: Callable[[], str], home: str
) -> None:
    Path(home).mkdir()
    url = new_postgres_database() if database_kind == "postgres" else f"sqlite:///{home}/skillery.db"
    at_revision(url, "0049")

    planned = skillery("db", "migrate", "--dry-run", "--home", home, SKILLERY_DATABASE=url)
    as_json = skillery("db", "migrate", "--dry-run", "--home", home, "--json", SKILLERY_DATABASE=url).json

    assert "0050: the script of a run" in planned.out
    assert "ALTER TABLE runs ADD COLUMN script" in planned.out
    assert ("locks runs: ACCESS EXCLUSIVE" in planned.out) == (database_kind == "postgres")
    assert [step["revision"] for step in as_json["steps"]][:2] == ["0050", "0051"]
    assert skillery("db", "current", "--home", home, "--json", SKILLERY_DATABASE=url).json["revision"] == "0049"


@pytest.mark.full
def test_db_migrate_requires_a_fresh_backup_of_the_present_revision(home: str, tmp_path: Path) -> None:
    Path(home).mkdir()
    at_revision(f"sqlite:///{home}/skillery.db", "0049")
    folder, now = tmp_path / "backups", datetime.now(UTC)
    folder.mkdir()
    command = ("db", "migrate", "--require-backup", str(folder), "--home", home)
    refusals = [skillery(*command).err]
    (folder / "note.txt").write_text("not a backup")
    for name, revision, age in (("a", "0049", timedelta(hours=30)), ("b", "0048", timedelta(hours=1))):
        head = ArchiveHead(FORMAT, "0.1.0", revision, now - age)
        ArchiveWriter(folder / f"{name}.tar", head).close()
        refusals.append(skillery(*command).err)
    # An incremental backup counts too.
    store = BackupStore(DirectoryStorage(folder), "directory")
    store.complete(Document(ArchiveHead(FORMAT, "0.1.0", "0049", now), {}, 0, 0), None)
    done = skillery(*command)

    problems = ("has no backup", "has no backup after", "has a backup of revision 0048")
    assert [problem in refusal for problem, refusal in zip(problems, refusals, strict=True)] == [True] * 3
    assert done.code == 0
    assert "migrating the database to 0050: the script of a run" in done.err
    assert "migrated from 0049 to" in done.out
    assert "skillery db migrate" in skillery("db", "upgrade", "--home", home).err


def test_db_migrate_of_a_home_in_use_is_refused(sqlite_server: Server) -> None:
    ended = skillery("db", "migrate", "--home", str(sqlite_server.home))

    assert ended.code == 4
    assert sqlite_server.url in ended.err


def test_plugins_lists_offers_and_chosen_backends(home: str) -> None:
    found = {one["name"]: one for one in skillery("plugins", "--home", home, "--json").json["plugins"]}

    assert found["linux-sandbox"]["offers"] == [{"kind": "sandbox", "name": "linux", "chosen": True, "unsafe": False}]
    assert found["unsafe-subprocess"]["offers"][0]["chosen"] is False


@pytest.mark.smoke
def test_doctor_passes_here_and_fails_on_a_home_that_cannot_be_made(home: str) -> None:
    healthy = skillery("doctor", "--home", home, "--json")
    sick = skillery("doctor", "--home", "/proc/no-home")

    assert healthy.code == 0, healthy.out + healthy.err
    assert {"python", "network", "secrets"} < set(healthy.json["capabilities"])
    assert {"python", "home", "database", "fonts", "capabilities"} < {probe["name"] for probe in healthy.json["probes"]}
    assert sick.code == 1
    assert "--home" in sick.out


def test_config_show_tells_where_values_come_from_and_hides_passwords(home: str) -> None:
    Path(home).mkdir()
    (Path(home) / "skillery.toml").write_text('port = 9000\n[backends.storage.s3]\nsecret_key = "hush"\n')
    database = "postgresql://me:hush@db.example.org/skillery"

    shown = skillery("config", "show", "--home", home, "--json", SKILLERY_DATABASE=database, SKILLERY_PORT="9001")
    plain = skillery("config", "show", "--home", home, SKILLERY_DATABASE=database)

    assert shown.json["port"] == {"value": 9001, "source": "environment"}
    assert shown.json["home"]["source"] == "flag"
    assert shown.json["host"] == {"value": "127.0.0.1", "source": "default"}
    assert shown.json["database"]["value"] == "postgresql://me:***@db.example.org/skillery"
    assert "hush" not in shown.out + plain.out
    assert "port\t9000\tskillery.toml" in plain.out.splitlines()


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ('web = "maybe"', "setting 'web' (skillery.toml) is 'maybe': write true or false"),
        ('port = "x"', "setting 'port' (skillery.toml) is 'x': write a whole number"),
        ('allowed_hosts = "a"', 'is \'a\': write a list such as ["a", "b"]'),
        ('metrics = "all"', "is 'all': permitted are admin, open, off"),
        ('[policy."a.*"]\nscan = "x"', "setting 'policy.a.*.scan' (skillery.toml) is 'x': permitted are none, info, "),
        ("auth = tokens", '(at line 1, column 8); write auth = "…" for a text, a number alone, or true or false'),
        ("\nhost = 127.0.0.1", '(at line 2, column 13); write host = "…" for a text, '),
        ('host = "::1', "is not valid TOML: "),
    ],
)
def test_invalid_settings_name_their_remedy(home: str, line: str, remedy: str) -> None:
    Path(home).mkdir()
    (Path(home) / "skillery.toml").write_text(line + "\n")

    shown = skillery("config", "show", "--home", home)

    assert shown.code == 4
    assert len(shown.err.splitlines()) == 1
    assert remedy in shown.err


def test_a_command_that_asks_names_its_option_without_a_terminal(home: str) -> None:
    refused = skillery("purge", "a.b@1.0.0", "--reason", "leak", "--home", home, stdin=b"")

    assert refused.code == 2
    assert refused.err.splitlines()[-1] == (
        "Error: nothing was changed: stdin has no answer, so repeat the command with --yes"
    )


# -- demo ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stop_after() -> Iterator[list[int]]:
    """Yield a list. Processes whose pids are added to it are stopped after the test."""
    pids: list[int] = []
    yield pids
    for pid in set(pids):
        os.kill(pid, signal.SIGTERM)


def test_demo_walks_the_protocol_and_leaves_a_server(home: str, stop_after: list[int]) -> None:
    first = skillery("demo", "--home", home)
    assert first.code == 0, first.err + first.out
    holder = json.loads((Path(home) / "server.lock").read_text())
    stop_after.append(holder["pid"])
    second = skillery("demo", "--home", home, "--json")

    for method in ("load_skills_protocol_guide", "list_skills", "describe_skill", "run_code", "create_skill"):
        assert f"→ {method}" in first.out
    assert "→ POST /blobs  (orders.csv, " in first.out
    assert f"kill {holder['pid']}" in first.out
    assert second.code == 0, second.err
    assert (second.json["url"], second.json["pid"]) == (holder["url"], holder["pid"]), "a running server is used"
    assert second.json["curl"] in first.out
    answered = subprocess.run(second.json["curl"], shell=True, capture_output=True, check=True).stdout
    assert "demo.csv.top" in [row["name"] for row in json.loads(answered)["result"]["skills"]]
    assert httpx.get(f"{holder['url']}/readyz").status_code == 200


@pytest.mark.full
def test_demo_writes_only_into_a_temporary_folder(tmp_path: Path, stop_after: list[int]) -> None:
    own, temporary = tmp_path / "own", tmp_path / "temporary"
    own.mkdir()
    temporary.mkdir()
    folders: Any = {"HOME": str(own), "TMPDIR": str(temporary), "XDG_DATA_HOME": str(own), "XDG_CONFIG_HOME": str(own)}
    ended = skillery("demo", "--json", **folders)
    assert ended.code == 0, ended.err
    stop_after.append(ended.json["pid"])

    assert Path(ended.json["home"]).parent == temporary
    assert list(own.rglob("*")) == []


def test_make_clean_leaves_the_files_of_a_running_demo(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    home = Home(tmp_path / ".demo")
    refused = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, f"kill {os.getpid()}\n" in refused.stderr) == (2, True)
    assert (tmp_path / ".demo").is_dir()
    home.close()

    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert not (tmp_path / ".demo").exists()


@pytest.mark.full
def test_demo_says_why_its_server_did_not_start(home: str) -> None:
    ended = skillery("demo", "--home", home, SKILLERY_SANDBOX="nope")

    assert ended.code == 4
    assert "nope" in ended.err
    assert "linux" in ended.err


SLOW = b"""
import time
def main(args):
    for i in range(3):
        print('line', i)
        time.sleep(0.2)
    return 7
"""


@pytest.mark.full
def test_a_run_in_the_background_is_followed_and_waited_for(
    served: Callable[..., Ended], home: str, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_bytes(SLOW)
    slow = str(tmp_path / "slow.py")
    run_id = served("code", slow, "--background").out.strip()

    assert served("runs", "follow", run_id).out == "line 0\nline 1\nline 2\n"
    assert '"output": 7' in served("runs", "wait", run_id, "--json").out
    assert served("runs", "logs", run_id, "--after", "7").out == "line 1\nline 2\n"
    followed = served("code", slow, "--follow", "--json")
    assert (followed.err, '"output": 7' in followed.out) == ("line 0\nline 1\nline 2\n", True)
    assert "needs a server" in skillery("code", slow, "--background", "--home", home).err


# -- hints -------------------------------------------------------------------------------------------------------------


def _verbs(group: click.Group) -> Iterator[Verb]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _verbs(command)
        elif isinstance(command, Verb):
            yield command


def test_verbs_have_the_params_of_their_methods() -> None:
    """A param that a method no longer has would become an option without an effect."""
    common = {"home", "config", "url", "token", "as_json", "yes", "everything", "_click_default_help"}
    more: dict[str, set[str]] = {}
    for verb in _verbs(commands):
        params = {param.name for param in verb.get_params(click.Context(verb))} - common
        assert verb.help
        assert verb.fixed.keys() <= inspect.signature(verb.stub).parameters.keys()
        if extra := {str(name).rstrip("_") for name in params} - inspect.signature(verb.stub).parameters.keys():
            more[verb.method] = extra

    assert more == {"list_labels": {"history"}, "get_activity": {"callers"}}


def test_hints_name_existing_commands_instead_of_methods() -> None:
    from skillery.formats.words import COMMANDS, words_of_shell
    from skillery.methods.table import METHODS

    for line in COMMANDS.values():
        command: click.Command = commands
        for word in line.split()[1:]:
            if isinstance(command, click.Group):
                command = command.commands[word]
    words = set(re.findall(r"\w+", " ".join(hints())))
    assert words & METHODS.keys() <= {phrase.split()[0] for phrase in COMMANDS}
    assert words_of_shell("Use yank_version or deprecate_skill.") == "Use `skillery yank` or `skillery deprecate`."


def hints() -> Iterator[str]:
    """Yield each text of the arguments `hint=…` in the source."""
    for path in (ROOT / "src" / "skillery").rglob("*.py"):
        if "hint=" in (text := path.read_text("utf-8")):
            nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword) and node.arg == "hint"]
            values = (getattr(part, "value", None) for node in nodes for part in ast.walk(node.value))
            yield from (value for value in values if isinstance(value, str))
