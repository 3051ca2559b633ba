"""Git repositories: copies of them, and the dates of the skills in them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from skillery.errors import StartupError, Unavailable

if TYPE_CHECKING:
    from skillery.cli.archives import Folder
    from skillery.importing.finder import LocatedSkill

SECONDS = 600
MOST_BYTES = 1024 * 1024 * 1024
MOST_FILES = 200_000
MOST_DEPTH = 100
"""Most folders above a file. Python cannot remove a tree that is a thousand folders deep."""
NO_ATTRIBUTES = "* -text !eol !crlf !ident !filter !working-tree-encoding\n"
MOST_SAID, MOST_OUT = 500, 64 * 1024
# A repository can ask git for other transports, which run programs. A redirect leads to https only.
_SAFE = ("protocol.allow=never", "protocol.https.allow=always", "protocol.http.allow=user")
_MORE = ("protocol.ssh.allow=always", "core.hooksPath=/dev/null", "advice.detachedHead=false")


def copy_repository(source: str, tree: Path, known: str) -> str:
    """Replace the copy in `tree` with the present state of a repository. Return its commit.

    `known` is the commit of the present copy: if the repository has it, nothing is copied. Raise Unavailable if git
    cannot read the repository, or if it is too large: the copy then stays as it is.
    """
    commit = _git("ls-remote", "--", source, "HEAD").partition("\t")[0].strip()
    if not commit:
        raise Unavailable(f"the repository {source!r} has no commit")
    if commit == known and tree.is_dir():
        return commit
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        clone = Path(folder) / "clone"
        words = ("clone", "--quiet", "--depth", "1", "--single-branch", "--no-tags", "--no-checkout", "--")
        _git(*words, source, str(clone))
        commit = _git("-C", str(clone), "rev-parse", "HEAD").strip()
        # Files are much larger than the pack with their compressed and repeated contents, so count before unpacking.
        _check_sizes(clone, source)
        # `.gitattributes` can make files larger, and choose programs in the settings of the user.
        (clone / ".git" / "info").mkdir(exist_ok=True)
        (clone / ".git" / "info" / "attributes").write_text(NO_ATTRIBUTES)
        _git("-C", str(clone), "checkout", "--quiet", commit)
        _remove_links_out(clone)
        shutil.rmtree(tree, ignore_errors=True)
        clone.rename(tree)
    return commit


def _check_sizes(clone: Path, source: str) -> None:
    """Raise Unavailable if the files of the repository have too many bytes, are too many or too deep. No file is
    unpacked.

    A small repository can list billions of files, so the list is read until a limit is passed.
    """
    size = files = 0
    command = _command("-C", str(clone), "ls-tree", "-r", "--long", "HEAD")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environment()) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            entry_fields, _, path = line.partition(b"\t")
            length = entry_fields.split()[-1]
            files += 1
            size += int(length) if length != b"-" else 0  # a submodule has no length
            if size > MOST_BYTES or files > MOST_FILES:
                listing.kill()
                raise Unavailable(f"the repository {source!r} has more than {MOST_BYTES} bytes or {MOST_FILES} files")
            if path.count(b"/") > MOST_DEPTH:
                listing.kill()
                raise Unavailable(f"the repository {source!r} has a file below more than {MOST_DEPTH} folders")


def _remove_links_out(clone: Path) -> None:
    """Remove links that lead out of the clone: an import follows some links to files of the user."""
    inside = os.path.realpath(clone)
    for path in clone.rglob("*"):
        # Unlike `Path.resolve`, `realpath` accepts a link that leads to itself.
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
            path.unlink()


def _command(*words: str) -> list[str]:
    options = [part for option in (*_SAFE, *_MORE) for part in ("-c", option)]
    # A pack of more bytes ends git while it is received.
    limit = ["prlimit", f"--fsize={MOST_BYTES}"] if shutil.which("prlimit") else []
    return [*limit, "git", *options, *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}


def _git(*words: str) -> str:
    """Run git with these words, and return its output. Raise Unavailable if git fails or takes too long, StartupError
    without git.
    """
    # The output goes to files, because a server can make git print gigabytes.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as text:
        # A Ctrl-C while Popen waits for the start of git would leave git running.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if os.name == "posix" else None
        running = None
        try:
            running = subprocess.Popen(
                _command(*words),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=text,
                start_new_session=True,
            )
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
            code = running.wait(SECONDS)
        except OSError:
            raise StartupError("this computer has no git: install it, and run the command again") from None
        except subprocess.TimeoutExpired:
            raise Unavailable(f"git did not finish within {SECONDS} seconds") from None
        finally:
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
            if running is not None and running.poll() is None:
                _kill(running)
        if code != 0:
            text.seek(max(0, text.tell() - 4 * MOST_SAID))
            raise Unavailable(f"git cannot read the repository: {_text(text.read())[-MOST_SAID:]}")
        out.seek(0)
        return _text(out.read(MOST_OUT))


def _kill(running: subprocess.Popen[bytes]) -> None:
    """Kill git and the programs that it has started, which would otherwise wait for the server."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    running.kill()
    running.wait()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


# -- Dates of skills: the packages of a skill are locked as they were when a commit last changed it --------------------


MOST_COMMITS = 20_000
"""Commits that are read. An older skill gets the date of the last one, which is not earlier than its own."""
_CHUNK_BYTES = 64 * 1024
_TIME = b"\x01"
# The configuration of a repository that somebody else has packed could start programs.
_HISTORY = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false")
_ALONE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


def commit_dates(folder: Folder) -> dict[str, int]:
    """Return when a commit last changed each skill of a folder, in seconds since 1970, by the path of the skill.

    A skill with files that differ from the last commit has no date: its author works on it now. Without git or a
    repository, no skill has a date.
    """
    base = Path(os.path.realpath(folder.path))
    if not any((ancestor / ".git").exists() for ancestor in (base, *base.parents)):
        return {}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        committed = _committed(base)
        roots = {skill.root for skill in folder.skills() if _is_committed(skill, base, committed)}
        return _last_changes(base, roots)
    return {}


def head_commit(folder: Folder) -> str:
    """Return the hash of the last commit of the repository of a folder, or "" if git does not answer."""
    about = os.environ | _ALONE
    command = [*_HISTORY, "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(
            command,
            cwd=folder.path,
            env=about,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode("ascii", "replace").strip()


def _committed(base: Path) -> dict[str, str]:
    """Return the hashes of the files in the last commit."""
    command = [*_HISTORY, "ls-tree", "-r", "-z", "HEAD", "--", "."]
    about = os.environ | _ALONE
    listing = subprocess.run(
        command, cwd=base, env=about, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True
    )
    entries = (entry.partition(b"\t") for entry in listing.stdout.split(b"\0") if entry)
    return {os.fsdecode(path): fields.split()[2].decode() for fields, _, path in entries}


def _is_committed(skill: LocatedSkill, base: Path, committed: Mapping[str, str]) -> bool:
    files = ((entry.place, committed.get(os.path.relpath(entry.place, base))) for entry in skill.files.values())
    return all(digest is not None and _is_content(place, digest) for place, digest in files)


def _is_content(path: Path, digest: str) -> bool:
    """Return whether a file has the content that git stores under this hash."""
    # `git status` would do, but it can start the filters that a repository configures.
    content = path.read_bytes()
    new = hashlib.sha1 if len(digest) == hashlib.sha1().digest_size * 2 else hashlib.sha256  # noqa: S324
    return new(b"blob %d\0" % len(content) + content).hexdigest() == digest


def _last_changes(base: Path, roots: set[str]) -> dict[str, int]:
    dates: dict[str, int] = {}
    time = 0
    for word in _log_words(base) if roots else ():
        if word.startswith(_TIME):
            time = int(word[1:])
            continue
        root = _root_of(os.fsdecode(word.lstrip(b"\n")), roots)
        if root is not None and root not in dates:
            dates[root] = time
            if len(dates) == len(roots):
                break
    return {root: dates.get(root, time) for root in roots}


def _log_words(base: Path) -> Iterator[bytes]:
    """Yield the time of each commit after _TIME, and then the changed files, beginning with the newest commit."""
    history = ("log", "--root", "--no-renames", "--name-only", "--relative", "-z", f"--max-count={MOST_COMMITS}")
    command = [*_HISTORY, *history, f"--format={_TIME.decode()}%ct", "--", "."]
    about, null = os.environ | _ALONE, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=base, env=about, stdin=null, stdout=subprocess.PIPE, stderr=null) as log:
        assert log.stdout is not None
        try:
            rest = b""
            while chunk := os.read(log.stdout.fileno(), _CHUNK_BYTES):
                *words, rest = (rest + chunk).split(b"\0")
                yield from filter(None, words)
        finally:
            log.kill()


def _root_of(path: str, roots: set[str]) -> str | None:
    """Return the nearest skill folder above a file."""
    while path:
        path = path.rpartition("/")[0]
        if path in roots:
            return path
    return None
