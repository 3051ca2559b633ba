"""Hints for callers: how to give a module, the network or an output folder to a run that failed without it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

import msgspec

from skillery.backends import CodeCall, Failure, HandlerCall, Job, Outcome, ScriptCall
from skillery.backends.jobs import is_program
from skillery.environments.folders import METADATA_FILE, Built
from skillery.formats.import_names import is_widely_used, own_module, package_of, providers_of
from skillery.formats.npm import NPM_LOCK, npm_lock_in
from skillery.formats.requirements import DEPENDENCIES, LOCK, LeftOut, left_out_in
from skillery.runs.code_hints import PLACE, code_hint
from skillery.runs.live_output import with_line
from skillery.runs.scripts import SESSION_SKILL, script_answer

MOST = 1000
"""The maximum length in characters of an error message with its hint."""
NO_FOLDER = re.compile(r"(?:such file or directory(?::|, open)|existent directory:) '(?:/workspace/|\./)?out[/']")
READS = re.compile(r"^    .*(?:\bread|\bload|\bopen\([^,()]*\))", re.MULTILINE)
"""Matches a line of a traceback that reads a file. For such a file, a folder is no remedy."""
READ_ONLY = re.compile(r"ead-only file system(?:: |, \w{1,9} )'/skills|: Read-only file system|, mkdir '/skills/")
WRITE_ELSEWHERE = "the folder of the skill is read-only: let the script write below /workspace, and results below out/"
MAKE_FOLDER = "create the folder out before you write to it: "
NO_MODULE = re.compile(r"No module named '(?!skills\b)([A-Za-z0-9_.]{1,200})'")
LAST_LINE = re.compile(r"^ModuleNotFoundError: No module named '(?!skills\b)([A-Za-z0-9_.]{1,200})'\s*\Z", re.MULTILINE)
_PRINTED = r"(?<![\w.-])[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?<![._-])"
"""A word that may be the name of a package, in a text of a script that caught ImportError."""
NOT_FOUND_BY_PIP = re.compile(rf"No matching distribution found for ({_PRINTED})")
NO_NPM = re.compile(r"Cannot find (?:package|module) '((?:@[\w.~-]{1,100}/)?[a-z0-9~][\w.~-]{0,213})(?:/[^']{0,200})?'")
"""Matches the error of Node.js for a package. The group has its name; a path is no match."""
NEEDS_BUN = re.compile(r"Bun is not defined|protocol 'bun:'|Cannot find (?:package|module) 'bun['/:]")
OLD_NODE = re.compile(r"this host has Node\.js [\d.]+; \w+ needs Node\.js")
NEWER_NODE = "an admin installs it: pip install 'skillery[node]'"
NO_NETWORK = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Could not resolve host",
    "EAI_AGAIN",
    "ENETUNREACH",
    "connect EACCES",
)
HOST = re.compile(
    r"(?:\bhost='|resolve '|resolve host: |EAI_AGAIN |ENOTFOUND |[\"'`]https?://)((?!\d+\.\d)[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})+)"
)
"""Matches the host in an error of Python, curl or Node.js, or in the line that failed. An address is no match."""
_SIGNS = tuple(
    sign.encode()
    for sign in (
        *("ModuleNotFoundError", "pip install", "not installed", "Cannot find ", "Bun is not", "'bun:'"),
        *("o such file or directory", "non-existent dir", "ead-only file system", "No matching dist", *NO_NETWORK),
    )
)
"""Texts in results of scripts that may need a hint."""
_WITHOUT_RUNTIME = (
    "a script is a program and has no module runtime: print texts for the log, read arguments from sys.argv, and write "
    "files below out/"
)
NO_SOCKET = re.compile(r"\[Errno 13\] Permission denied(?!:)|\[Errno 97\] Address family")
"""Matches the refusal of a socket. For a refused file, the message continues with a colon and the path."""
STARTS_SERVER = re.compile(r"(?:\bbind|\blisten|\bManager|\bserve|_server|Server|\b(?:uvicorn|app)\.run)\(")
"""Matches a line of code that starts a server."""
NO_SERVER = (
    "a Python function cannot open sockets. Put the server into a script and start it with --script, or call run_code "
    "with language bash. multiprocessing needs no socket with the start method fork"
)


def with_hint(job: Job, outcome: Outcome, why_less: str = "") -> Outcome:
    """Return the outcome with a hint in the message of its failure, or in the result of a script.

    If no hint applies, return the outcome unchanged. `why_less` is the reason why the run has fewer permissions than
    its skill declares, or "".
    """
    failure = outcome.failure
    if failure is not None and (hint := _failure_hint(job, failure)):
        return msgspec.structs.replace(outcome, failure=_with_text(failure, hint))
    if isinstance(job.call, ScriptCall) and outcome.result is not None:
        return _script_with_hint(job, outcome, outcome.result, why_less)
    if failure is not None and not is_program(job.call) and _starts_server(failure):
        return msgspec.structs.replace(outcome, failure=_with_text(failure, NO_SERVER))
    if failure is not None and not job.network and lacks_network(failure):
        hint = why_less or how_to_allow(job, failure.message + failure.traceback)
        return msgspec.structs.replace(outcome, failure=_with_text(failure, hint))
    return outcome


def _failure_hint(job: Job, failure: Failure) -> str | None:
    """Return a hint about the folder `out`, the code or a missing module, or None if none applies."""
    if _lacks_folder(failure.message, failure.traceback):
        of_node = "ENOENT" in failure.message
        return MAKE_FOLDER + ("fs.mkdirSync('out')" if of_node else "os.makedirs('out', exist_ok=True)")
    if hint := code_hint(job, failure):
        return hint
    if hint := _node_hint(job, failure.message):
        return hint
    module = _missing_module(failure)
    return how_to_have(module, job) if module is not None else None


def _lacks_folder(message: str, traceback: str) -> bool:
    """Return whether the code could not write a file because the folder out does not exist."""
    return bool(NO_FOLDER.search(message)) and not READS.search(traceback)


def _node_hint(job: Job, text: str) -> str | None:
    """Return a hint about Bun, a missing npm package or an old Node.js, or None if none applies."""
    if NEEDS_BUN.search(text):
        subject = f"'{job.call.path}'" if isinstance(job.call, HandlerCall | ScriptCall) else "the code"
        return f"{subject} needs Bun, which runs here do not have"
    if OLD_NODE.search(text):
        return NEWER_NODE
    match = NO_NPM.search(text)
    if match is None:
        return None
    if isinstance(job.call, CodeCall):
        return f"the npm package '{match[1]}' is not among the packages of this run; mount a skill that declares it"
    if left_out := _left_out([match[1]], job):
        return left_out
    infer = ", or import with --packages infer" if is_widely_used(match[1]) else ""
    return (
        f"the npm package '{match[1]}' is not among the packages of this skill; declare it in package.json or "
        f"[runtime] npm{infer}"
    )


def _starts_server(failure: Failure) -> bool:
    """Return whether the code was refused a socket in a line that starts a server, or in multiprocessing (97)."""
    starts = "[Errno 97] " in failure.message or STARTS_SERVER.search(failure.traceback)
    return bool(starts and NO_SOCKET.search(failure.message))


def lacks_network(failure: Failure) -> bool:
    """Return whether the texts of the failure show that the code could not use the network."""
    text = failure.message + failure.traceback
    return any(phrase in text for phrase in NO_NETWORK) or bool(NO_SOCKET.search(failure.message))


def how_to_have(module: str, job: Job) -> str:
    """Return a text with the package that provides `module`, and ways to provide the package to a run like `job`."""
    if isinstance(job.call, CodeCall):
        names = [skill.name.replace("-", "_") for skill in job.skills]
        mounted = next((name for name in names if f"{name}.".startswith(f"{module}.")), None)
        if mounted is not None:
            return f"a mounted skill is below 'skills': write from skills.{mounted} import …"
    elif own_module_hint := own_module(module, _paths_of(job)):
        return own_module_hint
    providers = providers_of(module)
    provider = f"{providers} provide{'' if len(providers.packages) > 1 else 's'} it"
    second_way = "import the skill with --packages infer"
    if providers.how == "guessed":
        provider = f"no known package provides it: a file may be missing, or its package may be called {providers}"
        second_way = "list it in requirements.txt and import the skill"
    if isinstance(job.call, CodeCall):
        return (
            f"{provider}; three ways to have it: name an environment that has it (list_environments shows them), "
            f"mount a skill that declares it in {DEPENDENCIES}, or let an admin add it to an environment"
        )
    package = providers.packages[0]
    if left_out := _left_out(providers.packages, job):
        return f"{provider}, but {left_out}"
    return (
        f"{provider}; three ways to have it: declare {package} in {DEPENDENCIES} of skill.toml; {second_way}; or name "
        f"an environment that has {package}, if the skill declares no packages"
    )


def _left_out(packages: Sequence[str], job: Job) -> str:
    """Return a clause with the reason why the skill of a job has none of these packages, or "" if there is none."""
    for entry in _left_out_of(job):
        if entry.name in packages:
            return f"{entry.name} is left out of the packages of this skill: {entry.detail or entry.reason}"
    return ""


def _left_out_of(job: Job) -> list[LeftOut]:
    """Return the packages that the lock of the skill leaves out, and those that could not be installed here."""
    left_out = list[LeftOut]()
    if job.skills:
        folder = job.skills[0].folder
        files = {path: (folder / path).read_bytes() for path in (LOCK, NPM_LOCK) if (folder / path).is_file()}
        npm_lock = npm_lock_in(files)
        left_out += (*left_out_in(files.get(LOCK, b"")), *(npm_lock.left_out if npm_lock is not None else ()))
    for mount in job.packages:
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # the environment is of an earlier release
            about = (mount.folder.parent / METADATA_FILE).read_bytes()
            left_out += msgspec.json.decode(about, type=Built).left_out
    return left_out


def _paths_of(job: Job) -> tuple[str, list[str]]:
    """Return the path of the entrypoint or handler of a job, and the paths of the Python files in the same folder."""
    skill = job.skills[0]
    start = job.call.path if isinstance(job.call, HandlerCall | ScriptCall) else skill.entrypoint or ""
    folder = start.rpartition("/")[0]
    return start, [f"{folder}/{path.name}" for path in (skill.folder / folder).glob("*.py")] if folder else []


def _missing_module(failure: Failure) -> str | None:
    """Return the module whose import failed, or None if the failure has another cause."""
    match = NO_MODULE.search(failure.message)
    if match is None:
        return None
    is_whole = failure.type == "ModuleNotFoundError" and match[0] == failure.message
    return match[1] if is_whole or f"ModuleNotFoundError: {match[0]}" in failure.message else None


def _script_with_hint(job: Job, outcome: Outcome, result: bytes, why_less: str) -> Outcome:
    """Return the outcome of a failed script with a hint, in its result as `hint` and in its log.

    If no hint applies, return the outcome unchanged.
    """
    answer = script_answer(result) if any(sign in result for sign in _SIGNS) else None
    if answer is None or not answer.get("exit_code"):
        return outcome
    stdout, stderr = (str(answer.get(stream) or "") for stream in ("stdout", "stderr"))
    subject, hint = "packages", _package_hint(job, stdout, stderr)
    if not hint:
        subject, hint = _other_hint(job, stderr[-MOST_READ:], why_less)
    if not hint:
        return outcome
    places = PLACE.findall(stderr)
    hint = f"{':'.join(places[-1])}: {hint}" if places else hint
    encoded = msgspec.json.encode({**answer, "hint": hint})
    return msgspec.structs.replace(outcome, result=encoded, log=with_line(outcome.log, f"{subject}: {hint}"))


def _package_hint(job: Job, stdout: str, stderr: str) -> str:
    """Return a hint about a missing module, or "" if no module is missing."""
    match = LAST_LINE.search(stderr)
    if match is not None:
        return _WITHOUT_RUNTIME if match[1].partition(".")[0] == "runtime" else how_to_have(match[1], job)
    return _node_hint(job, stderr[-MOST_READ:]) or _left_out(
        [name.lower() for name in re.findall(_PRINTED, stdout + stderr)], job
    )


def _other_hint(job: Job, stderr: str, why_less: str) -> tuple[str, str]:
    """Return the subject and a hint about packages, the network or folders, or two empty texts."""
    if not job.network and (match := NOT_FOUND_BY_PIP.search(stderr)):
        hint = f"a run cannot install packages: declare {match[1]} in {DEPENDENCIES}, or import with --packages infer"
        return "packages", hint
    if not job.network and any(phrase in stderr for phrase in NO_NETWORK):
        return "network", why_less or how_to_allow(job, stderr)
    hint = f"{MAKE_FOLDER}mkdir -p out" if _lacks_folder(stderr, stderr) else ""
    return "files", WRITE_ELSEWHERE if READ_ONLY.search(stderr) else hint


def _with_text(failure: Failure, hint: str) -> Failure:
    """Return the failure with the hint in brackets after its message, which is cut to MOST characters in total."""
    return Failure(failure.type, f"{failure.message[: MOST - len(hint) - 3]} ({hint})", failure.traceback)


def how_to_allow(job: Job, text: str) -> str:
    """Return how an author permits network hosts for a run like `job`. `text` is that of the failure."""
    match = HOST.search(text)
    host, more = (match[1], "") if match is not None else ("HOST", ", a DNS name")
    line = f'permissions.network = ["https://{host}"]'
    if isinstance(job.call, HandlerCall) and job.call.skill == SESSION_SKILL:
        return f"a tool of a session has no network; a skill with a tools.json and {line} may reach {host}"
    if not isinstance(job.call, CodeCall):
        return f"'{job.call.skill}' lists no host that it may reach; {line} in its skill.toml would allow {host}{more}"
    return f"code of run_code has no network; a function of a mounted skill with {line} may reach {host}"


# -- Adds the Debian package of a missing program to the outcome of the run that called the program --------------------


MOST_READ = 64 * 1024
_NAME = r"([A-Za-z0-9][A-Za-z0-9_.+-]{0,63})"
NOT_FOUND = (
    re.compile(rf"{_NAME}: command not found"),  # bash
    re.compile(rf": \d+: {_NAME}: not found"),  # dash
    re.compile(rf"env: [‘'`]{_NAME}[’']: No such file or directory"),
    re.compile(rf"spawn {_NAME} ENOENT"),  # Node.js
    re.compile(rf"wants '{_NAME}', and there is no such program"),
    re.compile(rf"the host has no '{_NAME}' where runs see it"),
)
"""Messages that appear only if a program is missing. The group matches the name of the program."""
NO_FILE = re.compile(rf"No such file or directory: '{_NAME}'")
"""Python has this message for missing programs and for missing files: only the name of a known program counts."""
PHRASES = (
    ("Is poppler installed and in PATH?", "pdfinfo"),
    ("tesseract is not installed or it's not in your PATH", "tesseract"),
    ("make sure the Graphviz executables are on your system", "dot"),
    ("No pandoc was found", "pandoc"),
    ("Couldn't find ffmpeg", "ffmpeg"),
)
"""Pairs of a part of a Python package's message, and the program that is missing if the message has this part."""


def name_missing_program(job: Job, outcome: Outcome) -> Outcome:
    """Return the outcome with the name of a missing program and its Debian package, if a message shows one.

    The text is added to the error, or to the result of a script as `hint`.
    """
    failure = outcome.failure
    if failure is not None:
        hint = hint_on(failure.message)
        if not hint or hint in failure.message:
            return outcome
        return msgspec.structs.replace(outcome, failure=_with_text(failure, hint))
    if isinstance(job.call, ScriptCall) and outcome.result is not None:
        return _name_program_of_script(outcome, outcome.result)
    return outcome


def _name_program_of_script(outcome: Outcome, result: bytes) -> Outcome:
    """Return the outcome of a failed script with a hint about a missing program, if its stderr shows one."""
    answer = script_answer(result)
    if answer is None or not answer.get("exit_code") or "hint" in answer:
        return outcome
    stderr = answer.get("stderr")
    # A long stderr is replaced by a blob, so its end is read from the log.
    text = stderr if isinstance(stderr, str) else (outcome.log.tail or outcome.log.head).decode("utf-8", "replace")
    hint = hint_on(text[-MOST_READ:])
    if not hint:
        return outcome
    encoded = msgspec.json.encode({**answer, "hint": hint})
    return msgspec.structs.replace(outcome, result=encoded, log=with_line(outcome.log, f"programs: {hint}"))


def hint_on(text: str) -> str:
    """Return a sentence about the missing program that an error text names, or "" if the text names none."""
    program = missing_program(text)
    if not program:
        return ""
    package = package_of(program)
    where = f"Debian has it in the package '{package}'; an admin" if package else "an admin"
    return (
        f"the program '{program}' is missing where runs see programs: {where} installs it on the server, and "
        "skillery doctor shows what runs see"
    )


def missing_program(text: str) -> str:
    """Return the name of the missing program that an error text names, or "" if the text names none."""
    for phrase, program in PHRASES:
        if phrase in text:
            return program
    for pattern in NOT_FOUND:
        if programs := pattern.findall(text):
            return str(programs[-1])
    known = [name for name in NO_FILE.findall(text) if package_of(name)]
    return str(known[-1]) if known else ""
