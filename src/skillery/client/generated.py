"""Made by `make client`: do not edit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from skillery.client.stubs import awaited, batched, blocking, params_of

if TYPE_CHECKING:
    from skillery.client.batches import Pending
    from skillery.client.blobs import Source

__all__ = [
    "Activity",
    "ActivityDay",
    "ActivityReport",
    "AddedAttestation",
    "AddedKey",
    "AddedWebhook",
    "Approval",
    "ApprovedVersion",
    "ArmCount",
    "AttestationPage",
    "AuditEntry",
    "AuditPage",
    "BlobContent",
    "CallerActivity",
    "CatalogueEntry",
    "CheckFinding",
    "CheckedExample",
    "CheckedSkill",
    "ClientReads",
    "CreatedSkill",
    "CreatedToken",
    "DeadLetter",
    "DeadLetterPage",
    "DefinedTool",
    "DeletedBlob",
    "DeletedWorkspace",
    "Dependent",
    "DependentsPage",
    "Deprecation",
    "DescribedEnvironment",
    "DescribedSkill",
    "DescribedWorkspace",
    "DevelopedSkill",
    "DiffSide",
    "EndedAttestation",
    "EndedId",
    "Environment",
    "EnvironmentPage",
    "EnvironmentState",
    "EvaluatedCase",
    "Evaluation",
    "EvaluationCases",
    "EvaluationPage",
    "ExactSkill",
    "ExplainedNeed",
    "ExplainedPolicy",
    "FacetValue",
    "Facets",
    "FailureGroup",
    "FailurePage",
    "FileChange",
    "FileFacts",
    "FoundSkill",
    "FoundSkillPage",
    "Garbage",
    "GivenEnvironment",
    "Guide",
    "Hold",
    "HoldList",
    "IdentityKind",
    "IdentityUse",
    "Incident",
    "IncidentCaller",
    "IncidentCommand",
    "IncidentCopy",
    "IncidentHost",
    "IncidentRun",
    "IncidentStep",
    "IncidentVersion",
    "KeptCode",
    "KeptSkills",
    "KeptTranscript",
    "KeyPage",
    "Kind",
    "Label",
    "LabelMove",
    "Labels",
    "LeftBehind",
    "LeftOut",
    "ListedAttestation",
    "ListedKey",
    "ListedOriginStatement",
    "ListedSeal",
    "ListedVersion",
    "Lock",
    "LockProblem",
    "Locked",
    "LockedPackage",
    "MovedLabel",
    "Namespace",
    "NamespaceUse",
    "NeedEvidence",
    "NetworkUse",
    "NewBlob",
    "NewVersion",
    "NpmLockOfSkill",
    "NpmPart",
    "Objection",
    "OnServer",
    "Origin",
    "OriginStatements",
    "OutputFile",
    "OutputFileChange",
    "PackageWait",
    "PermissionNames",
    "PermissionsDiff",
    "PinnedSkill",
    "Progress",
    "Provenance",
    "PurgedVersion",
    "Reach",
    "ReachPage",
    "RecheckedVersion",
    "RemovedTrustRule",
    "RemovedWebhook",
    "RequiredChange",
    "RequiredSkill",
    "RevokedIdentity",
    "RevokedKey",
    "Rollback",
    "RotatedToken",
    "Run",
    "RunError",
    "RunLog",
    "RunPage",
    "RunRecord",
    "RunRow",
    "RunStatement",
    "RunStatus",
    "RunUse",
    "RunsDiff",
    "Script",
    "SealPage",
    "SearchedWords",
    "SearchesPage",
    "ShownLock",
    "ShownProgress",
    "ShownRebuild",
    "Skill",
    "SkillActivity",
    "SkillFileContent",
    "SkillFileEntry",
    "SkillLock",
    "SkillPackage",
    "SkillPage",
    "SkillReach",
    "SkillRow",
    "SkillUsage",
    "SkillUsagePage",
    "Snapshot",
    "Status",
    "Swept",
    "Token",
    "Tokens",
    "ToolPage",
    "ToolResult",
    "ToolRow",
    "Transcript",
    "TrustRule",
    "TrustRules",
    "Usage",
    "Used",
    "ValueChange",
    "Verified",
    "VersionActivity",
    "VersionBefore",
    "VersionPage",
    "VersionsDiff",
    "Waiver",
    "WaiverNote",
    "WaiverPage",
    "WarmProcess",
    "Webhook",
    "WebhookList",
    "WebhookTest",
    "Who",
    "WithLock",
    "WorkspaceFile",
    "WorkspaceFileContent",
    "WorkspaceInfo",
    "WorkspacePage",
    "WorkspaceUse",
]

ONCE = frozenset(
    ["execute_skill", "run_code", "create_blob", "call_tool", "create_skill", "define_tool", "create_workspace"]
)
"""Methods that the server executes once for each Idempotency-Key."""
REPEATABLE = frozenset(
    [
        "list_skills",
        "describe_skill",
        "read_skill_file",
        "read_blob",
        "load_skills_protocol_guide",
        "check_skill",
        "develop_skill",
        "keep_development",
        "end_development",
        "search_skills",
        "diff_versions",
        "list_versions",
        "list_dependents",
        "list_waivers",
        "list_labels",
        "resolve_skills",
        "verify_lock",
        "list_attestations",
        "add_attestation",
        "end_attestation",
        "explain_policy",
        "start_evaluation",
        "cancel_evaluation",
        "get_evaluation",
        "read_transcript",
        "list_evaluations",
        "list_keys",
        "add_key",
        "revoke_key",
        "list_seals",
        "get_run",
        "read_run_log",
        "list_runs",
        "compare_runs",
        "get_run_statement",
        "list_tools",
        "list_workspaces",
        "describe_workspace",
        "read_workspace_file",
        "list_environments",
        "describe_environment",
        "describe_namespace",
        "list_skill_usage",
        "list_failures",
        "get_incident",
        "get_activity",
        "list_searches",
        "list_reach",
        "get_usage",
        "collect_garbage",
        "list_holds",
        "list_tokens",
        "list_webhooks",
        "test_webhook",
        "list_dead_letters",
        "list_trust_rules",
        "list_audit",
    ]
)
"""Further methods that a client may call twice without harm: most of them change nothing."""
TOOLS = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
)
"""The tools of the protocol."""
FOR_MODELS: dict[str, dict[str, Any]] = {"search_skills": {"limit": 5, "detail": "brief"}}
"""The defaults of params in tool calls of models, if they differ from those of the method."""

Kind = Literal["action", "instruction"]
IdentityKind = Literal["person", "agent"]
Status = Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
RunStatus = Literal["queued", "started", "completed", "failed"]


class Deprecation(TypedDict):
    """The message of a deprecated skill, and its successor."""

    message: str
    successor: str | None


class CatalogueEntry(TypedDict):
    """Facts about a version and the usage of its skill, for a row of a catalogue."""

    status: Literal["published", "deprecated", "draft", "in_review", "rejected", "yanked"]
    language: Literal["python", "javascript", "bash", "markdown"]
    """markdown for a skill without code."""
    scripts: int
    """Number of scripts that describe_skill lists."""
    tags: list[str]
    verified: bool
    """Whether it has examples and all passed."""
    labels: list[str]
    """Labels that point to this version."""
    hosts: int
    """Number of entries of permissions.network."""
    secrets: int
    """Number of entries of permissions.secrets."""
    published_at: str
    """Time of the approval, or of the publication without a review."""
    callers_30d: int
    """Different callers of the uses."""
    uses_30d: int
    """Ended runs, and loads by programs of agents, in the last 30 days."""
    loads_30d: int
    runs_30d: int
    uses_by_day: list[int]
    """Of each of the last 30 days, oldest first."""
    failed_by_day: list[int]
    """Failed runs of these days."""
    success_rate_30d: float | None
    """Completed runs divided by completed and failed runs; null without any."""
    deprecated: Deprecation | None
    looks_like: str | None
    """An older skill of another publisher with the same description or nearly the same name."""
    copy_of: str | None
    """An older public skill with the same description and files."""
    source: str | None
    """Where the skill was imported from."""
    licence: str
    """Open licence in SKILL.md, as its SPDX expression; or other, or none."""


class SkillRow(TypedDict):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Literal["action", "instruction"]
    title: NotRequired[str]
    """For people, if the author states one that says more than the name."""
    tags: NotRequired[list[str]]
    """With detail 'summary'."""
    inputs: NotRequired[dict[str, Any]]
    """With detail 'summary'."""
    tools: NotRequired[list[str]]
    """With detail 'summary'."""
    warnings: NotRequired[list[str]]
    """If the version is deprecated or yanked, with the successor."""
    catalogue: NotRequired[CatalogueEntry]
    """With catalogue: true."""


class FacetValue(TypedDict):
    """A value of a facet, and the number of rows that have the value."""

    value: str | bool
    """As the param with the name of the facet takes it."""
    count: int


class Facets(TypedDict):
    """The numbers of matching rows by value. Each facet has the name of a param. The highest number is first."""

    namespace: list[FacetValue]
    """One level below the param; at most 100."""
    kind: list[FacetValue]
    language: list[FacetValue]
    tags: list[FacetValue]
    """In lower case, of the newest 5,000 matching rows; at most 30."""
    verified: list[FacetValue]
    network: list[FacetValue]
    secrets: list[FacetValue]
    reviewed: list[FacetValue]
    contains: list[FacetValue]
    licence: list[FacetValue]
    status: list[FacetValue]


class SkillPage(TypedDict):
    """A page of skills, sorted by the bytes of (namespace, name)."""

    skills: list[SkillRow]
    next_cursor: str | None
    """For the next page; null on the last page."""
    total: NotRequired[int]
    """With counts: true: the number of matching rows of all pages, at most 1000."""
    total_is_more: NotRequired[bool]
    """With counts: true: whether there are more than total."""
    facets: NotRequired[Facets]
    """With counts: true."""


class SkillPackage(TypedDict):
    """A package in the lock of a skill."""

    name: str
    version: str
    inferred: NotRequired[bool]


class EnvironmentState(TypedDict):
    """The state of an environment on one server."""

    state: str
    message: NotRequired[str]
    step: NotRequired[str]
    """While it is being built."""
    done: NotRequired[int]
    total: NotRequired[int]


class LeftOut(TypedDict):
    """A package that a skill imports and that its runs do not have."""

    name: str
    tier: Literal["declared", "inferred", "optional"]
    reason: Literal[
        "unknown_package", "no_wheel", "conflict", "too_large", "denied", "needs_python", "build_failed", "unavailable"
    ]
    detail: str


class NpmLockOfSkill(TypedDict):
    """The locked npm packages of a skill."""

    sha256: str
    packages: list[SkillPackage] | None
    """null below detail 'full' if the lock is large."""
    environments: list[EnvironmentState]
    left_out: NotRequired[list[LeftOut]]
    """Packages that could not be locked."""


class SkillLock(TypedDict):
    """The locked packages of a skill. Without Python packages, it has only `npm`."""

    sha256: NotRequired[str]
    packages: NotRequired[list[SkillPackage] | None]
    """null below detail 'full' if the lock is large."""
    environments: NotRequired[list[EnvironmentState]]
    left_out: NotRequired[list[LeftOut]]
    """Packages that could not be locked."""
    npm: NotRequired[NpmLockOfSkill]


class RequiredSkill(TypedDict):
    """A version that a skill requires, chosen when the skill was published."""

    name: str
    version: str
    digest: str
    status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
    range: str
    """As in skill.toml. Empty if another required skill requires it."""
    network: list[str]
    """Hosts that a call of it may reach. Each call is a separate run."""
    secrets: list[str]


class Approval(TypedDict):
    """The reviewer who approved a version."""

    by: str
    kind: str
    at: str
    digest: str
    note: str


class Objection(TypedDict):
    """The identity that rejected or yanked a version, and the reason."""

    by: str
    kind: str
    at: str
    reason: str
    severity: NotRequired[Literal["broken", "security", "malicious"]]
    advisory: NotRequired[str]
    """Id of the advisory about a yank."""
    fixed: NotRequired[str]
    """The version without the problem."""


class Usage(TypedDict):
    """`usage` in describe_skill: counts of the runs of all callers, including runs that other runs started."""

    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    p50_ms: float | None
    p95_ms: float | None
    last_run_at: str | None


class CheckedExample(TypedDict):
    """An example and the run that tested it. `waiting`: the example needs permissions, and runs at the approval."""

    name: str
    status: Literal["passed", "failed", "waiting", "not_run"]
    run_id: NotRequired[str]
    duration_ms: NotRequired[float]


class WaiverNote(TypedDict):
    """The part of a waiver that answers show with the waived finding."""

    id: str
    by: str
    kind: str
    at: str
    reason: str
    until: str | None


class CheckFinding(TypedDict):
    """A finding about a version, with the waiver that applies to the finding, if there is one."""

    rule: str
    message: str
    severity: Literal["error", "warning", "info"]
    file: str | None
    line: int | None
    waiver: WaiverNote | None


class PermissionNames(TypedDict):
    """Permissions as a manifest writes them."""

    network: list[str]
    secrets: list[str]
    workspace: NotRequired[bool]
    calls: NotRequired[list[str]]
    calls_hidden: NotRequired[int]


class PermissionsDiff(TypedDict):
    """The permissions that a version adds and removes. `against` is the other version, or None for a first version."""

    against: str | None
    added: PermissionNames
    removed: PermissionNames


class Script(TypedDict):
    """A file below `scripts/` that runs as a program. `usage` is its call, as its text states it."""

    path: str
    language: str
    description: NotRequired[str]
    usage: NotRequired[str]
    missing: NotRequired[list[str]]


class Origin(TypedDict):
    """The source of an imported version, as its importer has stated it."""

    source: str
    path: str
    commit: NotRequired[str]
    """Hash of the git commit whose files the version has."""
    committed_at: NotRequired[str]
    """Time of the last commit that changed the files."""
    licence: NotRequired[str]
    """Licence in a file of the skill or above it, if SKILL.md states none; or 'other'."""
    licence_path: NotRequired[str]
    """The path of this file in the source."""


class Provenance(TypedDict):
    """The CI job that published a version, from signed claims. A field without a claim is ""."""

    issuer: str
    subject: str
    repository: str
    repository_id: str
    owner_id: str
    workflow: str
    ref: str
    commit: str
    environment: str
    run: str


class SkillFileEntry(TypedDict):
    """A file of a bundle."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool


class Skill(TypedDict):
    """A version of a skill."""

    name: str
    version: str
    kind: Literal["action", "instruction"]
    digest: str
    status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
    visibility: Literal["public", "namespace", "private"]
    warnings: list[str]
    manifest: dict[str, Any]
    """skill.toml as JSON."""
    lock: NotRequired[SkillLock]
    requires: NotRequired[list[RequiredSkill]]
    """All required versions, the direct ones first."""
    requires_hidden: NotRequired[int]
    """Number of further required skills, which the caller may not see."""
    approval: NotRequired[Approval]
    rejected: NotRequired[Objection]
    yanked: NotRequired[Objection]
    deprecated: NotRequired[Deprecation]
    labels: NotRequired[list[str]]
    """From detail 'summary' on."""
    skill_md_frontmatter: NotRequired[dict[str, Any]]
    """From detail 'summary' on."""
    usage: NotRequired[Usage]
    verified: NotRequired[bool]
    """From detail 'summary' on."""
    examples: NotRequired[list[CheckedExample]]
    findings: NotRequired[list[CheckFinding]]
    permissions_diff: NotRequired[PermissionsDiff]
    scripts: NotRequired[list[Script]]
    """From detail 'summary' on."""
    origin: NotRequired[Origin]
    """From detail 'summary' on, if it was imported."""
    provenance: NotRequired[Provenance]
    """From detail 'summary' on, if a CI job published it."""
    title: NotRequired[str]
    """For people, if the author states one that says more than the name."""
    looks_like: NotRequired[str]
    """From detail 'summary' on: an older public skill of another publisher."""
    audience: NotRequired[Literal["people", "models", "internal"]]
    """From detail 'summary' on, if the author made it for one audience."""
    skill_md: NotRequired[str]
    """With detail 'full'."""
    files: NotRequired[list[SkillFileEntry]]
    """With detail 'full'."""


class DescribedSkill(TypedDict):
    """The result of describe_skill."""

    skill: Skill


class SkillFileContent(TypedDict):
    """The content of a file of a skill."""

    content: str
    encoding: Literal["utf-8", "base64"]


class RunError(TypedDict):
    """The reason why a run failed."""

    type: str
    """A failure type, or the class name of the exception."""
    message: str
    traceback: NotRequired[str]
    """Frames of user code only."""


class ExactSkill(TypedDict):
    """A skill in an exact version."""

    name: str
    version: str
    digest: str


class GivenEnvironment(TypedDict):
    """The named environment of a run, and the digest of its lock. `lock` is None if the environment has no lock yet."""

    name: str
    lock: str | None


class NetworkUse(TypedDict):
    """Connections of a run to one host and port with the same outcome."""

    host: str
    port: int
    allowed: bool
    reason: str
    connections: int
    bytes_out: int
    bytes_in: int


class OutputFile(TypedDict):
    """A blob that a run wrote with a name: a path below /workspace/out, or the name of a picture."""

    path: str
    blob_id: str
    kind: str
    size_bytes: int


class WorkspaceUse(TypedDict):
    """The use of a workspace by a run, as the result of the run shows it."""

    id: str
    before: str
    """Digest of the snapshot that the run started from."""
    after: str
    """Digest of the snapshot that the run left; as before if nothing was saved."""
    changed: int
    """Files that were added, changed or removed."""
    left_out: list[str]
    """Files that cannot be kept, such as pipes; at most 100."""
    not_saved: NotRequired[str]
    """Why nothing was saved, although the run may write."""


class PackageWait(TypedDict):
    """The packages that a run waits for."""

    step: str
    done: int
    total: int
    ahead: int


class Run(TypedDict):
    """A run that has ended, or a run that was started in the background. A failed run is a result, not an error."""

    status: Literal["queued", "started", "completed", "failed"]
    """queued and started only for a run in the background."""
    run_id: str
    summary: str
    output: Any
    """What the code returned; over 4096 bytes a blob_id, size_bytes, preview."""
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float
    error: NotRequired[RunError]
    skill: NotRequired[ExactSkill]
    environment: NotRequired[GivenEnvironment]
    waited_for_packages_ms: NotRequired[float]
    degraded: NotRequired[list[str]]
    network: NotRequired[list[NetworkUse]]
    logs_blob: NotRequired[str]
    files: NotRequired[list[OutputFile]]
    warnings: NotRequired[list[str]]
    """Undeclared args, for example."""
    workspace: NotRequired[WorkspaceUse]
    state: NotRequired[Literal["waiting_for_packages"]]
    """Only while the run waits for packages."""
    packages: NotRequired[PackageWait]


class NewBlob(TypedDict):
    """Result of `create_blob`."""

    blob_id: str
    size_bytes: int
    expires_at: NotRequired[str]


class BlobContent(TypedDict):
    """The content of a blob, or a part of it."""

    content: str
    encoding: Literal["utf-8", "base64"]
    truncated: bool
    kind: str
    size_bytes: int
    expires_at: NotRequired[str]


class Guide(TypedDict):
    """The Skills Protocol Guide, in Markdown."""

    content: str


class ToolResult(TypedDict):
    """The result of a tool. A failed tool is a result, not an error."""

    result: Any
    """What the agent gets: the handler's value, or {"error": "…"}."""
    is_error: bool
    skill: ExactSkill | None
    """null for a tool of a session."""
    run_id: str | None
    """null if there was nothing to run."""
    logs_preview: str
    output_blobs: list[str]
    files: NotRequired[list[OutputFile]]
    workspace: NotRequired[WorkspaceUse]
    environment: NotRequired[GivenEnvironment]
    status: NotRequired[Literal["queued", "started", "completed", "failed"]]
    """queued or started, for a run in the background."""
    warnings: NotRequired[list[str]]
    """Undeclared args, for example."""
    state: NotRequired[Literal["waiting_for_packages"]]
    """Only while the run waits for packages."""
    packages: NotRequired[PackageWait]


class DeletedBlob(TypedDict):
    """A deleted blob."""

    blob_id: str
    size_bytes: int


class CreatedSkill(TypedDict):
    """The answer of `create_skill`. `warnings` are the warnings of `check_skill`, with its findings."""

    name: str
    version: str
    digest: str
    status: str
    warnings: list[str]


class CheckedSkill(TypedDict):
    """The result of `check_skill`. `ok`: the version could be published, and would get the status `status`."""

    ok: bool
    name: str
    version: str
    digest: str
    status: str
    warnings: list[str]
    findings: list[CheckFinding]
    examples: list[CheckedExample]
    permissions_diff: PermissionsDiff
    unchanged: bool
    """Whether the version is already stored with these bytes."""


class DevelopedSkill(TypedDict):
    """A development version, which only its caller sees."""

    name: str
    version: str
    digest: str
    warnings: list[str]
    findings: list[CheckFinding]
    kept_ms: int
    """Time until the version ends, unless it is kept."""


class KeptSkills(TypedDict):
    """Skills whose development versions the call kept or ended."""

    names: list[str]
    """Without the skills that have no development version."""
    kept_ms: int
    """Time until the versions end, unless they are kept; 0 if ended."""


class ApprovedVersion(TypedDict):
    """An approved version. `missing` says what the version still needs. It is absent if the version is published."""

    name: str
    version: str
    digest: str
    status: str
    missing: NotRequired[list[str]]


class NewVersion(TypedDict):
    """The answer of `create_skill` and of each step of a version."""

    name: str
    version: str
    digest: str
    status: str


class FoundSkill(TypedDict):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    kind: Literal["", "action", "instruction"]
    title: NotRequired[str]
    """For people, if the author states one that says more than the name."""
    namespace: NotRequired[str]
    """With detail 'summary'."""
    tags: NotRequired[list[str]]
    """With detail 'summary'."""
    inputs: NotRequired[dict[str, Any]]
    """With detail 'summary'."""
    tools: NotRequired[list[str]]
    """With detail 'summary'."""
    score: NotRequired[float]
    """With detail 'summary'."""
    snippet: NotRequired[str]
    """With detail 'summary'."""
    copies: NotRequired[int]
    """With detail 'summary'."""
    found_by: NotRequired[Literal["meaning"]]
    """If no word matches, but the ranker found the skill."""
    compact_inputs: NotRequired[str]
    """Of the first two skills; a question mark means optional."""
    warnings: NotRequired[list[str]]
    """If the version is deprecated or yanked, with the successor."""
    catalogue: NotRequired[CatalogueEntry]
    """With catalogue: true."""


class FoundSkillPage(TypedDict):
    """A page of search results, best first."""

    skills: list[FoundSkill]
    next_cursor: str | None
    """For the next page; null on the last page."""
    total: NotRequired[int]
    """With counts: true: the number of matching rows of all pages, at most 1000."""
    total_is_more: NotRequired[bool]
    """With counts: true: whether there are more than total."""
    facets: NotRequired[Facets]
    """With counts: true."""
    warnings: NotRequired[list[str]]
    """If the query was cut."""
    ranking: NotRequired[Literal["words"]]
    """If the ranker of the server did not answer in time."""


class DiffSide(TypedDict):
    """One of the two compared versions. `digest` is empty for a folder that is not published."""

    name: str
    version: str
    digest: str
    provenance: dict[str, str] | None
    """The CI job that published the version."""


class ValueChange(TypedDict):
    """A value that differs, as JSON text, cut if long. null: there is no such value."""

    path: str
    old: str | None
    new: str | None


class FileFacts(TypedDict):
    """A file of a version."""

    sha256: str
    size_bytes: int
    executable: bool


class FileChange(TypedDict):
    """A file that differs. `diff` has the hunks of a unified diff. If its lines cannot be shown, `note` says why."""

    path: str
    change: Literal["added", "removed", "changed", "mode"]
    old: FileFacts | None
    new: FileFacts | None
    diff: str
    note: str


class RequiredChange(TypedDict):
    """A required skill whose chosen version differs. null: the version does not require the skill."""

    name: str
    old: str | None
    new: str | None


class VersionsDiff(TypedDict):
    """Two versions compared. `instructions` is the change of SKILL.md. `left_out` counts further changes."""

    same: bool
    old: DiffSide
    new: DiffSide
    permissions: PermissionsDiff
    manifest: list[ValueChange]
    instructions: FileChange | None
    files: list[FileChange]
    left_out: int
    requires: list[RequiredChange]


class Who(TypedDict):
    """An identity: its name and kind."""

    name: str
    kind: str


class ListedVersion(TypedDict):
    """A version of a skill."""

    name: str
    version: str
    status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
    digest: str
    kind: Literal["action", "instruction"]
    publisher: Who
    created_at: str
    size_bytes: int
    provenance: Provenance | None
    """The CI job that published the version."""


class VersionPage(TypedDict):
    """A page of versions, in the order of their creation, most recent first by default."""

    versions: list[ListedVersion]
    next_cursor: str | None
    """For the next page; null on the last page."""


class Dependent(TypedDict):
    """A version that requires a version of the skill."""

    name: str
    version: str
    status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
    requires: str
    """The version of the skill that it requires."""
    direct: bool
    """Whether its skill.toml names the skill."""
    range: str
    """As in its skill.toml. Empty if another required skill requires the skill."""
    runs_30d: int
    """Ended runs of the last 30 days."""


class DependentsPage(TypedDict):
    """A page of dependents: those of the newest required version first, each most recently created first."""

    dependents: list[Dependent]
    next_cursor: str | None
    """For the next page; null on the last page."""


class PurgedVersion(TypedDict):
    """A purged version. Its number cannot be used again, and its digest stays known."""

    name: str
    version: str
    digest: str
    status: Literal["purged"]
    deleted_contents: int
    deleted_bytes: int
    kept_files: list[str]


class RecheckedVersion(TypedDict):
    """The findings of a version after a recheck. `new` has the findings that the version did not have before."""

    name: str
    version: str
    status: str
    findings: list[CheckFinding]
    new: list[CheckFinding]


class Waiver(TypedDict):
    """A waiver for findings of `rule`. `file` or `version` None: the waiver covers every file or every version."""

    id: str
    name: str
    rule: str
    file: str | None
    version: str | None
    reason: str
    status: Literal["live", "expired", "revoked"]
    by: str
    kind: str
    at: str
    until: str | None
    revoked_by: str | None
    revoked_at: str | None


class WaiverPage(TypedDict):
    """A page of waivers, newest first."""

    waivers: list[Waiver]
    next_cursor: str | None
    """For the next page; null on the last page."""


class MovedLabel(TypedDict):
    """The answer of `set_label`, `rollback_label` and `remove_label`. A removed label has no version."""

    name: str
    label: str
    version: str | None
    status: str | None
    digest: str | None
    previous: str | None


class Label(TypedDict):
    """The version that a label points to, and the identity that moved it there."""

    label: str
    version: str
    digest: str
    status: str
    by: str
    kind: str
    at: str
    rollback_to: str | None
    """The version to which rollback_label returns."""


class LabelMove(TypedDict):
    """One move of a label."""

    label: str
    move: Literal["set", "rollback", "remove"]
    version: str | None
    digest: str | None
    previous: str | None
    by: str
    kind: str
    at: str


class Labels(TypedDict):
    """The labels of a skill, and a page of their moves, newest first."""

    name: str
    labels: list[Label]
    history: list[LabelMove]
    next_cursor: str | None
    """For the next page; null on the last page."""


class Locked(TypedDict):
    """One skill in a lock."""

    name: str
    version: str
    digest: str
    status: str
    requires: NotRequired[list[str]]
    """Names of the skills that it requires."""


class Lock(TypedDict):
    """A lock of skills: exact versions with their digests."""

    lock: list[Locked]
    requires_hidden: NotRequired[int]
    """Number of further required skills, which the caller may not see."""


class LockProblem(TypedDict):
    name: str
    version: str
    problem: (
        Literal["gone", "yanked", "rejected", "purged", "digest_changed", "two_versions", "invalid"]
        | Literal["deprecated", "not_published"]
    )
    message: str
    severity: Literal["broken", "security", "malicious"] | None
    advisory: str | None


class Verified(TypedDict):
    """The result of verify_lock. `ok` is true if `problems` is empty; `warnings` do not matter."""

    ok: bool
    problems: list[LockProblem]
    warnings: list[LockProblem]


class EndedAttestation(TypedDict):
    """The withdrawal of an attestation."""

    at: str
    by: str
    reason: str


class ListedAttestation(TypedDict):
    """A signed statement about a version. `sealed` is the number of its seal. `summary` is "" for a purged version."""

    id: str
    predicate: str
    by: str
    kind: Literal["person", "agent"]
    keyid: str
    at: str
    sealed: int | None
    ended: EndedAttestation | None
    summary: str


class ListedOriginStatement(TypedDict):
    """A statement of another registry. `by` is the identity there that caused it, or "" if the statement names none."""

    predicate: str
    by: str
    keyid: str
    summary: str


class OriginStatements(TypedDict):
    """The statements of the registry from which a version was copied. The importer has stated its address, `source`."""

    source: str
    name: str
    version: str
    digest: str
    statements: list[ListedOriginStatement]


class AttestationPage(TypedDict):
    """A page of the attestations of a version, oldest first. The first page of a mirrored version has its `origin`."""

    name: str
    version: str
    digest: str
    attestations: list[ListedAttestation]
    next_cursor: str | None
    """For the next page; null on the last page."""
    origin: OriginStatements | None


class AddedAttestation(TypedDict):
    """A stored statement. `verified_as` is the identity whose key has signed it."""

    id: str
    predicate: str
    verified_as: str


class EndedId(TypedDict):
    id: str
    ended_at: str


class NeedEvidence(TypedDict):
    """An attestation that meets a need. `own_key`: the identity has signed it, not the registry."""

    id: str
    predicate: str
    by: str
    kind: str
    at: str | None
    own_key: bool
    summary: str


class ExplainedNeed(TypedDict):
    """A need of a policy. `missing` says what is missing, and `hint` how to get it; "" if the need is met."""

    need: str
    ok: bool
    evidence: list[NeedEvidence]
    missing: str
    hint: str


class ExplainedPolicy(TypedDict):
    """The policy that counts for a version, its digest and its needs."""

    name: str
    version: str
    status: str
    policy: str
    digest: str
    passed: bool
    needs: list[ExplainedNeed]
    signer: str
    former_signer: str
    is_same_signer: bool
    waiting: bool
    vulnerabilities: str
    origin: OriginStatements | None


class Evaluation(TypedDict):
    """An evaluation of a version. `verdict` compares it with the version `before`, and is null without one."""

    id: str
    name: str
    version: str
    state: Literal["queued", "running", "done", "stopped", "failed", "cancelled"]
    kinds: list[str]
    """Kinds of its cases: run, task, search, choice."""
    suite: str
    """own, or the version of another skill that has the tasks."""
    suite_digest: str
    """Equal for equal cases."""
    before: str | None
    by: str
    """The identity that started it, to which its runs belong."""
    kind: Literal["person", "agent"]
    """Kind of this identity."""
    model: str | None
    """Model of the tasks and choices, null without these."""
    cost: float
    """What its models have cost, in the currency of evals.currency."""
    tokens: int
    """Tokens that its models have read and written."""
    trials: int
    """All trials."""
    done: int
    """Trials that have ended."""
    verdict: Literal["better", "worse", "same", "unclear"] | None
    shares: dict[str, float]
    """Share of passed trials by arm, from 0 to 1."""
    findability: dict[str, float]
    """How a search finds the skill by its prompts."""
    choice: dict[str, float]
    """How a model chooses the skill for its prompts."""
    summary: str
    error: str
    """Why it has ended without a result, or ""."""
    attestation: str | None
    """The signed statement about the result."""
    created_at: str
    ended_at: str | None


class ArmCount(TypedDict):
    """The trials of an arm that have passed, and all that have ended."""

    passed: int
    trials: int


class KeptTranscript(TypedDict):
    """A stored transcript of an agent: `read_transcript` returns its text."""

    id: str
    arm: str
    passed: bool


class EvaluatedCase(TypedDict):
    """A case of an evaluation, with its results by arm: `with` the version, `without` it, or `before` it."""

    id: str
    kind: str
    arms: dict[str, ArmCount]
    problems: list[str]
    """Why trials with the version have not passed."""
    transcripts: list[KeptTranscript]
    """Transcripts that are kept."""


class EvaluationCases(TypedDict):
    """An evaluation with its cases."""

    id: str
    name: str
    version: str
    state: Literal["queued", "running", "done", "stopped", "failed", "cancelled"]
    kinds: list[str]
    """Kinds of its cases: run, task, search, choice."""
    suite: str
    """own, or the version of another skill that has the tasks."""
    suite_digest: str
    """Equal for equal cases."""
    before: str | None
    by: str
    """The identity that started it, to which its runs belong."""
    kind: Literal["person", "agent"]
    """Kind of this identity."""
    model: str | None
    """Model of the tasks and choices, null without these."""
    cost: float
    """What its models have cost, in the currency of evals.currency."""
    tokens: int
    """Tokens that its models have read and written."""
    trials: int
    """All trials."""
    done: int
    """Trials that have ended."""
    verdict: Literal["better", "worse", "same", "unclear"] | None
    shares: dict[str, float]
    """Share of passed trials by arm, from 0 to 1."""
    findability: dict[str, float]
    """How a search finds the skill by its prompts."""
    choice: dict[str, float]
    """How a model chooses the skill for its prompts."""
    summary: str
    error: str
    """Why it has ended without a result, or ""."""
    attestation: str | None
    """The signed statement about the result."""
    created_at: str
    ended_at: str | None
    cases: list[EvaluatedCase]


class Transcript(TypedDict):
    """A transcript: lines of JSON, each with `role` and `text`."""

    text: str


class EvaluationPage(TypedDict):
    """A page of evaluations, newest first."""

    evaluations: list[Evaluation]
    next_cursor: str | None
    """For the next page; null on the last page."""


class ListedKey(TypedDict):
    """A public key. `holder` is `server` for keys of the registry, and `identity` for the key of the identity `by`."""

    keyid: str
    algorithm: str
    holder: Literal["server", "identity"]
    by: str
    kind: Literal["person", "agent"]
    public: str
    """The public key in DER, in base64."""
    added_at: str
    retired_at: str | None
    revoked_at: str | None
    revoked_since: str | None
    """The time of the theft, for readers."""
    reason: str | None


class KeyPage(TypedDict):
    """A page of keys, oldest first."""

    keys: list[ListedKey]
    next_cursor: str | None
    """For the next page; null on the last page."""


class AddedKey(TypedDict):
    """A registered key, or the challenge that the caller signs with the private key to register it."""

    keyid: str
    added: bool
    challenge: str | None


class RevokedKey(TypedDict):
    keyid: str
    revoked_at: str


class ListedSeal(TypedDict):
    """A seal. `previous` is the SHA-256 of the envelope before."""

    seq: int
    at: str
    previous: str | None
    sha256: str
    envelope: str


class SealPage(TypedDict):
    """A page of seals, oldest first. `after` of the next page is the last `seq`."""

    seals: list[ListedSeal]


class Progress(TypedDict):
    """The progress of a run, as its code has reported it with `runtime.progress`."""

    done: float
    total: float | None
    text: str


class RunUse(TypedDict):
    """What an ended run has used. null: not measured."""

    queued_ms: float | None
    """Time in the queue; null if the run did not wait."""
    prepared_ms: float | None
    """Time in the sandbox before the code started."""
    memory_bytes: int | None
    """The most memory of all processes together, with their files."""
    processes: int | None
    """The most processes and threads at one time."""
    disk_bytes: int | None
    """Size of the files in /workspace at the end of the code."""


class KeptCode(TypedDict):
    """The code of `run_code`, as far as it is kept."""

    language: Literal["python", "javascript", "bash"]
    entrypoint: str
    code: str
    is_cut: bool
    """Whether the code was longer than the kept 64 KiB."""


class VersionBefore(TypedDict):
    """The release before the first version that failed this way."""

    version: str
    runs: int
    """Its completed and failed runs, none of which failed this way."""


class Rollback(TypedDict):
    """The labels that point to a failing version, and the version that set_label can point them to."""

    labels: list[str]
    version: str


class FailureGroup(TypedDict):
    """Failed runs of a skill that have the type, the failing function and the pattern of the message in common."""

    skill: str
    error_type: str
    message: str
    """Of the last run. Only its caller and admins see the values in it."""
    place: str
    """The failing line of the skill; "" if there is none."""
    runs: int
    callers: int
    days: list[int]
    """The failed runs of each day in UTC, oldest first."""
    since_version: str
    """The lowest version with this failure in the last 90 days."""
    last_version: str
    first_day: str
    """Day in UTC."""
    last_at: str
    last_run_id: str | None
    """null for a run of another caller, except for admins."""
    before: VersionBefore | None
    """null if it has fewer than 20 runs."""
    rollback: Rollback | None
    """null if there is no label to move, or no good version."""


class RunRecord(TypedDict):
    """The record of a run."""

    status: Literal["queued", "started", "completed", "failed"]
    run_id: str
    summary: str
    output: Any
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float | None
    error: NotRequired[RunError]
    skill: NotRequired[ExactSkill]
    environment: NotRequired[GivenEnvironment]
    degraded: NotRequired[list[str]]
    network: list[NetworkUse]
    logs_blob: str | None
    method: str
    tool: str | None
    """The tool, if the run was a call of one."""
    script: NotRequired[str]
    """The script that ran, or -m and the module."""
    check_of: str | None
    """NAME@VERSION, if the run was an example in a check or an evaluation of a version."""
    identity: Who
    client: str
    """The program of the caller, such as claude-code; "" if unknown."""
    parent_run_id: str | None
    called_runs: NotRequired[list[str]]
    """Runs of skills that the code called."""
    started_at: str | None
    finished_at: str | None
    limits: Any
    cancel_requested_at: NotRequired[str]
    progress: NotRequired[Progress]
    """What the code said last, until the run ends."""
    files: NotRequired[list[OutputFile]]
    workspace: NotRequired[WorkspaceUse]
    used: NotRequired[RunUse]
    code: NotRequired[KeptCode]
    """The code of a run of run_code; not with wait_ms."""
    same_failure: NotRequired[FailureGroup]
    """Failed runs of all callers like this one; not with wait_ms."""
    state: NotRequired[Literal["waiting_for_packages"]]
    """Only while the run waits for packages."""
    packages: NotRequired[PackageWait]


class RunLog(TypedDict):
    """A part of the log of a run."""

    run_id: str
    status: Literal["queued", "started", "completed", "failed"]
    text: str
    """The log from start to next; control characters are escaped."""
    start: int
    """Offset of the text in the log, in bytes."""
    next: int
    """Offset behind the text: pass it as after to read on."""
    dropped_bytes: int
    """Bytes between after and start that were not kept."""
    ended: bool
    """Whether the run has ended and there is no more text."""
    progress: NotRequired[Progress]
    state: NotRequired[Literal["waiting_for_packages"]]
    """Only while the run waits for packages."""
    packages: NotRequired[PackageWait]


class RunRow(TypedDict):
    """A run in a list."""

    run_id: str
    status: Literal["queued", "started", "completed", "failed"]
    method: str
    tool: str | None
    skill: ExactSkill | None
    check_of: str | None
    """NAME@VERSION, if the run was an example in a check or an evaluation of a version."""
    summary: str
    error_type: str | None
    identity: Who
    parent_run_id: str | None
    started_at: str | None
    finished_at: str | None
    duration_ms: float | None


class RunPage(TypedDict):
    """A page of runs, newest first."""

    runs: list[RunRow]
    next_cursor: str | None
    """For the next page; null on the last page."""


class OutputFileChange(TypedDict):
    """A file whose content differs. null: the run wrote no file with this path."""

    path: str
    old: OutputFile | None
    new: OutputFile | None


class RunsDiff(TypedDict):
    """Result of `compare_runs`. `left_out` counts further values and files."""

    old: RunRow
    new: RunRow
    values: list[ValueChange]
    """The paths begin with inputs or output."""
    files: list[OutputFileChange]
    has_inputs: bool
    """false: large args of a run are not kept, so no inputs are compared."""
    left_out: int


class RunStatement(TypedDict):
    """A signed statement about a run. `envelope` is an envelope of DSSE as JSON text, `seal` the number of its seal."""

    run_id: str
    seal: int
    envelope: str


class ToolRow(TypedDict):
    """A tool of a skill or of a session."""

    name: str
    skill: str | None
    """null for a tool of a session."""
    version: str | None
    description: str
    parameters: dict[str, Any]
    """As the skill declares them."""


class ToolPage(TypedDict):
    """A page of tools, by skill and name."""

    tools: list[ToolRow]
    next_cursor: str | None
    """For the next page; null on the last page."""


class DefinedTool(TypedDict):
    """The result of define_tool and remove_tool. `skill` and `version` are None for a tool of a session."""

    name: str
    skill: str | None
    version: str | None
    status: str


class WorkspaceInfo(TypedDict):
    """A workspace."""

    id: str
    name: str
    snapshot: str
    """Digest of its current snapshot."""
    size_bytes: int
    files: int
    created_at: str
    expires_at: str
    """Later by its ttl after each use."""
    run_id: str | None
    """The run that writes it now."""
    parent: str | None
    """The workspace, snapshot or run that it was forked from."""


class WorkspacePage(TypedDict):
    """A page of workspaces."""

    workspaces: list[WorkspaceInfo]
    next_cursor: str | None


class WorkspaceFile(TypedDict):
    """A file, an empty folder or a symbolic link of a workspace."""

    path: str
    kind: Literal["file", "folder", "link"]
    size_bytes: int
    sha256: str
    executable: bool


class Snapshot(TypedDict):
    """A kept state of a workspace."""

    snapshot: str
    size_bytes: int
    files: int
    run_id: str | None
    """The run that left it."""
    created_at: str


class DescribedWorkspace(TypedDict):
    """A workspace with a page of its files and its snapshots, newest first."""

    workspace: WorkspaceInfo
    entries: list[WorkspaceFile]
    next_cursor: str | None
    snapshots: list[Snapshot]


class WorkspaceFileContent(TypedDict):
    """The content of a file of a workspace."""

    content: str
    encoding: Literal["utf-8", "base64"]


class DeletedWorkspace(TypedDict):
    """A deleted workspace."""

    id: str


class LockedPackage(TypedDict):
    name: str
    version: str


class ShownLock(TypedDict):
    sha256: str
    packages: list[LockedPackage] | None


class NpmPart(TypedDict):
    """The npm packages of a named environment, for JavaScript."""

    dependencies: list[str]
    state: Literal["pending", "building", "ready", "failed"]
    message: str
    lock: ShownLock | None


class ShownProgress(TypedDict):
    step: str
    done: int
    total: int


class OnServer(TypedDict):
    """State of an environment on one server."""

    state: Literal["building", "ready", "failed"]
    message: str
    size_bytes: int
    changed_at: str | None
    here: bool
    progress: ShownProgress | None


class ShownRebuild(TypedDict):
    """The last rebuild that was requested."""

    state: Literal["running", "done", "failed"]
    message: str
    by: str
    began_at: str | None
    ended_at: str | None


class WarmProcess(TypedDict):
    """A process that imports the modules of `preload` ahead of runs."""

    state: Literal["starting", "ready", "failed"]
    memory_mb: float
    message: str


class Environment(TypedDict):
    """An environment of packages for runs. Environments without a name belong to skills."""

    name: str | None
    description: str
    default: bool
    dependencies: list[str]
    preload: list[str]
    npm: NpmPart | None
    state: Literal["pending", "building", "ready", "failed"]
    message: str
    progress: ShownProgress | None
    lock: ShownLock | None
    size_bytes: int | None
    servers: list[OnServer]
    rebuild: ShownRebuild | None
    warm: WarmProcess | None


class EnvironmentPage(TypedDict):
    environments: list[Environment]
    next_cursor: str | None


class WithLock(TypedDict):
    """A version that uses the environment."""

    name: str
    version: str
    status: str


class DescribedEnvironment(TypedDict):
    name: str | None
    description: str
    default: bool
    dependencies: list[str]
    preload: list[str]
    npm: NpmPart | None
    state: Literal["pending", "building", "ready", "failed"]
    message: str
    progress: ShownProgress | None
    lock: ShownLock | None
    size_bytes: int | None
    servers: list[OnServer]
    rebuild: ShownRebuild | None
    warm: WarmProcess | None
    used_at: str | None
    versions: list[WithLock]


class PinnedSkill(TypedDict):
    """A skill that the page of its namespace shows first."""

    name: str
    description: str


class Namespace(TypedDict):
    """What publishers say about a namespace. Missing texts are empty."""

    namespace: str
    title: str
    text: str
    contact: str
    """How to reach the owners: a web address, an email address, or words."""
    contact_of: str | None
    """The namespace with this contact: it, or the nearest above."""
    sources: list[str]
    """Where its imported skills come from."""
    pinned: list[PinnedSkill]
    by: str | None
    """Who set the texts last; null if there are none."""
    at: str | None


class ClientReads(TypedDict):
    """The reads of a skill by one program, as the program names itself."""

    client: str
    loads: int
    reads: int


class SkillUsage(TypedDict):
    """The usage of a skill in the last 30 days, by all callers."""

    name: str
    loads: int
    reads: int
    runs: int
    clients: list[ClientReads]


class SkillUsagePage(TypedDict):
    """A page of skills that were read or run in the last 30 days, by name."""

    skills: list[SkillUsage]
    next_cursor: str | None
    """For the next page; null on the last page."""


class FailurePage(TypedDict):
    """A page of failures."""

    failures: list[FailureGroup]
    next_cursor: str | None
    """For the next page; null on the last page."""


class IncidentRun(TypedDict):
    """A run that the incident concerns."""

    run_id: str
    status: str
    skill: str
    """The run version as name@version; "" for run_code."""
    identity: str
    client: str
    """The program of the caller, such as claude-code; "" if unknown."""
    started_at: str
    hosts: list[str]
    """Hosts that the run reached."""


class IncidentCaller(TypedDict):
    """A caller of these runs."""

    identity: str
    kind: str
    runs: int
    last_at: str


class IncidentVersion(TypedDict):
    """A version that the incident concerns, with its part of the runs."""

    name: str
    version: str
    status: str
    publisher: str
    runs: int


class IncidentStep(TypedDict):
    """A step of one of these versions, or of the identity: published, submitted, approved and so on."""

    name: str
    version: str
    step: str
    identity: str
    note: str
    at: str


class IncidentHost(TypedDict):
    """A host and port that these runs connected to, or were refused."""

    host: str
    port: int
    runs: int
    refused: int
    bytes_out: int
    bytes_in: int


class IncidentCopy(TypedDict):
    """A caller whose program has loaded a version, and may have a copy."""

    name: str
    version: str
    identity: str
    client: str
    loads: int
    last_day: str


class IncidentCommand(TypedDict):
    command: str
    effect: str


class Incident(TypedDict):
    """The result of get_incident. `runs` has pages, every other list at most `limit` rows."""

    subject: Literal["version", "secret", "identity", "host"]
    name: str
    runs_total: int
    active: int
    """Runs that have not ended."""
    first_at: str | None
    last_at: str | None
    runs: list[IncidentRun]
    """Newest first."""
    callers: list[IncidentCaller]
    """Most runs first."""
    versions: list[IncidentVersion]
    """Most runs first, then newest first."""
    approvals: list[IncidentStep]
    """Steps of these versions or of the identity, newest first."""
    hosts: list[IncidentHost]
    """Of the newest 5,000 runs with connections; most runs first."""
    copies: list[IncidentCopy]
    """Loads of the last 35 days; newest first."""
    grants: list[str]
    """Skills and namespaces that may have the secret."""
    commands: list[IncidentCommand]
    cut: list[str]
    """Names of lists that have more rows than `limit`."""
    next_cursor: str | None
    """For the next page; null on the last page."""


class Activity(TypedDict):
    """Sums of uses in a period."""

    runs: int
    completed: int
    failed: int
    loads: int
    busy_ms: int
    callers: int
    """Different callers. They are known for the last 35 days."""


class ActivityDay(TypedDict):
    """The uses of one day."""

    runs: int
    completed: int
    failed: int
    loads: int
    busy_ms: int
    callers: int
    """Different callers. They are known for the last 35 days."""
    day: str
    p95_ms: float | None


class SkillActivity(TypedDict):
    """The uses of a skill."""

    runs: int
    completed: int
    failed: int
    loads: int
    busy_ms: int
    callers: int
    """Different callers. They are known for the last 35 days."""
    name: str
    p95_ms: float | None
    """95th percentile of completed runs of the last 35 days."""
    last_day: str | None
    """Of an unused skill, the last day before the period."""


class CallerActivity(TypedDict):
    """The uses by a caller."""

    runs: int
    completed: int
    failed: int
    loads: int
    busy_ms: int
    callers: int
    """Different callers. They are known for the last 35 days."""
    caller: str
    skills: int
    last_day: str | None


class VersionActivity(TypedDict):
    """The uses of a version of a skill."""

    runs: int
    completed: int
    failed: int
    loads: int
    busy_ms: int
    callers: int
    """Different callers. They are known for the last 35 days."""
    version: str | None
    """null for uses before versions were counted."""
    uses_by_day: list[int]
    """Runs and loads of each day, oldest first."""


class ActivityReport(TypedDict):
    """The result of get_activity."""

    total: Activity
    before: Activity
    """The same number of days before."""
    p95_ms: float | None
    """95th percentile of completed runs of the last 35 days."""
    p95_before_ms: float | None
    """That of the days before, if all are in the last 35 days."""
    days: list[ActivityDay]
    """Each day, oldest first."""
    skills: list[SkillActivity]
    callers: list[CallerActivity]
    """Empty with insight.callers = false."""
    unused: int
    """Number of listed skills without a use."""
    versions: list[VersionActivity]
    """Of the requested skill, highest version first."""


class SearchedWords(TypedDict):
    """The searches for the same words."""

    words: str
    times: int
    matched: int
    """Searches with at least one result."""
    opened: int
    """Searches after which the caller described, read or ran a result."""
    callers: int
    """Different callers; 0 with insight.callers = false."""
    last_day: str


class SearchesPage(TypedDict):
    """Searches, those of most callers first."""

    searches: list[SearchedWords]


class Reach(TypedDict):
    """A host or secret of a skill."""

    kind: Literal["host", "secret"]
    target: str
    """Entry of permissions.network, refused host, or name of a secret."""
    declared: bool
    """Whether the latest version declares it."""
    granted: bool | None
    """Whether the skill may have the secret; null for hosts."""
    runs: int
    """Runs that connected to the host, or got the secret."""
    refused: int
    """Runs that were refused."""
    bytes_out: int
    bytes_in: int
    last_day: str | None


class SkillReach(TypedDict):
    """The hosts, secrets and required skills of a skill."""

    name: str
    version: str
    reach: list[Reach]
    """Hosts, then secrets, each by name."""
    requires: list[RequiredSkill]
    """All required versions, the direct ones first."""
    requires_hidden: int
    """Number of further required skills, which the caller may not see."""


class ReachPage(TypedDict):
    """A page of skills with network access, secrets or required skills, by namespace and name."""

    skills: list[SkillReach]
    next_cursor: str | None
    """For the next page; null on the last page."""


class Used(TypedDict):
    """The used amount of a quota, and its limit."""

    used: int | None
    limit: int | None


class NamespaceUse(TypedDict):
    """The use of a namespace together with all namespaces below."""

    namespace: str
    bundle_bytes: Used


class IdentityUse(TypedDict):
    """The use and the limit of each quota of an identity."""

    identity: str
    blobs: Used
    blob_bytes: Used
    runs_per_minute: Used
    concurrent_runs: Used
    session_tools: Used
    workspaces: Used
    workspace_bytes: Used
    namespaces: list[NamespaceUse]


class Swept(TypedDict):
    """The number and bytes of the items that a step removed. In a dry run, the items that it would remove."""

    count: int
    bytes: int


class Garbage(TypedDict):
    """The result of a sweep: the removed items by step. In a dry run, the items that would be removed."""

    dry_run: bool
    removed: dict[str, Swept]


class Hold(TypedDict):
    """A hold on a skill, an identity or a run."""

    id: str
    kind: Literal["skill", "identity", "run"]
    name: str
    reason: str
    status: Literal["live", "expired", "removed"]
    by: str
    at: str
    until: str | None
    removed_by: str | None
    removed_at: str | None
    removed_reason: str | None


class HoldList(TypedDict):
    """The newest 1,000 holds, newest first."""

    holds: list[Hold]


class CreatedToken(TypedDict):
    """Result of `create_token`. No other method returns `token`."""

    token: str
    id: str
    name: str
    kind: Literal["person", "agent"]
    scopes: list[str]
    namespaces: list[str]
    created_at: str
    created_by: str
    expires_at: str | None


class Token(TypedDict):
    """A token without its secret, as `list_tokens` returns it."""

    id: str
    name: str
    kind: Literal["person", "agent"]
    scopes: list[str]
    namespaces: list[str]
    status: Literal["live", "expired", "revoked"]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    remarks: list[Literal["never_expires", "old", "unused"]]


class Tokens(TypedDict):
    """Every token that was ever created, oldest first."""

    tokens: list[Token]


class RotatedToken(TypedDict):
    """Result of `rotate_token`. No other method returns `token`."""

    token: str
    id: str
    name: str
    kind: Literal["person", "agent"]
    scopes: list[str]
    namespaces: list[str]
    created_at: str
    created_by: str
    expires_at: str | None
    replaced: list[str]
    replaced_until: str | None


class LeftBehind(TypedDict):
    """The data of a revoked identity that stays. Each list has at most 1,000 entries. Versions are `name@version`."""

    published: list[str]
    approved: list[str]
    in_review: list[str]
    skills: list[str]
    workspaces: list[str]
    trust_rules: list[str]
    webhooks: list[str]
    tokens: list[str]


class RevokedIdentity(TypedDict):
    """The report of `revoke_identity`: the ended tokens, sessions and runs, and the remaining data of the identity."""

    name: str
    tokens: list[str]
    sessions: int
    runs: list[str]
    keys: list[str]
    listed: bool
    left: LeftBehind


class AddedWebhook(TypedDict):
    """Result of `add_webhook`. No other method returns `secret`."""

    id: str
    url: str
    events: list[str]
    skills: list[str]
    secret: str
    """The receiver verifies signatures with it."""


class Webhook(TypedDict):
    """A webhook without its secret."""

    id: str
    url: str
    events: list[str]
    """Types of the events that it gets."""
    skills: list[str]
    """Skills and namespaces whose events it gets; empty: all."""
    state: Literal["live", "failing", "gone"]
    """gone: the target answered 410 and gets no more events."""
    waiting: int
    """Events that are not delivered yet. At most 10000 are counted."""
    dead_letters: int
    """Events that could not be delivered in time."""
    delivered: int
    """Events that the target has accepted."""
    delivered_at: str | None
    attempts: int
    """Failed attempts to send the next event."""
    next_at: str | None
    """When the next event is sent again, after a failure."""
    last_error: str | None
    """Why the last attempt failed; null after a success."""
    created_at: str
    created_by: str


class WebhookList(TypedDict):
    """Every webhook, oldest first."""

    webhooks: list[Webhook]


class WebhookTest(TypedDict):
    """Result of `test_webhook`."""

    id: str
    ok: bool
    status: int | None
    """HTTP status of the answer; null if there was no answer."""
    error: str | None
    """Why the target did not accept the event."""
    duration_ms: float


class RemovedWebhook(TypedDict):
    """Result of `remove_webhook`."""

    id: str
    url: str
    dropped: int
    """Waiting events (at most 10000 are counted) and dead letters that were lost."""


class DeadLetter(TypedDict):
    """An event that a webhook did not accept in time."""

    event_id: str
    type: str
    at: str
    """Time of the event."""
    data: dict[str, Any]
    attempts: int
    error: str
    """Why the last attempt failed."""
    died_at: str


class DeadLetterPage(TypedDict):
    """A page of the dead letters of a webhook, oldest first."""

    dead_letters: list[DeadLetter]
    next_cursor: str | None
    """For the next page; null on the last page."""


class TrustRule(TypedDict):
    """A rule that lets CI jobs publish."""

    id: str
    target: str
    """The skill, or the namespace and '.*', that the jobs may publish."""
    provider: Literal["github", "gitlab", "oidc"]
    issuer: str
    claims: dict[str, str]
    """Claims that the token of a job must have."""
    kind: Literal["person", "agent"]
    """Whose publishing rules apply to the jobs."""
    created_by: str
    created_at: str
    last_used_at: str | None


class TrustRules(TypedDict):
    """The trust rules for the namespaces of the caller, oldest first. Admins get all rules."""

    rules: list[TrustRule]


class RemovedTrustRule(TypedDict):
    """Result of `remove_trust_rule`."""

    id: str
    target: str
    ended: int
    """Tokens of CI jobs that ended with the rule."""


class AuditEntry(TypedDict):
    """One entry of the audit trail, as `list_audit` returns it."""

    seq: int
    at: str
    identity: Who | None
    address: str | None
    request_id: str | None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    code: int | None
    type: str | None
    count: int
    before: Any
    after: Any
    hash: str


class AuditPage(TypedDict):
    """A page of the audit trail, newest first. With `after`, the oldest entry is first, and `next_cursor` is null."""

    entries: list[AuditEntry]
    next_cursor: str | None
    """For the next page; null on the last page."""


class RunFile(TypedDict):
    """A file in the workspace of a run."""

    path: str
    blob_id: str
    executable: NotRequired[bool]


class SkillFile(TypedDict):
    """A file of a new skill."""

    path: str
    content: str
    encoding: NotRequired[Literal["utf-8", "base64"]]
    executable: NotRequired[bool]


def list_skills(
    self: Any,
    *,
    namespace: str | None = None,
    detail: Literal["names", "summary"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    kind: Literal["action", "instruction"] | None = None,
    tags: list[str] | None = None,
    language: Literal["python", "javascript", "bash", "markdown"] | None = None,
    verified: bool | None = None,
    network: bool | None = None,
    secrets: bool | None = None,
    reviewed: bool | None = None,
    contains: Literal["instructions", "scripts", "action"] | None = None,
    licence: str | None = None,
    include_internal: bool | None = None,
    counts: bool | None = None,
    catalogue: bool | None = None,
    status: Literal["published", "deprecated", "draft", "in_review", "rejected", "yanked"] | None = None,
    sort: Literal["name", "newest", "used"] | None = None,
) -> SkillPage:
    """Enumerate available skills, optionally filtering by namespace. Results are deterministically sorted.

    namespace: Optional namespace to filter skills (e.g., 'salesforce')
    detail: Level of detail to return
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    kind: Only skills of this kind
    tags: Only skills with all these tags
    language: Only skills in this language; 'markdown' means without code
    verified: Only skills whose examples all passed (true), or only others (false)
    network: Only skills without network access (false), or only with it (true)
    secrets: Only skills without secrets (false), or only with secrets (true)
    reviewed: Only skills whose latest version a reviewer has approved (true), or only others (false)
    contains: Only skills with instructions alone, with instructions and scripts, or with an action
    licence: Only skills with this open licence, as its SPDX expression; or 'other', or 'none'
    include_internal: Also skills that their authors call internal
    counts: Add the number of matching skills, in all and by value of each filter
    catalogue: Add facts and usage to each skill
    status: Only versions with this status; omit for latest versions, published or deprecated
    sort: Order: by name, by publication, or by runs
    """
    return params_of(locals())


def describe_skill(
    self: Any, name: str, *, version: str | None = None, detail: Literal["manifest", "summary", "full"] | None = None
) -> DescribedSkill:
    """Retrieve a skill's manifest and documentation frontmatter.

    name: Skill name (e.g., 'salesforce.leads.sync')
    version: Skill version (omit for latest)
    detail: Level of detail to return
    """
    return params_of(locals())


def read_skill_file(self: Any, name: str, path: str, *, version: str | None = None) -> SkillFileContent:
    """Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas).

    name: Skill name
    version: Skill version (omit for latest)
    path: Path to file within skill directory (e.g., 'SKILL.md')
    """
    return params_of(locals())


def execute_skill(
    self: Any,
    name: str,
    *,
    version: str | None = None,
    args: Mapping[str, Any] | None = None,
    input_blobs: list[str] | None = None,
    timeout_ms: int | None = None,
    script: str | None = None,
    environment: str | None = None,
    module: str | None = None,
    cwd: Literal["workspace", "skill"] | None = None,
    files: "Sequence[RunFile] | Mapping[str, Source] | None" = None,
    outputs: list[str] | None = None,
    workspace: str | None = None,
    workspace_mode: Literal["write", "read"] | None = None,
    background: bool | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Execute a skill's entrypoint in an ephemeral sandbox.

    name: Skill name
    version: Skill version (omit for latest)
    args: JSON-serializable arguments to pass to the skill
    input_blobs: Blob IDs to mount in the sandbox
    timeout_ms: Execution timeout in milliseconds
    script: Path of a file to run as a program, in a skill without an entrypoint
    environment: Named environment, for a skill that declares no packages; '' for none, omit for the default
    module: Module to run as 'python -m' does, instead of 'script'
    cwd: Where a script or module starts
    files: Blobs to copy into the workspace: writable files at their paths
    outputs: Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')
    workspace: Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files
    workspace_mode: 'read': save nothing, so that other runs may use the workspace
    background: Answer at once with the run_id; get_run and read_run_log follow the run
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def run_code(
    self: Any,
    language: Literal["python", "javascript", "bash"],
    code: str,
    *,
    entrypoint: str | None = None,
    args: Mapping[str, Any] | None = None,
    mount_skills: list[str] | None = None,
    input_blobs: list[str] | None = None,
    limits: Mapping[str, Any] | None = None,
    files: "Sequence[RunFile] | Mapping[str, Source] | None" = None,
    outputs: list[str] | None = None,
    workspace: str | None = None,
    workspace_mode: Literal["write", "read"] | None = None,
    environment: str | None = None,
    background: bool | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Execute LLM-written code in a sandbox with specified skills and blobs mounted.

    language: Programming language (MVP: python only)
    code: Source code to execute
    entrypoint: Function name to call
    args: Arguments to pass to entrypoint function
    mount_skills: Skill names to mount in sandbox
    input_blobs: Blob IDs to mount in sandbox
    limits: Execution limits
    files: Blobs to copy into the workspace: writable files at their paths
    outputs: Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')
    workspace: Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files
    workspace_mode: 'read': save nothing, so that other runs may use the workspace
    environment: Named environment whose Python packages the code may import; '' for none, omit for the default
    background: Answer at once with the run_id; get_run and read_run_log follow the run
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def create_blob(
    self: Any,
    content: str,
    kind: str,
    *,
    encoding: Literal["utf-8", "base64"] | None = None,
    ttl: int | None = None,
    idempotency_key: str | None = None,
) -> NewBlob:
    """Store large content as a blob and return its ID.

    content: Content to store
    kind: MIME type (e.g., 'text/plain', 'application/json')
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def read_blob(
    self: Any,
    blob_id: str,
    *,
    mode: Literal["sample_head", "sample_tail", "full"] | None = None,
    max_bytes: int | None = None,
) -> BlobContent:
    """Retrieve a preview of blob content. Full reads discouraged for large blobs.

    blob_id: Blob identifier
    mode: How to sample the blob
    max_bytes: Maximum bytes to return
    """
    return params_of(locals())


def load_skills_protocol_guide(self: Any) -> Guide:
    """Load the Skills Protocol Guide to learn how to use these tools. Call this first if you haven't read the guide yet."""
    return params_of(locals())


def call_tool(
    self: Any,
    name: str,
    *,
    args: Mapping[str, Any] | None = None,
    skill: str | None = None,
    version: str | None = None,
    timeout_ms: int | None = None,
    input_blobs: list[str] | None = None,
    files: "Sequence[RunFile] | Mapping[str, Source] | None" = None,
    outputs: list[str] | None = None,
    workspace: str | None = None,
    workspace_mode: Literal["write", "read"] | None = None,
    session: str | None = None,
    environment: str | None = None,
    background: bool | None = None,
    idempotency_key: str | None = None,
) -> ToolResult:
    """Call a tool of a skill or of a session.

    name: Name of the tool, or 'skill/tool' if several skills have a tool of that name
    args: Arguments for the tool
    skill: Skill that offers the tool (omit for a tool of the session, else the most recently published one)
    version: Version of that skill (omit for latest)
    timeout_ms: Execution timeout in milliseconds
    input_blobs: Blob IDs to mount in the sandbox
    files: Blobs to copy into the workspace: writable files at their paths
    outputs: Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')
    workspace: Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files
    workspace_mode: 'read': save nothing, so that other runs may use the workspace
    session: Session of the caller, by a name that the caller chooses; omit for the unnamed session
    environment: Named environment, for a tool of a skill that declares no packages; '' for none
    background: Answer at once with the run_id; get_run and read_run_log follow the run
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def delete_blob(self: Any, blob_id: str) -> DeletedBlob:
    """Delete a blob of the caller. Admins may delete any blob.

    blob_id: Blob identifier
    """
    return params_of(locals())


def create_skill(
    self: Any,
    manifest: Mapping[str, Any],
    skill_md: str,
    *,
    files: Sequence[SkillFile] | None = None,
    submit: bool | None = None,
    idempotency_key: str | None = None,
) -> CreatedSkill:
    """Publish a new skill, or a new version of a skill. The whole bundle is checked before anything is stored.

    manifest: skill.toml as JSON: name, version, description, and further declarations
    skill_md: SKILL.md: markdown for the LLM, with YAML frontmatter at the top
    files: Code and resources of the skill
    submit: true: submit the version for review if it is not published at once; false: make it a draft
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def check_skill(
    self: Any,
    manifest: Mapping[str, Any],
    skill_md: str,
    *,
    files: Sequence[SkillFile] | None = None,
    submit: bool | None = None,
) -> CheckedSkill:
    """Run all checks of create_skill and the examples, without publishing anything.

    manifest: skill.toml as JSON: name, version, description, and further declarations
    skill_md: SKILL.md: markdown for the LLM, with YAML frontmatter at the top
    files: Code and resources of the skill
    submit: true: submit the version for review if it is not published at once; false: make it a draft
    """
    return params_of(locals())


def develop_skill(
    self: Any, manifest: Mapping[str, Any], skill_md: str, *, files: Sequence[SkillFile] | None = None
) -> DevelopedSkill:
    """Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything.

    manifest: skill.toml as JSON: name, version, description, and further declarations
    skill_md: SKILL.md: markdown for the LLM, with YAML frontmatter at the top
    files: Code and resources of the skill
    """
    return params_of(locals())


def keep_development(self: Any, names: list[str]) -> KeptSkills:
    """Keep serving development versions, which end 30 seconds after the last call.

    names: Names of the skills
    """
    return params_of(locals())


def end_development(self: Any, names: list[str]) -> KeptSkills:
    """Stop serving development versions.

    names: Names of the skills
    """
    return params_of(locals())


def approve_version(
    self: Any,
    name: str,
    version: str,
    *,
    digest: str | None = None,
    note: str | None = None,
    accepts: str | None = None,
) -> ApprovedVersion:
    """Approve a version that is in review. A version that meets its policy then is published.

    name: Skill name
    version: Exact version
    digest: Digest of the reviewed bundle: an approval of another digest is refused
    note: Recorded with the approval
    accepts: Id of an unclear evaluation that the reviewer accepts
    """
    return params_of(locals())


def reject_version(self: Any, name: str, version: str, reason: str) -> NewVersion:
    """Reject a version that is in review.

    name: Skill name
    version: Exact version
    reason: Reason for the author
    """
    return params_of(locals())


def search_skills(
    self: Any,
    query: str,
    *,
    limit: int | None = None,
    kind: Literal["action", "instruction"] | None = None,
    tags: list[str] | None = None,
    language: Literal["python", "javascript", "bash", "markdown"] | None = None,
    verified: bool | None = None,
    network: bool | None = None,
    secrets: bool | None = None,
    reviewed: bool | None = None,
    contains: Literal["instructions", "scripts", "action"] | None = None,
    licence: str | None = None,
    include_internal: bool | None = None,
    counts: bool | None = None,
    catalogue: bool | None = None,
    namespace: str | None = None,
    cursor: str | None = None,
    status: Literal["published", "deprecated"] | None = None,
    sort: Literal["best", "name", "newest", "used"] | None = None,
    detail: Literal["brief", "summary"] | None = None,
) -> FoundSkillPage:
    """Find skills by words about the task, best first.

    query: Words or a question
    limit: Maximum number of results
    kind: Only skills of this kind
    tags: Only skills with all these tags
    language: Only skills in this language; 'markdown' means without code
    verified: Only skills whose examples all passed (true), or only others (false)
    network: Only skills without network access (false), or only with it (true)
    secrets: Only skills without secrets (false), or only with secrets (true)
    reviewed: Only skills whose latest version a reviewer has approved (true), or only others (false)
    contains: Only skills with instructions alone, with instructions and scripts, or with an action
    licence: Only skills with this open licence, as its SPDX expression; or 'other', or 'none'
    include_internal: Also skills that their authors call internal
    counts: Add the number of matching skills, in all and by value of each filter
    catalogue: Add facts and usage to each skill
    namespace: Only skills in this namespace and below it
    cursor: Pagination cursor from previous response
    status: Only skills with this status
    sort: Order: best match, by name, by publication, or by runs
    detail: brief: what a model needs to choose a skill
    """
    return params_of(locals())


def diff_versions(self: Any, name: str, from_version: str, *, to_version: str | None = None) -> VersionsDiff:
    """Compare two versions of a skill: permissions first, then manifest, instructions and files.

    name: Skill name
    from_version: The older version, as a version spec: exact, range, label or digest
    to_version: The newer version (omit for latest)
    """
    return params_of(locals())


def submit_version(self: Any, name: str, version: str) -> NewVersion:
    """Ask for a review of a draft.

    name: Skill name
    version: Exact version
    """
    return params_of(locals())


def deprecate_skill(self: Any, name: str, message: str, *, successor: str | None = None) -> NewVersion:
    """Mark all published versions of a skill as deprecated.

    name: Skill name
    message: Message that describe_skill shows
    successor: Name of the skill to use instead
    """
    return params_of(locals())


def undeprecate_skill(self: Any, name: str) -> NewVersion:
    """Undo a deprecation.

    name: Skill name
    """
    return params_of(locals())


def set_visibility(self: Any, name: str, visibility: Literal["public", "namespace", "private"]) -> NewVersion:
    """Set which callers can see a skill.

    name: Skill name
    visibility: public: all callers; namespace: callers with a grant that covers the name; private: its publishers
    """
    return params_of(locals())


def yank_version(
    self: Any,
    name: str,
    version: str,
    reason: str,
    *,
    severity: Literal["broken", "security", "malicious"] | None = None,
    fixed: str | None = None,
) -> NewVersion:
    """Withdraw a published version: only requests for exactly this version still resolve.

    name: Skill name
    version: Exact version
    reason: Reason for callers who request exactly this version
    severity: broken: it runs with a warning; security: only reviewers run it; malicious: models cannot even read it
    fixed: The version without the problem, for the advisory
    """
    return params_of(locals())


def unyank_version(self: Any, name: str, version: str) -> NewVersion:
    """Undo a yank, and withdraw its advisory.

    name: Skill name
    version: Exact version
    """
    return params_of(locals())


def list_versions(
    self: Any,
    *,
    name: str | None = None,
    status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"] | None = None,
    waiting: bool | None = None,
    namespace: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> VersionPage:
    """List versions of a skill or of all skills, the most recently created first.

    name: Only versions of this skill
    status: Only versions with this status (e.g., 'in_review' for versions that wait for a reviewer)
    waiting: Only versions that wait for a reviewer: in review, or published and to be approved again
    namespace: Only versions in this namespace and below it
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def list_dependents(
    self: Any, name: str, *, version: str | None = None, limit: int | None = None, cursor: str | None = None
) -> DependentsPage:
    """List the versions that require a skill, directly or because another required skill requires it.

    name: Skill name
    version: Only those that require this version (omit for all versions)
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def purge_version(
    self: Any, name: str, version: str, reason: str, *, severity: Literal["security", "malicious"] | None = None
) -> PurgedVersion:
    """Remove the files of a version permanently, for example after a leaked key. Its number cannot be used again.

    name: Skill name
    version: Exact version
    reason: Reason, for all readers of the skill
    severity: Severity of the advisory
    """
    return params_of(locals())


def recheck_version(self: Any, name: str, version: str) -> RecheckedVersion:
    """Check a published version again with the checks of today, and store the findings.

    name: Skill name
    version: Exact version
    """
    return params_of(locals())


def waive_finding(
    self: Any,
    name: str,
    rule: str,
    reason: str,
    *,
    until: str | None = None,
    file: str | None = None,
    version: str | None = None,
) -> Waiver:
    """Allow versions of a skill to be published in spite of a finding.

    name: Skill name
    rule: The finding's rule
    reason: Reason, for all readers of the skill
    until: End of the waiver: '2027-01-31', a time, or '90d'; omit for no end
    file: Only findings in this file
    version: Only this exact version
    """
    return params_of(locals())


def list_waivers(
    self: Any, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
) -> WaiverPage:
    """List the waivers of the skills that the caller reviews, newest first.

    name: Only waivers of this skill
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def revoke_waiver(self: Any, id: str) -> Waiver:
    """Revoke a waiver. Versions that were published under it stay.

    id: The waiver's id
    """
    return params_of(locals())


def set_label(self: Any, name: str, label: str, version: str) -> MovedLabel:
    """Point a label of a skill to a version.

    name: Skill name
    label: Label (e.g., 'stable')
    version: New target: a version, or a version spec to resolve now (another label, a range, 'latest')
    """
    return params_of(locals())


def rollback_label(self: Any, name: str, label: str, *, to: str | None = None) -> MovedLabel:
    """Point a label to its previous published version. Repeated calls go further back.

    name: Skill name
    label: Label (e.g., 'stable')
    to: Expected version; if the label would go back to another one, it stays
    """
    return params_of(locals())


def remove_label(self: Any, name: str, label: str) -> MovedLabel:
    """Remove a label. A rollback restores it.

    name: Skill name
    label: Label (e.g., 'stable')
    """
    return params_of(locals())


def list_labels(
    self: Any, name: str, *, label: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Labels:
    """List the labels of a skill, and their moves, newest first.

    name: Skill name
    label: Only this label
    limit: Maximum number of moves
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def resolve_skills(
    self: Any, skills: list[str], *, required: bool | None = None, required_by: str | None = None
) -> Lock:
    """Resolve skills to exact versions and digests, as a lock.

    skills: 'name' or 'name@version spec' each, at most 1000
    required: Whether the lock has the skills that they require too
    required_by: Choose the versions that publishing would choose for a skill of this name that requires them
    """
    return params_of(locals())


def verify_lock(self: Any, lock: Sequence[Locked]) -> Verified:
    """Check whether the locked versions still exist with the same digests.

    lock: 'lock' of resolve_skills
    """
    return params_of(locals())


def list_attestations(
    self: Any,
    name: str,
    *,
    version: str | None = None,
    predicate: Literal[
        "author", "publication", "provenance", "tests", "scan", "evaluation", "review", "passed", "revocation", ""
    ]
    | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> AttestationPage:
    """List the signed statements about a version: who published, built, checked and reviewed it.

    name: Skill name
    version: Version spec (omit for latest)
    predicate: Only statements of this kind
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def add_attestation(self: Any, name: str, version: str, envelope: str) -> AddedAttestation:
    """Store a statement about a version that the caller has signed: `author`, `review` or `evaluation`. A Sigstore bundle of the version's `.files` is stored as `author`.

    name: Skill name
    version: Exact version
    envelope: Envelope of DSSE or Sigstore bundle, as JSON
    """
    return params_of(locals())


def end_attestation(self: Any, id: str, reason: str) -> EndedId:
    """Withdraw a signed statement: clients get it no longer. Its row stays.

    id: The attestation's id
    reason: Reason, for all readers of the version
    """
    return params_of(locals())


def explain_policy(self: Any, name: str, *, version: str | None = None) -> ExplainedPolicy:
    """Show which policy counts for a version, and what the version still needs.

    name: Skill name
    version: Version spec (omit for latest)
    """
    return params_of(locals())


def start_evaluation(
    self: Any,
    name: str,
    version: str,
    *,
    kinds: list[Literal["run", "task", "search", "choice"]] | None = None,
    suite: str | None = None,
    model: str | None = None,
    trials: int | None = None,
    budget: float | None = None,
) -> Evaluation:
    """Run the cases of a version in the background, and compare it with the version before.

    name: Skill name
    version: Exact version
    kinds: Kinds of cases (omit for run, or for task with suite)
    suite: Suite of another skill, NAME@RANGE (omit for the cases of the version)
    model: Name of a model of the settings, for tasks and choices (omit for evals.model)
    trials: Trials of each task and choice (omit for evals.trials)
    budget: Most that the model may cost (omit for evals.budget)
    """
    return params_of(locals())


def cancel_evaluation(self: Any, id: str) -> Evaluation:
    """End an evaluation and its runs. It then has no result.

    id: Id of the evaluation
    """
    return params_of(locals())


def get_evaluation(self: Any, id: str) -> EvaluationCases:
    """Return an evaluation with the results of its cases.

    id: Id of the evaluation
    """
    return params_of(locals())


def read_transcript(self: Any, id: str, transcript: str) -> Transcript:
    """Return what an agent of an evaluation said and did.

    id: Id of the evaluation
    transcript: Id of the transcript
    """
    return params_of(locals())


def list_evaluations(
    self: Any, name: str, *, version: str | None = None, limit: int | None = None, cursor: str | None = None
) -> EvaluationPage:
    """List the evaluations of a skill, newest first.

    name: Skill name
    version: Version spec (omit for all versions)
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def list_keys(self: Any, *, by: str | None = None, limit: int | None = None, cursor: str | None = None) -> KeyPage:
    """List the public keys of the registry and of identities.

    by: Only the keys of this identity
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def add_key(self: Any, public: str, *, challenge: str | None = None, signature: str | None = None) -> AddedKey:
    """Register a public key of a publisher or reviewer. The first call returns a challenge, the second one has its signature.

    public: Public key in DER (Ed25519 or P-256), in base64
    challenge: Challenge of the first call
    signature: Signature of `challenge`, in base64
    """
    return params_of(locals())


def revoke_key(self: Any, keyid: str, reason: str, *, since: str | None = None) -> RevokedKey:
    """Revoke a stolen or lost key of an identity: no statement that it has signed is valid any more.

    keyid: Keyid, sha256:…
    reason: Reason, for all readers
    since: Time of the theft, for readers (e.g., '2026-11-22T09:30:00Z')
    """
    return params_of(locals())


def list_seals(
    self: Any, *, after: int | None = None, newest: bool | None = None, limit: int | None = None
) -> SealPage:
    """List the seals of this registry, oldest first.

    after: Only seals behind the seal with this number
    newest: Only the newest seal
    limit: Maximum number of results
    """
    return params_of(locals())


def get_run(self: Any, run_id: str, *, wait_ms: int | None = None) -> RunRecord:
    """Return the record of a run: its result, its caller, its times and its limits.

    run_id: The run's id
    wait_ms: Wait up to this long for the end of the run
    """
    return params_of(locals())


def read_run_log(
    self: Any, run_id: str, *, after: int | None = None, max_bytes: int | None = None, wait_ms: int | None = None
) -> RunLog:
    """Read the log of a run, also while it runs.

    run_id: The run's id
    after: Offset in bytes: 'next' of the previous answer
    max_bytes: Maximum number of bytes
    wait_ms: Wait up to this long for more text
    """
    return params_of(locals())


def list_runs(
    self: Any,
    *,
    skill: str | None = None,
    status: Literal["queued", "started", "completed", "failed"] | None = None,
    since: str | None = None,
    identity: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> RunPage:
    """List runs, newest first.

    skill: Only runs of this skill
    status: Only runs with this status
    since: Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h')
    identity: Only runs of this identity (only admins and auditors may name others)
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def cancel_run(self: Any, run_id: str) -> RunRecord:
    """Stop a queued or started run.

    run_id: The run's id
    """
    return params_of(locals())


def compare_runs(self: Any, run_id: str, other: str) -> RunsDiff:
    """Compare two runs: their inputs, their output by paths, and the files that they wrote.

    run_id: The run's id
    other: The id of the other run, which is the old one of each pair
    """
    return params_of(locals())


def get_run_statement(self: Any, run_id: str, *, disclose: Literal["args", ""] | None = None) -> RunStatement:
    """Return a signed statement about an ended run. The registry's key is enough to verify it offline.

    run_id: The run's id
    disclose: 'args' adds the args; otherwise only their digest
    """
    return params_of(locals())


def list_tools(
    self: Any,
    *,
    skill: str | None = None,
    session: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ToolPage:
    """List the tools that skills offer, and the tools of a session.

    skill: Only tools of this skill: 'name' or 'name@version spec'
    session: Session of the caller, by a name that the caller chooses; omit for the unnamed session
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def define_tool(
    self: Any,
    name: str,
    description: str,
    code: str,
    *,
    parameters: str | None = None,
    persistent: str | None = None,
    language: Literal["python", "javascript", "bash"] | None = None,
    namespace: str | None = None,
    session: str | None = None,
    idempotency_key: str | None = None,
) -> DefinedTool:
    """Define a tool, for a session or as a published skill.

    name: Tool name (lowercase with underscores)
    description: What the tool does
    parameters: JSON string of parameter definitions
    code: Body of the function that gets 'args' and returns the result
    persistent: "true" to keep it as a skill that others can use
    language: Language of the code. If omitted: JavaScript if the server can run it, else Python
    namespace: Namespace of a persistent tool. If omitted: none if the caller may publish names without a namespace, else the first granted namespace
    session: Session of the caller, by a name that the caller chooses; omit for the unnamed session
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def remove_tool(self: Any, name: str, *, session: str | None = None) -> DefinedTool:
    """Remove a tool that was made with define_tool.

    name: Tool name to remove, or 'skill/tool'
    session: Session of the caller, by a name that the caller chooses; omit for the unnamed session
    """
    return params_of(locals())


def create_workspace(
    self: Any,
    *,
    origin: str | None = None,
    name: str | None = None,
    files: "Sequence[RunFile] | Mapping[str, Source] | None" = None,
    ttl: int | None = None,
    idempotency_key: str | None = None,
) -> WorkspaceInfo:
    """Create a workspace: files that stay from run to run.

    origin: Workspace (ws_…) or snapshot (sha256:…) to fork, or a run (run_…) whose snapshot to fork
    name: Any text, shown in lists
    files: Blobs to copy into a new workspace
    ttl: Seconds after its last use until it expires
    idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)
    """
    return params_of(locals())


def list_workspaces(self: Any, *, limit: int | None = None, cursor: str | None = None) -> WorkspacePage:
    """List your workspaces.

    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def describe_workspace(
    self: Any, workspace: str, *, path: str | None = None, limit: int | None = None, cursor: str | None = None
) -> DescribedWorkspace:
    """Describe a workspace, its files and its snapshots.

    workspace: The workspace's id
    path: Only files at or below this path
    limit: Maximum number of files
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def read_workspace_file(self: Any, workspace: str, path: str) -> WorkspaceFileContent:
    """Read a file of a workspace.

    workspace: The workspace's id
    path: Path of the file (e.g., 'data/orders.csv')
    """
    return params_of(locals())


def reset_workspace(self: Any, workspace: str, snapshot: str) -> WorkspaceInfo:
    """Return a workspace to an earlier snapshot: undo runs with bad results.

    workspace: The workspace's id
    snapshot: Digest of the snapshot (e.g., 'before' of a run)
    """
    return params_of(locals())


def delete_workspace(self: Any, workspace: str) -> DeletedWorkspace:
    """Delete a workspace and its snapshots.

    workspace: The workspace's id
    """
    return params_of(locals())


def list_environments(
    self: Any, *, installed: bool | None = None, limit: int | None = None, cursor: str | None = None
) -> EnvironmentPage:
    """List the named environments, with the packages that the code of run_code may import.

    installed: List all installed locks instead (for admins)
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def describe_environment(self: Any, name: str) -> DescribedEnvironment:
    """Return one environment, and the versions that use its lock of packages.

    name: Name of an environment, or the SHA-256 of a lock
    """
    return params_of(locals())


def rebuild_environment(self: Any, name: str) -> DescribedEnvironment:
    """Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock.

    name: Name of an environment, or the SHA-256 of a lock
    """
    return params_of(locals())


def describe_namespace(self: Any, namespace: str) -> Namespace:
    """Return what is said about a namespace: its title and text, the contact of its owners, and pinned skills.

    namespace: Namespace (e.g., 'sales')
    """
    return params_of(locals())


def set_namespace(
    self: Any,
    namespace: str,
    *,
    title: str | None = None,
    text: str | None = None,
    contact: str | None = None,
    pinned: list[str] | None = None,
) -> Namespace:
    """Set what is said about a namespace. Omitted texts stay; an empty one removes the text.

    namespace: Namespace (e.g., 'sales')
    title: Name for people, at most 80 characters
    text: What the skills are for, at most 500 characters
    contact: How to reach the owners: a web address, an email address, or words ('#sales in chat')
    pinned: At most 6 skills of the namespace that its page shows first
    """
    return params_of(locals())


def list_skill_usage(
    self: Any,
    *,
    namespace: str | None = None,
    never_run: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> SkillUsagePage:
    """List how often skills were read and run in the last 30 days.

    namespace: Only skills of this namespace and below it
    never_run: Only skills that were read and not run
    limit: Maximum number of skills
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def list_failures(
    self: Any,
    *,
    skill: str | None = None,
    namespace: str | None = None,
    days: int | None = None,
    sort: Literal["harm", "newest"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> FailurePage:
    """List which skills fail, most harm first: the failures of your skills, or of all skills for admins.

    skill: Only failures of this skill
    namespace: Only skills of this namespace and below it
    days: Only failures of this many days
    sort: By failed runs times callers (harm), or the last failure first (newest)
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def get_incident(
    self: Any,
    subject: Literal["version", "secret", "identity", "host"],
    name: str,
    *,
    since: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Incident:
    """Report what a version, a secret, an identity or a host has touched, and the commands that stop it.

    subject: What is suspected: version, secret, identity or host
    name: Its name (e.g., 'sales.report@1.2.0', 'API_KEY', 'ann', 'api.example.com', '*.example.com')
    since: Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h'); "" for all
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def get_activity(
    self: Any,
    *,
    namespace: str | None = None,
    skill: str | None = None,
    days: int | None = None,
    sort: Literal["used", "callers", "failed", "busy", "slow", "deprecated", "unused"] | None = None,
    limit: int | None = None,
) -> ActivityReport:
    """Return what is used and by whom: sums, days, skills and callers.

    namespace: Only skills of this namespace and below it
    skill: Only this skill, with its versions
    days: Number of days until today
    sort: Order of the skills: by uses, callers, failed runs, busy time or 95th percentile; deprecated skills that are used; or the skills without a use
    limit: Maximum number of rows
    """
    return params_of(locals())


def list_searches(
    self: Any, *, wanted: bool | None = None, days: int | None = None, limit: int | None = None
) -> SearchesPage:
    """List what callers searched for. `wanted` selects the words that led to no skill.

    wanted: Only words whose searches found nothing or led nowhere
    days: Number of days until today
    limit: Maximum number of rows
    """
    return params_of(locals())


def list_reach(
    self: Any,
    *,
    namespace: str | None = None,
    skill: str | None = None,
    target: str | None = None,
    days: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> ReachPage:
    """List which skills may reach which hosts, secrets and other skills, and whether their runs did.

    namespace: Only skills of this namespace and below it
    skill: Only this skill
    target: Only skills that may reach this host, secret or skill, also by calls of required skills
    days: Number of days until today
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def get_usage(self: Any, *, identity: str | None = None, namespace: str | None = None) -> IdentityUse:
    """Return the used amount and the limit of each quota.

    identity: Identity; omit for the caller (only admins and auditors may name others)
    namespace: Namespace; omit for the namespaces of the caller's grants
    """
    return params_of(locals())


def collect_garbage(self: Any, *, dry_run: bool | None = None, steps: list[str] | None = None) -> Garbage:
    """Remove unreferenced and expired data.

    dry_run: Only report what a sweep would remove
    steps: Only these steps of a sweep, by their names; omit for all
    """
    return params_of(locals())


def add_hold(
    self: Any, kind: Literal["skill", "identity", "run"], name: str, reason: str, *, until: str | None = None
) -> Hold:
    """Keep the runs, blobs, workspaces and versions of a skill, an identity or a run until the hold ends.

    kind: What the hold names
    name: Name of the skill or identity, or id of the run
    reason: Reason, for admins
    until: End of the hold: '2027-01-31', a time, or '90d'; omit for no end
    """
    return params_of(locals())


def list_holds(self: Any, *, live: bool | None = None) -> HoldList:
    """List holds, also those that have ended.

    live: Only holds that have not ended
    """
    return params_of(locals())


def remove_hold(self: Any, id: str, reason: str) -> Hold:
    """End a hold. Retention and purges then apply again.

    id: Id of the hold
    reason: Reason, for admins
    """
    return params_of(locals())


def create_token(
    self: Any,
    name: str,
    scopes: list[str],
    *,
    namespaces: list[str] | None = None,
    kind: Literal["person", "agent"] | None = None,
    expires: str | None = None,
) -> CreatedToken:
    """Create a token. Only this answer contains it.

    name: Name of the identity; tokens with one name are one identity
    scopes: Scopes of the token: read, run, publish, review, metrics, audit, accounts, admin
    namespaces: Namespace grants: names to publish or review ('sales.*'; '*' for all)
    kind: Whether the token belongs to a person or an agent
    expires: Lifetime of the token (e.g., '90d'); omit for no end
    """
    return params_of(locals())


def list_tokens(self: Any) -> Tokens:
    """List all tokens, without their secrets."""
    return params_of(locals())


def rotate_token(self: Any, name: str, *, overlap: str | None = None, expires: str | None = None) -> RotatedToken:
    """Replace the live tokens of an identity by a new one with the same rights. Only this answer contains it.

    name: Name of the identity
    overlap: How long the old tokens stay valid (e.g., '24h')
    expires: Lifetime of the new token (e.g., '90d'); omit for that of the newest one
    """
    return params_of(locals())


def revoke_token(self: Any, id: str) -> Token:
    """Revoke a token permanently.

    id: The token's id
    """
    return params_of(locals())


def revoke_identity(self: Any, name: str) -> RevokedIdentity:
    """End an identity: its tokens, sessions, runs and keys. Return its remaining data.

    name: Name of the identity, as list_tokens shows it
    """
    return params_of(locals())


def add_webhook(
    self: Any, url: str, *, events: list[str] | None = None, skills: list[str] | None = None
) -> AddedWebhook:
    """Send events to a URL, as signed HTTP requests. Only this answer contains the secret.

    url: Target of the requests (e.g., 'https://hooks.example.org/skillery')
    events: Types of events; omit for all except run_failed, seal and audit
    skills: Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all
    """
    return params_of(locals())


def list_webhooks(self: Any) -> WebhookList:
    """List all webhooks, without their secrets."""
    return params_of(locals())


def test_webhook(self: Any, id: str) -> WebhookTest:
    """Send a message of the type test to a webhook now.

    id: The webhook's id
    """
    return params_of(locals())


def remove_webhook(self: Any, id: str) -> RemovedWebhook:
    """Remove a webhook, its waiting events and its dead letters.

    id: The webhook's id
    """
    return params_of(locals())


def list_dead_letters(self: Any, id: str, *, limit: int | None = None, cursor: str | None = None) -> DeadLetterPage:
    """List the events that a webhook did not accept in time, oldest first.

    id: The webhook's id
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    """
    return params_of(locals())


def add_trust_rule(
    self: Any,
    target: str,
    provider: Literal["github", "gitlab", "oidc"],
    *,
    issuer: str | None = None,
    repository: str | None = None,
    repository_id: str | None = None,
    owner_id: str | None = None,
    workflow: str | None = None,
    ref: str | None = None,
    environment: str | None = None,
    claims: Mapping[str, str] | None = None,
    kind: Literal["person", "agent"] | None = None,
) -> TrustRule:
    """Let CI jobs publish a skill or a namespace, without a stored token.

    target: The skill ('sales.report') or the namespace ('sales.*') that the jobs may publish
    provider: The CI service; oidc for another issuer
    issuer: Issuer of the tokens; omit for github.com and gitlab.com
    repository: Repository (e.g., 'acme/skills'), for github and gitlab
    repository_id: Number of the repository or project
    owner_id: Number of the owner (github) or group (gitlab)
    workflow: File of the workflow (e.g., 'release.yml'); for gitlab, default .gitlab-ci.yml
    ref: Branch or tag (e.g., 'refs/heads/main', 'refs/tags/*'); omit for all
    environment: Environment of the job; omit for all
    claims: Further claims that a token must have
    kind: Whose publishing rules apply to the jobs
    """
    return params_of(locals())


def list_trust_rules(self: Any) -> TrustRules:
    """List the trust rules for the namespaces of the caller."""
    return params_of(locals())


def remove_trust_rule(self: Any, id: str) -> RemovedTrustRule:
    """Remove a trust rule, and end the tokens that CI jobs got by it.

    id: The rule's id
    """
    return params_of(locals())


def list_audit(
    self: Any,
    *,
    identity: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    outcome: Literal["done", "refused", ""] | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    after: int | None = None,
) -> AuditPage:
    """List changes and refused attempts, newest first, or oldest first with `after`.

    identity: Only entries of this identity
    action: Only this action, usually the name of a method
    subject: Only this subject: a skill (with all its versions), name@version, or an id
    outcome: Only changes, or only refused attempts
    since: Only entries from this time on (e.g., '2026-11-22T09:30:00Z')
    until: Only entries before this time
    limit: Maximum number of results
    cursor: Pagination cursor from previous response
    after: Only entries behind the entry with this number, oldest first; 0 begins with the first entry
    """
    return params_of(locals())


class Methods:
    """Every method of the server."""

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None) -> Any:
        raise NotImplementedError

    list_skills = blocking(list_skills)
    describe_skill = blocking(describe_skill)
    read_skill_file = blocking(read_skill_file)
    execute_skill = blocking(execute_skill)
    run_code = blocking(run_code)
    create_blob = blocking(create_blob)
    read_blob = blocking(read_blob)
    load_skills_protocol_guide = blocking(load_skills_protocol_guide)
    call_tool = blocking(call_tool)
    delete_blob = blocking(delete_blob)
    create_skill = blocking(create_skill)
    check_skill = blocking(check_skill)
    develop_skill = blocking(develop_skill)
    keep_development = blocking(keep_development)
    end_development = blocking(end_development)
    approve_version = blocking(approve_version)
    reject_version = blocking(reject_version)
    search_skills = blocking(search_skills)
    diff_versions = blocking(diff_versions)
    submit_version = blocking(submit_version)
    deprecate_skill = blocking(deprecate_skill)
    undeprecate_skill = blocking(undeprecate_skill)
    set_visibility = blocking(set_visibility)
    yank_version = blocking(yank_version)
    unyank_version = blocking(unyank_version)
    list_versions = blocking(list_versions)
    list_dependents = blocking(list_dependents)
    purge_version = blocking(purge_version)
    recheck_version = blocking(recheck_version)
    waive_finding = blocking(waive_finding)
    list_waivers = blocking(list_waivers)
    revoke_waiver = blocking(revoke_waiver)
    set_label = blocking(set_label)
    rollback_label = blocking(rollback_label)
    remove_label = blocking(remove_label)
    list_labels = blocking(list_labels)
    resolve_skills = blocking(resolve_skills)
    verify_lock = blocking(verify_lock)
    list_attestations = blocking(list_attestations)
    add_attestation = blocking(add_attestation)
    end_attestation = blocking(end_attestation)
    explain_policy = blocking(explain_policy)
    start_evaluation = blocking(start_evaluation)
    cancel_evaluation = blocking(cancel_evaluation)
    get_evaluation = blocking(get_evaluation)
    read_transcript = blocking(read_transcript)
    list_evaluations = blocking(list_evaluations)
    list_keys = blocking(list_keys)
    add_key = blocking(add_key)
    revoke_key = blocking(revoke_key)
    list_seals = blocking(list_seals)
    get_run = blocking(get_run)
    read_run_log = blocking(read_run_log)
    list_runs = blocking(list_runs)
    cancel_run = blocking(cancel_run)
    compare_runs = blocking(compare_runs)
    get_run_statement = blocking(get_run_statement)
    list_tools = blocking(list_tools)
    define_tool = blocking(define_tool)
    remove_tool = blocking(remove_tool)
    create_workspace = blocking(create_workspace)
    list_workspaces = blocking(list_workspaces)
    describe_workspace = blocking(describe_workspace)
    read_workspace_file = blocking(read_workspace_file)
    reset_workspace = blocking(reset_workspace)
    delete_workspace = blocking(delete_workspace)
    list_environments = blocking(list_environments)
    describe_environment = blocking(describe_environment)
    rebuild_environment = blocking(rebuild_environment)
    describe_namespace = blocking(describe_namespace)
    set_namespace = blocking(set_namespace)
    list_skill_usage = blocking(list_skill_usage)
    list_failures = blocking(list_failures)
    get_incident = blocking(get_incident)
    get_activity = blocking(get_activity)
    list_searches = blocking(list_searches)
    list_reach = blocking(list_reach)
    get_usage = blocking(get_usage)
    collect_garbage = blocking(collect_garbage)
    add_hold = blocking(add_hold)
    list_holds = blocking(list_holds)
    remove_hold = blocking(remove_hold)
    create_token = blocking(create_token)
    list_tokens = blocking(list_tokens)
    rotate_token = blocking(rotate_token)
    revoke_token = blocking(revoke_token)
    revoke_identity = blocking(revoke_identity)
    add_webhook = blocking(add_webhook)
    list_webhooks = blocking(list_webhooks)
    test_webhook = blocking(test_webhook)
    remove_webhook = blocking(remove_webhook)
    list_dead_letters = blocking(list_dead_letters)
    add_trust_rule = blocking(add_trust_rule)
    list_trust_rules = blocking(list_trust_rules)
    remove_trust_rule = blocking(remove_trust_rule)
    list_audit = blocking(list_audit)


class AsyncMethods:
    """Every method of the server, awaited."""

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Any:
        raise NotImplementedError

    list_skills = awaited(list_skills)
    describe_skill = awaited(describe_skill)
    read_skill_file = awaited(read_skill_file)
    execute_skill = awaited(execute_skill)
    run_code = awaited(run_code)
    create_blob = awaited(create_blob)
    read_blob = awaited(read_blob)
    load_skills_protocol_guide = awaited(load_skills_protocol_guide)
    call_tool = awaited(call_tool)
    delete_blob = awaited(delete_blob)
    create_skill = awaited(create_skill)
    check_skill = awaited(check_skill)
    develop_skill = awaited(develop_skill)
    keep_development = awaited(keep_development)
    end_development = awaited(end_development)
    approve_version = awaited(approve_version)
    reject_version = awaited(reject_version)
    search_skills = awaited(search_skills)
    diff_versions = awaited(diff_versions)
    submit_version = awaited(submit_version)
    deprecate_skill = awaited(deprecate_skill)
    undeprecate_skill = awaited(undeprecate_skill)
    set_visibility = awaited(set_visibility)
    yank_version = awaited(yank_version)
    unyank_version = awaited(unyank_version)
    list_versions = awaited(list_versions)
    list_dependents = awaited(list_dependents)
    purge_version = awaited(purge_version)
    recheck_version = awaited(recheck_version)
    waive_finding = awaited(waive_finding)
    list_waivers = awaited(list_waivers)
    revoke_waiver = awaited(revoke_waiver)
    set_label = awaited(set_label)
    rollback_label = awaited(rollback_label)
    remove_label = awaited(remove_label)
    list_labels = awaited(list_labels)
    resolve_skills = awaited(resolve_skills)
    verify_lock = awaited(verify_lock)
    list_attestations = awaited(list_attestations)
    add_attestation = awaited(add_attestation)
    end_attestation = awaited(end_attestation)
    explain_policy = awaited(explain_policy)
    start_evaluation = awaited(start_evaluation)
    cancel_evaluation = awaited(cancel_evaluation)
    get_evaluation = awaited(get_evaluation)
    read_transcript = awaited(read_transcript)
    list_evaluations = awaited(list_evaluations)
    list_keys = awaited(list_keys)
    add_key = awaited(add_key)
    revoke_key = awaited(revoke_key)
    list_seals = awaited(list_seals)
    get_run = awaited(get_run)
    read_run_log = awaited(read_run_log)
    list_runs = awaited(list_runs)
    cancel_run = awaited(cancel_run)
    compare_runs = awaited(compare_runs)
    get_run_statement = awaited(get_run_statement)
    list_tools = awaited(list_tools)
    define_tool = awaited(define_tool)
    remove_tool = awaited(remove_tool)
    create_workspace = awaited(create_workspace)
    list_workspaces = awaited(list_workspaces)
    describe_workspace = awaited(describe_workspace)
    read_workspace_file = awaited(read_workspace_file)
    reset_workspace = awaited(reset_workspace)
    delete_workspace = awaited(delete_workspace)
    list_environments = awaited(list_environments)
    describe_environment = awaited(describe_environment)
    rebuild_environment = awaited(rebuild_environment)
    describe_namespace = awaited(describe_namespace)
    set_namespace = awaited(set_namespace)
    list_skill_usage = awaited(list_skill_usage)
    list_failures = awaited(list_failures)
    get_incident = awaited(get_incident)
    get_activity = awaited(get_activity)
    list_searches = awaited(list_searches)
    list_reach = awaited(list_reach)
    get_usage = awaited(get_usage)
    collect_garbage = awaited(collect_garbage)
    add_hold = awaited(add_hold)
    list_holds = awaited(list_holds)
    remove_hold = awaited(remove_hold)
    create_token = awaited(create_token)
    list_tokens = awaited(list_tokens)
    rotate_token = awaited(rotate_token)
    revoke_token = awaited(revoke_token)
    revoke_identity = awaited(revoke_identity)
    add_webhook = awaited(add_webhook)
    list_webhooks = awaited(list_webhooks)
    test_webhook = awaited(test_webhook)
    remove_webhook = awaited(remove_webhook)
    list_dead_letters = awaited(list_dead_letters)
    add_trust_rule = awaited(add_trust_rule)
    list_trust_rules = awaited(list_trust_rules)
    remove_trust_rule = awaited(remove_trust_rule)
    list_audit = awaited(list_audit)


class BatchMethods:
    """Every method, in a batch."""

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> "Pending[Any]":
        raise NotImplementedError

    list_skills = batched(list_skills)
    describe_skill = batched(describe_skill)
    read_skill_file = batched(read_skill_file)
    execute_skill = batched(execute_skill)
    run_code = batched(run_code)
    create_blob = batched(create_blob)
    read_blob = batched(read_blob)
    load_skills_protocol_guide = batched(load_skills_protocol_guide)
    call_tool = batched(call_tool)
    delete_blob = batched(delete_blob)
    create_skill = batched(create_skill)
    check_skill = batched(check_skill)
    develop_skill = batched(develop_skill)
    keep_development = batched(keep_development)
    end_development = batched(end_development)
    approve_version = batched(approve_version)
    reject_version = batched(reject_version)
    search_skills = batched(search_skills)
    diff_versions = batched(diff_versions)
    submit_version = batched(submit_version)
    deprecate_skill = batched(deprecate_skill)
    undeprecate_skill = batched(undeprecate_skill)
    set_visibility = batched(set_visibility)
    yank_version = batched(yank_version)
    unyank_version = batched(unyank_version)
    list_versions = batched(list_versions)
    list_dependents = batched(list_dependents)
    purge_version = batched(purge_version)
    recheck_version = batched(recheck_version)
    waive_finding = batched(waive_finding)
    list_waivers = batched(list_waivers)
    revoke_waiver = batched(revoke_waiver)
    set_label = batched(set_label)
    rollback_label = batched(rollback_label)
    remove_label = batched(remove_label)
    list_labels = batched(list_labels)
    resolve_skills = batched(resolve_skills)
    verify_lock = batched(verify_lock)
    list_attestations = batched(list_attestations)
    add_attestation = batched(add_attestation)
    end_attestation = batched(end_attestation)
    explain_policy = batched(explain_policy)
    start_evaluation = batched(start_evaluation)
    cancel_evaluation = batched(cancel_evaluation)
    get_evaluation = batched(get_evaluation)
    read_transcript = batched(read_transcript)
    list_evaluations = batched(list_evaluations)
    list_keys = batched(list_keys)
    add_key = batched(add_key)
    revoke_key = batched(revoke_key)
    list_seals = batched(list_seals)
    get_run = batched(get_run)
    read_run_log = batched(read_run_log)
    list_runs = batched(list_runs)
    cancel_run = batched(cancel_run)
    compare_runs = batched(compare_runs)
    get_run_statement = batched(get_run_statement)
    list_tools = batched(list_tools)
    define_tool = batched(define_tool)
    remove_tool = batched(remove_tool)
    create_workspace = batched(create_workspace)
    list_workspaces = batched(list_workspaces)
    describe_workspace = batched(describe_workspace)
    read_workspace_file = batched(read_workspace_file)
    reset_workspace = batched(reset_workspace)
    delete_workspace = batched(delete_workspace)
    list_environments = batched(list_environments)
    describe_environment = batched(describe_environment)
    rebuild_environment = batched(rebuild_environment)
    describe_namespace = batched(describe_namespace)
    set_namespace = batched(set_namespace)
    list_skill_usage = batched(list_skill_usage)
    list_failures = batched(list_failures)
    get_incident = batched(get_incident)
    get_activity = batched(get_activity)
    list_searches = batched(list_searches)
    list_reach = batched(list_reach)
    get_usage = batched(get_usage)
    collect_garbage = batched(collect_garbage)
    add_hold = batched(add_hold)
    list_holds = batched(list_holds)
    remove_hold = batched(remove_hold)
    create_token = batched(create_token)
    list_tokens = batched(list_tokens)
    rotate_token = batched(rotate_token)
    revoke_token = batched(revoke_token)
    revoke_identity = batched(revoke_identity)
    add_webhook = batched(add_webhook)
    list_webhooks = batched(list_webhooks)
    test_webhook = batched(test_webhook)
    remove_webhook = batched(remove_webhook)
    list_dead_letters = batched(list_dead_letters)
    add_trust_rule = batched(add_trust_rule)
    list_trust_rules = batched(list_trust_rules)
    remove_trust_rule = batched(remove_trust_rule)
    list_audit = batched(list_audit)
