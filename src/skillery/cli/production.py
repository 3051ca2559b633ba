"""`skillery init --production`: the files of a server on one machine, from ten answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import json_option
from skillery.cli.output import is_terminal, print_json, print_rows
from skillery.errors import StartupError

SOURCE = Path(__file__).parents[3] / "packaging"
PACKAGED = Path(__file__).parents[1] / "_packaging"
PROGRAM, NAME = "/opt/skillery/venv/bin/skillery", "skills.example.org"
"""The program and the name in the files of `packaging`. The answers replace them."""
BACKUPS = "/var/backups/skillery"
"""The folder of backups. A mount of another machine survives the loss of this one."""
PRIVATE, PUBLIC = 0o640, 0o644
UNITS = ("skillery.service", "skillery-backup.service", "skillery-backup.timer")
PROXIES = {"nginx": "nginx.conf", "caddy": "Caddyfile"}


class Question(NamedTuple):
    """A question, the answer if the user gives none, and what the answer decides."""

    text: str
    default: str
    meaning: str


QUESTIONS = {
    "name": Question("Name of the server for its users", "", "host name, such as skills.example.org"),
    "program": Question("Path of the installed command", PROGRAM, "the program of the unit"),
    "database": Question("URL of Postgres", "", "empty: SQLite in the home"),
    "workers": Question("Number of processes", "1", "more than one needs Postgres"),
    "bucket": Question("Bucket for contents", "", "empty: folders in the home; needs skillery-s3"),
    "endpoint": Question("Address of the object store", "", "empty: Amazon S3"),
    "issuer": Question("Issuer of the OpenID provider", "", "empty: only tokens of the registry; needs skillery-oidc"),
    "index": Question("Index of packages", "", "such as https://pypi.org/simple; empty: no packages"),
    "proxy": Question("Proxy with TLS", "nginx", "nginx or caddy"),
    "approvals": Question("Do versions of people need a review?", "no", "yes or no; those of agents always do"),
}


@click.command("init", short_help="Write the files of a production server.")
@click.option(
    "--production",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Write the files into this new folder.",
)
@click.option(
    "--answers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the answers from a TOML file. Missing ones have their default.",
)
@json_option
def init(folder: Path, answers: Path | None, as_json: bool) -> None:
    """Ask ten questions, and write settings, units, proxy, backups, alerts and dashboard into a folder.

    Then `skillery doctor` tests the settings on this computer, with an empty home. Nothing outside DIR is changed.
    """
    chosen = read_answers(answers) if answers else ask(as_json=as_json)
    check(chosen)
    if folder.exists() and any(folder.iterdir()):
        raise StartupError(f"the folder {folder} is not empty; choose another one")
    files = contents(chosen)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (text, mode) in files.items():
        (folder / name).touch(mode)
        (folder / name).write_text(text, "utf-8")
    tested = run_doctor(folder, environment_of(chosen), as_json=as_json)
    if as_json:
        print_json({"folder": str(folder), "files": list(files), "healthy": tested == 0})
    else:
        print_rows(["file", "place"], [(str(folder / name), target_of(name)) for name in files], headed=True)
    if tested:
        sys.exit(CHECK_FAILED)


def read_answers(file: Path) -> dict[str, str]:
    """Return the answers of a TOML file. Raise UsageError for a wrong key or value."""
    import tomllib

    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{file} is not TOML: {error}") from None
    if unknown := sorted(table.keys() - QUESTIONS):
        raise click.UsageError(f"{file}: unknown answer '{unknown[0]}'; the answers are {', '.join(QUESTIONS)}")
    words = {True: "yes", False: "no"}
    return {
        name: words.get(value, str(value)) if isinstance(value, bool) else str(value)
        for name, value in ({name: question.default for name, question in QUESTIONS.items()} | table).items()
    }


def ask(*, as_json: bool) -> dict[str, str]:
    """Ask each question. Raise UsageError if no user can answer."""
    if as_json or not is_terminal():
        raise click.UsageError("no terminal: give the answers in a TOML file with --answers FILE")
    return {
        name: str(click.prompt(f"{text} ({meaning})", default=default, show_default=bool(default)))
        for name, (text, default, meaning) in QUESTIONS.items()
    }


def check(answers: Mapping[str, str]) -> None:
    """Raise UsageError with the remedy for answers that do not fit."""
    if not answers["name"] or any(mark in answers["name"] for mark in "/: "):
        raise click.UsageError(f"name is {answers['name']!r}; write a host name, such as {NAME}")
    if answers["proxy"] not in PROXIES:
        raise click.UsageError(f"proxy is {answers['proxy']!r}; write nginx or caddy")
    if answers["approvals"] not in {"yes", "no"}:
        raise click.UsageError(f"approvals is {answers['approvals']!r}; write yes or no")
    if not answers["workers"].isdecimal() or answers["workers"] == "0":
        raise click.UsageError(f"workers is {answers['workers']!r}; write a number from 1 on")
    if answers["workers"] != "1" and not answers["database"]:
        raise click.UsageError("more than one process needs Postgres; write workers 1, or the URL of a database")
    if answers["endpoint"] and not answers["bucket"]:
        raise click.UsageError("an endpoint needs a bucket; name the bucket too")


def settings_of(answers: Mapping[str, str]) -> dict[str, Any]:
    """Return skillery.toml. Secrets are in the file of variables."""
    backends: dict[str, Any] = {
        "authenticator": {"tokens": {"bootstrap": False}},
        "backup": {"directory": {"path": BACKUPS}},
    }
    settings: dict[str, Any] = {
        "auth": ["tokens", "oidc"] if answers["issuer"] else "tokens",
        "allowed_hosts": [answers["name"]],
        "trusted_proxies": ["127.0.0.1"],
        "workers": int(answers["workers"]),
        "backups": {"storage": "directory"},
        "publishing": {"people": "review" if answers["approvals"] == "yes" else "publish"},
        "backends": backends,
    }
    if answers["issuer"]:
        rule = {"identity": "{preferred_username}", "scopes": ["read", "run"]}
        resource = f"https://{answers['name']}"
        backends["authenticator"]["oidc"] = {"issuer": answers["issuer"], "resource": resource, "rules": [rule]}
    if answers["bucket"]:
        bucket = {"bucket": answers["bucket"], "endpoint": answers["endpoint"]}
        settings["storage"] = "s3"
        backends["storage"] = {"s3": {name: value for name, value in bucket.items() if value}}
    if answers["index"]:
        settings["packages"] = {"index_urls": [answers["index"]]}
    return settings


def environment_of(answers: Mapping[str, str]) -> dict[str, str]:
    return {"SKILLERY_DATABASE": answers["database"]} if answers["database"] else {}


def contents(answers: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the text and the mode of each file."""
    import tomli_w

    proxy = PROXIES[answers["proxy"]]
    variables = [f"{name}={value}\n" for name, value in environment_of(answers).items()]
    if answers["bucket"]:
        variables += ["# AWS_ACCESS_KEY_ID=\n", "# AWS_SECRET_ACCESS_KEY=\n"]
    return {
        "skillery.toml": (tomli_w.dumps(settings_of(answers)), PRIVATE),
        "environment": ("# Variables of the server. Only root needs to read them.\n" + "".join(variables), 0o600),
        **{name: (packaged(name).replace(PROGRAM, answers["program"]), PUBLIC) for name in UNITS},
        proxy: (packaged(proxy).replace(NAME, answers["name"]), PUBLIC),
        "alerts.yaml": (packaged("alerts.yaml"), PUBLIC),
        "grafana.json": (packaged("grafana.json"), PUBLIC),
    }


def packaged(name: str) -> str:
    folder = PACKAGED if PACKAGED.is_dir() else SOURCE
    return (folder / name).read_text("utf-8")


def target_of(name: str) -> str:
    """Return the usual place of a file on the machine of the server."""
    targets = dict.fromkeys(UNITS, "/etc/systemd/system/") | {
        "nginx.conf": "/etc/nginx/conf.d/skillery.conf",
        "Caddyfile": "/etc/caddy/Caddyfile",
        "alerts.yaml": "a rule file of Prometheus",
        "grafana.json": "a dashboard of Grafana",
    }
    return targets.get(name, "/etc/skillery/")


def run_doctor(folder: Path, environment: Mapping[str, str], *, as_json: bool) -> int:
    """Test the settings with an empty home. Return the exit code of `skillery doctor`."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="skillery-init-") as home:
        command = [sys.executable, "-m", "skillery", "doctor", "--config", str(folder / "skillery.toml")]
        variables = {**os.environ, **environment, "SKILLERY_HOME": home}
        output = subprocess.DEVNULL if as_json else None
        return subprocess.run(command, env=variables, stdout=output, check=False).returncode
