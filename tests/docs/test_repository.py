"""Files for maintainers: the release check, the systemd unit, the page list of the site, and the pre-commit hook."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def release(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "packaging/release.py", *arguments, "--check-only"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("version", ["", "1.2", "0.0.1", "v9.9.9"])
def test_release_refuses_malformed_and_lower_versions(version: str) -> None:
    ended = release(version)

    assert ended.returncode == 1
    assert f"VERSION is {version!r}" in ended.stderr or f"VERSION is {version}" in ended.stderr


# The exposure in tenths, as `systemd-analyze security` rates it. A unit with less protection fails.
@pytest.mark.parametrize(("name", "exposure"), [("skillery", 40), ("skillery-backup", 25)])
def test_the_systemd_units_are_valid(tmp_path: Path, name: str, exposure: int) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    units = []
    for file in (ROOT / "packaging").glob(f"{name}.[st]*"):
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", file.read_text("utf-8"), flags=re.MULTILINE)
        units.append(tmp_path / file.name)
        units[-1].write_text(text)
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=300, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", f"--threshold={exposure}", "--no-pager"]
    rated = subprocess.run(
        [*security, tmp_path / f"{name}.service"], capture_output=True, text=True, timeout=300, check=False
    )
    assert rated.returncode == 0, rated.stdout


def test_the_site_has_every_page() -> None:
    pages = re.findall(r"- (?:\w+: )?([\w/.-]+\.md)", (ROOT / "mkdocs.yml").read_text("utf-8"))
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}

    assert set(pages) - {"index.md"} == written
    assert len(pages) == len(set(pages))


def test_the_commit_hook_runs_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]

    assert [hook["entry"] for hook in hooks] == ["make check"]
