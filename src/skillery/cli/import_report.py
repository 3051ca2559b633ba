"""Output of `skillery import`: one line per skill, and a summary with the next steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from skillery.cli.failures import print_error
from skillery.cli.options import print_change
from skillery.cli.output import clean
from skillery.formats.wording import first_names

MAX_NAMES = 10
"""Limit of the names in a section that requires no action. With --json, all names are listed."""
_SECTION_OF = {"published": "published", "draft": "published", "checked": "published", "unchanged": "unchanged"}
"""Section of the summary for each outcome of a skill. `checked` is the outcome of a dry run."""
_PACKAGES = {"undeclared_package", "package_left_out", "no_packages"}
"""Rules of findings and codes of repairs that report a missing package."""
_NAMES = {"name", "name_taken", "taken_over", "copy"}
"""Codes of repairs that explain why a skill does not have the name that it states."""
_INFER = "import the skill with --packages infer"
"""End of the message of a finding that `--packages infer` would settle."""
WITHOUT = ", and its scripts run without"


class Sections:
    """The sections of the summary of an import. `listed` has all lines of each section, although only some of them are
    printed.
    """

    def __init__(self) -> None:
        self.listed: dict[str, list[dict[str, Any]]] = {
            "published": [],
            "unchanged": [],
            "named_otherwise": [],
            "repaired": [],
            "refused": [],
            "merged": [],
            "nested": [],
            "links_not_followed": [],
            "packages_missing": [],
        }
        self.inferable = 0
        """The number of skills that would get packages with `--packages infer`."""

    def add(self, skill: Mapping[str, Any]) -> None:
        """Add the report of one skill to the summary."""
        outcome, path = skill["outcome"], skill["path"]
        self._add_outcome(outcome, path, skill)
        for repair in skill.get("repairs", ()):
            if repair["code"] in _NAMES:
                self._note("named_otherwise", path=path, name=skill.get("name", ""), message=repair["message"])
        repaired = [repair["code"] for repair in skill.get("repairs", ()) if not repair.get("harmless")]
        if repaired:
            self._note("repaired", path=path, codes=list(dict.fromkeys(repaired)))
        for nested in skill.get("nested", ()):
            self._note("nested", path=_joined(path, nested), of=path, suggestion=skill.get("suggestion", ""))
        for entry in skill.get("left_out", ()):
            if entry["why"] == "link":
                self._note("links_not_followed", path=_joined(path, entry["path"]), message=entry["message"])
        self._add_packages(path, skill)

    def end(self, answer: Mapping[str, Any]) -> None:
        """Add the links that belong to no skill to the summary. `answer` is the whole report."""
        for entry in answer.get("left_out", ()):
            if entry["why"] == "link":
                self._note("links_not_followed", path=entry["path"], message=entry["message"])

    def _add_outcome(self, outcome: str, path: str, skill: Mapping[str, Any]) -> None:
        if outcome in _SECTION_OF:
            name, version = skill.get("name", ""), skill.get("version", "")
            self._note(_SECTION_OF[outcome], path=path, name=name, version=version, outcome=outcome)
        elif outcome == "refused":
            self._note("refused", path=path, reason=_reason(skill))
        else:
            self._note("merged", path=path, by=skill.get("by", ""), outcome=outcome)

    def _add_packages(self, path: str, skill: Mapping[str, Any]) -> None:
        findings = [finding for finding in skill.get("findings", ()) if finding["rule"] in _PACKAGES]
        self.inferable += any(map(_is_inferable, findings))
        for problem in [*findings, *(repair for repair in skill.get("repairs", ()) if repair["code"] in _PACKAGES)]:
            self._note("packages_missing", path=location(path or ".", problem), message=problem["message"])

    def _note(self, section: str, **line: Any) -> None:
        self.listed[section].append(line)


def _is_inferable(problem: Mapping[str, Any]) -> bool:
    return str(problem["message"]).endswith(_INFER)


def _joined(path: str, inside: str) -> str:
    return f"{path}/{inside}" if path else inside


def _reason(skill: Mapping[str, Any]) -> str:
    error = skill.get("error")
    if error:
        return str(error["message"])
    return "; ".join(finding["message"] for finding in skill.get("findings", ())) or "the checks refuse it"


# -- during the import -----------------------------------------------------------------------------------------------


@contextmanager
def progress(as_json: bool) -> Any:
    """Context manager: yield a function that prints one line for each skill. The function gets the key of an event and
    its report; with JSON, it prints nothing.

    On a terminal, show a progress bar, and print no lines for unchanged skills.
    """
    if as_json or not sys.stderr.isatty():
        yield (lambda key, report: None) if as_json else _print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=None)

        def show(key: str, report: Mapping[str, Any]) -> None:
            if key == "begun":
                bar.update(task, description="importing", total=report["total"])
            elif key == "skill":
                bar.update(task, advance=1)
                if report["outcome"] != "unchanged":
                    bar.console.file.flush()
                    _print_line(key, report)

        yield show


def _print_line(key: str, report: Mapping[str, Any]) -> None:
    """Print the line of a skill to stdout, and its details to stderr."""
    if key != "skill":
        return
    path = report["path"] or "."
    if report["outcome"] == "refused":
        # Findings of a dry run are next to the error; findings of a refusal are inside the error.
        error = report.get("error") or {"message": "the checks refuse it", "data": {"findings": report.get("findings")}}
        print_error({**error, "subject": path})
    else:
        name = f"{report.get('name', '')} {report.get('version', '')}".strip()
        overriding = f" by {report.get('by') or '.'}" if report["outcome"] in {"merged", "overridden"} else ""
        click.echo(clean(f"{report['outcome']}{overriding}\t{name or report.get('stated', '')}\t{path}"))
    for line in details(report, counts_inferable=True):
        click.echo(clean(f"  {line}"), err=True)


def details(report: Mapping[str, Any], *, counts_inferable: bool = False) -> list[str]:
    """Return lines about the repairs, omitted files, warnings and findings of a skill.

    Each line names its file, because these lines go to stderr and the line of the skill goes to stdout. With
    `counts_inferable`, findings that `--packages infer` would settle have no line: the summary counts their skills.
    """
    path = report["path"] or "."
    repairs = report.get("repairs", ()) if report["outcome"] != "unchanged" else ()
    warnings = dict.fromkeys(report.get("warnings", ()))
    lines = []
    for repair in repairs:  # A repair that is also a warning is printed once, with its location.
        repeated = {repair["message"], f"{location('', repair).lstrip('/')}: {repair['message']}"} & warnings.keys()
        for warning in repeated:
            del warnings[warning]
        word = "warning" if repeated else "note" if repair.get("harmless") else "repaired"
        lines.append(f"{word}: {location(path, repair)}: {repair['message']}")
    if report["outcome"] != "unchanged":
        omitted = report.get("left_out", ())
        lines += [f"left out: {path}/{entry['path']}{_files(entry)}: {entry['message']}" for entry in omitted]
    lines += [f"warning: {path}: {warning}" for warning in warnings]
    findings = report.get("findings", ())
    if counts_inferable:
        findings = [finding for finding in findings if not _is_inferable(finding)]
    return lines + [f"{finding['severity']}: {location(path, finding)}: {finding['message']}" for finding in findings]


def location(where: str, problem: Mapping[str, Any]) -> str:
    """Return the file and line of a repair or finding. `where` is the path of the skill."""
    if not problem.get("file"):
        return where
    return f"{where}/{problem['file']}:{problem['line']}" if problem.get("line") else f"{where}/{problem['file']}"


def _files(entry: Mapping[str, Any]) -> str:
    return f" ({entry['files']} files)" if entry["files"] > 1 else ""


# -- at the end ------------------------------------------------------------------------------------------------------

STILL_THERE = "still published; skillery yank, or sync --prune, yanks it"


def print_end(answer: Mapping[str, Any], sections: Sections, *, reports_removed: bool) -> None:
    """Print the files that belong to no skill, the summary by section, and the next steps. If `answer` has an error,
    print only the error.

    With `reports_removed`, also print the skills that are no longer in the imported folder: for `skillery sync` and
    `skillery mirror run`.
    """
    if "error" in answer:
        print_error({**answer["error"], "subject": answer["path"]})
        return
    for entry in answer["left_out"]:
        click.echo(clean(f"left out: {entry['path']}{_files(entry)}: {entry['message']}"), err=True)
    if answer["other_files"]:
        click.echo(f"left out: {answer['other_files']} more files that belong to no skill", err=True)
    for name in answer["not_taken_over"]:
        click.echo(clean(f"not taken over: {name}: no imported skill requests this name"), err=True)
    if answer["unread"] and reports_removed:
        click.echo(f"removed skills were not searched: {answer['unread']} skills could not be read", err=True)
    for skill in answer["removed"] if reports_removed else ():
        yanked = f"yanked {', '.join(skill['yanked'])}" if skill["yanked"] else STILL_THERE
        click.echo(clean(f"removed\t{skill['name']} {skill['version']}\t{yanked}"))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in answer["counts"].items())
    repair_note = f"; {answer['repaired']} read with repairs" if answer["repaired"] else ""
    skills = "1 skill" if answer["total"] == 1 else f"{answer['total']} skills"
    print_change(f"{answer['path']}: {skills}: {counts or 'nothing'}{repair_note},", "to", err=True)
    for line in section_lines(sections.listed):
        click.echo(clean(line), err=True)
    if sections.inferable:
        count = "1 skill" if sections.inferable == 1 else f"{sections.inferable} skills"
        click.echo(f"{count} would get packages with --packages infer", err=True)
    _print_next(answer)


def _print_next(answer: Mapping[str, Any]) -> None:
    if not answer["total"]:
        click.echo(clean(f"searched: {', '.join(answer.get('searched') or [answer['path']])}"), err=True)
        click.echo(
            "hint: A skill is a folder with a SKILL.md (or a skill.toml); pass that folder, or one above it.", err=True
        )
    if answer["counts"].get("draft"):
        click.echo("next: skillery submit NAME@VERSION for each draft, then ask a reviewer", err=True)
    if answer["stopped"]:
        click.echo("stopped: the server interrupted the import; run the same command to continue", err=True)


def section_lines(sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the lines of the summary. Empty sections are omitted."""
    for section, all_lines in sections.items():
        lines = [line for line in all_lines if section != "packages_missing" or not _is_inferable(line)]
        if not lines:
            continue
        title = f"{section.replace('_', ' ')} ({len(lines)})"
        if section in {"published", "unchanged", "repaired"}:
            names = [line.get("name") or line["path"] or "." for line in lines]
            yield f"{title}: {first_names(names, MAX_NAMES)}"
        else:
            yield f"{title}:"
            yield from (f"  {_line(section, line)}" for line in lines)
    for suggestion in dict.fromkeys(
        f"{nested['of'] or '.'}: {nested['suggestion']}" for nested in _with_suggestion(sections)
    ):
        yield f"hint: {suggestion}"


def _with_suggestion(sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    return (nested for nested in sections.get("nested", ()) if nested["suggestion"])


def _line(section: str, entry: Mapping[str, Any]) -> str:
    """Return the line of an entry in a section of the summary."""
    path = entry["path"] or "."
    if section == "merged":
        word = "is" if entry["outcome"] == "merged" else "is overridden by"
        return f"{path} {word} {entry['by'] or '.'}"
    if section == "nested":
        return f"{path}: remains a file of {entry['of'] or '.'}"
    if section == "packages_missing":
        # The warning of the skill explains why the packages are missing.
        return f"{path}: {entry['message'].partition(WITHOUT)[0]}"
    return f"{path}: {entry.get('reason') or entry.get('message')}"
