"""Commands for a remote server, in a Python without the modules that Windows does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Server, clean_environment

WITHOUT = """
import sys
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty", "uvloop"):
    sys.modules[name] = None
sys.argv[0] = "skillery"
from skillery.cli import main
main()
"""


def remote(server: Server, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT, *arguments, "--url", server.url]
    ended = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.full
def test_commands_work_without_modules_of_unix(sqlite_server: Server, tmp_path: Path, new_name: str) -> None:
    skill = tmp_path / "skill"
    skill.mkdir()
    (skill / "SKILL.md").write_text(f"---\nname: {new_name}\ndescription: A skill.\n---\n# A skill\n")
    (tmp_path / "note.txt").write_text("Write to ann@example.com")

    assert "text.redact.pii" in remote(sqlite_server, tmp_path, "list", "--namespace", "text.redact")
    assert new_name in remote(sqlite_server, tmp_path, "import", str(skill))
    assert "Replaced 1 values" in remote(
        sqlite_server, tmp_path, "run", "text.redact.pii", "--blob", "text_blob=note.txt"
    )
    assert "text.redact.pii" in remote(sqlite_server, tmp_path, "lock", "text.redact.pii")
    assert "text.redact.pii" in remote(sqlite_server, tmp_path, "install", "--locked", "installed")
