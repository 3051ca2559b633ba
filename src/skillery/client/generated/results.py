"""Made by `make client`: do not edit."""

from typing import Any, Literal, NotRequired, TypedDict

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
    runs_30d: int
    """Ended runs of the skill in the last 30 days."""
    success_rate_30d: float | None
    """Completed runs divided by completed and failed runs; null without any."""
    deprecated: Deprecation | None


class SkillRow(TypedDict):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Literal["action", "instruction"]
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


class SkillLock(TypedDict):
    """The locked packages of a skill with dependencies."""

    sha256: str
    packages: list[SkillPackage] | None
    """null below detail 'full' if the lock is large."""
    environments: list[EnvironmentState]


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
    """The part of a waiver that is shown with the waived finding."""

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
    """Permissions in the notation of a manifest."""

    network: list[str]
    secrets: list[str]
    workspace: NotRequired[bool]


class PermissionsDiff(TypedDict):
    """The permissions that a version adds and removes. `against` is the other version, or None for a first version."""

    against: str | None
    added: PermissionNames
    removed: PermissionNames


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
    provenance: NotRequired[Provenance]
    """From detail 'summary' on, if a CI job published it."""
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


class DeletedBlob(TypedDict):
    """A deleted blob."""

    blob_id: str
    size_bytes: int


class CreatedSkill(TypedDict):
    """The answer of `create_skill`. `warnings` are those of `check_skill`, with its findings."""

    name: str
    version: str
    digest: str
    status: str
    warnings: list[str]


class CheckedSkill(TypedDict):
    """The result of `check_skill`. `ok` says whether the version could be published, `status` which status it would get."""

    ok: bool
    name: str
    version: str
    digest: str
    status: str
    warnings: list[str]
    findings: list[CheckFinding]
    examples: list[CheckedExample]
    permissions_diff: PermissionsDiff


class NewVersion(TypedDict):
    """The answer of `create_skill` and of each step of a version."""

    name: str
    version: str
    digest: str
    status: str


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


class FoundSkill(TypedDict):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    kind: Literal["action", "instruction"]
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


class DiffSide(TypedDict):
    """One of the two versions. `digest` is empty for a folder that is not published."""

    name: str
    version: str
    digest: str
    provenance: dict[str, str] | None
    """The CI job that published the version."""


class ManifestChange(TypedDict):
    """A value of the manifest that differs. `old` and `new` are its JSON, cut if long; null if there is no value."""

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


class VersionsDiff(TypedDict):
    """Two versions compared. `instructions` is the change of SKILL.md. `left_out` counts further changes."""

    same: bool
    old: DiffSide
    new: DiffSide
    permissions: PermissionsDiff
    manifest: list[ManifestChange]
    instructions: FileChange | None
    files: list[FileChange]
    left_out: int


class Who(TypedDict):
    """An identity."""

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


class PurgedVersion(TypedDict):
    """A purged version. Its number stays taken, and its digest stays known."""

    name: str
    version: str
    digest: str
    status: Literal["purged"]
    deleted_contents: int
    deleted_bytes: int
    kept_files: list[str]


class RecheckedVersion(TypedDict):
    """The findings of a version after a recheck. `new` are those that the version did not have before."""

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


class Lock(TypedDict):
    """A lock of skills: exact versions with their digests."""

    lock: list[Locked]


class LockProblem(TypedDict):
    name: str
    version: str
    problem: (
        Literal["gone", "yanked", "rejected", "purged", "digest_changed", "two_versions", "invalid"]
        | Literal["deprecated", "not_published"]
    )
    message: str


class Verified(TypedDict):
    """The result of verify_lock. `ok` is true if `problems` is empty; `warnings` do not matter."""

    ok: bool
    problems: list[LockProblem]
    warnings: list[LockProblem]


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
    identity: Who
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


class RunRow(TypedDict):
    """A run in a list."""

    run_id: str
    status: Literal["queued", "started", "completed", "failed"]
    method: str
    tool: str | None
    skill: ExactSkill | None
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


class ShownProgress(TypedDict):
    step: str
    done: int
    total: int


class LockedPackage(TypedDict):
    name: str
    version: str


class ShownLock(TypedDict):
    sha256: str
    packages: list[LockedPackage] | None


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


class Used(TypedDict):
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


class Tokens(TypedDict):
    """Every token that was ever created, oldest first."""

    tokens: list[Token]


class LeftBehind(TypedDict):
    """What an identity leaves. Each list has at most 1,000 entries. Versions are `name@version`."""

    published: list[str]
    approved: list[str]
    in_review: list[str]
    skills: list[str]
    workspaces: list[str]
    trust_rules: list[str]
    webhooks: list[str]
    tokens: list[str]


class RevokedIdentity(TypedDict):
    """What `revoke_identity` has ended, and what the identity leaves."""

    name: str
    tokens: list[str]
    sessions: int
    runs: list[str]
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
    """A page of the audit trail, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None
    """For the next page; null on the last page."""


__all__ = [
    "AddedWebhook",
    "Approval",
    "AuditEntry",
    "AuditPage",
    "BlobContent",
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
    "Deprecation",
    "DescribedEnvironment",
    "DescribedSkill",
    "DescribedWorkspace",
    "DevelopedSkill",
    "DiffSide",
    "Environment",
    "EnvironmentPage",
    "EnvironmentState",
    "ExactSkill",
    "FacetValue",
    "Facets",
    "FileChange",
    "FileFacts",
    "FoundSkill",
    "FoundSkillPage",
    "Garbage",
    "GivenEnvironment",
    "Guide",
    "IdentityKind",
    "IdentityUse",
    "KeptSkills",
    "Kind",
    "Label",
    "LabelMove",
    "Labels",
    "LeftBehind",
    "ListedVersion",
    "Lock",
    "LockProblem",
    "Locked",
    "LockedPackage",
    "ManifestChange",
    "MovedLabel",
    "NamespaceUse",
    "NetworkUse",
    "NewBlob",
    "NewVersion",
    "Objection",
    "OnServer",
    "OutputFile",
    "PermissionNames",
    "PermissionsDiff",
    "Progress",
    "Provenance",
    "PurgedVersion",
    "RecheckedVersion",
    "RemovedTrustRule",
    "RemovedWebhook",
    "RevokedIdentity",
    "Run",
    "RunError",
    "RunLog",
    "RunPage",
    "RunRecord",
    "RunRow",
    "RunStatus",
    "RunUse",
    "ShownLock",
    "ShownProgress",
    "ShownRebuild",
    "Skill",
    "SkillFileContent",
    "SkillFileEntry",
    "SkillLock",
    "SkillPackage",
    "SkillPage",
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
    "TrustRule",
    "TrustRules",
    "Usage",
    "Used",
    "Verified",
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
