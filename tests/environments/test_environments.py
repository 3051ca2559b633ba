"""Skills with dependencies run with exactly their locked packages: installed once for each lock, verified, mounted
read-only.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.needing import create, lock_of, needing
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

VERSIONS = """
import figures, frames
def main(args): return [frames.VERSION, figures.VERSION, frames.__file__.split('/')[1]]
"""


def environments(server: Server) -> list[Path]:
    """Return the folders of finished environments. The first one creates their common folder."""
    ready = server.home / "environments" / "ready"
    return sorted(ready.iterdir()) if ready.exists() else []


def run(rpc: Rpc, name: str, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = rpc("execute_skill", name=name, **more)
    return result


def rows(server: Server, columns: str) -> list[tuple[Any, ...]]:
    statement = f"SELECT {columns} FROM environments ORDER BY changed_at"
    if server.database:
        with psycopg.connect(server.database.replace("postgresql+psycopg", "postgresql")) as connection:
            return connection.execute(statement).fetchall()
    with sqlite3.connect(server.home / "skillery.db") as connection:
        return connection.execute(statement).fetchall()


def test_two_skills_run_with_two_versions_of_a_package(packages_rpc: Rpc, new_name: str) -> None:
    create(packages_rpc, needing(f"{new_name}.a", "frames>=2"), VERSIONS)
    create(packages_rpc, needing(f"{new_name}.b", "frames<2", "figures<2"), VERSIONS)

    assert run(packages_rpc, f"{new_name}.a")["output"] == ["2.0", "2.0", "packages"]
    assert run(packages_rpc, f"{new_name}.b")["output"] == ["1.5", "1.0", "packages"]


def test_a_skill_without_dependencies_finds_no_package(packages_rpc: Rpc, new_name: str) -> None:
    code = "def main(args):\n    import frames"
    packages_rpc("create_skill", manifest=manifest(new_name), skill_md="# A", files=skill_files(code))

    assert run(packages_rpc, new_name)["error"]["type"] == "ModuleNotFoundError"


def test_skills_with_the_same_lock_share_an_environment(packages: Server, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    code = f"import {own}\ndef main(args): return {own}.__file__"
    for part in ("a", "b", "c"):
        create(packages.rpc, needing(f"{new_name}.{part}", own), code)
    files = {run(packages.rpc, f"{new_name}.{part}")["output"] for part in ("a", "b", "c")}

    assert len(files) == 1
    assert len([folder for folder in environments(packages) if any(folder.rglob(f"{own}.py"))]) == 1
    assert ("ready",) in rows(packages, "state")
    shown = packages.rpc("describe_skill", name=f"{new_name}.c")["skill"]["lock"]
    assert shown["environments"] == [{"state": "ready"}]


def test_mounts_that_clash_are_refused_with_the_clash_named(packages_rpc: Rpc, new_name: str) -> None:
    create(packages_rpc, needing(f"{new_name}.a", "frames>=2"), VERSIONS)
    create(packages_rpc, needing(f"{new_name}.b", "frames<2"), VERSIONS)

    error = packages_rpc.error(
        "run_code",
        language="python",
        code="def main(args): pass",
        mount_skills=[f"{new_name}.a", f"{new_name}.b"],
        limits={},
    )

    assert error["code"] == -32602
    assert f"'{new_name}.a' needs frames 2.0 and '{new_name}.b' needs frames 1.5" in error["message"]


def test_mounts_that_do_not_clash_run_together(packages_rpc: Rpc, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    create(packages_rpc, needing(f"{new_name}.a", "frames>=2"), VERSIONS)
    create(packages_rpc, needing(f"{new_name}.b", own), f"import {own}\ndef main(args): return {own}.VERSION")
    code = f"""
from skills.{new_name}.a import main as a
from skills.{new_name}.b import main as b
def main(args): return [a({{}})[0], b({{}})]
"""

    result = packages_rpc("run_code", language="python", code=code, mount_skills=[f"{new_name}.a", f"{new_name}.b"])

    assert result["output"] == ["2.0", "1.0"]


def test_a_skill_with_permissions_brings_its_own_packages_when_it_is_called(packages_rpc: Rpc, new_name: str) -> None:
    create(packages_rpc, needing(f"{new_name}.a", "frames>=2"), VERSIONS)
    made = needing(f"{new_name}.b", "frames<2") | {"permissions": {"network": ["https://example.org"]}}
    create(packages_rpc, made, VERSIONS)
    code = f"""
from skills.{new_name}.a import main as a
from skills.{new_name}.b import main as b
def main(args): return [a({{}})[0], b({{}})[0]]
"""

    assert packages_rpc("run_code", language="python", code=code, mount_skills=[f"{new_name}.a", f"{new_name}.b"])[
        "output"
    ] == ["2.0", "1.5"]


def test_examples_run_with_the_packages_before_anything_is_published(packages_rpc: Rpc, new_name: str) -> None:
    made = needing(new_name, "frames>=2") | {"examples": [{"name": "it", "expect": ["2.0", "2.0", "packages"]}]}
    create(packages_rpc, made, VERSIONS)

    assert packages_rpc("describe_skill", name=new_name)["skill"]["verified"] is True


def test_a_tool_of_a_skill_finds_its_packages(packages_rpc: Rpc, new_name: str) -> None:
    tools = [
        {
            "name": "shape",
            "description": "Says it.",
            "parameters": {"text": {"type": "string", "description": "The text"}},
            "script": "tools/shape.py",
        }
    ]
    files = {
        "tools.json": json.dumps(tools),
        "tools/shape.py": "import frames\ndef handler(args): return frames.VERSION\n",
    }
    create(packages_rpc, needing(new_name, "frames>=2"), VERSIONS, **files)

    assert packages_rpc("call_tool", name="shape", skill=new_name, args={"text": "x"})["result"] == "2.0"


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_damaged_wheel_fails_by_name_and_nothing_of_it_is_mounted(
    packages: Server, new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0", record={f"{own}.py": "sha256=" + "A" * 43})
    create(packages.rpc, needing(new_name, own))

    error = run(packages.rpc, new_name)["error"]

    assert error["type"] == "EnvironmentFailed"
    assert f"{own} 1.0" in error["message"]
    assert str(packages.home) not in error["message"]
    assert [text for state, text in rows(packages, "state, message") if state == "failed" and own in text] != []
    # Environments of other cases may be built now.
    eventually(lambda: not list((packages.home / "environments" / "incoming").iterdir()))


def test_a_wheel_that_differs_from_the_locked_wheel_is_refused(
    packages: Server, new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    checked = packages.rpc(
        "check_skill",
        manifest=needing(new_name, own),
        skill_md="# A\n",
        files=skill_files("def main(args): return 1\n"),
    )
    make_wheel(wheelhouse, own, "1.0", {f"{own}.py": "VERSION = 'evil'\n"})
    created = create(packages.rpc, needing(new_name, own), "def main(args): return 1\n")

    error = run(packages.rpc, new_name)["error"]

    assert created["digest"] == checked["digest"]
    assert error["type"] == "EnvironmentFailed"
    assert own in error["message"]
    assert "hash" in error["message"]


def test_an_environment_that_is_too_large_says_so(
    start_server: Callable[..., Server], new_name: str, wheelhouse: Path
) -> None:
    big = f"big{new_name}"
    make_wheel(wheelhouse, big, "1.0", {f"{big}.py": f"X = '{'x' * 2_000_000}'\n"})
    env = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_PACKAGES_MAX_MB": "1"}
    running = start_server(env=env)
    create(running.rpc, needing(new_name, big))

    error = run(running.rpc, new_name)["error"]

    assert error["type"] == "EnvironmentFailed"
    assert "packages.max_mb" in error["message"]
    assert f"with {big} 1.0 " in error["message"]


@pytest.mark.full
def test_an_environment_that_a_killed_server_left_unfinished_is_rebuilt(
    start_server: Callable[..., Server], new_name: str, wheelhouse: Path
) -> None:
    env = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse)}
    running = start_server(env=env)
    create(running.rpc, needing(new_name, "frames>=2"), VERSIONS)
    running.stop(signal.SIGKILL)
    left = running.home / "environments" / "incoming" / "left"
    left.mkdir(parents=True, exist_ok=True)

    again = start_server(env=env)

    assert run(again.rpc, new_name)["output"][0] == "2.0"
    assert not left.exists()
    assert [state for (state,) in rows(again, "state")] == ["ready"]


@pytest.mark.full
def test_an_unused_environment_is_deleted_and_rebuilt(
    start_server: Callable[..., Server], new_name: str, wheelhouse: Path
) -> None:
    env = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_GC_GRACE_MINUTES": "0"}
    running = start_server(env=env)
    create(running.rpc, needing(new_name, "frames>=2"), VERSIONS)
    assert run(running.rpc, new_name)["output"][0] == "2.0"
    [folder] = environments(running)
    old = time.time() - 30 * 86_400
    os.utime(folder, (old, old))

    swept = running.rpc("collect_garbage")

    assert swept["removed"]["environments"]["count"] == 1
    assert list((running.home / "environments" / "trees").iterdir()) == []
    assert environments(running) == []
    assert rows(running, "state") == []
    assert run(running.rpc, new_name)["output"][0] == "2.0"


def test_a_run_that_cannot_wait_so_long_says_that_it_goes_on(packages: Server, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0", {f"{own}/m{number}.py": f"X = {number}\n" for number in range(300)})
    create(packages.rpc, needing(new_name, own), f"from {own} import m7\ndef main(args): return m7.X")

    first = run(packages.rpc, new_name, timeout_ms=1)
    last = run(packages.rpc, new_name)

    assert first["error"]["type"] in {"EnvironmentNotReady", "TimeoutError"}
    assert last["output"] == 7


# -- the real package index ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_pandas_of_the_real_index_runs(start_server: Callable[..., Server], new_name: str) -> None:
    from tests.environments.test_dependencies import REAL_INDEX, no_index

    if why := no_index():
        pytest.skip(why)
    running = start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": REAL_INDEX})
    code = "import numpy, six\ndef main(args): return [int(numpy.arange(5).sum()), six.__name__]"
    create(running.rpc, needing(new_name, "numpy>=2,<3", "six"), code)

    result = run(running.rpc, new_name)

    assert result["output"] == [10, "six"]
    assert lock_of(running.rpc, new_name).count("==") == 2


def test_the_error_of_a_missing_package_names_the_source_of_packages(sqlite_rpc: Rpc, new_name: str) -> None:
    code = "def main(args):\n    import no_such_package"
    create(sqlite_rpc, manifest(new_name, runtime={"entrypoint": "code/main.py"}), code)

    ours = sqlite_rpc("run_code", language="python", code=code)["error"]
    theirs = sqlite_rpc("execute_skill", name=new_name)["error"]
    missing = sqlite_rpc("run_code", language="python", code="import skills.nowhere\ndef main(args): pass")["error"]

    assert {ours["type"], theirs["type"]} == {"ModuleNotFoundError"}
    assert ours["message"].startswith("No module named 'no_such_package' (no known package provides it")
    assert "runtime.dependencies of skill.toml" in theirs["message"]
    assert "list_environments" not in missing["message"]


# A stand-in for matplotlib, which only makes a list of fonts.
FONT_MANAGER = """
import json, os, pathlib
folder = pathlib.Path(os.environ.get('MPLCONFIGDIR') or os.environ['XDG_CACHE_HOME'] + '/matplotlib')
file = folder / 'fontlist-v3.11.0.json'
IS_NEW = not file.exists()
if IS_NEW:
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({'pid': os.getpid()}))
"""
LISTED = """
import json
from matplotlib import font_manager
def main(args): return [font_manager.IS_NEW, sorted(json.loads(font_manager.file.read_text()))]
"""


def with_matplotlib(wheelhouse: Path, version: str, font_manager: str) -> str:
    """Add a version of a package with the name of matplotlib, and return its requirement."""
    files = {"matplotlib/__init__.py": "", "matplotlib/font_manager.py": font_manager}
    make_wheel(wheelhouse, "matplotlib", version, files)
    return f"matplotlib=={version}"


@pytest.mark.full
def test_matplotlib_lists_fonts_once_for_all_runs(packages_sqlite: Server, new_name: str, wheelhouse: Path) -> None:
    requirement = with_matplotlib(wheelhouse, "0.7", FONT_MANAGER)
    create(packages_sqlite.rpc, needing(new_name, requirement), LISTED)

    for _ in range(4):
        assert packages_sqlite.rpc("execute_skill", name=new_name)["output"] == [False, ["pid"]]


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    [
        "raise RuntimeError('no fonts')",
        "file.rename(folder / 'fontlist-v3.11.0.json.json')",
        "file.write_text('x' * (5 << 20))",
    ],
)
def test_environment_is_ready_if_fonts_cannot_be_listed(
    packages_sqlite: Server, new_name: str, wheelhouse: Path, fault: str
) -> None:
    version = f"0.8.{len(fault)}"
    is_warm = f"{FONT_MANAGER}\nif 'MPLCONFIGDIR' in os.environ:\n    {fault}\n"
    create(packages_sqlite.rpc, needing(new_name, with_matplotlib(wheelhouse, version, is_warm)), LISTED)

    assert packages_sqlite.rpc("execute_skill", name=new_name)["output"] == [True, ["pid"]]
