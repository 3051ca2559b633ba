"""`make picture`: the picture of a terminal in the README, from commands that run on a new home."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.conftest import Server, clean_environment

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 110, 24
COMMANDS = (
    "skillery list",
    "skillery search redact phone number",
    "echo 'Write to ann@example.com' > note.txt",
    "skillery run text.redact.pii --blob text_blob=note.txt",
    "skillery label set text.redact.pii@latest stable",
)


def in_terminal(command: str, folder: Path, home: Path) -> str:
    """Run a shell command in a pseudo-terminal, and return what it prints."""
    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = clean_environment({"SKILLERY_HOME": str(home), "PATH": path, "TERM": "xterm-256color"})
    with subprocess.Popen(command, shell=True, cwd=folder, env=environment, stdout=other, stderr=other):
        os.close(other)
        printed = b""
        while chunk := _read(own):
            printed += chunk
    os.close(own)
    return printed.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the end of a pseudo-terminal as EIO.
        return b""


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "home")
        try:
            for command in COMMANDS:
                console.print(Text.from_markup(f"[bold green]$[/] [bold]{command}[/]"))
                console.print(Text.from_ansi(in_terminal(command, Path(folder), server.home)))
        finally:
            server.stop()
    console.save_svg(str(ROOT / "docs" / "terminal.svg"), title="skillery", theme=MONOKAI, unique_id="skillery")


if __name__ == "__main__":
    main()
