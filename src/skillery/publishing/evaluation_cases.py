"""The cases of an evaluation: the examples of a version and of the version before, the tasks of its suites, and the
prompts that should lead to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, or_, select, update

from skillery.attestations.evaluations import OWN, suite_digest
from skillery.audit import SERVER
from skillery.backends import Identity, PublishedFile
from skillery.database import Database
from skillery.database.registry import lock_skill_row
from skillery.database.tables import RESOLVABLE, skill_versions, skills
from skillery.errors import InvalidParams, NotFound
from skillery.evaluations.agent import prompts_of, tasks_of
from skillery.evaluations.prompts import SEARCHED, Candidate, candidates_for, searched
from skillery.evaluations.trials import Task, TrialResult
from skillery.formats.examples import Example, Examples
from skillery.formats.graders import schema_files
from skillery.formats.names import namespace_of
from skillery.formats.semver import Version
from skillery.formats.suites import Case, read_suite, suite_files
from skillery.formats.version_spec import Exact, parse_reference
from skillery.publishing.bundle_checks import BundleChecks
from skillery.publishing.example_runs import StoredExamples, stored_examples
from skillery.registry.requires import Required, closure_of_row
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow, yank_of
from skillery.registry.visibility import hidden_audiences, parameters, seen_by_name, versions_for, view_of
from skillery.skills.search import find_skills
from skillery.skills.search_index import index_latest, index_visibility

READER = msgspec.structs.replace(SERVER, scopes=frozenset({"admin"}))
"""The server as an identity that sees each version."""
MOST_ID = 512
"""The maximum length of the id of a case in the database."""
MOST_OTHERS = 10_000


class RunCase(NamedTuple):
    """An example, and the files of its own version that it passes to a run."""

    example: Example
    inputs: tuple[PublishedFile, ...]


class Loaded(NamedTuple):
    """A version and the version before it, if there is one, with the cases of both, by their ids."""

    row: VersionRow
    before: VersionRow | None
    versions: Mapping[str, StoredExamples]
    """The version for each arm."""
    closures: Mapping[str, tuple[Required, ...]]
    """The versions that the version of an arm requires."""
    cases: Mapping[str, RunCase]
    tasks: Mapping[str, Task]
    prompts: Mapping[str, Case]
    """The prompts that should lead to the skill, or should not. They are not part of suites of other skills."""
    files: Mapping[str, bytes]
    """The files of the version, or of the skill that has its suite."""
    suite: str = OWN
    """`own`, or the version of another skill that has the tasks: NAME@VERSION."""

    def of_kind(self, kind: str) -> Sequence[str]:
        """Return the ids of the cases of a kind."""
        cases: dict[str, Mapping[str, object]] = {"run": self.cases, "task": self.tasks}
        return tuple(cases.get(kind, self.prompts))

    @property
    def suite_digest(self) -> str:
        runs = [(case.example, [file.path for file in case.inputs]) for case in self.cases.values()]
        tasks = [(task.case, sorted(task.files)) for task in self.tasks.values()]
        return suite_digest(msgspec.to_builtins([runs, tasks], enc_hook=str))


class CaseRuns:
    """Loads the cases of versions, and runs them."""

    def __init__(self, database: Database, checks: BundleChecks) -> None:
        self._database = database
        self._checks = checks

    async def load_new(self, row: VersionRow, suite: str) -> Loaded:
        """Return a version with its cases. The version before is that of `find_before`."""
        return await self.load(row, await self._database.read(partial(find_before, row=row)), suite)

    async def load(self, row: VersionRow, before: str | None, suite: str) -> Loaded:
        """Return a version with the cases of a suite. `before` is the number of the version before."""
        work = partial(self._read, row=row, number=before, suite=suite)
        return await asyncio.to_thread(self._database.read_now, work)

    def _read(self, connection: Connection, row: VersionRow, number: str | None, suite: str) -> Loaded:
        spec = Exact(Version.parse(number)) if number else None
        before = resolve(connection, READER, row.name, spec, manages=True) if spec else None
        versions, closures = {"with": self._stored(connection, row)}, {"with": tuple(closure_of_row(connection, row))}
        if before is not None:
            closures["before"] = tuple(closure_of_row(connection, before))
            versions["before"] = self._stored(connection, before)
        is_own = suite == OWN
        cases = _run_cases(versions.values()) if is_own else {}
        stored = versions["with"] if is_own else self._stored(connection, find_suite(connection, READER, suite))
        contents = {file.path: file.content for file in stored.subject.files}
        read = read_suite({path: contents[path] for path in suite_files(contents)})
        tasks = {task.id[:MOST_ID]: task for task in tasks_of(read, contents)[0]}
        prompts = {prompt_id[:MOST_ID]: case for prompt_id, case in prompts_of(read).items()} if is_own else {}
        return Loaded(row, before, versions, closures, cases, tasks, prompts, contents, suite)

    def _stored(self, connection: Connection, row: VersionRow) -> StoredExamples:
        version = Version.parse(row.version)
        publication = self._checks.stored_publication(connection, READER, row.name, version)
        return stored_examples(publication, row.kind)

    async def run(self, identity: Identity, loaded: Loaded, case_id: str, arm: str) -> TrialResult:
        """Run a case with the version of an arm. The run belongs to `identity`, and has no permissions.

        Raise Busy, RateLimited or Unavailable if it cannot run now.
        """
        case, version = loaded.cases[case_id], loaded.versions[arm]
        example = case.example
        if example.tool is not None:
            tool = version.tools.get(example.tool.name)
            if tool is None or tool.script is None:
                return TrialResult(False, f"the version has no tool '{example.tool.name}' with a script")
            example = msgspec.structs.replace(example, tool=tool)
        files = {file.path: file for file in (*version.subject.files, *case.inputs)}
        subject = version.subject._replace(files=tuple(files.values()))
        examples = Examples((example,), (), (None,))
        tested = await self._checks.examples.test(identity, subject, examples, permitted=False)
        [result] = tested.examples
        problem = tested.findings[0].message.removeprefix(f"{example.name}: ") if tested.findings else ""
        return TrialResult(result.status == "passed", problem)

    async def search(self, loaded: Loaded, case_id: str) -> TrialResult:
        """Search with a prompt, as `search_published` does."""
        case, row = loaded.prompts[case_id], loaded.row
        results = await self._database.write(partial(search_published, row=row, query=case.prompt))
        prompt = searched(case, row.name, results)
        result = TrialResult(not prompt.difference, prompt.difference, rank=prompt.rank or 0, triggers=case.triggers)
        return msgspec.structs.replace(result, rival=prompt.rival)

    async def candidates(self, loaded: Loaded, case_id: str) -> list[Candidate]:
        """Return the skills from which a model chooses for a prompt, of those that `reader_of` sees."""
        case, row = loaded.prompts[case_id], loaded.row
        nearest = await self._database.write(partial(search_published, row=row, query=case.prompt))
        meant = Candidate(row.name, loaded.versions["with"].subject.manifest.description)
        work = partial(_candidates, row=row, meant=meant, nearest=nearest, seed=f"{row.name} {case_id}")
        return await asyncio.to_thread(self._database.read_now, work)


def _run_cases(versions: Iterable[StoredExamples]) -> dict[str, RunCase]:
    """Return the examples of a version and of the version before, which say what its callers rely on."""
    cases: dict[str, RunCase] = {}
    names: set[str] = set()
    for version in versions:
        files = {file.path: file for file in version.subject.files}
        for example in version.examples.read:
            if example.name not in names and not example.needs_permissions:
                paths = dict.fromkeys([*example.files, *schema_files(example.graders)])
                cases[example.name] = RunCase(example, tuple(files[path] for path in paths))
        names |= {example.name for example in version.examples.read}
    return cases


def find_before(connection: Connection, row: VersionRow) -> str | None:
    """Return the number of the highest published version that is lower than a version, or None.

    Without one, it is the highest yanked one: a yank can be undone after an evaluation that compares with nothing.
    """
    lower: Any = skill_versions.c.precedence < Version.parse(row.version).precedence
    is_published = skill_versions.c.status.in_(RESOLVABLE)
    of_skill = skill_versions.c.skill_id == row.skill_id, lower, or_(is_published, skill_versions.c.status == "yanked")
    order = is_published.desc(), skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc()
    columns = skill_versions.c.version, skill_versions.c.standing_json
    for number, standing_json in connection.execute(select(*columns).where(*of_skill).order_by(*order)):
        if yank_of(standing_json).get("severity") != "malicious":
            return str(number)
    return None


# -- Prompts: the search does not have versions in review --------------------------------------------------------------


def reader_of(row: VersionRow) -> Identity:
    """Return an identity that sees public skills and, if the skill has the visibility `namespace`, those of its
    namespace. A reader with a grant for the skill alone sees less: results have the names of others as `rival`.
    """
    namespace = namespace_of(row.name)
    grants = (f"{namespace}.*",) if row.visibility == "namespace" and namespace else ()
    return Identity("", "person", frozenset({"read"}), grants)


def search_published(connection: Connection, row: VersionRow, query: str) -> list[Candidate]:
    """Return what a search by words finds for `reader_of`, best first, as if the version was published and public.

    The version replaces the indexed one until the savepoint is rolled back, which no other transaction sees.
    """
    connection.exec_driver_sql("SAVEPOINT published")
    try:
        lock_skill_row(connection, row.name)
        shown = update(skills).where(skills.c.id == row.skill_id)
        connection.execute(shown.values(latest_version_id=row.version_id, visibility="public"))
        index_latest(connection, row.skill_id, row.version_id)
        index_visibility(connection, row.skill_id, "public")
        everything: dict[str, Any] = {"kind": "", "tags": (), "namespace": "", "limit": SEARCHED, "cursor": ""}
        page = find_skills(connection, reader_of(row), b"", query=query.replace("\0", " "), **everything)
        return [Candidate(skill.name, skill.description) for skill in page.skills]
    finally:
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT published")


def _candidates(
    connection: Connection, row: VersionRow, meant: Candidate, nearest: Sequence[Candidate], seed: str
) -> list[Candidate]:
    """Return the candidates for a prompt. Of many skills, the others are a sample of the oldest MOST_OTHERS."""
    reader = reader_of(row)
    view = view_of(reader)
    assert view is not None
    latest = skills.c.latest_version_id
    seen = latest.is_not(None), or_(*seen_by_name(view)), latest.not_in(versions_for(hidden_audiences(reader)))
    oldest = select(skills.c.name).where(*seen).order_by(skills.c.id).limit(MOST_OTHERS)
    others = [Candidate(name, "") for name in connection.scalars(oldest, parameters(reader))]
    chosen = candidates_for(meant, nearest, others, seed)
    drawn = skills.c.name.in_([each.name for each in chosen if not each.description])
    summaries = select(skills.c.name, skill_versions.c.summary_json).join(skill_versions, skill_versions.c.id == latest)
    described = {name: str(msgspec.json.decode(text)["description"])
                 for name, text in connection.execute(summaries.where(drawn))}  # fmt: skip
    return [each._replace(description=each.description or described.get(each.name, "")) for each in chosen]


# -- Suites of other skills --------------------------------------------------------------------------------------------


def find_suite(connection: Connection, identity: Identity, suite: str) -> VersionRow:
    """Return the version of a skill that a suite names. Raise InvalidName, InvalidVersionSpec and the errors of
    `resolve`.
    """
    return resolve(connection, identity, *parse_reference(suite), manages=True)


def sees_suite(connection: Connection, identity: Identity, suite: str) -> bool:
    """Return whether an identity may read the cases of a suite. All readers of a version may read its own cases."""
    try:
        return suite == OWN or bool(find_suite(connection, identity, suite))
    except NotFound:
        return False


def choose_suite(connection: Connection, identity: Identity, suite: str, wanted: str) -> str:
    """Return the version NAME@VERSION of a suite that an identity names. An identity that does not see it may name
    only `wanted`, that of the policy.

    Raise InvalidParams if the version is not published, and the errors of `find_suite`.
    """
    try:
        find_suite(connection, READER if suite == wanted else identity, suite)
        row = find_suite(connection, READER, suite)
    except NotFound:
        if suite != wanted:
            raise
        # The error lists similar names, and only admins may see all names.
        raise InvalidParams(f"there is no suite '{suite}', which the policy names", param="suite",
                            hint="An admin corrects the policy, or publishes the suite.") from None  # fmt: skip
    if row.status not in RESOLVABLE:
        raise InvalidParams(f"the suite {row.name}@{row.version} is {row.status}", param="suite",
                            hint="Name a range with a published version.")  # fmt: skip
    return f"{row.name}@{row.version}"
