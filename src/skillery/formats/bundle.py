"""A bundle: all files of one version of a skill, checked together, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import msgspec

from skillery.errors import BundleTooLarge, InvalidBundle, InvalidManifest, InvalidParams, InvalidPath
from skillery.formats import package_json
from skillery.formats.examples import Examples, read_examples
from skillery.formats.json_values import difference
from skillery.formats.manifest import Manifest, Runtime, parse_manifest
from skillery.formats.paths import PATH_HINT, check_paths, path_problem
from skillery.formats.problems import Problem, problems_of, raise_problems
from skillery.formats.python_source import source_problem
from skillery.formats.requirements import located
from skillery.formats.skill_md import SkillMd, parse_skill_md
from skillery.formats.skill_toml import manifest_toml, toml_manifest
from skillery.formats.tools_json import FILE as TOOLS_JSON
from skillery.formats.tools_json import HINT as TOOLS_HINT
from skillery.formats.tools_json import NO_TOOLS, Tool, ToolsFile, name_warnings, read_tools
from skillery.formats.wording import did_you_mean, printable, quoted

SKILL_TOML = "skill.toml"
SKILL_MD = "SKILL.md"

_T = TypeVar("_T")
_HINT = "Mend the files and publish again; nothing was stored."

Look: TypeAlias = Callable[[str, bytes, str | None], Problem | None]
"""What is wrong with a Python file: its path, its source, and the name that it has to define."""

MAX_CHECKED_BYTES = 2 * 1024 * 1024
"""Of Python files beside the entrypoint: past it they are stored without a look at their syntax."""


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle; `path` is relative to the skill's root."""

    path: str
    content: bytes
    executable: bool = False

    @cached_property
    def sha256(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content)


class BundleLimits(msgspec.Struct, frozen=True):
    """For all files together, skill.toml and SKILL.md included."""

    max_bytes: int = 16 * 1024 * 1024
    max_files: int = 512


class Bundle(msgspec.Struct, frozen=True):
    """A checked bundle. `files` are sorted by the bytes of their paths and hold skill.toml and SKILL.md."""

    manifest: Manifest
    skill_md: SkillMd
    files: tuple[BundleFile, ...]
    digest: str
    size_bytes: int
    warnings: tuple[str, ...]
    examples: Examples
    tools: tuple[Tool, ...] = ()


def digest_of(files: Iterable[BundleFile]) -> str:
    """`sha256:…` over a line `mode SP sha256 SP path LF` for each file: the same files, the same digest, anywhere."""
    return digest_of_entries((file.path, file.sha256, file.executable) for file in files)


def digest_of_entries(files: Iterable[tuple[str, str, bool]]) -> str:
    """As `digest_of`, of path, SHA-256 and whether it is executable."""
    lines = hashlib.sha256()
    for path, sha256, executable in sorted(files, key=lambda file: file[0].encode()):
        mode = "100755" if executable else "100644"
        lines.update(f"{mode} {sha256} {path}\n".encode())
    return f"sha256:{lines.hexdigest()}"


def make_bundle(
    manifest: Mapping[str, object],
    skill_md: str | SkillMd,
    files: Sequence[BundleFile],
    limits: BundleLimits = BundleLimits(),  # noqa: B008 - frozen
    look: Look = source_problem,
    *,
    skip_broken_tools: bool = False,
) -> Bundle:
    """Everything that can be known about a bundle without running it.

    `files` may hold skill.toml and SKILL.md if they say what `manifest` and `skill_md` say; they are written
    otherwise. A SkillMd is how somebody has read the SKILL.md among the files, which is then taken as it is. Raises
    BundleTooLarge; InvalidManifest, InvalidPath or InvalidBundle with all problems found. `skip_broken_tools`: a rule
    that tools.json breaks is a warning, and the bundle does without that tool; missing modules of JavaScript are one.
    """
    _check_size(files, limits)
    return _Maker(manifest, skill_md, files, look, skip_broken_tools).bundle(limits)


def with_file(bundle: Bundle, file: BundleFile, limits: BundleLimits) -> Bundle:
    """The bundle with one more file, and the digest that goes with it. Raises BundleTooLarge, InvalidPath."""
    check_paths([*(one.path for one in bundle.files), file.path])
    files = tuple(_sorted([*bundle.files, file]))
    _check_size(files, limits)
    size = sum(one.size for one in files)
    return msgspec.structs.replace(bundle, files=files, digest=digest_of(files), size_bytes=size)


class _Maker:
    """Puts one bundle together and collects what is wrong on the way."""

    def __init__(
        self,
        manifest: Mapping[str, object],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        look: Look,
        skip_broken_tools: bool,
    ) -> None:
        self.look = look
        self.skip_broken_tools = skip_broken_tools
        self.raw = manifest
        self.read = skill_md if isinstance(skill_md, SkillMd) else None
        self.text = skill_md if isinstance(skill_md, str) else ""
        self.files = files
        self.by_path = {file.path: file for file in files}
        self.problems: list[Problem] = []
        self.hints: dict[type[InvalidParams], str | None] = {}

    def bundle(self, limits: BundleLimits) -> Bundle:
        offered = self.tools()
        # Where a rule is broken it is told by itself, not by what it would mean for the kind.
        has_tools = offered.has_scripts or bool(offered.problems and not self.skip_broken_tools)
        manifest = self.attempt(lambda: parse_manifest(self.raw, has_tools=has_tools))
        self.locate_requirements()
        skill_md = self.read or self.attempt(lambda: parse_skill_md(self.text))
        self.check_paths()
        looked = self.look_at_javascript(manifest, offered.tools)
        generated = [self.skill_toml(manifest), self.skill_md(skill_md)]
        self.check_entrypoint(manifest)
        examples = self.examples(manifest)
        if manifest is None or examples is None or skill_md is None or self.problems:
            kind = next(iter(self.hints)) if len(self.hints) == 1 else InvalidBundle
            raise_problems(kind, self.problems, hint=next(iter(self.hints.values())))
        files = tuple(_sorted([*self.files, *(file for file in generated if file)]))
        _check_size(files, limits)
        warnings = (
            *manifest.warnings,
            *skill_md.warnings,
            *offered.warnings,
            *offered.skipped,
            *(name_warnings(manifest.name, skill_md.frontmatter.get("name")) if offered.tools else ()),
            *self.syntax_warnings(manifest.called, offered.tools),
            *looked,
        )
        size = sum(file.size for file in files)
        return Bundle(manifest, skill_md, files, digest_of(files), size, warnings, examples, offered.tools)

    def locate_requirements(self) -> None:
        given = self.by_path.get(SKILL_TOML)
        text = given.content.decode("utf-8", "replace") if given else None
        self.problems = [located(problem, text) for problem in self.problems]

    def tools(self) -> ToolsFile:
        given = self.by_path.get(TOOLS_JSON)
        if given is None:
            return NO_TOOLS
        found = read_tools(given.content, frozenset({SKILL_TOML, SKILL_MD, *self.by_path}))
        if found.problems and not self.skip_broken_tools:
            self.problems.extend(found.problems)
            self.hints.setdefault(InvalidBundle, TOOLS_HINT)
        return found

    def check_paths(self) -> None:
        for file in self.files:
            wrong = path_problem(file.path)
            if wrong:
                shown = printable(file.path)
                self.problems.append(Problem(f"the path {quoted(file.path)} {wrong}", path=shown, file=shown))
                self.hints.setdefault(InvalidPath, PATH_HINT)
        if InvalidPath not in self.hints:
            missing = [path for path in (SKILL_TOML, SKILL_MD) if path not in self.by_path]
            self.attempt(lambda: check_paths([*missing, *(file.path for file in self.files)]))

    def skill_toml(self, manifest: Manifest | None) -> BundleFile | None:
        """skill.toml written from the manifest, or None where it is given."""
        given = self.by_path.get(SKILL_TOML)
        if given is None:
            return BundleFile(SKILL_TOML, manifest_toml(manifest.raw)) if manifest else None
        stated = self.attempt(lambda: toml_manifest(given.content))
        if stated is not None and manifest is not None:
            place = difference(manifest.raw, stated)
            if place is not None:
                self.problem(SKILL_TOML, f"{SKILL_TOML} and the manifest differ in {quoted(place or 'everything')}")
        return None

    def skill_md(self, skill_md: SkillMd | None) -> BundleFile | None:
        """SKILL.md as a file, or None where it is given."""
        given = self.by_path.get(SKILL_MD)
        if given is None:
            assert self.read is None, "whoever has read it has it"
            return BundleFile(SKILL_MD, self.text.encode()) if skill_md else None
        if self.read is not None:
            return None
        try:
            stated = given.content.decode()
        except UnicodeDecodeError as error:
            line = given.content.count(b"\n", 0, error.start) + 1
            self.problem(SKILL_MD, f"{SKILL_MD} is not UTF-8 text", line)
            return None
        if _plain(stated) != _plain(self.text):
            self.problem(SKILL_MD, f"the file {SKILL_MD} and skill_md differ; leave one of them out")
        return None

    def check_entrypoint(self, manifest: Manifest | None) -> None:
        runtime = manifest.called if manifest else None
        if runtime is None:
            return
        file = self.by_path.get(runtime.entrypoint)
        if file is None:
            near = did_you_mean(runtime.entrypoint, (path for path in self.by_path if path.endswith(".py")))
            self.problem(
                runtime.entrypoint, f"the entrypoint {quoted(runtime.entrypoint)} is not in the bundle{near}", 1
            )
            return
        problem = self.look(file.path, file.content, runtime.export)
        if problem:
            self.problems.append(problem)
            self.hints.setdefault(InvalidBundle, _HINT)

    def look_at_javascript(self, manifest: Manifest | None, tools: Sequence[Tool]) -> tuple[str, ...]:
        """Warnings; modules that are missing are a problem, unless the bundle is imported."""
        handlers = {tool.script for tool in tools if tool.script and tool.script.endswith(package_json.JAVASCRIPT)}
        of_scripts = manifest is not None and manifest.called is None
        run = handlers | (package_json.run_by_scripts(self.by_path) if of_scripts else frozenset())
        if not run or not any(path.endswith(package_json.FILE) for path in self.by_path):
            return ()
        found = package_json.look_at_dependencies({path: file.content for path, file in self.by_path.items()}, run)
        if found.missing and not self.skip_broken_tools:
            self.problems.extend(found.missing)
            self.hints.setdefault(InvalidBundle, package_json.HINT)
            return found.odd
        return (*found.odd, *(f"{one.file}:{one.line}: {one.message}" for one in found.missing))

    def examples(self, manifest: Manifest | None) -> Examples | None:
        if manifest is None:
            return None
        given = self.by_path.get(SKILL_TOML)
        text = given.content.decode("utf-8", "replace") if given else None
        examples = read_examples(manifest, frozenset({SKILL_TOML, SKILL_MD, *self.by_path}), text)
        self.problems.extend(examples.problems)
        if examples.problems:
            self.hints.setdefault(InvalidManifest, "Mend the examples and publish again; nothing was stored.")
        return examples

    def syntax_warnings(self, runtime: Runtime | None, tools: Sequence[Tool]) -> Iterator[str]:
        """What does not compile beside the entrypoint: it may be data, or never imported; and handlers of tools, which
        agents will be told of when they call them."""
        folders = {"code", runtime.entrypoint.rpartition("/")[0] if runtime else ""}
        handlers = {tool.script for tool in tools}
        beside = (
            file
            for file in self.files
            if file.path.endswith(".py") and (_is_in(file.path, folders) or file.path in handlers)
        )
        budget = MAX_CHECKED_BYTES
        for file in _sorted(file for file in beside if not runtime or file.path != runtime.entrypoint):
            budget -= file.size
            if budget < 0:
                yield f"{file.path} was not checked: the Python files of this bundle are too large together"
                return
            problem = self.look(file.path, file.content, None)
            if problem:
                yield problem.message

    def attempt(self, parse: Callable[[], _T]) -> _T | None:
        try:
            return parse()
        except InvalidParams as error:
            self.problems.extend(problems_of(error))
            self.hints.setdefault(type(error), error.hint)
            return None

    def problem(self, file: str, message: str, line: int | None = None) -> None:
        self.problems.append(Problem(message, path=file, file=file, line=line))
        self.hints.setdefault(InvalidBundle, _HINT)


def _check_size(files: Sequence[BundleFile], limits: BundleLimits) -> None:
    if len(files) > limits.max_files:
        raise BundleTooLarge(
            f"The bundle has {len(files)} files, at most {limits.max_files} are allowed.",
            hint="Pack small files into one, or keep data in blobs.",
            files=len(files),
            max_files=limits.max_files,
        )
    size = sum(file.size for file in files)
    if size > limits.max_bytes:
        raise BundleTooLarge(
            f"The bundle has {size} bytes, at most {limits.max_bytes} are allowed.",
            hint="Keep large data in blobs and pass their ids as arguments.",
            size_bytes=size,
            max_bytes=limits.max_bytes,
        )


def _sorted(files: Iterable[BundleFile]) -> list[BundleFile]:
    return sorted(files, key=lambda file: file.path.encode())


def _is_in(path: str, folders: set[str]) -> bool:
    return any(folder and path.startswith(folder + "/") for folder in folders)


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")
