"""The params of the methods: one struct for each method. The structs decode requests, and the tool schemas are made
from them.

For the eight tools of the Skills Protocol v0.1, its section "Tool Schemas" prescribes names, descriptions, enums,
defaults and `required`. If an optional parameter has no default there, its Python default here means "omitted". Fields
with `HIDDEN` are accepted, but are not part of the tool schemas.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Language
from skillery.formats.languages import SkillLanguage
from skillery.method import HIDDEN, Cursor, Given, PageLimit, Params, about
from skillery.registry.catalogue_filters import FilterStatus, ListedStatus

DEFAULT_TIMEOUT_MS = 300_000
TimeoutMs = Annotated[int, Meta(ge=1)]
"""The maximum is a setting of the server."""


BACKGROUND = about("Answer at once with the run_id; get_run and read_run_log follow the run", default=False)
EnvironmentName = Annotated[str, Meta(max_length=100)]


ONLY_KIND = about("Only skills of this kind")
ONLY_TAGS = about("Only skills with all these tags")
ONLY_LANGUAGE = about("Only skills in this language; 'markdown' means without code")
ONLY_VERIFIED = about("Only skills whose examples all passed (true), or only others (false)")
ONLY_NETWORK = about("Only skills without network access (false), or only with it (true)")
ONLY_SECRETS = about("Only skills without secrets (false), or only with secrets (true)")
WITH_COUNTS = about("Add the number of matching skills, in all and by value of each filter", default=False)
WITH_CATALOGUE = about("Add facts and usage to each skill", default=False)


class ListSkills(Params, frozen=True, kw_only=True):
    """Enumerate available skills, optionally filtering by namespace. Results are deterministically sorted."""

    namespace: Annotated[str, about("Optional namespace to filter skills (e.g., 'salesforce')")] = ""
    detail: Annotated[Literal["names", "summary"], about("Level of detail to return", default="names")] = "names"
    limit: PageLimit = 50
    cursor: Cursor = ""
    kind: Annotated[Literal["action", "instruction"] | msgspec.UnsetType, HIDDEN, ONLY_KIND] = msgspec.UNSET
    tags: Annotated[list[str], HIDDEN, ONLY_TAGS] = []
    language: Annotated[SkillLanguage | msgspec.UnsetType, HIDDEN, ONLY_LANGUAGE] = msgspec.UNSET
    status: Annotated[
        FilterStatus | msgspec.UnsetType,
        HIDDEN,
        about("Only versions with this status; omit for latest versions, published or deprecated"),
    ] = msgspec.UNSET
    verified: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_VERIFIED] = msgspec.UNSET
    network: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_NETWORK] = msgspec.UNSET
    secrets: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_SECRETS] = msgspec.UNSET
    sort: Annotated[
        Literal["name", "newest", "used"], HIDDEN, about("Order: by name, by publication, or by runs", default="name")
    ] = "name"
    counts: Annotated[bool, HIDDEN, WITH_COUNTS] = False
    catalogue: Annotated[bool, HIDDEN, WITH_CATALOGUE] = False


class DescribeSkill(Params, frozen=True, kw_only=True):
    """Retrieve a skill's manifest and documentation frontmatter."""

    name: Annotated[str, about("Skill name (e.g., 'salesforce.leads.sync')")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    detail: Annotated[Literal["manifest", "summary", "full"], about("Level of detail to return", default="summary")] = (
        "summary"
    )


class DiffVersions(Params, frozen=True, kw_only=True):
    """Compare two versions of a skill: permissions first, then manifest, instructions and files."""

    name: Annotated[str, about("Skill name")]
    from_version: Annotated[str, about("The older version, as a version spec: exact, range, label or digest")]
    to_version: Annotated[str, about("The newer version (omit for latest)")] = ""


class ReadSkillFile(Params, frozen=True, kw_only=True):
    """Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas)."""

    name: Annotated[str, about("Skill name")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    path: Annotated[str, about("Path to file within skill directory (e.g., 'SKILL.md')")]


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in the workspace of a run."""

    path: Annotated[str, about("Path below /workspace (e.g., 'report.docx')")]
    blob_id: Annotated[str, about("Blob that is copied there")]
    executable: Annotated[bool, about("Whether the copy is executable", default=False)] = False


OUTPUTS = about("Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')")
WorkspaceMode = Literal["write", "read"]
WORKSPACE = about("Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files")
WORKSPACE_MODE = about("'read': save nothing, so that other runs may use the workspace", default="write")
FILES = about("Blobs to copy into the workspace: writable files at their paths")


class ExecuteSkill(Params, frozen=True, kw_only=True):
    """Execute a skill's entrypoint in an ephemeral sandbox."""

    name: Annotated[str, about("Skill name")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    args: Annotated[dict[str, Any], about("JSON-serializable arguments to pass to the skill")] = {}
    input_blobs: Annotated[list[str], about("Blob IDs to mount in the sandbox")] = []
    timeout_ms: Annotated[TimeoutMs | msgspec.UnsetType, about("Execution timeout in milliseconds")] = msgspec.UNSET
    script: Annotated[str, HIDDEN, about("Path of a file to run as a program, in a skill without an entrypoint")] = ""
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        HIDDEN,
        about("Named environment, for a skill that declares no packages; '' for none, omit for the default"),
    ] = msgspec.UNSET
    module: Annotated[str, HIDDEN, about("Module to run as 'python -m' does, instead of 'script'")] = ""
    cwd: Annotated[
        Literal["workspace", "skill"], HIDDEN, about("Where a script or module starts", default="workspace")
    ] = "workspace"
    files: Annotated[list[RunFile], HIDDEN, FILES] = []
    outputs: Annotated[list[str], HIDDEN, OUTPUTS] = []
    workspace: Annotated[str, HIDDEN, WORKSPACE] = ""
    workspace_mode: Annotated[WorkspaceMode, HIDDEN, WORKSPACE_MODE] = "write"
    background: Annotated[bool, HIDDEN, BACKGROUND] = False


class RunCode(Params, frozen=True, kw_only=True):
    """Execute LLM-written code in a sandbox with specified skills and blobs mounted."""

    language: Annotated[Language, about("Programming language (MVP: python only)", enum=["python"])]
    code: Annotated[str, about("Source code to execute")]
    entrypoint: Annotated[str, about("Function name to call", default="main")] = "main"
    args: Annotated[dict[str, Any], about("Arguments to pass to entrypoint function")] = {}
    mount_skills: Annotated[list[str], about("Skill names to mount in sandbox")] = []
    input_blobs: Annotated[list[str], about("Blob IDs to mount in sandbox")] = []
    files: Annotated[list[RunFile], HIDDEN, FILES] = []
    outputs: Annotated[list[str], HIDDEN, OUTPUTS] = []
    workspace: Annotated[str, HIDDEN, WORKSPACE] = ""
    workspace_mode: Annotated[WorkspaceMode, HIDDEN, WORKSPACE_MODE] = "write"
    limits: Annotated[
        dict[str, Any],
        about("Execution limits", type="object", properties={"timeout_ms": {"type": "integer"}}),
    ] = {}
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        HIDDEN,
        about("Named environment whose Python packages the code may import; '' for none, omit for the default"),
    ] = msgspec.UNSET
    background: Annotated[bool, HIDDEN, BACKGROUND] = False


class LoadSkillsProtocolGuide(Params, frozen=True, kw_only=True):
    """Load the Skills Protocol Guide to learn how to use these tools.
    Call this first if you haven't read the guide yet."""


class SkillFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a new skill."""

    path: Annotated[str, about("Path within the skill directory (e.g., 'code/main.py')")]
    content: Annotated[str, about("Content of the file")]
    encoding: Annotated[Literal["utf-8", "base64"], about("How `content` is written", default="utf-8")] = "utf-8"
    executable: Annotated[bool, about("Whether the file keeps an executable mode", default=False)] = False


class BundleParams(Params, frozen=True, kw_only=True):
    """A bundle."""

    manifest: Annotated[
        dict[str, Any], about("skill.toml as JSON: name, version, description, and further declarations")
    ]
    skill_md: Annotated[str, about("SKILL.md: markdown for the LLM, with YAML frontmatter at the top")]
    files: Annotated[list[SkillFile], about("Code and resources of the skill")] = []


class CreateSkill(BundleParams, frozen=True, kw_only=True):
    """Publish a new skill, or a new version of a skill. The whole bundle is checked before anything is stored."""

    submit: Annotated[
        bool | msgspec.UnsetType,
        HIDDEN,
        about("true: submit the version for review if it is not published at once; false: make it a draft"),
    ] = msgspec.UNSET


NAME = about("Skill name")
VERSION = about("Exact version")
Text = Annotated[str, Meta(min_length=1, max_length=2000)]
"""A text for people: a reason, a note or a message."""


class SubmitVersion(Params, frozen=True, kw_only=True):
    """Ask for a review of a draft."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]


class ApproveVersion(Params, frozen=True, kw_only=True):
    """Publish a version that is in review."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]
    digest: Annotated[Given, about("Digest of the reviewed bundle: an approval of another digest is refused")] = ""
    note: Annotated[Annotated[str, Meta(max_length=2000)], about("Recorded with the approval")] = ""


class RejectVersion(Params, frozen=True, kw_only=True):
    """Reject a version that is in review."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]
    reason: Annotated[Text, about("Reason for the author")]


class YankVersion(Params, frozen=True, kw_only=True):
    """Withdraw a published version: only requests for exactly this version still resolve."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]
    reason: Annotated[Text, about("Reason for callers who request exactly this version")]


class PurgeVersion(Params, frozen=True, kw_only=True):
    """Remove the files of a version permanently, for example after a leaked key. Its number cannot be used again."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]
    reason: Annotated[Text, about("Reason, for all readers of the skill")]


class UnyankVersion(Params, frozen=True, kw_only=True):
    """Undo a yank."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]


class DeprecateSkill(Params, frozen=True, kw_only=True):
    """Mark all published versions of a skill as deprecated."""

    name: Annotated[str, NAME]
    message: Annotated[Text, about("Message that describe_skill shows")]
    successor: Annotated[str, about("Name of the skill to use instead")] = ""


class UndeprecateSkill(Params, frozen=True, kw_only=True):
    """Undo a deprecation."""

    name: Annotated[str, NAME]


class SetVisibility(Params, frozen=True, kw_only=True):
    """Set which callers can see a skill."""

    name: Annotated[str, NAME]
    visibility: Annotated[
        Literal["public", "namespace", "private"],
        about("public: all callers; namespace: callers with a grant that covers the name; private: its publishers"),
    ]


LABEL = about("Label (e.g., 'stable')")


class SetLabel(Params, frozen=True, kw_only=True):
    """Point a label of a skill to a version."""

    name: Annotated[str, NAME]
    label: Annotated[str, LABEL]
    version: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("New target: a version, or a version spec to resolve now (another label, a range, 'latest')"),
    ]


class RollbackLabel(Params, frozen=True, kw_only=True):
    """Point a label to its previous published version. Repeated calls go further back."""

    name: Annotated[str, NAME]
    label: Annotated[str, LABEL]


class RemoveLabel(Params, frozen=True, kw_only=True):
    """Remove a label. A rollback restores it."""

    name: Annotated[str, NAME]
    label: Annotated[str, LABEL]


class ListSkillUsage(Params, frozen=True, kw_only=True):
    """List how often skills were read and run in the last 30 days."""

    namespace: Annotated[str, about("Only skills of this namespace and below it")] = ""
    never_run: Annotated[bool, about("Only skills that were read and not run", default=False)] = False
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of skills", default=50)] = 50
    cursor: Cursor = ""


class ListLabels(Params, frozen=True, kw_only=True):
    """List the labels of a skill, and their moves, newest first."""

    name: Annotated[str, NAME]
    label: Annotated[str, about("Only this label")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of moves", default=50)] = 50
    cursor: Cursor = ""


class ResolveSkills(Params, frozen=True, kw_only=True):
    """Resolve skills to exact versions and digests, as a lock."""

    skills: Annotated[list[str], about("'name' or 'name@version spec' each, at most 1000")]


class LockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A skill in a lock of skills, as resolve_skills returns it."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]
    digest: Annotated[str, about("Digest of the bundle")]
    status: Annotated[str, about("Status of the version when it was locked")] = ""


class VerifyLock(Params, frozen=True, kw_only=True):
    """Check whether the locked versions still exist with the same digests."""

    lock: Annotated[Annotated[list[LockEntry], Meta(max_length=1000)], about("'lock' of resolve_skills")]


class SearchSkills(Params, frozen=True, kw_only=True):
    """Find skills by a few words about the task, the best first. Word forms and typos do not matter."""

    query: Annotated[str, about("A few words or a question; skills with most of the words are found")]
    kind: Annotated[Literal["action", "instruction"] | msgspec.UnsetType, HIDDEN, ONLY_KIND] = msgspec.UNSET
    tags: Annotated[list[str], HIDDEN, about("Only skills with all these tags")] = []
    namespace: Annotated[str, HIDDEN, about("Only skills in this namespace and below it")] = ""
    limit: Annotated[int, Meta(ge=1, le=100), about("Maximum number of results", default=20)] = 20
    cursor: Annotated[str, HIDDEN, about("Pagination cursor from previous response")] = ""
    language: Annotated[SkillLanguage | msgspec.UnsetType, HIDDEN, ONLY_LANGUAGE] = msgspec.UNSET
    status: Annotated[ListedStatus | msgspec.UnsetType, HIDDEN, about("Only skills with this status")] = msgspec.UNSET
    verified: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_VERIFIED] = msgspec.UNSET
    network: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_NETWORK] = msgspec.UNSET
    secrets: Annotated[bool | msgspec.UnsetType, HIDDEN, ONLY_SECRETS] = msgspec.UNSET
    sort: Annotated[
        Literal["best", "name", "newest", "used"],
        HIDDEN,
        about("Order: best match, by name, by publication, or by runs", default="best"),
    ] = "best"
    counts: Annotated[bool, HIDDEN, WITH_COUNTS] = False
    catalogue: Annotated[bool, HIDDEN, WITH_CATALOGUE] = False
    detail: Annotated[
        Literal["brief", "summary"],
        HIDDEN,
        about("brief: what a model needs to choose a skill", default="summary"),
    ] = "summary"


FOR_MODELS: dict[str, dict[str, Any]] = {"search_skills": {"limit": 5, "detail": "brief"}}
"""The defaults of params in tool calls of models, if they differ from those of the method."""


class CheckSkill(CreateSkill, frozen=True, kw_only=True):
    """Run all checks of create_skill and the examples, without publishing anything."""


class WaiveFinding(Params, frozen=True, kw_only=True):
    """Allow versions of a skill to be published in spite of a finding."""

    name: Annotated[str, NAME]
    rule: Annotated[Annotated[str, Meta(min_length=1, max_length=255)], about("The finding's rule")]
    reason: Annotated[Text, about("Reason, for all readers of the skill")]
    until: Annotated[Given, about("End of the waiver: '2027-01-31', a time, or '90d'; omit for no end")] = ""
    file: Annotated[Annotated[str, Meta(min_length=1, max_length=255)], about("Only findings in this file")] = ""
    version: Annotated[Given, about("Only this exact version")] = ""


class RecheckVersion(Params, frozen=True, kw_only=True):
    """Check a published version again with the checks of today, and store the findings."""

    name: Annotated[str, NAME]
    version: Annotated[str, VERSION]


class ListVersions(Params, frozen=True, kw_only=True):
    """List versions of a skill or of all skills, the most recently created first."""

    name: Annotated[str, about("Only versions of this skill")] = ""
    status: Annotated[
        Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"] | msgspec.UnsetType,
        about("Only versions with this status (e.g., 'in_review' for versions that wait for a reviewer)"),
    ] = msgspec.UNSET
    namespace: Annotated[str, about("Only versions in this namespace and below it")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


class ListWaivers(Params, frozen=True, kw_only=True):
    """List the waivers of the skills that the caller reviews, newest first."""

    name: Annotated[str, about("Only waivers of this skill")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


class RevokeWaiver(Params, frozen=True, kw_only=True):
    """Revoke a waiver. Versions that were published under it stay."""

    id: Annotated[str, about("The waiver's id")]


class GetRun(Params, frozen=True, kw_only=True):
    """Return the record of a run: its result, its caller, its times and its limits."""

    run_id: Annotated[str, about("The run's id")]
    wait_ms: Annotated[int, Meta(ge=0, le=60_000), about("Wait up to this long for the end of the run")] = 0


class ReadRunLog(Params, frozen=True, kw_only=True):
    """Read the log of a run, also while it runs."""

    run_id: Annotated[str, about("The run's id")]
    after: Annotated[int, Meta(ge=0), about("Offset in bytes: 'next' of the previous answer")] = 0
    max_bytes: Annotated[int, Meta(ge=4, le=1 << 20), about("Maximum number of bytes")] = 16384
    wait_ms: Annotated[int, Meta(ge=0, le=60_000), about("Wait up to this long for more text")] = 0


class ListRuns(Params, frozen=True, kw_only=True):
    """List runs, newest first."""

    skill: Annotated[str, about("Only runs of this skill")] = ""
    status: Annotated[
        Literal["queued", "started", "completed", "failed"] | msgspec.UnsetType, about("Only runs with this status")
    ] = msgspec.UNSET
    since: Annotated[str, about("Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h')")] = ""
    identity: Annotated[str, about("Only runs of this identity (only admins may name others)")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


class CancelRun(Params, frozen=True, kw_only=True):
    """Stop a queued or started run."""

    run_id: Annotated[str, about("The run's id")]


class Discover(Params, frozen=True, kw_only=True):
    """Describe every method as an OpenRPC document."""
