"""The default source of an import: the remote of the repository, or else the name of the folder or archive."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import urlsplit

MAX_SOURCE = 200
ARCHIVE_ENDINGS = (".tar.gz", ".tgz", ".tar", ".zip", ".skill")
_ORIGIN = re.compile(r'^\s*\[\s*remote\s+"origin"\s*\]\s*$')
_SECTION = re.compile(r"^\s*\[")
_URL = re.compile(r"^\s*url\s*=\s*(?P<url>.*?)\s*$")
_SCP = re.compile(r"(?:[^@/:]+@)?(?P<host>[^/:]+):(?!//)(?P<path>.+)")


def default_source(path: Path) -> str:
    """Return the source of a folder or archive if the user gives none.

    The source is the remote `origin` of the repository and the path of the folder inside the repository:
    `github.com/anthropics/skills/document-skills`. Without a remote, the source is the name of the folder or archive.
    If the parent folder starts with a dot (`.claude/skills`), the source begins with the name of the parent.
    """
    full = path.resolve()
    return _limited_source((_remote_source(full) if full.is_dir() else "") or _source_of_name(full))


def name_of(path: Path) -> str:
    """Return the name of a folder, or of an archive without its extension."""
    name = printable(path.resolve().name)
    ending = next((one for one in ARCHIVE_ENDINGS if name.lower().endswith(one)), "") if path.is_file() else ""
    return name[: len(name) - len(ending)]


def printable(text: str) -> str:
    """Return a file name as valid Unicode. Bytes that are not UTF-8 are replaced."""
    return text.encode("utf-8", "replace").decode()


def normal_remote(url: str) -> str:
    """Return the host and path of a remote, without protocol and user: `github.com/anthropics/skills`.

    Return "" if the remote is a local path or has an unknown protocol.
    """
    scp = _SCP.fullmatch(url)
    if scp is not None:
        host, path = scp["host"], scp["path"]
    else:
        parts = _split(url)
        if parts is None:
            return ""
        host, path = parts
    path = path.strip("/").removesuffix(".git").strip("/")
    return f"{host.lower()}/{path}" if host and path else ""


def _split(url: str) -> tuple[str, str] | None:
    """Return the host with its port, and the path, without credentials. Return None if the URL has no host or an
    unknown scheme.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https", "ssh", "git", "ftp", "ftps", "git+ssh"} or not parts.hostname:
        return None
    return (f"{parts.hostname}:{port}" if port and parts.scheme in {"http", "https"} else parts.hostname), parts.path


def _remote_source(folder: Path) -> str:
    repository = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    if repository is None:
        return ""
    remote = normal_remote(_origin(_git_folder(repository / ".git")))
    inside = folder.relative_to(repository).as_posix()
    return remote if not remote or inside == "." else f"{remote}/{inside}"


def _git_folder(git: Path) -> Path:
    """Return the git folder that contains the file `config`. `git` is the path of `.git`.

    In a worktree or submodule, `.git` is not the git folder but a file that names the git folder.
    """
    if git.is_dir():
        return git
    named = _text(git).strip().removeprefix("gitdir:").strip()
    folder = git.parent / named
    common = _text(folder / "commondir").strip()
    return folder / common if common else folder


def _origin(git: Path) -> str:
    """Return the URL of the remote `origin`, or "" if there is none."""
    # The file is parsed without git: git may be missing, or refuse a repository of another user.
    is_origin = False
    for line in _text(git / "config").splitlines():
        if _SECTION.match(line):
            is_origin = _ORIGIN.match(line) is not None
        elif is_origin and (match := _URL.match(line)):
            return match["url"].strip('"')
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _source_of_name(path: Path) -> str:
    parent = path.parent.name
    prefix = f"{printable(parent)}/" if path.is_dir() and parent.startswith(".") else ""
    return prefix + (name_of(path) or "root")


def _limited_source(source: str) -> str:
    plain = "".join(one if one.isprintable() else "?" for one in printable(source))
    if len(plain) <= MAX_SOURCE:
        return plain
    return f"{plain[: MAX_SOURCE - 17]}~{hashlib.sha256(plain.encode()).hexdigest()[:16]}"
