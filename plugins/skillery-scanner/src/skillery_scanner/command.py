"""The command `skillery scan`: scan folders, scan published versions again, list the rules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec

from skillery.backends import Finding, Identity, Place, Publication, PublishedFile
from skillery.commands import (
    CheckFailed,
    Target,
    clean,
    home_options,
    json_option,
    print_json,
    print_rows,
    target_options,
)
from skillery_scanner.catalog import OWASP, RULES
from skillery_scanner.rescan import Rescan
from skillery_scanner.scanner import Scanner
from skillery_scanner.settings import ScannerSettings

MOST_BYTES = 64 * 1024 * 1024


@click.group()
def scan() -> None:
    """Scan skills for hostile content.

    The rules find secrets, hidden text, remote code, hostile instructions and more.
    """


@scan.command("rules")
@json_option
def rules(as_json: bool) -> None:
    """List the rules."""
    if as_json:
        print_json({f"scanner.{name}": msgspec.to_builtins(rule) for name, rule in RULES.items()})
        return
    rows = [
        (f"scanner.{name}", rule.severity, f"{rule.owasp} {OWASP[rule.owasp]}", rule.title)
        for name, rule in RULES.items()
    ]
    print_rows(["rule", "severity", "OWASP class", "finds"], rows)


@scan.command("folder")
@click.argument("folders", metavar="FOLDER…", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@home_options
@json_option
def folder(folders: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Scan skills in folders, with the settings of the home. Nothing is published.

    Exit with 1 if a finding would refuse a skill.
    """
    values = target.load().settings.plugins.get("scanner", {})
    scanner = Scanner(msgspec.convert(values, ScannerSettings, strict=False), Place(Path()))
    try:
        results = [(path, scanner.before_publish(_publication(Path(path)))) for path in folders]
    finally:
        scanner.close()
    if as_json:
        print_json(
            {"skills": [{"folder": path, "findings": msgspec.to_builtins(findings)} for path, findings in results]}
        )
    else:
        _print_findings(results)
    refused = [path for path, findings in results if any(finding.severity == "error" for finding in findings)]
    if refused:
        raise CheckFailed(f"{len(refused)} of {len(results)} skills would be refused: {', '.join(refused[:10])}")


def _print_findings(results: list[tuple[str, list[Finding]]]) -> None:
    for path, findings in results:
        click.echo(clean(f"{path}: {len(findings)} findings"))
        for finding in findings:
            location = f"{finding.file or '-'}{f':{finding.line}' if finding.line else ''}"
            click.echo(clean(f"  {finding.severity} {finding.rule} {location}: {finding.message}"))


def _publication(folder: Path) -> Publication:
    """Return the files of a folder as a version. Links, and names that begin with a dot, are left out."""
    files, size = [], 0
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        size += path.stat().st_size
        if size > MOST_BYTES:
            raise click.UsageError(f"{folder} has more than {MOST_BYTES} bytes, too many for a skill")
        files.append(PublishedFile(relative.as_posix(), path.read_bytes()))
    manifest = _manifest(files)
    name = str(manifest.get("name") or folder.resolve().name)
    version = str(manifest.get("version") or "0.0.0")
    return Publication(name, version, "", manifest, tuple(files), Identity("local"))


def _manifest(files: list[PublishedFile]) -> dict[str, Any]:
    for file in files:
        if file.path == "skill.toml":
            try:
                return tomllib.loads(file.content.decode())
            except (tomllib.TOMLDecodeError, UnicodeDecodeError):
                return {}
    return {}


@scan.command("rescan")
@click.option("--restart", is_flag=True, help="Start with the first version, instead of where the last rescan ended.")
@target_options
@json_option
def rescan(restart: bool, target: Target, as_json: bool) -> None:
    """Check every published version again with the rules of today.

    New findings are stored with their version, where owners and reviewers see them. The statuses of versions stay. If
    the command is interrupted, the next call continues. Requires a token that may review every skill.

    Exit with 1 if there is a new finding, or if a version could not be checked.
    """
    if not target.url and "scanner" not in target.load().settings.plugins:
        raise click.UsageError("the scanner is not active: add the section [plugins.scanner] to skillery.toml")
    done = Rescan(target, restart=restart, quiet=as_json).run()
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        for finding in done.new:
            subject = f"{finding.name} {finding.version}: {finding.severity} {finding.rule} {finding.file or ''}"
            click.echo(clean(f"{subject}: {finding.message}"))
        for version in done.failed:
            click.echo(clean(f"{version}: not checked"), err=True)
        click.echo(f"{done.checked} versions checked: {len(done.new)} new findings, {len(done.failed)} not checked")
    if done.new or done.failed:
        raise click.exceptions.Exit(1)
