"""`make release VERSION=0.2.0`: check, write the version and the changelog, build, verify, commit and tag.

docs/design/releasing.md explains the steps. Nothing is pushed or published.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = ("packages/*/pyproject.toml", "packages/*/package.json", "plugins/*/pyproject.toml")
NAMES = (*PROJECTS, "packaging/chart/Chart.yaml")
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def run(*command: str | Path, quiet: bool = False) -> str:
    """Run a command in the checkout, and return its output. Raises SystemExit if it fails."""
    ended = subprocess.run(command, cwd=ROOT, text=True, capture_output=quiet, check=False)
    if ended.returncode:
        raise SystemExit(f"release: {' '.join(map(str, command))} failed\n{ended.stdout or ''}{ended.stderr or ''}")
    return ended.stdout or ""


def check(version: str) -> None:
    """Raise SystemExit that says what keeps this version from being released."""
    if not VERSION.fullmatch(version):
        raise SystemExit(f"release: VERSION is {version!r}; write three numbers, for example VERSION=0.2.0")
    current = present_version()
    if _numbers(version) <= _numbers(current):
        raise SystemExit(f"release: VERSION is {version}, and pyproject.toml has {current}; choose a higher one")
    if not unreleased():
        raise SystemExit('release: CHANGELOG.md has nothing under "## Unreleased"; write what has changed')
    if changes := run("git", "status", "--porcelain", quiet=True):
        raise SystemExit(f"release: commit or stash these changes first:\n{changes}")
    if run("git", "tag", "--list", f"v{version}", quiet=True):
        raise SystemExit(f"release: the tag v{version} exists; choose a higher version")


def present_version() -> str:
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def unreleased() -> str:
    """Return the entries of the changelog that no release has yet."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def write_version(version: str) -> list[Path]:
    """Write the version into every package, and the heading of the release into the changelog."""
    others = [path for name in NAMES for path in ROOT.glob(name)]
    packages = [ROOT / "pyproject.toml", *sorted(others)]
    for file in packages:
        line = r'^(version = |version: |  "version": )".+"'
        text = re.sub(line, rf'\g<1>"{version}"', file.read_text("utf-8"), count=1, flags=re.MULTILINE)
        file.write_text(re.sub(r'"cellblock==.+?"', f'"cellblock=={version}"', text), "utf-8")
    changelog = ROOT / "CHANGELOG.md"
    heading = f"## Unreleased\n\n## {version} ({datetime.now(UTC):%Y-%m-%d})\n"
    changelog.write_text(changelog.read_text("utf-8").replace("## Unreleased\n", heading, 1), "utf-8")
    return [*packages, changelog]


def build(version: str) -> None:
    """Build all packages, install the wheels of the server elsewhere, and write the checksums."""
    run("make", "build", "client-js")
    files = sorted(file for file in (ROOT / "dist").glob(f"*{version}*") if file.suffix in {".whl", ".gz", ".tgz"})
    wheels = [file for file in files if re.match(rf"(skillery|cellblock)-{re.escape(version)}-.*\.whl", file.name)]
    with tempfile.TemporaryDirectory() as folder:
        run(ROOT / ".tools/bin/uv", "venv", "--quiet", folder)
        run(ROOT / ".tools/bin/uv", "pip", "install", "--quiet", "--python", f"{folder}/bin/python", *wheels)
        printed = run(f"{folder}/bin/skillery", "--version", quiet=True).strip()
    if printed != f"skillery {version}":
        raise SystemExit(f"release: the wheel says {printed!r}, not {version}")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (ROOT / "dist" / "SHA256SUMS").write_text("".join(sums), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--check-only", action="store_true", help="check the tree and the version; change nothing")
    asked = parser.parse_args()
    check(asked.version)
    if asked.check_only:
        return
    run("make", "test-all", "mutants", "docs")
    changed = write_version(asked.version)
    build(asked.version)
    run("git", "add", *changed)
    run("git", "commit", "--quiet", "-m", f"Release {asked.version}")
    run("git", "tag", "--annotate", f"v{asked.version}", "-m", f"Skillery {asked.version}")
    sys.stdout.write(f"Committed and tagged v{asked.version}; dist/ has the files. docs/design/releasing.md goes on.\n")


if __name__ == "__main__":
    main()
