"""Imports on the command line: send archives and folders to the registry, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from skillery.cli.failures import answered
from skillery.cli.import_report import Sections, print_end, progress
from skillery.cli.options import Target
from skillery.cli.output import print_json
from skillery.cli.sources import name_of, printable

OptionsOf = Callable[[Path], "ImportOptions"]
"""Function that returns the options for the import of a path."""
if TYPE_CHECKING:
    from skillery.cli.archives import Folder
    from skillery.client import AsyncClient, ImportOptions


def import_all(
    target: Target, sources: ImportPaths, options_of: OptionsOf, as_json: bool, in_step: bool
) -> list[dict[str, Any]]:
    from skillery.cli.connection import with_client

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        split = options_of(sources.paths[0]).get("nested") == "split"
        each = zip(sources.paths, sources.scan_folder(split=split), strict=True)
        return [await _import(client, path, folder, options_of(path), as_json, in_step) for path, folder in each]

    answers = with_client(target, work)
    if as_json:
        print_json(answers)
    return answers


class ImportPaths(NamedTuple):
    """The paths that one command imports."""

    paths: Sequence[Path]
    follow_links: bool
    is_local: bool = False
    """Whether the folders are the user's own ones: then later discovery folders override earlier ones."""

    def scan_folder(self, *, split: bool) -> list[Folder | None]:
        """Return the scanned folder for each path, or None for an archive.

        If several folders have a skill of the same name, the skill of the last folder overrides the others. The
        discovery folders in a local project folder count as folders.
        """
        from skillery.cli.archives import scan_folder
        from skillery.cli.overrides import override

        folders = [
            scan_folder(path, self.paths, anywhere=self.follow_links, split=split) if path.is_dir() else None
            for path in self.paths
        ]
        return override(folders, [name_of(path) for path in self.paths], discover=self.is_local)

    def fingerprints(self) -> list[str]:
        """Return a text for each path. The text changes if the files at the path change."""
        from skillery.cli.archives import fingerprint

        return [
            fingerprint(path, self.paths, anywhere=self.follow_links) if path.is_dir() else str(path.stat().st_mtime_ns)
            for path in self.paths
        ]


async def _import(
    client: AsyncClient, path: Path, folder: Folder | None, options: ImportOptions, as_json: bool, in_step: bool
) -> dict[str, Any]:
    """Import one path and return the report. `folder` is the scanned folder, or None for an archive.

    Without `as_json`, print the report too, and return it without the members `skills` and `sections`.
    """
    from skillery.cli.archives import file_chunks, tar_chunks
    from skillery.cli.overrides import add_overridden, overridden_skills
    from skillery.client import AnsweredError, StrangeAnswer

    not_sent = overridden_skills(folder)
    chunks = tar_chunks(folder) if folder else file_chunks(path)
    answer: dict[str, Any] = {
        "path": printable(str(path)),
        "source": options.get("source") or options["default_source"],
    }
    skills: list[Mapping[str, Any]] = []
    sections = Sections()
    left_out = _left_out(folder)
    with progress(as_json) as message:
        try:
            async for key, event in client.import_archive(chunks, **options):
                full = {**event, **left_out(event)} if key == "skill" else add_overridden(event, not_sent)
                for one in [full, *(not_sent if key == "begun" else ())]:
                    is_skill = key == "skill" or one is not full
                    message("skill" if is_skill else key, one)
                    if is_skill:
                        sections.add(one)
                        skills += [one] if as_json else []
                    else:
                        answer |= one
        except (AnsweredError, StrangeAnswer) as error:
            answer["error"] = answered(error)
    if folder is not None and "total" in answer:
        answer |= {
            "left_out": msgspec.to_builtins(folder.left_out),
            "other_files": folder.found.other_files,
            "searched": [printable(str(path / one)) for one in folder.found.searched],
        }
    sections.end(answer)
    if as_json:
        return {**answer, "sections": sections.listed, "skills": skills}
    print_end(answer, sections, in_step=in_step)
    return answer


def _left_out(folder: Folder | None) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that takes the report of a skill, and returns the files of that skill that were not sent."""

    def omitted(event: Mapping[str, Any]) -> dict[str, Any]:
        if folder is None or event["path"] not in folder.found.roots:
            return {}
        left_out = msgspec.to_builtins(folder.finder.skill(event["path"]).left_out)
        return {"left_out": left_out} if left_out else {}

    return omitted
