"""A real server with the setting `bubblewrap`, its doctor, and its message if the sandbox does not work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bubblewrap_here import bwrap
from skills_protocol_conformance.cli import main as conformance
from tests import conftest
from tests.conftest import Server, clean_environment, manifest, skill_files
from tests.support.needing import create, needing
from tests.support.package_index import PackageIndex
from tests.support.prefork import FORKED
from tests.support.wheels import make_wheel

configured_server = conftest.configured_server
CHOSEN = {"SKILLERY_SANDBOX": "bubblewrap"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def started(**env: str) -> Server:
            server = Server(tmp_path / "home", env={**CHOSEN, **program(), **env})
            stack.callback(server.stop)
            return server

        yield started


def program() -> dict[str, str]:
    return {"SKILLERY_BACKENDS_SANDBOX_BUBBLEWRAP_PROGRAM": bwrap()}


def skillery(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FORKED, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=clean_environment({**CHOSEN, **env}),
    )


@pytest.mark.full
def test_it_conforms_to_the_protocol(
    configured_server: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    code = conformance([configured_server(**CHOSEN, **program()).url, "--timeout", "300"])

    assert code == 0, capsys.readouterr()


def test_the_sandbox_setting_applies_to_skills_and_code(configured_server: Callable[..., Server]) -> None:
    rpc = configured_server(**CHOSEN, **program()).rpc
    code = (
        "def main(args):\n    return {'given': args, 'marks': open('/proc/self/mountinfo').read().count('/newroot')}\n"
    )
    rpc("create_skill", manifest=manifest("acme.look"), skill_md="# Look", files=skill_files(code))
    skill = rpc("execute_skill", name="acme.look", args={"a": 1})
    ran = rpc("run_code", language="python", code="import skills.acme.look as s\ndef main(args): return s.main(args)",
              mount_skills=["acme.look"])  # fmt: skip

    assert skill["status"] == ran["status"] == "completed", skill
    assert skill["output"]["given"] == {"a": 1}
    assert skill["output"]["marks"] > 0, "bwrap mounts leave /newroot there"
    assert rpc.http.get("/readyz").json()["status"] == "ready"


def test_a_failure_and_a_blob_come_back_over_http(configured_server: Callable[..., Server]) -> None:
    rpc = configured_server(**CHOSEN, **program()).rpc
    failed = rpc("run_code", language="python", code="def main(args): raise ValueError('no')")
    wrote = rpc("run_code", language="python", code="from runtime import blobs\ndef main(args): blobs.write_text('x')")
    read = rpc("run_code", language="python", input_blobs=wrote["output_blobs"], args={"id": wrote["output_blobs"][0]},
               code="from runtime import blobs\ndef main(args): return blobs.read_text(args['id'])")  # fmt: skip

    assert (failed["status"], failed["error"]["type"]) == ("failed", "ValueError")
    assert read["output"] == "x"


@pytest.mark.full
def test_doctor_reports_bwrap_and_its_capabilities(tmp_path: Path) -> None:
    shown = skillery("doctor", "--json", "--home", str(tmp_path / "home"), **program())
    found: dict[str, Any] = json.loads(shown.stdout)

    assert (shown.returncode, found["sandbox"]) == (0, "bubblewrap")
    assert {"python", "network", "secrets", "disk_files"} < set(found["capabilities"])
    assert next(probe for probe in found["probes"] if probe["name"] == "bwrap")["ok"]


@pytest.mark.full
def test_serve_and_doctor_name_the_package_if_bwrap_is_missing(tmp_path: Path) -> None:
    gone = {"SKILLERY_BACKENDS_SANDBOX_BUBBLEWRAP_PROGRAM": "/nowhere/bwrap"}
    home = str(tmp_path / "home")
    refused = skillery("serve", "--home", home, "--port", "0", **gone)
    doctor = skillery("doctor", "--home", home, **gone)

    assert (refused.returncode != 0, doctor.returncode != 0) == (True, True)
    assert "apt-get install bubblewrap" in refused.stderr
    assert "Traceback" not in refused.stderr + doctor.stderr
    assert "bubblewrap" in doctor.stdout


def test_a_setting_that_it_does_not_know_is_refused_at_start(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    refused = skillery("serve", "--home", home, "--port", "0", SKILLERY_BACKENDS_SANDBOX_BUBBLEWRAP_PROGRAMM="x")

    assert "programm" in refused.stderr


@pytest.mark.smoke
def test_packages_are_locked_and_built_in_it(start: Callable[..., Server], tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    make_wheel(house, "frames", "1.0")
    index = PackageIndex(house)
    server = start(SKILLERY_PACKAGES_INDEX_URLS=index.url)

    create(server.rpc, needing("a.b", "frames"), "import frames\ndef main(args): return frames.VERSION")
    output = server.rpc("execute_skill", name="a.b")["output"]
    index.close()

    assert output == "1.0"
