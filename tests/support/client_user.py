"""A user of a computer: a home folder of their own, a login, and programs that run with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cli.test_cli import Ended, skillery
from tests.support.logins import Configuration
from tests.support.prefork import PROGRAMS, prefork


class ClientUser:
    """A user of the server at `url`. `more` are more environment variables of the programs that the user starts."""

    def __init__(self, url: str, folder: Path, **more: str) -> None:
        self.url = url
        self.home = folder / "home"
        self.home.mkdir()
        configuration = Configuration(self.home / ".config")
        self.variables: dict[str, Any] = {**configuration.variables, "HOME": str(self.home), **more}

    def log_in(self, token: str) -> None:
        done = skillery("login", "--url", self.url, stdin=token.encode(), **self.variables)
        assert done.code == 0, done.err

    def connect(self, *words: str, **variables: str) -> Ended:
        return skillery("connect", *words, "--url", self.url, **self.variables | variables)

    def written(self, *words: str) -> Ended:
        done = self.connect(*words, "--write")
        assert done.code == 0, done.err
        return done

    def git(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(["git", *words], PATH=f"{PROGRAMS}:{os.environ['PATH']}", **prefork().variables)

    def run(self, command: Sequence[str | Path], *, folder: str = ".", **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder of the home. Its output is one text: clients write to both streams."""
        path = self.variables.get("PATH", os.environ["PATH"])
        environment = {"PATH": f"{Path(sys.executable).parent}:{path}", "GIT_TERMINAL_PROMPT": "0"}
        return subprocess.run(
            command,
            env={name: value for name, value in self.variables.items() if value} | environment | more,
            cwd=self.home / folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    def files(self) -> dict[str, str]:
        """Return the text of each file of the user, except the login."""
        return {
            str(path.relative_to(self.home)): path.read_text("utf-8", "replace")
            for path in sorted(self.home.rglob("*"))
            if path.is_file() and ".config/skillery" not in str(path)
        }
