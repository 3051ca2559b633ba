"""Scripts with a `# /// script` block: packages that conflict with those of the skill, and another Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Rpc, Server
from tests.importing.test_importing import codes, sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import lock_of, pins
from tests.support.wheels import make_wheel

SHOW = "import sys, frames\nprint(frames.VERSION, sys.version_info[:2])\n"
OWN = sys.version_info[:2]
NEVER = ">=3.99"


def block(*dependencies: str, python: str = "") -> str:
    requires = f'# requires-python = "{python}"\n' if python else ""
    return f"# /// script\n{requires}# dependencies = {json.dumps(dependencies)}\n# ///\n"


def imported(rpc: Rpc, name: str, **scripts: str) -> dict[str, Any]:
    files = {f"{name}/SKILL.md": skill_md(name)}
    files |= {f"{name}/scripts/{script}.py": text for script, text in scripts.items()}
    [skill] = sent(rpc, zipped(files))["skills"]
    report: dict[str, Any] = skill
    return report


def printed(rpc: Rpc, name: str, script: str) -> str:
    ran = rpc("execute_skill", name=name, script=f"scripts/{script}.py")
    assert ran["status"] == "completed", ran
    text: str = ran["output"]["stdout"]
    return text.strip()


def test_conflicting_scripts_have_separate_locks(packages: Server) -> None:
    old, new = block("frames<1.2") + SHOW, block("frames>=2") + SHOW
    report = imported(packages.rpc, "old-and-new", old=old, new=new, plain="print('plain')")

    assert report["outcome"] == "published", report
    assert codes(report) == set()
    assert printed(packages.rpc, "old-and-new", "old") == f"1.0 {OWN}"
    assert printed(packages.rpc, "old-and-new", "new") == f"2.0 {OWN}"
    assert printed(packages.rpc, "old-and-new", "plain") == "plain"
    lock = packages.rpc("read_skill_file", name="old-and-new", path="locks/scripts/old.py.lock")["content"]
    assert pins(lock)["frames"] == "1.0"


def test_scripts_that_agree_share_the_lock_of_the_skill(packages: Server) -> None:
    imported(packages.rpc, "agreeing", one=block("frames<2") + SHOW, other=block("frames>=1.2") + SHOW)

    assert pins(lock_of(packages.rpc, "agreeing"))["frames"] == "1.5"
    packages.rpc.error("read_skill_file", name="agreeing", path="locks/scripts/one.py.lock")


def test_a_missing_python_leaves_the_packages_of_other_scripts(packages: Server) -> None:
    report = imported(packages.rpc, "futuristic", now=block("frames") + SHOW, later=block("frames", python=NEVER))

    [repair] = [repair for repair in report["repairs"] if repair["code"] == "no_packages"]
    reason = (
        f"needs Python {NEVER}, and this server has {OWN[0]}.{OWN[1]}; an admin installs it and lists it in pythons"
    )
    assert (repair["file"], repair["message"]) == ("scripts/later.py", reason)
    assert printed(packages.rpc, "futuristic", "now") == f"2.0 {OWN}"
    ran = packages.rpc("execute_skill", name="futuristic", script="scripts/later.py")
    assert ran["error"]["type"] == "EnvironmentFailed"
    assert ran["error"]["message"] == f"'scripts/later.py' {reason}"


def test_a_lock_of_a_script_with_denied_packages_is_refused(packages: Server) -> None:
    report = imported(packages.rpc, "denied-script", one=block("frames<2"), two=block("frames>=2", "forbidden"))

    assert [repair["message"] for repair in report["repairs"]] == [
        "it needs forbidden, frames>=2, and it runs without: the package forbidden is denied here (the setting "
        "packages.denied)"
    ]
    hashed = f"forbidden==1.0 --hash=sha256:{'0' * 64}\n"
    files = {
        "denied-lock/SKILL.md": skill_md("denied-lock"),
        "denied-lock/x.py": "",
        "denied-lock/locks/x.py.lock": hashed,
    }
    [refused] = sent(packages.rpc, zipped(files))["skills"]
    assert refused["outcome"] == "refused"
    assert "forbidden is denied here" in refused["error"]["message"]


@pytest.fixture(scope="session")
def other_python() -> Path:
    """Return another Python of this machine."""
    folders = [Path(sys.base_prefix).parent / "*/bin", Path("/usr/bin"), Path("/usr/local/bin")]
    pythons = sorted(path for folder in folders for path in Path("/").glob(f"{folder}/python3.*"[1:]))
    for path in pythons:
        version = path.name.removeprefix("python3.")
        if version.isdigit() and 8 <= int(version) != OWN[1] and _works(path):
            return path
    pytest.skip("this machine has one Python")


def _works(path: Path) -> bool:
    return subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0


@pytest.mark.full
def test_scripts_run_with_another_python_and_its_packages(
    start_server: Callable[..., Server], tmp_path: Path, wheelhouse: Path, other_python: Path
) -> None:
    minor = other_python.name.removeprefix("python3.")
    for tag in (f"cp3{minor}", f"cp3{OWN[1]}"):
        make_wheel(wheelhouse, "tagged", "1.0", {"tagged.py": f"TAG = '{tag}'\n"}, tag=f"{tag}-none-any")
    config = tmp_path / "skillery.toml"
    config.write_text(f'[backends.sandbox.linux]\npythons = ["{other_python}"]\n')
    server = start_server("--config", str(config), env={"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse)})
    show = "import sys, tagged\nprint(tagged.TAG, sys.version_info[1])\n"
    other = block("tagged", python=f"==3.{minor}.*")
    bare = block(python=f"==3.{minor}.*") + "import sys\nprint(sys.version_info[1])\n"
    report = imported(server.rpc, "two-pythons", own=block("tagged") + show, other=other + show, bare=bare)

    assert (report["outcome"], codes(report)) == ("published", set())
    assert printed(server.rpc, "two-pythons", "own") == f"cp3{OWN[1]} {OWN[1]}"
    assert printed(server.rpc, "two-pythons", "other") == f"cp3{minor} {minor}"
    assert printed(server.rpc, "two-pythons", "bare") == minor
