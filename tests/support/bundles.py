"""Bundles that tests make in their own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skillery.formats.bundle import Bundle, BundleFile, BundleLimits
from skillery.formats.python_source import source_problem
from skillery.formats.skill_md import SkillMd
from skillery.formats.unfinished_bundle import begin_bundle


def make_bundle(
    manifest: Mapping[str, object],
    skill_md: str | SkillMd,
    files: Sequence[BundleFile],
    limits: BundleLimits = BundleLimits(),  # noqa: B008 - frozen
    *,
    skip_broken_tools: bool = False,
) -> Bundle:
    """Check a bundle and compile its Python files in this process.

    Raise the errors of `begin_bundle` and `UnfinishedBundle.finish`.
    """
    begun = begin_bundle(manifest, skill_md, files, limits, skip_broken_tools=skip_broken_tools)
    problems = {source.path: source_problem(source.path, source.content, source.export) for source in begun.sources}
    return begun.finish({path: problem for path, problem in problems.items() if problem})
