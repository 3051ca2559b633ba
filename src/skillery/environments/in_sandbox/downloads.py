"""Locking and downloading in the sandbox: uv creates locks, and the files of a lock are sent to the host in pieces."""

# ruff: noqa: PTH118, PTH208, PTH123 - the least that has to be imported
from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from runtime import _asking, _host, blobs  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 4 * 1024 * 1024
MOST_SAID = 64 * 1024
MOST_OUT = 12 * 1024 * 1024
TRIES = 4
SIZE_SECONDS = 10
NEVER_AGAIN = range(400, 500)
_ALWAYS = ("--no-config", "--no-progress", "--color", "never")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)(.*(?:\n[ \t].*)*)", re.MULTILINE)
WHEEL = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")


class PackageProblem(Exception):
    """Raised for a problem with one package. The server writes the message for it."""

    def __init__(self, reason: str, package: str, detail: str = "") -> None:
        super().__init__(reason)
        self.facts = {"reason": reason, "package": package, "detail": detail}


# -- uv ------------------------------------------------------------------------------------------------------------


def job_file(name: str) -> str:
    """Return the path of a file passed to the job."""
    return f"{_asking.blobs_folder()}/{name}"


def folder(name: str) -> str:
    """Return the path of a folder passed to the job."""
    return next(path for path in sys.path if path.endswith(f"/packages/{name}"))


def trust() -> None:
    """Make HTTPS trust the certificates that the server passed."""
    if os.path.exists(job_file("ca")):  # noqa: PTH110
        os.environ["SSL_CERT_FILE"] = job_file("ca")


def uv(arguments: list[str], stdin: str = "") -> dict[str, Any]:
    here = os.getcwd()  # noqa: PTH109
    own = {
        "HOME": here,
        "UV_CACHE_DIR": f"{here}/cache",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_HTTP_RETRIES": "3",
        "UV_LINK_MODE": "copy",
        "RAYON_NUM_THREADS": "4",
        "TOKIO_WORKER_THREADS": "4",
    }
    command = [job_file("uv"), *arguments, *_ALWAYS]
    ran = subprocess.run(command, input=stdin.encode(), capture_output=True, env=os.environ | own, check=False)
    return {"code": ran.returncode, "out": ran.stdout, "err": ran.stderr.decode("utf-8", "replace")[-MOST_SAID:]}


def source_arguments(args: dict[str, Any]) -> list[str]:
    return ["--no-index", "--find-links", folder("wheelhouse")] if args["wheelhouse"] else []


def lock(args: dict[str, Any]) -> dict[str, Any]:
    """Lock the requirements with uv."""
    trust()
    ran = uv([*args["arguments"], *source_arguments(args)], args["stdin"])
    out = ran["out"]
    if len(out) > MOST_OUT:
        raise PackageProblem("too_long", "")
    text = out.decode("utf-8", "replace")
    measured = ran["code"] == 0 and args["files"] is not None
    return ran | {"out": text, "sizes": sizes_in(text, args | args["files"]) if measured else {}}


def sizes_in(lock: str, args: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of the file that would be fetched for each package of a lock, as far as they are known after
    SIZE_SECONDS.
    """
    sizes: dict[str, int] = {}
    # Timeouts of single requests do not limit their sum, and an index can send its answer slowly.
    looking = threading.Thread(target=look_up_sizes, args=(lock, args, sizes), daemon=True)
    looking.start()
    looking.join(SIZE_SECONDS)
    return sizes.copy()


def look_up_sizes(lock: str, args: dict[str, Any], sizes: dict[str, int]) -> None:
    """Add the size of each package to `sizes`. After an error, sizes are missing: the installation reports it."""
    pins: list[dict[str, Any]] = [
        {"name": normal(pin[1]), "version": pin[2], "hashes": re.findall(r"--hash=sha256:([0-9a-f]{64})", pin[3])}
        for pin in PIN.finditer(lock)
    ]
    try:
        offered = candidates(args | {"pins": pins})
    except (PackageProblem, OSError, KeyError, ValueError):
        return
    for pin in pins:
        with contextlib.suppress(PackageProblem, OSError, KeyError, ValueError):
            file = choose(args, pin, offered.get(pin["name"], []))
            sizes[pin["name"]] = file["size"] or stated_size(file["where"])


def stated_size(where: str) -> int:
    """Return the bytes of a file, as the answer to HEAD states them, or 0 if it does not."""
    if not where.startswith(("http://", "https://")):
        return 0
    head = request(where)
    head.method = "HEAD"
    try:
        with urllib.request.urlopen(head, timeout=20) as answer:  # noqa: S310
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, http.client.HTTPException, ValueError):
        return 0


# -- which files ---------------------------------------------------------------------------------------------------


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def tags_of(file: str) -> list[str]:
    match = WHEEL.fullmatch(file)
    if match is None:
        return []
    kinds = (part.split(".") for part in match.groups()[2:])
    pythons, abis, platforms = kinds
    return [f"{python}-{other}-{third}" for python in pythons for other in abis for third in platforms]


def candidates(args: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the available files of each package: name, location, and size and hash if they are known."""
    if args["wheelhouse"]:
        return in_folder(args["pins"])
    import tomllib

    requirements = "".join(f"{pin['name']}=={pin['version']}\n" for pin in args["pins"])
    ran = uv([*args["arguments"], "--format", "pylock.toml", "--no-deps", "--output-file", "pylock.toml"], requirements)
    if ran["code"] != 0:
        raise PackageProblem("uv", "", ran["err"])
    with open("pylock.toml", "rb") as file:
        packages = tomllib.load(file).get("packages", [])
    return {normal(package["name"]): list(listed(package)) for package in packages}


def listed(package: dict[str, Any]) -> Iterator[dict[str, Any]]:
    entries = list(package.get("wheels", ())) + ([package["sdist"]] if "sdist" in package else [])
    for entry in entries:
        where = entry.get("url") or "file:" + entry["path"]
        name = entry.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(where).path.rpartition("/")[2])
        sha256 = entry.get("hashes", {}).get("sha256")
        yield {"file": name, "where": where, "size": entry.get("size", 0), "sha256": sha256}


def in_folder(pins: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    wanted = {pin["name"] for pin in pins}
    files: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(os.listdir(folder("wheelhouse"))):
        wheel = WHEEL.fullmatch(file)
        name = normal(wheel[1]) if wheel else normal(re.sub(r"-[^-]+\.(?:tar\.gz|zip)$", "", file))
        path = os.path.join(folder("wheelhouse"), file)
        if name in wanted and file.endswith((".whl", ".tar.gz", ".zip")) and os.path.isfile(path):  # noqa: PTH113
            size = os.stat(path).st_size  # noqa: PTH116
            files.setdefault(name, []).append({"file": file, "where": path, "size": size, "sha256": hash_of(path)})
    return files


def hash_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def choose(args: dict[str, Any], pin: dict[str, Any], files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the best file of a package that the lock allows. Raise PackageProblem if there is none."""
    package = f"{pin['name']} {pin['version']}"
    ranks = {tag: rank for rank, tag in enumerate(args["tags"])}
    wheels = []
    for file in files:
        fitting = [ranks[tag] for tag in tags_of(file["file"]) if tag in ranks]
        if fitting:
            wheels.append((min(fitting), file["file"], file))
    named = [file for _, _, file in sorted(wheels, key=lambda wheel: wheel[:2])]
    if args["from_source"]:
        named += [file for file in files if not file["file"].endswith(".whl")]
    allowed = [file for file in named if file["sha256"] is None or file["sha256"] in pin["hashes"]]
    if allowed:
        return allowed[0] | {"pin": pin}
    if any(not file["file"].endswith(".whl") for file in files) and not wheels:
        raise PackageProblem("source", package)
    raise PackageProblem("hash" if named else "no_wheel", package)


# -- fetching ------------------------------------------------------------------------------------------------------


def logins() -> dict[tuple[str, str], str]:
    """Return the HTTP credentials of each index by scheme and host. No other host gets them."""
    credentials = {}
    for address in f"{os.environ.get('UV_INDEX', '')} {os.environ.get('UV_DEFAULT_INDEX', '')}".split():
        split = urllib.parse.urlsplit(address)
        user, at, host = split.netloc.rpartition("@")
        if at:
            encoded = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
            credentials[split.scheme, host] = f"Basic {encoded}"
    return credentials


def request(where: str) -> urllib.request.Request:
    split = urllib.parse.urlsplit(where)
    host = split.netloc.rpartition("@")[2]
    # The lock decides which files are accepted.
    made = urllib.request.Request(split._replace(netloc=host, fragment="").geturl())  # noqa: S310
    login = logins().get((split.scheme, host)) or npm_login(split)
    if login:
        made.add_unredirected_header("Authorization", login)
    return made


def npm_login(where: urllib.parse.SplitResult) -> str:
    """Return the credentials for an address of the npm registry, or "". Other paths of its host get none, because they
    can be other registries.
    """
    token, registry = os.environ.get("NPM_TOKEN"), urllib.parse.urlsplit(os.environ.get("NPM_REGISTRY", ""))
    above, path = (urllib.parse.unquote(each.path).replace("\\", "/").rstrip("/") + "/" for each in (registry, where))
    is_host = (where.scheme, where.netloc.lower()) == (registry.scheme, registry.netloc.lower())
    return f"Bearer {token}" if token and is_host and path.startswith(above) and "/../" not in path else ""


def contents(where: str) -> Iterator[bytes]:
    if not where.startswith(("http://", "https://")):
        with open(where, "rb") as file:
            while piece := file.read(PIECE):
                yield piece
        return
    with urllib.request.urlopen(request(where), timeout=60) as answer:  # noqa: S310
        length, got = answer.headers.get("Content-Length"), 0
        while piece := answer.read(PIECE):
            got += len(piece)
            yield piece
        if length and got != int(length):
            raise http.client.IncompleteRead(b"")


def send_file(file: dict[str, Any]) -> None:
    """Send one file to the host. If the download is interrupted, start it again. Raise PackageProblem if all attempts
    fail.
    """
    pin = file["pin"]
    package = f"{pin['name']} {pin['version']}"
    for number in range(TRIES):
        begin = {"name": pin["name"], "version": pin["version"], "file": file["file"], "size": file["size"]}
        blobs.write_bytes(json.dumps(begin).encode(), "x/begin")
        digest = hashlib.new(pin.get("algorithm", "sha256"))
        try:
            for piece in contents(file["where"]):
                digest.update(piece)
                blobs.write_bytes(piece, "x/piece")
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            if isinstance(error, _host.HostError):
                raise
            status = error.code if isinstance(error, urllib.error.HTTPError) else 0
            if number == TRIES - 1 or status in NEVER_AGAIN or "403" in str(error):
                raise PackageProblem("away", package, str(status or error)) from None
            time.sleep(0.5 * 2**number)
        else:
            if digest.hexdigest() not in pin["hashes"]:
                raise PackageProblem("hash", package)
            blobs.write_bytes(b"{}", "x/end")
            return


def fetch(args: dict[str, Any]) -> dict[str, Any]:
    """Send a file for each pin to the host. Return the problem, or {} if there is none."""
    trust()
    try:
        offered = candidates(args)
        files = [choose(args, pin, offered.get(pin["name"], [])) for pin in args["pins"]]
        size = sum(file["size"] for file in files)
        if size > args["max_bytes"]:
            raise PackageProblem("too_large", "", str(size))
        for file in files:
            send_file(file)
    except PackageProblem as problem:
        return problem.facts
    return {}


# -- building ------------------------------------------------------------------------------------------------------


def build(args: dict[str, Any]) -> dict[str, Any]:
    """Build a wheel from a source archive and send it to the host. Return the problem, or {} if there is none."""
    trust()
    pin = args["pin"]
    os.symlink(job_file("source"), args["file"])  # noqa: PTH211 - the name contains package and version
    ran = uv(
        ["build", "--wheel", "--out-dir", "built", "--python", args["python"], *source_arguments(args), args["file"]]
    )
    built = [name for name in os.listdir("built") if name.endswith(".whl")] if os.path.isdir("built") else []  # noqa: PTH112
    if ran["code"] != 0 or len(built) != 1:
        return {"reason": "build", "package": f"{pin['name']} {pin['version']}", "detail": ran["err"][-4096:]}
    begin = {"name": pin["name"], "version": pin["version"], "file": built[0], "size": 0}
    blobs.write_bytes(json.dumps(begin).encode(), "x/begin")
    for piece in contents(f"built/{built[0]}"):
        blobs.write_bytes(piece, "x/piece")
    blobs.write_bytes(b"{}", "x/end")
    return {}
