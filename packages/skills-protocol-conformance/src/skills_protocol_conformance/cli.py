"""The command `skills-protocol-conformance`."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from skills_protocol_conformance import report as reports
from skills_protocol_conformance.connection import Connection, Unreachable
from skills_protocol_conformance.documents import STATEMENTS
from skills_protocol_conformance.judging import PROFILES, Run, statements_of, widest_profile
from skills_protocol_conformance.samples import write_skills
from skills_protocol_conformance.session import Session

CONFORMS, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
EXIT_CODES = "exit codes: 0 conforms, 1 a MUST statement fails, 2 usage, 3 the server cannot be reached"


def parser() -> argparse.ArgumentParser:
    profiles = "\n".join(f"  {name:13} {words}" for name, words in PROFILES.items())
    made = argparse.ArgumentParser(
        prog="skills-protocol-conformance",
        description="Check whether a server conforms to the Skills Protocol v0.1.",
        epilog=f"profiles (default: the widest that the server can show):\n{profiles}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("url", metavar="URL", nargs="?", help="JSON-RPC endpoint; without a path, /rpc is added")
    made.add_argument("--token-env", metavar="NAME", help="environment variable with the bearer token")
    made.add_argument("--profile", choices=PROFILES, help="what to check")
    made.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=30.0, help="limit of one call (30)")
    made.add_argument("--junit", metavar="FILE", type=_file, help="write a report as JUnit XML")
    made.add_argument("--json", metavar="FILE", type=_file, help="write a report as JSON")
    made.add_argument("--badge", metavar="FILE", type=_file, help="write a badge as SVG")
    made.add_argument("--list", action="store_true", help="print all statements, and call nothing")
    made.add_argument("--write-skills", metavar="DIR", type=Path, help="write the samples as folders, and call nothing")
    return made


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: the folder does not exist, or it is a folder")
    return path


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.list:
        _print(reports.listing(STATEMENTS))
        return CONFORMS
    if options.write_skills:
        try:
            count = write_skills(options.write_skills)
        except OSError as error:
            made.error(f"--write-skills: {error}")
        _print([f"wrote {count} skills to {options.write_skills}"])
        return CONFORMS
    url = _endpoint(made, options.url)
    connection = Connection(url, _token(made, options.token_env), options.timeout)
    try:
        return _check(connection, options)
    except Unreachable as problem:
        sys.stderr.write(f"skills-protocol-conformance: {url}: {problem}\n")
        return UNREACHABLE
    finally:
        connection.close()


def _endpoint(made: argparse.ArgumentParser, url: str | None) -> str:
    if not url:
        made.error("give the URL of a server, for example http://127.0.0.1:8080/rpc")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        made.error(f"{url!r} is not an http or https address")
    return url if parts.path.strip("/") else parts._replace(path="/rpc").geturl()


def _token(made: argparse.ArgumentParser, name: str | None) -> str | None:
    token = os.environ.get(name, "") if name else None
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        made.error(f"the environment variable {name} has no token")
    return token


def _check(connection: Connection, options: argparse.Namespace) -> int:
    """Check a server that answers. Raise Unreachable if it does not."""
    began = time.monotonic()
    session = Session(connection, secrets.token_hex(4))
    problem = session.send("load_skills_protocol_guide", {}).problem()
    if problem:
        raise Unreachable(problem)
    profile = options.profile or widest_profile(session)
    if profile == "core":
        session = Session(connection)
    run = Run(session)
    outcomes = run.outcomes(statements_of(profile))
    points = run.open_points()
    run.clean_up()
    report = reports.Report(connection.url, profile, time.monotonic() - began, outcomes, points)
    files = ((options.json, reports.as_json), (options.junit, reports.as_junit), (options.badge, reports.badge))
    for path, make in files:
        if path is not None:
            path.write_text(make(report), "utf-8")
    _print(reports.terminal(report))
    if run.has_stopped:
        raise Unreachable(f"the server does not answer any more: {run.last_problem}")
    return CONFORMS if report.conforms else FAILED


def _print(lines: Iterable[str]) -> None:
    # A terminal that does not know a character gets an escape of it.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        for line in lines:
            sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, for example `head`; the exit code stays that of the verdict
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
