"""The command `cellblock`: values, logs, options and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock import cli


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "code.py"


def run(file: Path, code: str, *options: str) -> int:
    file.write_text(code)
    return cli.main(["run", str(file), *options])


def test_value_goes_to_stdout_and_log_to_stderr(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "def main(args):\n print('note')\n return {'sum': args['a'] + 1}"
    assert run(file, code, "--args", '{"a": 41}') == 0
    assert capfd.readouterr() == ('{"sum":42}\n', "note\n")


def test_suffix_selects_language_and_mounts_are_readable(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text('"from the host"')
    script = tmp_path / "code.sh"
    assert run(script, "cat /files/in", "--mount", f"{tmp_path / 'in.txt'}:/files/in") == 0
    assert capfd.readouterr().out == '"from the host"\n'


@pytest.mark.parametrize(
    ("code", "options", "exit_code", "words"),
    [
        ("def main(args): return 1 / 0", [], 1, "ZeroDivisionError"),
        ("while True: pass", ["--timeout-ms", "300"], 124, "longer than 300 ms"),
        ("def main(args): return len(bytearray(1 << 30))", ["--memory-mb", "32"], 1, "32 MiB"),
        ("1", ["--args", "{"], 2, "args are not JSON"),
        ("1", ["--mount", "/usr"], 2, "SOURCE:TARGET"),
        ("1", ["--mount", "/usr:/usr/x"], 2, "mount point '/usr'"),
        ("1", ["--network", "https://*"], 2, "network: "),
    ],
)
def test_failures_have_exit_codes(
    file: Path, capfd: pytest.CaptureFixture[str], code: str, options: list[str], exit_code: int, words: str
) -> None:
    assert run(file, code, *options) == exit_code
    shown = capfd.readouterr()
    assert words in shown.err
    assert shown.out == ""


def test_missing_file_and_unknown_suffix_are_usage_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(tmp_path / "none.py")]) == 2
    assert cli.main(["run", str(tmp_path / "none.rb")]) == 2
    assert "none.py: No such file" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run"])


def test_json_has_the_whole_result(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(file, "def main(args): print('x'); return [1]", "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["ok"], shown["value"], shown["log"], shown["failure"]) == (True, [1], "x\n", None)
    assert run(file, "def main(args): raise KeyError('k')", "--json") == 1
    assert json.loads(capfd.readouterr().out)["failure"]["type"] == "KeyError"


def test_host_without_helper_is_unavailable(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cellblock.doctor.RECORD", tmp_path / "missing")
    assert run(file, "1") == 3
    assert "cellblock supports x86_64 and aarch64" in capfd.readouterr().err


@pytest.mark.full
def test_doctor_prints_a_line_for_each_probe(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli.main(["doctor"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert all(": ok: " in line or ": missing" in line for line in lines)
    assert lines[-1].startswith("a whole run: ok: took ")
    record = tmp_path / "BUILD.json"
    record.write_text('{"compiler": "cc", "outputs": {"init": "00"}, "sources": {}}')
    monkeypatch.setattr("cellblock.doctor.RECORD", record)
    assert cli.main(["doctor", "--json"]) == 1
    [helper] = [probe for probe in json.loads(capfd.readouterr().out) if probe["name"] == "helper"]
    assert (helper["ok"], helper["detail"]) == (False, "init: not the file that BUILD.json names")


@pytest.mark.full
def test_a_reader_that_ends_early_gets_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from cellblock.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
