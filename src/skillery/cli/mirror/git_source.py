"""Copies of git repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from skillery.errors import StartupError, Unavailable

SECONDS = 600
MOST_BYTES = 1024 * 1024 * 1024
# A repository can ask git for other transports, which run programs.
_SAFE = ("protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=always")
_MORE = ("protocol.ssh.allow=always", "core.hooksPath=/dev/null", "advice.detachedHead=false")


def copy_repository(source: str, tree: Path, known: str) -> str:
    """Replace the copy in `tree` with the present state of a repository. Return its commit.

    `known` is the commit of the copy. Raise Unavailable if git cannot read the repository, or if it is too large: the
    copy then stays as it is.
    """
    commit = _git("ls-remote", "--", source, "HEAD").partition("\t")[0].strip()
    if not commit:
        raise Unavailable(f"the repository {source!r} has no commit")
    if commit == known and tree.is_dir():
        return commit
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        clone = Path(folder) / "clone"
        _git("clone", "--quiet", "--depth", "1", "--single-branch", "--no-tags", "--", source, str(clone))
        commit = _git("-C", str(clone), "rev-parse", "HEAD").strip()
        shutil.rmtree(clone / ".git")
        _remove_links_out(clone)
        size = sum(path.lstat().st_size for path in clone.rglob("*"))
        if size > MOST_BYTES:
            raise Unavailable(f"the repository {source!r} has {size} bytes; at most {MOST_BYTES} are allowed")
        shutil.rmtree(tree, ignore_errors=True)
        clone.rename(tree)
    return commit


def _remove_links_out(clone: Path) -> None:
    """Remove links that lead out of the clone: an import follows some links to files of the user."""
    inside = clone.resolve()
    for path in clone.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            path.unlink()


def _git(*words: str) -> str:
    options = [part for one in (*_SAFE, *_MORE) for part in ("-c", one)]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    try:
        done = subprocess.run(
            ["git", *options, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except OSError:
        raise StartupError("this computer has no git: install it, and run the command again") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"git does not end within {SECONDS} seconds") from None
    if done.returncode != 0:
        raise Unavailable(f"git cannot read the repository: {done.stderr.strip()[-500:]}")
    return done.stdout
