"""Hosts with other mounts: what runs may do there, and what `cellblock doctor` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = "import sys; from cellblock.cli import main; sys.exit(main(sys.argv[1:]))"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes mounts")
NAMES = """
import json, socket
def tried(kind):
    try: socket.socket(socket.AF_UNIX, kind).bind(f'\\0{kind:d}')
    except OSError as error: return error.strerror
print(json.dumps([tried(kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]))
"""


def cellblock(changes: str, *arguments: str, command: str = COMMAND) -> str:
    """Return the output of `cellblock`, or of other Python code, on a host that a shell script has changed."""
    script = f'set -e\n{changes}\nexec "$@"'
    started = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", command, *arguments]
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(changes: str, name: str) -> dict[str, Any]:
    [named] = [probe for probe in json.loads(cellblock(changes, "doctor", "--json")) if probe["name"] == name]
    return dict(named)


def in_shell(folder: Path, program: str) -> list[str]:
    """Return the arguments that run a program in Python."""
    file = folder / "code.sh"
    file.write_text(f"cat > program.py <<'END'\n{program}\nEND\npython3 program.py")
    return ["run", str(file)]


BINDS = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
SOCKET_BELOW_USR = f"""
mount -t tmpfs none /usr/local/share
mkdir /usr/local/share/deep
{sys.executable} -c '{BINDS}' /usr/local/share/deep/socket
"""


@pytest.mark.full
def test_socket_in_folder_of_all_runs_takes_their_unix_sockets(tmp_path: Path) -> None:
    names = in_shell(tmp_path, NAMES)
    assert json.loads(cellblock(SOCKET_BELOW_USR, *names)) == ["Permission denied"] * 2
    refused = probe(SOCKET_BELOW_USR, "sockets")
    assert (refused["ok"], refused["required"]) == (False, False)
    assert refused["detail"] == "runs could reach /usr/local/share/deep/socket, so they get no UNIX sockets"
    assert refused["fix"] == "move it below /run"
    here = probe("", "sockets")
    assert json.loads(cellblock("", *names)) == ([None] * 2 if here["ok"] else ["Permission denied"] * 2)


@pytest.mark.full
def test_folder_with_many_files_takes_unix_sockets(tmp_path: Path) -> None:
    names, folder = in_shell(tmp_path, NAMES), tmp_path / "many"
    folder.mkdir()
    mounted = (*names, "--mount", f"{folder}:/files/many")
    if json.loads(cellblock("", *mounted)) != [None] * 2:
        pytest.skip("this host has a socket in a folder that runs see")
    for number in range(2049):
        (folder / f"{number}").touch()
    assert json.loads(cellblock("", *mounted)) == ["Permission denied"] * 2


WITH_PACKAGES = """
import sys
from pathlib import Path
from cellblock import Sandbox, Template
with Sandbox(Template(packages=Path(sys.argv[2])), prepared=0) as box:
    print(box.run(Path(sys.argv[1]).read_text(), language="bash").raw.decode())
"""


@pytest.mark.full
def test_socket_in_packages_that_are_hidden_at_their_path_takes_unix_sockets(tmp_path: Path) -> None:
    _, names = in_shell(tmp_path, NAMES)
    folder = Path(sys.base_prefix, f"lib/python3.{sys.version_info[1]}/site-packages").resolve()
    binds = f"mount -t tmpfs none {folder}\n{sys.executable} -c '{BINDS}' {folder}/socket"
    assert json.loads(cellblock(binds, names, str(folder), command=WITH_PACKAGES)) == ["Permission denied"] * 2


READ_ONLY_SETTINGS = "mount --bind /proc/sys /proc/sys\nmount -o remount,bind,ro /proc/sys"
SERVES = """
import json, socket
def tried(family):
    try: socket.socket(family).close()
    except OSError as error: return error.strerror
print(json.dumps([tried(socket.AF_INET), tried(socket.AF_UNIX)]))
"""


@pytest.mark.full
def test_programs_have_no_servers_if_settings_of_the_network_are_read_only(tmp_path: Path) -> None:
    serves = in_shell(tmp_path, SERVES)
    refused = ["Permission denied", "Address family not supported by protocol"]
    assert json.loads(cellblock(READ_ONLY_SETTINGS, *serves)) == refused
    shown = probe(READ_ONLY_SETTINGS, "own servers")
    assert (shown["ok"], shown["required"]) == (False, False)
    assert shown["detail"] == "write /proc/sys/net/ipv4/tcp_rmem: EROFS"
    assert "make /proc/sys writable" in shown["fix"]
