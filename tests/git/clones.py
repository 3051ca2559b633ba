"""The program `git` as a client of a server, in a home of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


class Git:
    """Runs `git` below a folder. `token` is what the credential helper hands out; without it, there is no helper."""

    def __init__(self, folder: Path, url: str, token: str | None = None) -> None:
        self.folder = folder
        self.url = url
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        if token is not None:
            helper = self.home / "helper"
            helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho username=any\necho password={token}\n")
            helper.chmod(0o755)
            (self.home / ".gitconfig").write_text(f'[credential]\n\thelper = "{helper}"\n')

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@localhost",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@localhost",
        }

    def run(self, *words: str, cwd: str = ".", **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *words],
            cwd=self.folder / cwd,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            **more,
        )

    def __call__(self, *words: str, cwd: str = ".") -> str:
        """Return the output of a command that succeeds."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    def address(self, repository: str) -> str:
        return f"{self.url}/git/{repository}.git"

    def clone(self, repository: str, to: str, *options: str) -> Path:
        self("clone", "--quiet", *options, self.address(repository), to)
        return self.folder / to

    def refs(self, repository: str, *options: str) -> dict[str, str]:
        lines = self(*options, "ls-remote", self.address(repository)).splitlines()
        return {name: sha for sha, name in (line.split("\t") for line in lines)}

    def objects(self, clone: str) -> set[str]:
        """Return the ids of all objects that a clone has, without fetching further ones."""
        return {
            line.split()[0] for line in self("cat-file", "--batch-all-objects", "--batch-check", cwd=clone).splitlines()
        }


def files_of(clone: Path) -> dict[str, bytes]:
    """Return the checked-out files by path."""
    return {
        str(path.relative_to(clone)): path.read_bytes()
        for path in sorted(clone.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(clone).parts
    }
