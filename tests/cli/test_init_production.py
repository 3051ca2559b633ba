"""`skillery init --production`: answers become the files of a server."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from skillery.cli.production import QUESTIONS
from tests.cli.test_cli import skillery
from tests.conftest import clean_environment
from tests.support.prefork import FORKED

WRONG = {
    'colour = "red"': "unknown answer 'colour'",
    "": "write a host name",
    'name = "https://skills.example.com"': "write a host name",
    'name = "skills.example.com"\nproxy = "apache"': "write nginx or caddy",
    'name = "skills.example.com"\nworkers = 4': "needs Postgres",
    'name = "skills.example.com"\nworkers = "many"': "write a number",
    'name = "skills.example.com"\napprovals = "maybe"': "write yes or no",
    'name = "skills.example.com"\nendpoint = "https://s3.example.com"': "name the bucket too",
    "name = skills.example.com": "is not TOML",
}
WHOLE = """
name = "skills.example.com"
program = "/srv/skillery/bin/skillery"
database = "postgresql://skillery:pass@db.example.com/skillery"
workers = 2
bucket = "skills"
endpoint = "https://s3.example.com"
issuer = "https://id.example.com"
index = "https://packages.example.com/simple"
proxy = "caddy"
approvals = true
"""


@pytest.mark.parametrize("answers", WRONG)
def test_init_names_the_remedy_of_a_wrong_answer(tmp_path: Path, answers: str) -> None:
    file, folder = tmp_path / "answers.toml", tmp_path / "production"
    file.write_text(answers)

    ended = skillery("init", "--production", str(folder), "--answers", str(file))

    assert ended.code == 2
    assert WRONG[answers] in ended.err
    assert not folder.exists()


def test_init_without_a_terminal_asks_for_a_file_of_answers(tmp_path: Path) -> None:
    ended = skillery("init", "--production", str(tmp_path / "production"))

    assert ended.code == 2
    assert "--answers FILE" in ended.err


def test_init_changes_no_folder_with_files(tmp_path: Path) -> None:
    file = tmp_path / "answers.toml"
    file.write_text('name = "skills.example.com"')

    ended = skillery("init", "--production", str(tmp_path), "--answers", str(file))

    assert ended.code == 4
    assert [path.name for path in tmp_path.iterdir()] == ["answers.toml"]


@pytest.mark.full
def test_init_asks_ten_questions_on_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "production"
    answers = ("skills.example.com", "/srv/skillery/bin/skillery", "", "", "", "", "", "", "caddy", "yes")
    ours, theirs = pty.openpty()
    command = [FORKED, "init", "--production", str(folder)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=clean_environment()) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        shown = b""
        with contextlib.suppress(OSError):  # the process has closed the terminal
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)

    assert process.returncode == 0, shown.decode()
    places = [shown.decode().find(f"{question.text} (") for question in QUESTIONS.values()]
    assert len(places) == len(answers)
    assert -1 not in places
    assert places == sorted(places)
    settings = tomllib.loads((folder / "skillery.toml").read_text())
    assert (settings["allowed_hosts"], settings["workers"]) == (["skills.example.com"], 1)
    assert settings["publishing"] == {"people": "review"}
    assert "skills.example.com" in (folder / "Caddyfile").read_text()
    assert "ExecStart=/srv/skillery/bin/skillery serve" in (folder / "skillery.service").read_text()


@pytest.mark.full
def test_doctor_accepts_the_files_of_init(tmp_path: Path) -> None:
    file, folder = tmp_path / "answers.toml", tmp_path / "production"
    file.write_text('name = "skills.example.com"\nprogram = "/srv/skillery/bin/skillery"')

    ended = skillery("init", "--production", str(folder), "--answers", str(file), "--json")

    assert ended.code == 0, ended.err
    units = ["skillery.service", "skillery-backup.service", "skillery-backup.timer"]
    names = ["skillery.toml", "environment", *units, "nginx.conf", "alerts.yaml", "grafana.json"]
    assert ended.json == {"folder": str(folder), "files": names, "healthy": True}
    assert "ExecStart=/srv/skillery/bin/skillery serve" in (folder / "skillery.service").read_text()
    assert "ExecStart=/srv/skillery/bin/skillery backup" in (folder / "skillery-backup.service").read_text()
    assert "server_name skills.example.com;" in (folder / "nginx.conf").read_text()
    assert oct((folder / "environment").stat().st_mode)[-3:] == "600"


@pytest.mark.full
def test_server_reads_the_files_of_init_with_all_answers(tmp_path: Path) -> None:
    file, folder = tmp_path / "answers.toml", tmp_path / "production"
    file.write_text(WHOLE)

    ended = skillery("init", "--production", str(folder), "--answers", str(file))

    assert ended.code == 1, "no database, bucket or provider answers here"
    assert "/etc/caddy/Caddyfile" in ended.out
    assert ended.out.count("/etc/systemd/system/") == 3
    settings = (folder / "skillery.toml").read_text()
    assert "pass" not in settings
    lines = (folder / "environment").read_text().splitlines()
    variables: dict[str, Any] = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    shown = skillery("config", "show", "--json", "--config", str(folder / "skillery.toml"), **variables)
    assert shown.code == 0, shown.err
    assert {name: shown.json[name]["value"] for name in ("auth", "storage", "workers", "publishing.people")} == {
        "auth": ["tokens", "oidc"],
        "storage": "s3",
        "workers": 2,
        "publishing.people": "review",
    }
    assert tomllib.loads(settings)["backends"]["authenticator"]["oidc"]["resource"] == "https://skills.example.com"
    assert "skills.example.com {" in (folder / "Caddyfile").read_text()
