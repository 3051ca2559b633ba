"""The command: addresses without a server, exit codes, options and reports."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from skills_protocol_conformance import report as reports
from skills_protocol_conformance.cli import main
from skills_protocol_conformance.connection import MOST_BYTES, Connection
from skills_protocol_conformance.documents import STATEMENTS
from skills_protocol_conformance.judging import Result, Run
from skills_protocol_conformance.samples import MANY, SAMPLES
from skills_protocol_conformance.session import Session
from skills_protocol_conformance.statement import shortened

pytest_plugins = ["stand_in"]
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
UV = ROOT / ".tools/bin/uv"
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"
GUIDE = '{"jsonrpc": "2.0", "id": "c1", "result": {"content": "# Guide"}}'


def response(kind: str, text: str, length: int | None = None) -> bytes:
    return (HEAD.format(kind, len(text) if length is None else length) + text).encode()


@contextmanager
def answering(*answers: bytes | None) -> Iterator[str]:
    """Yield the URL of a server that sends these bytes, and the last of them to each further request.

    None: the connection stays open without an answer.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    left, kept = list(answers), []

    def serve() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
                answer = left.pop(0) if len(left) > 1 else left[0]
                if answer is not None:
                    with suppress(OSError), connection:
                        read_request(connection)
                        connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/rpc"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for connection in kept:
        connection.close()


def read_request(connection: socket.socket) -> None:
    with connection.makefile("rb") as file:
        length = 0
        while (line := file.readline().strip()) != b"":
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        file.read(length)


NO_SERVERS = {
    "a web page": (response("text/html", "<html>"), "web page"),
    "no JSON": (response("application/json", "hello"), "the answer is not JSON"),
    "another JSON": (response("application/json", '{"a": 1}'), "not a JSON-RPC response"),
    "deep JSON": (response("application/json", "[" * 100_000), "the answer is not JSON"),
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", "no connection"),
    "a closed connection": (b"", "no connection"),
    "half an answer": (response("application/json", "{", 100), "no connection"),
    "an endless answer": (response("application/json", " " * (MOST_BYTES + 2)), f"more than {MOST_BYTES} bytes"),
    "no answer": (None, "no answer within 0.5 s"),
    "a token": (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}", "requires a token"),
    "an answer in ISO 8859-1": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xe4", "the answer is not JSON"),
}


def test_an_address_without_server_prints_a_single_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for name, (answer, words) in NO_SERVERS.items():
        with answering(answer) as url:
            code = main([url, "--timeout", "60" if answer is not None else "0.5"])
        printed = capsys.readouterr()
        if (
            code != 3
            or printed.out
            or printed.err.count("\n") != 1
            or words not in printed.err
            or url not in printed.err
        ):
            wrong[name] = (code, printed)

    assert wrong == {}


def test_a_port_without_listener_is_not_reachable(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

    assert main([url]) == 3
    assert f"{url}/rpc: no connection" in capsys.readouterr().err


def test_a_server_that_stops_answering_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(response("application/json", GUIDE), b"") as url:
        code = main([url, "--profile", "core"])
    printed = capsys.readouterr()

    assert code == 3
    assert "the server does not answer any more: no connection" in printed.err
    assert "skipped: " in printed.out


def test_a_server_that_hangs_later_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(response("application/json", GUIDE), None) as url:
        code = main([url, "--profile", "core", "--timeout", "2"])

    assert code == 3
    assert "the server does not answer any more: no answer within 2 s" in capsys.readouterr().err


def test_an_answer_byte_by_byte_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            read_request(connection)
            connection.sendall(HEAD.format("application/json", 10_000).encode())
            while not ended.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        code = main([f"http://127.0.0.1:{listener.getsockname()[1]}/rpc", "--timeout", "2"])
        ended.set()
        thread.join()

    assert code == 3
    assert "the answer is not complete within 2 s" in capsys.readouterr().err


def test_answers_of_any_form_are_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    for result in ('{"skills": 5, "skill": [], "status": {}, "content": null, "blob_id": 7}', "[]"):
        message = '{"jsonrpc": "2.0", "id": "c1", "result": ' + result + "}"
        with answering(response("application/json", GUIDE), response("application/json", message)) as url:
            assert main([url, "--profile", "create-skill"]) == 1
        assert "does not conform" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ftp://example.com"],
        ["http://"],
        ["http://[::1"],
        ["example.com/rpc"],
        ["http://localhost", "--profile", "all"],
        ["http://localhost", "--timeout", "0"],
        ["http://localhost", "--timeout", "soon"],
        ["http://localhost", "--json", "/no/such/folder/a.json"],
        ["http://localhost", "--token-env", "CONFORMANCE_UNSET"],
        ["--write-skills", "/dev/null/skills"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_list_prints_every_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in lines] == [statement.id for statement in STATEMENTS]
    assert sum("not testable from outside" in line for line in lines) == sum(s.check is None for s in STATEMENTS)


def test_a_reader_that_ends_leaves_no_traceback() -> None:
    command = f"{sys.executable} -m skills_protocol_conformance --list | head -1"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)

    assert ended.stdout.startswith("SP-1 ")
    assert ended.stderr == ""


def test_written_skills_are_folders_with_manifests(tmp_path: Path) -> None:
    assert main(["--write-skills", str(tmp_path / "made")]) == 0
    manifests = [tomllib.loads(file.read_text("utf-8")) for file in sorted(tmp_path.glob("made/*/skill.toml"))]

    assert len(manifests) == MANY + len(SAMPLES)
    assert {file.parent.name for file in tmp_path.glob("made/*/SKILL.md")} == {p.name for p in tmp_path.glob("made/*")}
    declared = next(manifest for manifest in manifests if manifest["name"] == "conformancesuite.declared")
    assert declared == SAMPLES["declared"].full_manifest("conformancesuite")


# -- reports -----------------------------------------------------------------------------------------------------------

IDS = ("SP-150", "SP-192", "SP-68", "SP-28", "ST-48")


@pytest.fixture(scope="module")
def mixed(stand_in: str) -> reports.Report:
    """Return a report of a server with faults: MUST and SHOULD fail, one passes, one is outside, one is skipped."""
    outcomes = []
    for fault in ("unsorted", "log_not_cut"):
        connection = Connection(f"{stand_in}/{fault}", None, 120)
        chosen = [s for s in STATEMENTS if s.id in (IDS if fault == "unsorted" else ("SP-192",))]
        outcomes += Run(Session(connection)).outcomes(chosen)
        connection.close()
    outcomes = [o for o in outcomes if o.statement.id != "SP-192" or o.result is Result.FAILED]
    return reports.Report(stand_in, "core", 1.5, outcomes, [])


def test_the_terminal_shows_failures_skips_and_a_summary(mixed: reports.Report) -> None:
    lines = list(reports.terminal(mixed))

    assert [line.split(":")[0] for line in lines[:3]] == ["SP-150 MUST", "SP-192 SHOULD", "skipped"]
    assert "“Results MUST be sorted deterministically” (skills-protocol, list_skills)" in lines[0]
    assert "But two equal calls have different lists" in lines[0]
    assert "`logs_preview` has 10001 bytes; answer: " in lines[1]
    assert lines[-1].endswith(
        "does not conform to the Skills Protocol 0.1, profile core: 1 of 2 MUST statements hold (1.5 s)"
    )
    assert next(line for line in lines if line.startswith("skills-protocol")).split()[1:3] == ["1/2", "0/1"]


def test_json_has_everything(mixed: reports.Report) -> None:
    report = json.loads(reports.as_json(mixed))
    results = {row["id"]: row["result"] for row in report["statements"]}

    assert report["must"] == {"passed": 1, "checked": 2}
    assert not report["conforms"]
    assert results == {
        "SP-150": "failed",
        "SP-68": "passed",
        "SP-28": "not testable from outside",
        "ST-48": "skipped",
        "SP-192": "failed",
    }
    assert all(row["quotation"] and row["check"] and row["section"] for row in report["statements"])


def test_junit_fails_for_must_only(mixed: reports.Report) -> None:
    root = ElementTree.fromstring(reports.as_junit(mixed))
    suite = root.find("testsuite[@name='skills-protocol']")

    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "2")
    assert [case.get("name", "").split()[0] for case in root.iterfind(".//failure/..")] == ["SP-150"]
    assert any("SHOULD, does not hold" in (s.get("message") or "") for s in root.iterfind(".//skipped"))


def test_the_badge_counts_must_statements(mixed: reports.Report) -> None:
    root = ElementTree.fromstring(reports.badge(mixed))

    assert "Skills Protocol 0.1: 1/2 MUST" in (root.get("aria-label") or "")


def test_answers_reach_the_terminal_without_control_characters() -> None:
    assert shortened("a\x1b[31m\ud800\n b") == "a\\x1b[31m\\ud800 b"
    assert len(shortened("x" * 5000)) == 300


@pytest.mark.full
def test_a_whole_run_writes_its_reports(stand_in: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "a.xml", "a.svg")]
    options = [f"--{name}={file}" for name, file in zip(("json", "junit", "badge"), files, strict=True)]

    assert main([stand_in, *options]) == 0
    printed = capsys.readouterr().out
    report = json.loads(files[0].read_text("utf-8"))
    assert (report["profile"], report["conforms"]) == ("skill-tools", True)
    assert f"{report['must']['passed']} of {report['must']['checked']} MUST statements hold" in printed
    assert [point for point in report["open_points"] if point["server"].startswith("not seen")] == []
    assert ElementTree.parse(files[1]).getroot().findall(".//failure") == []
    assert files[2].read_text("utf-8").startswith("<svg")


@pytest.mark.full
def test_the_core_profile_uses_the_written_skills(stand_in: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{stand_in}/no_create_skill"]) == 0
    printed = capsys.readouterr().out

    assert "profile core" in printed.splitlines()[-1]
    assert "SP-313 SHOULD: The server knows the method `create_skill`. But the method is unknown" in printed
    assert "see --write-skills" not in printed


@pytest.mark.full
def test_the_wheel_needs_httpx_alone(tmp_path: Path) -> None:
    build: list[str | Path] = [UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", tmp_path, PACKAGE], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True)
    (wheel,) = tmp_path.glob("*.whl")  # built from the source archive
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", tmp_path / "venv/bin/python"]
    subprocess.run([*install, "--constraint", ROOT / "requirements.lock", wheel], check=True, cwd=tmp_path)
    code = "from importlib.metadata import requires; print(*requires('skills-protocol-conformance'))"
    python: list[str | Path] = [tmp_path / "venv/bin/python", "-I"]
    needs = subprocess.run([*python, "-c", code], capture_output=True, text=True, check=True).stdout
    listed = subprocess.run(
        [tmp_path / "venv/bin/skills-protocol-conformance", "--list"], capture_output=True, text=True, check=True
    ).stdout

    assert needs.split("<")[0].split(">")[0] == "httpx"
    assert len(needs.split()) == 1
    assert len(listed.splitlines()) == len(STATEMENTS)
