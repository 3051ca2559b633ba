"""Suites of evaluations: the cases in the files of a skill, in the formats of the field.

The files are `evals.json` (a list or an object of cases with expectations, assertions or graders), sets of queries that
should or should not find a skill, and scenarios of `task.md` and `criteria.json`. `formats.examples` reads the examples
in skill.toml, which are cases too.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

from skillery.formats.graders import MAX_GRADERS, Contains, ContainsNot, Grader, Matches, Rubric, parse_grader
from skillery.formats.json_values import kind_of, slow_numbers
from skillery.formats.wording import Problem, one_line

FOLDER = "evals"
MAX_CASES = 2_000
"""The maximum number of cases of a skill, with those that cannot be read."""
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_PROMPT = 20_000
"""The maximum number of characters of a prompt."""
_MOST_SLOW_NUMBERS = 1_000
_BOM = b"\xef\xbb\xbf"
_RESULTS = frozenset({"benchmark.json", "grading.json", "timing.json", "results.json", "criteria.json", "package.json"})
"""Files next to suites that contain no cases."""
_PROMPTS = ("prompt", "question", "query", "task", "input")
_EXPECTATIONS = ("expectations", "assertions", "expected_behavior", "success_criteria", "rubric")
_TESSL_SHARE = 0.8

CaseKind = Literal["task", "trigger"]


class Case(msgspec.Struct, frozen=True):
    """One case of a suite. Of `kind` task, an agent does what `prompt` says, and all graders judge its answer. Of
    `kind` trigger, `prompt` should lead to a skill, or should not.
    """

    id: str
    """The id in its file, or the number of the case. Not unique between files."""
    kind: CaseKind
    prompt: str
    source: str
    """The path of the file."""
    graders: tuple[Grader, ...] = ()
    files: tuple[str, ...] = ()
    """Paths of bundle files that the agent gets."""
    expected: str = ""
    """What the author expects, for people and for the model that grades."""
    triggers: bool = True
    """False if the prompt should lead to another skill, or to none."""
    skill: str = ""
    """The last part of the name of the skill that the prompt should lead to, or "" for this skill."""
    share: float = 1.0
    """The share of the weights of the graders that must pass."""

    def is_meant(self, name: str, own_name: str) -> bool:
        """Return whether the prompt should lead to the skill `name`: `own_name`, or one that the case names."""
        return name.rpartition(".")[2] == self.skill if self.skill else name == own_name


class Suite(msgspec.Struct, frozen=True):
    """The cases of a skill, and what could not be read."""

    cases: tuple[Case, ...]
    problems: tuple[Problem, ...]


def suite_files(paths: Iterable[str]) -> list[str]:
    """Return the paths of the files that `read_suite` reads."""
    return [path for path in paths if _is_suite(PurePosixPath(path))]


def _is_suite(path: PurePosixPath) -> bool:
    """Return whether a file has cases. Files further below `evals/` are inputs of cases."""
    if path.name in ("task.md", "criteria.json"):
        return len(path.parts) == 3 and path.parts[0] == FOLDER
    if path.suffix != ".json" or path.name in _RESULTS:
        return False
    return path.parts == ("evals.json",) or path.parts[:-1] == (FOLDER,)


def read_suite(contents: Mapping[str, bytes]) -> Suite:
    """Return the cases of all files, by path. `contents` are those of `suite_files`."""
    paths = [path for path in sorted(contents) if not path.endswith("criteria.json")]
    read = list(islice((case for path in paths for case in _cases(path, contents)), MAX_CASES + 1))
    cases = [case for case in read[:MAX_CASES] if isinstance(case, Case)]
    problems = [case for case in read[:MAX_CASES] if isinstance(case, Problem)]
    if len(read) > MAX_CASES:
        problems.append(Problem(f"the suites have more than {MAX_CASES} cases; the others are not read"))
    return Suite(tuple(cases), tuple(problems))


def _cases(path: str, contents: Mapping[str, bytes]) -> Iterator[Case | Problem]:
    """Yield the cases of one file, and a problem for each that cannot be read."""
    try:
        if path.endswith("task.md"):
            yield _scenario(path, contents)
            return
        entries = _entries(_decoded(contents[path]))
    except ValueError as error:
        yield Problem(f"{path} {error}", file=path)
        return
    for number, entry in enumerate(entries, 1):
        case_id = one_line(str((entry.get("id") or entry.get("name")) if isinstance(entry, Mapping) else ""), 80)
        case_id = case_id if case_id not in ("", "None") else str(number)
        try:
            yield from _of_entry(case_id, path, entry)
        except ValueError as error:
            yield Problem(f"{path}: case {case_id} {error}", file=path)


def _decoded(content: bytes) -> Any:
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"has {len(content)} bytes, and a suite at most {MAX_FILE_BYTES}")
    if slow_numbers(content) > _MOST_SLOW_NUMBERS:
        raise ValueError("has too many numbers with huge exponents")
    try:
        return msgspec.json.decode(content.removeprefix(_BOM))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"is no JSON: {error}") from None


def _entries(value: Any) -> list[Any]:
    """Return the list of cases, which is the value itself or a member of it."""
    if isinstance(value, Mapping):
        lists = [value[key] for key in ("evals", "cases", "tests", "queries") if isinstance(value.get(key), list)]
        if not lists:
            raise ValueError("has no list of cases (`evals` or `cases`)")
        value = lists[0]
    if not isinstance(value, list):
        raise ValueError(f"is {kind_of(value)}, expected a list of cases")
    return value


def _of_entry(case_id: str, path: str, entry: Any) -> list[Case]:
    """Return the cases of one entry: one that should find the skill, one with a task, or both. Raise ValueError with
    the reason if it cannot be read.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(f"is {kind_of(entry)}, expected an object")
    prompt = next((entry[key] for key in _PROMPTS if isinstance(entry.get(key), str)), "").strip()
    if not prompt:
        raise ValueError(f"has no {' or '.join(_PROMPTS[:3])}")
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"has a prompt of {len(prompt)} characters, at most {MAX_PROMPT} are read")
    graders = _graders(entry)
    if "should_trigger" not in entry and "expected_skill" not in entry:
        return [_task(case_id, path, prompt, graders, entry)]
    skill = entry.get("expected_skill")
    triggers = bool(entry.get("should_trigger", skill is not None))
    name = skill.removesuffix("/SKILL.md").replace("/", ".").rsplit(".", 1)[-1] if isinstance(skill, str) else ""
    trigger = Case(case_id, "trigger", prompt, path, triggers=triggers, skill=name)
    return [trigger, _task(case_id, path, prompt, graders, entry)] if graders and triggers else [trigger]


def _task(case_id: str, path: str, prompt: str, graders: tuple[Grader, ...], entry: Mapping[str, Any]) -> Case:
    expectations = (entry.get(key) for key in ("expected_output", "ground_truth"))
    expected = next((text for text in expectations if isinstance(text, str)), "")
    files = tuple(file for file in _list(entry, "files") if isinstance(file, str))
    return Case(case_id, "task", prompt, path, graders, files, expected)


def _graders(entry: Mapping[str, Any]) -> tuple[Grader, ...]:
    lists = [(parse_grader, _list(entry, "graders")), *((_expectation, _list(entry, key)) for key in _EXPECTATIONS)]
    count = sum(len(values) for _, values in lists)
    if count > MAX_GRADERS:
        raise ValueError(f"has {count} graders, at most {MAX_GRADERS} are read")
    return tuple(parse(value) for parse, values in lists for value in values)


def _list(entry: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list at `key`. A single text is a list of one, and null is none."""
    value = entry.get(key)
    if isinstance(value, str):
        return [value] if value.strip() else []
    if value is None or isinstance(value, list):
        return value or []
    raise ValueError(f"has {kind_of(value)} as {key}, expected a list")


def _expectation(value: Any) -> Grader:
    """Return an expectation as a grader. A text, or an unknown type with a text, is one that a model judges."""
    if isinstance(value, str):
        return _rubric(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"has {kind_of(value)} as an expectation, expected a text or an object")
    pattern = value.get("pattern") or value.get("phrase") or value.get("value")
    match value.get("type"), pattern:
        case "contains_pattern", str():
            return Matches(pattern)
        case (("contains_phrase" | "contains"), str()):
            return Contains(pattern)
        case "not_contains_pattern", str():
            return Matches(pattern, absent=True)
        case (("not_contains_phrase" | "not_contains"), str()):
            return ContainsNot(pattern)
    text = next(
        (value[key] for key in ("text", "description", "criterion", "name") if isinstance(value.get(key), str)), ""
    )
    return _rubric(text, value.get("weight", 1))


def _rubric(text: str, weight: Any = 1) -> Rubric:
    if not text.strip():
        raise ValueError("has an expectation without a text")
    is_weight = isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
    return Rubric(text.strip()[:8_000], float(weight) if is_weight else 1.0)


def _scenario(path: str, contents: Mapping[str, bytes]) -> Case:
    """Return the scenario of a `task.md` with the checklist of the `criteria.json` next to it."""
    folder = PurePosixPath(path).parent
    prompt = contents[path].removeprefix(_BOM).decode("utf-8", "replace").strip()
    if not prompt or len(prompt) > MAX_PROMPT:
        raise ValueError(f"has {len(prompt)} characters, expected 1 to {MAX_PROMPT}")
    criteria = contents.get(str(folder / "criteria.json"))
    if criteria is None:
        raise ValueError("has no criteria.json next to it")
    value = _decoded(criteria)
    checklist = value.get("checklist") if isinstance(value, Mapping) else None
    if not isinstance(checklist, list) or not checklist:
        raise ValueError("has a criteria.json without a checklist")
    graders = [_weighted(item) for item in checklist[:MAX_GRADERS]]
    return Case(folder.name, "task", prompt, path, tuple(graders), share=_TESSL_SHARE)


def _weighted(item: Any) -> Rubric:
    if not isinstance(item, Mapping):
        raise ValueError(f"has {kind_of(item)} in the checklist of criteria.json, expected an object")
    name, description = (str(item.get(key) or "") for key in ("name", "description"))
    return _rubric(": ".join(filter(None, [name, description])), item.get("max_score", 1))


# -- Texts that give away what a case expects --------------------------------------------------------------------------


LEAKED_WORDS = 8
"""The number of words in a row that a text must share with an expectation to give it away."""
MAX_EXPECTATIONS, MAX_INSTRUCTIONS = 256 * 1024, 1024 * 1024
"""The maximum numbers of characters that are compared, of all cases and of all texts."""
_WORD = re.compile(r"\w+")


def is_instruction(path: str) -> bool:
    """Return whether an agent reads the file as a text: Markdown outside of the suites."""
    return path.endswith(".md") and not path.startswith(f"{FOLDER}/")


def leaks(cases: Sequence[Case], texts: Mapping[str, str]) -> Iterator[tuple[str, int, Case]]:
    """Yield the path, the line and the case of the first words of each text that an expectation has, too. Blocking."""
    expected: dict[tuple[str, ...], Case] = {}
    left = MAX_EXPECTATIONS
    for case in cases:
        for expectation in _expectations(case):
            expected |= {words: case for words, _ in _in_a_row(expectation[:left])}
            left -= min(left, len(expectation))
    left = MAX_INSTRUCTIONS
    for path, text in texts.items() if expected else ():
        read = text[:left]
        left -= len(read)
        shared = next(((start, expected[words]) for words, start in _in_a_row(read) if words in expected), None)
        if shared is not None:
            start, case = shared
            yield path, read.count("\n", 0, start) + 1, case


def _expectations(case: Case) -> Iterator[str]:
    yield case.expected
    yield from (grader.text for grader in case.graders if isinstance(grader, Rubric))


def _in_a_row(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each LEAKED_WORDS words in a row, in lower case, and the position of the first."""
    last = deque[re.Match[str]](maxlen=LEAKED_WORDS)
    for match in _WORD.finditer(text):
        last.append(match)
        if len(last) == LEAKED_WORDS:
            yield tuple(word[0].lower() for word in last), last[0].start()
