"""The check of a bundle: manifest, SKILL.md, tools, examples, paths and sources. One error lists all problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from typing import TypeVar

import msgspec

from skillery.errors import InvalidBundle, InvalidManifest, InvalidParams, InvalidPath
from skillery.formats import package_json
from skillery.formats.bundle import (
    SKILL_MD,
    SKILL_TOML,
    Bundle,
    BundleFile,
    BundleLimits,
    SourceFile,
    check_size,
    digest_of,
    in_order,
)
from skillery.formats.examples import Examples, read_examples
from skillery.formats.json_values import difference
from skillery.formats.manifest import Manifest, parse_manifest, parse_partly
from skillery.formats.paths import PATH_HINT, check_paths, path_problem
from skillery.formats.skill_md import SkillMd, parse_skill_md
from skillery.formats.skill_toml import MAX_BYTES as MAX_TOML_BYTES
from skillery.formats.skill_toml import manifest_toml, toml_manifest
from skillery.formats.toml_lines import with_toml
from skillery.formats.tools import FILE as TOOLS_JSON
from skillery.formats.tools import HINT as TOOLS_HINT
from skillery.formats.tools import NO_TOOLS, Tool, ToolsFile, name_warnings, read_tools
from skillery.formats.wording import AGAIN, Problem, did_you_mean, printable, problems_of, quoted, raise_problems

_T = TypeVar("_T")
_HINT = f"Fix the files{AGAIN}"

MAX_CHECKED_BYTES = 2 * 1024 * 1024
"""The maximum number of bytes of Python files next to the entrypoint that are compiled. Further files are stored
with a warning.
"""


def begin_bundle(
    manifest: Mapping[str, object],
    skill_md: str | SkillMd,
    files: Sequence[BundleFile],
    limits: BundleLimits = BundleLimits(),  # noqa: B008 - frozen
    skip_broken_tools: bool = False,
    *,
    installs_npm: bool = False,
) -> UnfinishedBundle:
    """Check the parts of a bundle that need no compiler and no sandbox. Raise BundleTooLarge if `files` exceed
    `limits`.

    `UnfinishedBundle.finish` raises all other errors. `files` may contain skill.toml and SKILL.md: their content must
    be the same as `manifest` and `skill_md`. If one of them is missing, it is generated. If `skill_md` is a parsed
    SkillMd, `files` must contain SKILL.md, which stays unchanged. With `skip_broken_tools`, tools that break a rule are
    omitted with a warning, and missing JavaScript modules are only warnings. With `installs_npm`, JavaScript modules
    need not be in the bundle.
    """
    check_size(files, limits)
    bundle = UnfinishedBundle(manifest, skill_md, files, limits, skip_broken_tools)
    bundle.installs_npm = installs_npm
    bundle.begin()
    return bundle


class UnfinishedBundle:
    """The parts of a bundle whose Python files are not compiled yet, and the problems found until now."""

    def __init__(
        self,
        manifest: Mapping[str, object],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        limits: BundleLimits,
        skip_broken_tools: bool,
    ) -> None:
        self.limits = limits
        self.skip_broken_tools = skip_broken_tools
        self.raw = manifest
        self.parsed_md = skill_md if isinstance(skill_md, SkillMd) else None
        self.text = skill_md if isinstance(skill_md, str) else ""
        self.files = files
        self.by_path = {file.path: file for file in files}
        self.problems: list[Problem] = []
        self.installs_npm = False
        self.hints: dict[type[InvalidParams], str | None] = {}

    def begin(self) -> None:
        """Read and check all parts, and collect their problems."""
        self.offered = offered = self.tools()
        # A broken rule is reported by itself; its effect on the skill's kind is not reported as well.
        has_tools = offered.has_scripts or bool(offered.problems and not self.skip_broken_tools)
        earlier_count = len(self.problems)
        self.manifest = manifest = self.attempt(lambda: parse_manifest(self.raw, has_tools=has_tools))
        self.problems[earlier_count:] = with_toml(self.problems[earlier_count:], self.toml_text)
        # What depends on a faulty manifest is checked as far as possible, so that all problems come in one answer.
        readable = manifest or parse_partly(self.raw, has_tools=has_tools)
        self.checked_md = self.parsed_md or self.attempt(lambda: parse_skill_md(self.text))
        self.check_paths()
        self.javascript_warnings = self.check_javascript(manifest, offered.tools)
        self.generated = [self.skill_toml_file(manifest), self.skill_md_file(self.checked_md)]
        self.entrypoint = self.find_entrypoint(readable)
        self.examples = self.read_examples(readable)

    @cached_property
    def sources(self) -> tuple[SourceFile, ...]:
        """The files to compile, entrypoint first. Only the entrypoint must define its export.

        If the bundle has other problems, only the entrypoint is compiled.
        """
        is_sound = not self.problems and not (self.examples and self.examples.problems)
        return (*([self.entrypoint] if self.entrypoint else ()), *(self.other_sources if is_sound else ()))

    def finish(self, source_problems: Mapping[str, Problem]) -> Bundle:
        """Return the bundle. `source_problems` are the problems of `sources`, by path.

        Raise BundleTooLarge if the bundle exceeds its limits. Raise InvalidManifest, InvalidPath or InvalidBundle, with
        a list of all problems, if there is a problem.
        """
        self.check_entrypoint(source_problems)
        self.check_examples()
        manifest, skill_md, offered = self.manifest, self.checked_md, self.offered
        if manifest is None or self.examples is None or skill_md is None or self.problems:
            kind = next(iter(self.hints)) if len(self.hints) == 1 else InvalidBundle
            raise_problems(kind, self.problems, hint=next(iter(self.hints.values())))
        files = tuple(in_order([*self.files, *(file for file in self.generated if file)]))
        check_size(files, self.limits)
        warnings = (
            *manifest.warnings,
            *skill_md.warnings,
            *offered.warnings,
            *offered.skipped,
            *(name_warnings(manifest.name, skill_md.frontmatter.get("name")) if offered.tools else ()),
            *self.source_warnings(source_problems),
            *self.javascript_warnings,
        )
        size = sum(file.size for file in files)
        return Bundle(manifest, skill_md, files, digest_of(files), size, warnings, self.examples, offered.tools)

    @cached_property
    def toml_text(self) -> str | None:
        """The text of the given skill.toml, or None if no skill.toml is given or if its text is too large to search."""
        file = self.by_path.get(SKILL_TOML)
        return file.content.decode("utf-8", "replace") if file and file.size <= MAX_TOML_BYTES else None

    def tools(self) -> ToolsFile:
        file = self.by_path.get(TOOLS_JSON)
        if file is None:
            return NO_TOOLS
        tools = read_tools(file.content, frozenset({SKILL_TOML, SKILL_MD, *self.by_path}))
        if tools.problems and not self.skip_broken_tools:
            self.problems.extend(tools.problems)
            self.hints.setdefault(InvalidBundle, TOOLS_HINT)
        return tools

    def check_paths(self) -> None:
        for file in self.files:
            problem = path_problem(file.path)
            if problem:
                path_text = printable(file.path)
                self.problems.append(Problem(f"the path {quoted(file.path)} {problem}", path=path_text, file=path_text))
                self.hints.setdefault(InvalidPath, PATH_HINT)
        if InvalidPath not in self.hints:
            missing = [path for path in (SKILL_TOML, SKILL_MD) if path not in self.by_path]
            self.attempt(lambda: check_paths([*missing, *(file.path for file in self.files)]))

    def skill_toml_file(self, manifest: Manifest | None) -> BundleFile | None:
        """Return the file skill.toml generated from the manifest, or None if skill.toml is given or the manifest is
        invalid.
        """
        file = self.by_path.get(SKILL_TOML)
        if file is None:
            return BundleFile(SKILL_TOML, manifest_toml(manifest.raw)) if manifest else None
        stated_manifest = self.attempt(lambda: toml_manifest(file.content))
        if stated_manifest is not None and manifest is not None:
            differing_path = difference(manifest.raw, stated_manifest)
            if differing_path is not None:
                self.problem(
                    SKILL_TOML, f"{SKILL_TOML} and the manifest differ in {quoted(differing_path or 'everything')}"
                )
        return None

    def skill_md_file(self, skill_md: SkillMd | None) -> BundleFile | None:
        """Return SKILL.md as a file, or None if SKILL.md is among the given files or is invalid."""
        file = self.by_path.get(SKILL_MD)
        if file is None:
            assert self.parsed_md is None, "a parsed SKILL.md is among the files"
            return BundleFile(SKILL_MD, self.text.encode()) if skill_md else None
        if self.parsed_md is not None:
            return None
        try:
            stated_text = file.content.decode()
        except UnicodeDecodeError as error:
            line = file.content.count(b"\n", 0, error.start) + 1
            self.problem(SKILL_MD, f"{SKILL_MD} is not UTF-8 text", line)
            return None
        if _plain(stated_text) != _plain(self.text):
            self.problem(SKILL_MD, f"the file {SKILL_MD} and skill_md differ; leave one of them out")
        return None

    def find_entrypoint(self, manifest: Manifest | None) -> SourceFile | None:
        """Return the file of the entrypoint if it must compile, else None. Problem: the bundle has no such file."""
        runtime = manifest.called if manifest else None
        if runtime is None:
            return None
        file = self.by_path.get(runtime.entrypoint)
        if file is not None:
            table = self.raw.get("runtime")
            # A file in another language is not compiled: the problem is `language`.
            is_python = isinstance(table, Mapping) and table.get("language", "python") == "python"
            return SourceFile(file.path, file.content, runtime.export) if is_python else None
        suggestion = did_you_mean(runtime.entrypoint, (path for path in self.by_path if path.endswith(".py")))
        message = f"the entrypoint {quoted(runtime.entrypoint)} is not in the bundle{suggestion}"
        line = 1 if self.toml_text is None else None
        problems = with_toml([Problem(message, "runtime.entrypoint", runtime.entrypoint, line)], self.toml_text)
        self.problems += [msgspec.structs.replace(problem, toml=None) for problem in problems]
        self.hints.setdefault(InvalidBundle, _HINT)
        return None

    def check_entrypoint(self, source_problems: Mapping[str, Problem]) -> None:
        problem = source_problems.get(self.entrypoint.path) if self.entrypoint else None
        if problem:
            self.problems.append(problem)
            self.hints.setdefault(InvalidBundle, _HINT)

    def check_javascript(self, manifest: Manifest | None, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Return warnings about JavaScript dependencies. Missing modules are problems, or with `skip_broken_tools`
        warnings.
        """
        handlers = {tool.script for tool in tools if tool.script and tool.script.endswith(package_json.JAVASCRIPT)}
        of_scripts = manifest is not None and manifest.called is None
        runnable = handlers | (package_json.script_paths(self.by_path) if of_scripts else frozenset())
        if self.installs_npm or not runnable or not any(path.endswith(package_json.FILE) for path in self.by_path):
            return ()
        check = package_json.check_dependencies({path: file.content for path, file in self.by_path.items()}, runnable)
        if check.missing and not self.skip_broken_tools:
            self.problems.extend(check.missing)
            self.hints.setdefault(InvalidBundle, package_json.HINT)
            return check.odd
        return (*check.odd, *(f"{problem.file}:{problem.line}: {problem.message}" for problem in check.missing))

    def read_examples(self, manifest: Manifest | None) -> Examples | None:
        if manifest is None or (self.manifest is None and manifest.called is None):
            return None
        paths = frozenset({SKILL_TOML, SKILL_MD, *self.by_path})
        examples = read_examples(manifest, paths, self.toml_text, self.offered.tools)
        if self.offered.problems:
            # A tool that breaks a rule is not known: its examples are checked when the tool is correct.
            problems = tuple(problem for problem in examples.problems if not (problem.path or "").endswith("].tool"))
            return msgspec.structs.replace(examples, problems=problems)
        return examples

    def check_examples(self) -> None:
        if self.examples and self.examples.problems:
            self.problems.extend(with_toml(self.examples.problems, self.toml_text))
            self.hints.setdefault(InvalidManifest, f"Fix the examples{AGAIN}")

    @cached_property
    def other_python_files(self) -> list[BundleFile]:
        """The Python files except the entrypoint, handlers of tools included. Their faults are only warnings."""
        entrypoint = self.entrypoint.path if self.entrypoint else ""
        folders = {"code", entrypoint.rpartition("/")[0]}
        handlers = {tool.script for tool in self.offered.tools}
        candidates = (file for file in self.files if file.path.endswith(".py") and file.path != entrypoint)
        return in_order(file for file in candidates if _is_in(file.path, folders) or file.path in handlers)

    @property
    def other_sources(self) -> Iterator[SourceFile]:
        sizes = accumulate(file.size for file in self.other_python_files)
        files_in_limit = takewhile(
            lambda pair: pair[1] <= MAX_CHECKED_BYTES, zip(self.other_python_files, sizes, strict=True)
        )
        return (SourceFile(file.path, file.content) for file, _ in files_in_limit)

    def source_warnings(self, source_problems: Mapping[str, Problem]) -> Iterator[str]:
        compiled = {source.path for source in self.sources}
        for file in self.other_python_files:
            if file.path not in compiled:
                yield f"{file.path} was not checked: the Python files of this bundle are too large together"
                return
            if file.path in source_problems:
                yield source_problems[file.path].message

    def attempt(self, parse: Callable[[], _T]) -> _T | None:
        """Return the result of `parse`. If it raises InvalidParams, note the problems and return None."""
        try:
            return parse()
        except InvalidParams as error:
            self.problems.extend(problems_of(error))
            self.hints.setdefault(type(error), error.hint)
            return None

    def problem(self, file: str, message: str, line: int | None = None) -> None:
        self.problems.append(Problem(message, path=file, file=file, line=line))
        self.hints.setdefault(InvalidBundle, _HINT)


def _is_in(path: str, folders: set[str]) -> bool:
    return any(folder and path.startswith(folder + "/") for folder in folders)


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")
