"""Packages of npm in the sandbox: npm makes locks, and the files of a lock are sent to the host, packed or unpacked.

This file is added to `downloads.py`, or to `wheels.py` to unpack, whose functions it uses. No script of a package is
ever executed.
"""

# ruff: noqa: PTH118, PTH123 - the least that has to be imported
import json
import os
import re
import subprocess
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from runtime import _asking, _host  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from skillery.environments.in_sandbox.downloads import (
        MOST_OUT,
        MOST_SAID,
        TRIES,
        PackageProblem,
        folder,
        request,
        send_file,
        trust,
    )
    from skillery.environments.in_sandbox.wheels import PIECE, Stream

MOST_ABOUT = 16 * 1024 * 1024
QUERIES_AT_ONCE = 8
LOCK_ONLY = (
    *("install", "--package-lock-only", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"),
    *("--omit-lockfile-registry-resolved", "--loglevel=error", "--fetch-retries=2", "--fetch-retry-mintimeout=500"),
)
KNOWN = ("os", "cpu", "libc")
UNKNOWN = re.compile(r"404\s+'?((?:@[\w.~-]+/)?[\w.~-]+)@[^\n]*is not in this registry|code E404")
NO_VERSION = re.compile(r"No matching version found for ((?:@[\w.~-]+/)?[\w.~-]+)@")
ASKED_FOR = re.compile(r"40[34] [A-Z][A-Za-z ]+ - GET \S+/((?:@[\w.~-]+(?:/|%2[fF]))?[\w.~-]+) ")
AWAY = re.compile(r"code (?:E\w*(?:CONN|TIMEDOUT|NOTFOUND|AGAIN|RESET|SSL)\w*|E5\d\d)|network request to")
REFUSED = re.compile(r"code E(401|403)\b")


# -- lock --------------------------------------------------------------------------------------------------------------


def npm_lock(args: dict[str, Any]) -> dict[str, Any]:
    """Lock the dependencies with npm. Return the packages, or the problem."""
    trust()
    here = os.getcwd()  # noqa: PTH109
    registry = os.environ["NPM_REGISTRY"].rstrip("/") + "/"
    with open("package.json", "w") as file:
        wanted = {"dependencies": args["dependencies"], "overrides": args["overrides"]}
        json.dump({"name": "skill", "version": "1.0.0", "private": True, **wanted}, file)
    with open(".npmrc", "w") as file:
        file.write(f"registry={registry}\n")
        if os.environ.get("NPM_TOKEN"):
            file.write(f"//{registry.partition('//')[2]}:_authToken=${{NPM_TOKEN}}\n")
    own = {"HOME": here, "npm_config_cache": f"{here}/cache", "npm_config_update_notifier": "false"}
    if "SSL_CERT_FILE" in os.environ:
        own["NODE_EXTRA_CA_CERTS"] = os.environ["SSL_CERT_FILE"]
    command = ["npm", *LOCK_ONLY, *([f"--before={args['before']}"] if args["before"] else [])]
    try:
        ran = subprocess.run(command, capture_output=True, env=os.environ | own, check=False)
    except FileNotFoundError:
        return {"reason": "no_npm", "package": "", "detail": ""}
    if ran.returncode:
        return problem_of_npm(ran.stderr.decode("utf-8", "replace")[-MOST_SAID:])
    with open("package-lock.json", "rb") as file:
        content = file.read(MOST_OUT + 1)
    if len(content) > MOST_OUT:
        return {"reason": "too_long", "package": "", "detail": ""}
    entries = json.loads(content)["packages"]
    declared = needed_by([name for name in args["dependencies"] if name not in args["inferred"]], entries)
    try:
        packages = [locked(path, entry, inferred=path not in declared) for path, entry in entries.items()]
    except PackageProblem as problem:
        return problem.facts
    return {"packages": [*filter(None, packages)]}


def needed_by(names: list[str], entries: dict[str, Any]) -> set[str]:
    """Return the paths of the packages with these names at the top, and of all packages that they need."""
    needed, waiting = set[str](), [("", name) for name in names]
    while waiting:
        path = path_of(*waiting.pop(), entries)
        if path and path not in needed:
            needed.add(path)
            for kind in ("dependencies", "optionalDependencies", "peerDependencies"):
                waiting += [(path, name) for name in entries[path].get(kind, ())]
    return needed


def path_of(folder: str, name: str, entries: dict[str, Any]) -> str:
    """Return the path of the package that Node.js finds from a folder, or "" if there is none."""
    while True:
        path = f"{folder}/node_modules/{name}".lstrip("/")
        if path in entries or not folder:
            return path if path in entries else ""
        folder = folder.rpartition("node_modules/")[0].rstrip("/")


def problem_of_npm(text: str) -> dict[str, Any]:
    unknown, refused, at_fault = UNKNOWN.search(text), REFUSED.search(text), ASKED_FOR.search(text)
    name = urllib.parse.unquote(at_fault[1]) if at_fault else ""
    if unknown is not None:
        return {"reason": "unknown_package", "package": unknown[1] or name, "detail": ""}
    if refused is not None:
        return {"reason": "refused", "package": name, "detail": refused[1]}
    version = NO_VERSION.search(text)
    if version is not None:
        return {"reason": "unsatisfiable", "package": version[1], "detail": "no version is in the range"}
    return {"reason": "away" if AWAY.search(text) else "npm", "package": "", "detail": text}


def locked(path: str, entry: dict[str, Any], *, inferred: bool) -> dict[str, Any] | None:
    """Return an entry of `npm.lock`; None for the skill itself, and for a package that is in the file of another."""
    if not path or entry.get("inBundle"):
        return None
    integrity = next((word for word in entry.get("integrity", "").split() if word.startswith("sha512-")), "")
    if not path.startswith("node_modules/") or entry.get("link") or "resolved" in entry:
        raise PackageProblem("source", path)
    if not integrity:
        raise PackageProblem("integrity", path)
    known = {key: entry[key] if isinstance(entry[key], list) else [entry[key]] for key in KNOWN if entry.get(key)}
    return known | {
        "path": path.removeprefix("node_modules/"),
        "version": entry["version"],
        "integrity": integrity,
        "name": entry.get("name", ""),
        "bin": {name: os.path.normpath(file) for name, file in entry.get("bin", {}).items()},
        "optional": bool(entry.get("optional")),
        "script": bool(entry.get("hasInstallScript")),
        "inferred": inferred,
    }


# -- fetch -------------------------------------------------------------------------------------------------------------


def npm_fetch(args: dict[str, Any]) -> dict[str, Any]:
    """Send the file of each package to the host. Return the problem, or {} if there is none."""
    trust()
    find = stored if args["store"] else published
    try:
        with ThreadPoolExecutor(QUERIES_AT_ONCE) as threads:
            addresses = list(threads.map(find, args["pins"]))
        for pin, where in zip(args["pins"], addresses, strict=True):
            send_file({"pin": pin, "where": where, "file": "package.tgz", "size": 0})
    except PackageProblem as problem:
        return problem.facts
    return {}


def stored(pin: dict[str, Any]) -> str:
    """Return the path of a package in the folder of the server."""
    path = os.path.join(folder("npm_store"), pin["stored"])
    if not os.path.isfile(path):  # noqa: PTH113
        raise PackageProblem("unknown_package", f"{pin['name']} {pin['version']}")
    return path


def published(pin: dict[str, Any]) -> str:
    """Return the address of a package's file, from the registry."""
    package = f"{pin['name']} {pin['version']}"
    registry = os.environ["NPM_REGISTRY"].rstrip("/")
    for number in range(TRIES):
        try:
            with urllib.request.urlopen(  # noqa: S310
                request(f"{registry}/{urllib.parse.quote(pin['name'], safe='@')}/{pin['version']}"), timeout=60
            ) as answer:
                return str(json.loads(answer.read(MOST_ABOUT))["dist"]["tarball"])
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise PackageProblem("unknown_package", package) from None
            if error.code in {401, 403}:
                raise PackageProblem("away", package, str(error.code)) from None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if number == TRIES - 1:
            break
    raise PackageProblem("away", package)


# -- unpack ------------------------------------------------------------------------------------------------------------


def npm_unpack(args: dict[str, Any]) -> dict[str, str]:
    """Send the files of a package to the host. Return the problem, or {} if there is none."""
    stream, size, count = Stream(0), 0, 0
    try:
        with tarfile.open(f"{_asking.blobs_folder()}/package", "r|gz") as archive:
            for member in archive:
                if member.isdir():
                    continue
                size, count = size + member.size, count + 1
                if not member.isreg():
                    return {"reason": "no_file", "detail": member.name[:200]}
                if size > args["max_bytes"]:
                    return {"reason": "too_large", "detail": str(size)}
                if count > args["max_files"]:
                    return {"reason": "too_many_files", "detail": str(count)}
                file = archive.extractfile(member)
                # As npm does: the first folder has any name.
                name = member.name.removeprefix("./").partition("/")[2]
                stream.begin("file", name, member.size, executable=bool(member.mode & 0o100))
                left = member.size
                while left:
                    piece = file.read(min(PIECE, left)) if file is not None else b""
                    if not piece:
                        return {"reason": "broken", "detail": "a file is shorter than it says"}
                    left -= len(piece)
                    stream.add(piece)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, _host.HostError):
            raise
        return {"reason": "no_archive", "detail": str(error)[:200]}
    stream.flush()
    return {}
