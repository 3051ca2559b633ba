"""Findings about the files of a bundle: paths that Windows cannot store, install scripts, suites of evaluations, and
dead references.

A reference is a link or a path in code of SKILL.md. If the skill does not have the file, the reference is dead: an
agent that follows the instructions finds no file. Every step takes linear time, because the text may be from strangers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from skillery.backends import Finding
from skillery.formats.bundle import SKILL_MD, BundleFile
from skillery.formats.npm import NPM_LOCK, NpmLock, npm_lock_in
from skillery.formats.package_json import LOCK_FILE, unread_locks
from skillery.formats.paths import MAX_BYTES, plain_path, portability_problem
from skillery.formats.suites import LEAKED_WORDS, is_instruction, leaks, read_suite, suite_files
from skillery.formats.wording import quoted
from skillery.publishing.package_locks import LEFT_OUT

NOT_PORTABLE = "not_portable"
EVAL_FORMAT = "eval_format"
EVAL_LEAK = "eval_leak"
MOST_OF_SUITES = 20
DEAD_REFERENCE = "dead_reference"
NPM_INSTALL_SCRIPT = "npm_install_script"
UNREAD_NPM_LOCK = "unread_npm_lock"
MAKE_LOCK = "npm install --package-lock-only"
MOST_UNPORTABLE = 20
MOST_READ = 256 * 1024
"""The maximum number of characters of a SKILL.md that are read."""
MOST_DEAD = 20
"""The maximum number of dead references of a skill."""
FOLDERS = frozenset({"scripts", "references", "reference", "assets", "resources", "templates"})
"""Folders of skills. In code, a path below another folder that the skill does not have may be one of the user."""
PLUGIN_ROOT = "${CLAUDE_PLUGIN_ROOT}"
_FENCE = re.compile(r" {0,3}(```+(?=[^`]*$)|~~~+)")
_LINK = re.compile(r"\]\(\s{0,9}<?([^()\s<>]{1,400})")
_BETWEEN = re.compile(r"[\s\"'()\[\],;=<>|&]+")
_SKILL_FOLDER = re.compile(r"(?:\$\{?(?:CLAUDE_)?SKILL_DIR\}?|\{baseDir\})/")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NO_PATH = re.compile(r"[*?${}~\\:@%#]|\.\.\.")
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")
_DOMAINS = frozenset({".com", ".org", ".net", ".io", ".dev", ".ai", ".app"})


def file_findings(files: Sequence[BundleFile]) -> list[Finding]:
    """Return the findings about the files of a bundle. Blocking."""
    paths = {file.path: file for file in files}
    findings = [
        Finding(
            NOT_PORTABLE,
            f"the path {quoted(path)} {portability_problem(path)}. Shared repositories leave the skill out",
            "warning",
            path,
        )
        for path in islice(filter(portability_problem, paths), MOST_UNPORTABLE)
    ]
    findings += [
        Finding(UNREAD_NPM_LOCK, f"decides no versions here: {LOCK_FILE} does ({MAKE_LOCK})", "info", path)
        for path in islice(unread_locks(paths), MOST_UNPORTABLE)
    ]
    if NPM_LOCK in paths:
        findings += _of_npm_lock(npm_lock_in({NPM_LOCK: paths[NPM_LOCK].content}))
    findings += _of_suites(paths)
    text = paths[SKILL_MD].content.decode("utf-8", "replace") if SKILL_MD in paths else ""
    return findings + [
        Finding(DEAD_REFERENCE, dead.message, "warning" if dead.is_certain else "info", SKILL_MD, dead.line)
        for dead in dead_references(text, paths)
    ]


def _of_suites(files: Mapping[str, BundleFile]) -> Iterator[Finding]:
    """Yield a finding for each file or case of a suite that cannot be read, and for each text that gives away what a
    case expects.
    """
    suite = read_suite({path: files[path].content for path in suite_files(files)})
    for problem in islice(suite.problems, MOST_OF_SUITES):
        yield Finding(EVAL_FORMAT, problem.message, "warning", problem.file)
    texts = {path: file.content.decode("utf-8", "replace") for path, file in files.items() if is_instruction(path)}
    for path, line, case in islice(leaks(suite.cases, texts), MOST_OF_SUITES):
        message = f"repeats {LEAKED_WORDS} words of what the case {case.id} of {case.source} expects"
        yield Finding(EVAL_LEAK, f"{message}: an agent reads the answer", "warning", path, line)


def _of_npm_lock(lock: NpmLock | None) -> Iterator[Finding]:
    """Yield a finding for each package that has a script for its installation, and for each that is left out."""
    for package in lock.packages if lock is not None else ():
        if package.script and package.fits_here():
            message = "runs a script when it is installed, which this server does not do; it may not work"
            yield Finding(NPM_INSTALL_SCRIPT, f"{package.package} {message}", "info", NPM_LOCK)
    for entry in lock.left_out if lock is not None else ():
        yield Finding(LEFT_OUT, f"the npm package {entry.name} is left out: {entry.detail}", "info", NPM_LOCK)


class DeadReference(NamedTuple):
    """A reference to a file that the skill does not have. The message begins with the quoted path."""

    message: str
    line: int
    is_certain: bool
    """False for a path in code, which may be a file that a command creates."""


def dead_references(text: str, paths: Collection[str]) -> list[DeadReference]:
    """Return the dead references of a SKILL.md, each path once. `paths` are the files of the skill."""
    existing = {"", *paths}
    for path in paths:
        while path := path.rpartition("/")[0]:
            existing.add(path)
    by_message: dict[str, DeadReference] = {}
    for line, reference, is_link in _references(text):
        dead = _dead(reference, line, is_link, existing)
        if dead is not None:
            by_message.setdefault(dead.message, dead)
        if len(by_message) == MOST_DEAD:
            break
    return list(by_message.values())


def _references(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text and the kind (True for a link) of each reference. Frontmatter has no references."""
    fence, is_frontmatter = "", text.startswith("---")
    for number, line in enumerate(text[:MOST_READ].splitlines(), 1):
        if is_frontmatter:
            is_frontmatter = number == 1 or line.rstrip() != "---"
            continue
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            continue
        # Every second piece is code between backticks.
        pieces = line.split("`")
        for code in [line] if fence else pieces[1::2]:
            for word in _BETWEEN.split(code):
                yield number, word.rstrip(".:!"), False
        for match in () if fence else _LINK.finditer(" ".join(pieces[::2])):
            yield number, match[1], True


def _dead(reference: str, line: int, is_link: bool, existing: Collection[str]) -> DeadReference | None:
    if reference.startswith(f"{PLUGIN_ROOT}/"):
        message = f"{quoted(reference, 120)} is a file of a plugin, and runs of this skill have only its own files"
        return DeadReference(message, line, is_certain=True)
    path = _path_in_link(reference) if is_link else _path_in_code(reference, existing)
    if path is None or len(path) > MAX_BYTES:
        return None
    plain = plain_path(path.rstrip("/"))
    if plain in existing:
        return None
    if ".." in plain.split("/"):
        message = f"{quoted(plain, 120)} leads out of the skill, and runs of this skill have only its own files"
        return DeadReference(message, line, is_certain=True)
    return DeadReference(f"{quoted(plain, 120)} is not a file of the skill", line, is_certain=is_link)


def _path_in_link(target: str) -> str | None:
    """Return the path of a link to a file, or None if the link has another target, for example a web page."""
    path = unquote(target.partition("#")[0].partition("?")[0])
    if not path or path.startswith(("/", "#")) or _SCHEME.match(path) or _NO_PATH.search(path):
        return None
    first, slash, _ = path.partition("/")
    ending = _ENDING.search(path, max(0, len(path) - 9))
    is_domain = first.startswith("www.") or (slash and "." in first.strip(".")) or (ending and ending[0] in _DOMAINS)
    return None if is_domain or not (slash or ending) else path


def _path_in_code(word: str, existing: Collection[str]) -> str | None:
    """Return the path that a word of code is, or None if it is no path of a file in a folder of the skill."""
    path = _SKILL_FOLDER.sub("", word, count=1) if _SKILL_FOLDER.match(word) else word
    if "/" not in path or path.startswith(("/", "-")) or _NO_PATH.search(path):
        return None
    name = path.rpartition("/")[2]
    if not _ENDING.fullmatch(name[name.rfind(".") :] if "." in name else ""):
        return None
    first = plain_path(path).partition("/")[0]
    return path if first in FOLDERS or first == ".." or first in existing else None
