"""What methods answer, for type checkers: the JSON objects as they come, and nothing is lost of what a newer server
adds. docs/reference/methods.md says what the fields mean."""

from typing import Any, Literal, NotRequired, TypedDict

Kind = Literal["action", "instruction"]
IdentityKind = Literal["person", "agent"]
Status = Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected"]
RunStatus = Literal["queued", "started", "completed", "failed"]


class Who(TypedDict):
    name: str
    kind: str


class ExactSkill(TypedDict):
    name: str
    version: str
    digest: str


# -- skills ------------------------------------------------------------------------------------------------------


class SkillRow(TypedDict):
    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    tags: NotRequired[list[str]]
    """From here on with `detail: "summary"`."""
    inputs: NotRequired[dict[str, Any]]
    tools: NotRequired[list[str]]


class SkillPage(TypedDict):
    skills: list[SkillRow]
    next_cursor: str | None


class FoundSkill(SkillRow):
    score: float
    snippet: str
    copies: int


class FoundSkillPage(TypedDict):
    skills: list[FoundSkill]
    next_cursor: str | None


class SkillFileEntry(TypedDict):
    path: str
    size_bytes: int
    sha256: str
    executable: bool


class Usage(TypedDict):
    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    p50_ms: float | None
    p95_ms: float | None
    last_run_at: str | None


class WaiverNote(TypedDict):
    id: str
    by: str
    kind: str
    at: str
    reason: str
    until: str | None


class Finding(TypedDict):
    rule: str
    message: str
    severity: Literal["error", "warning", "info"]
    file: str | None
    line: int | None
    waiver: WaiverNote | None


class Example(TypedDict):
    name: str
    status: Literal["passed", "failed", "waiting", "not_run"]
    run_id: NotRequired[str]
    duration_ms: NotRequired[float]


class PermissionNames(TypedDict):
    network: list[str]
    secrets: list[str]


class PermissionsDiff(TypedDict):
    against: str | None
    added: PermissionNames
    removed: PermissionNames


class Step(TypedDict):
    by: str
    kind: str
    at: str
    digest: NotRequired[str]
    note: NotRequired[str]
    reason: NotRequired[str]


class Deprecation(TypedDict):
    message: str
    successor: str | None


class LockedPackage(TypedDict):
    name: str
    version: str


class EnvironmentState(TypedDict):
    """Of one server."""

    state: Literal["building", "ready", "failed"]
    message: NotRequired[str]
    step: NotRequired[str]
    """Of one that is being built: what it is at, and how many packages are there of how many."""
    done: NotRequired[int]
    total: NotRequired[int]


class SkillLock(TypedDict):
    """The packages of a skill that declares some."""

    sha256: str
    packages: list[LockedPackage] | None
    """None below `detail: "full"` where the lock is large."""
    environments: list[EnvironmentState]


class Skill(TypedDict):
    name: str
    version: str
    kind: Kind
    digest: str
    status: Status
    visibility: Literal["public", "namespace", "private"]
    warnings: list[str]
    manifest: dict[str, Any]
    lock: NotRequired[SkillLock]
    approval: NotRequired[Step]
    rejected: NotRequired[Step]
    yanked: NotRequired[Step]
    deprecated: NotRequired[Deprecation]
    labels: NotRequired[list[str]]
    """From here on with `detail: "summary"`."""
    skill_md_frontmatter: NotRequired[dict[str, Any]]
    usage: NotRequired[Usage]
    verified: NotRequired[bool]
    examples: NotRequired[list[Example]]
    findings: NotRequired[list[Finding]]
    permissions_diff: NotRequired[PermissionsDiff]
    skill_md: NotRequired[str]
    """From here on with `detail: "full"`."""
    files: NotRequired[list[SkillFileEntry]]


class DescribedSkill(TypedDict):
    skill: Skill


class SkillFileContent(TypedDict):
    content: str
    encoding: Literal["utf-8", "base64"]


class Guide(TypedDict):
    content: str


class SkillVersion(TypedDict):
    """What becomes of a version."""

    name: str
    version: str
    digest: str
    status: Status


class CheckedSkill(SkillVersion):
    ok: bool
    warnings: list[str]
    findings: list[Finding]
    examples: list[Example]
    permissions_diff: PermissionsDiff


class VersionRow(SkillVersion):
    kind: Kind
    publisher: Who
    created_at: str
    size_bytes: int


class VersionPage(TypedDict):
    versions: list[VersionRow]
    next_cursor: str | None


class Waiver(TypedDict):
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
    waivers: list[Waiver]
    next_cursor: str | None


# -- runs and blobs ----------------------------------------------------------------------------------------------


class RunError(TypedDict):
    type: str
    message: str
    traceback: NotRequired[str]


class HostUse(TypedDict):
    host: str
    port: int
    allowed: bool
    reason: str
    connections: int
    bytes_out: int
    bytes_in: int


class OutputFile(TypedDict):
    """A blob that a run wrote and has a name for: a path below /workspace/out, or the name of a picture."""

    path: str
    blob_id: str
    kind: str
    size_bytes: int


class GivenEnvironment(TypedDict):
    name: str
    lock: str | None


class Run(TypedDict):
    """A run that failed is an answer and no exception: look at `status`."""

    status: RunStatus
    run_id: str
    summary: str | None
    output: Any
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float | None
    error: NotRequired[RunError]
    skill: NotRequired[ExactSkill]
    logs_blob: NotRequired[str | None]
    environment: NotRequired[GivenEnvironment]
    waited_for_packages_ms: NotRequired[float]
    degraded: NotRequired[list[str]]
    network: NotRequired[list[HostUse]]
    files: NotRequired[list[OutputFile]]


class RunRecord(Run):
    method: str
    identity: Who
    parent_run_id: str | None
    started_at: str | None
    finished_at: str | None
    limits: dict[str, Any]
    tool: NotRequired[str | None]
    """Of a skill, where the run was a call of one."""
    cancel_requested_at: NotRequired[str]


class RunRow(TypedDict):
    run_id: str
    status: RunStatus
    method: str
    skill: ExactSkill | None
    summary: str | None
    error_type: str | None
    tool: NotRequired[str | None]
    identity: Who
    parent_run_id: str | None
    started_at: str | None
    finished_at: str | None
    duration_ms: float | None


class RunPage(TypedDict):
    runs: list[RunRow]
    next_cursor: str | None


class NewBlob(TypedDict):
    blob_id: str
    size_bytes: int
    expires_at: NotRequired[str]
    """Left out where it is kept until somebody deletes it."""


class BlobContent(TypedDict):
    content: str
    encoding: Literal["utf-8", "base64"]
    truncated: bool
    kind: str
    size_bytes: int
    expires_at: NotRequired[str]


class DeletedBlob(TypedDict):
    blob_id: str
    size_bytes: int


# -- tools of skills ---------------------------------------------------------------------------------------------


class ToolRow(TypedDict):
    name: str
    skill: str | None
    """None where it lives in a session of one's own."""
    version: str | None
    description: str
    parameters: dict[str, Any]
    """As the skill declares them."""


class ToolPage(TypedDict):
    tools: list[ToolRow]
    next_cursor: str | None


class ToolAnswer(TypedDict):
    """A tool that failed is an answer and no exception: look at `is_error`."""

    result: Any
    is_error: bool
    skill: ExactSkill | None
    run_id: str | None
    """None where there was nothing to run."""
    logs_preview: str
    output_blobs: list[str]
    files: NotRequired[list[OutputFile]]
    environment: NotRequired[GivenEnvironment]


class DefinedTool(TypedDict):
    name: str
    skill: str | None
    version: str | None
    status: str


# -- labels and locks --------------------------------------------------------------------------------------------


class MovedLabel(TypedDict):
    name: str
    label: str
    version: str | None
    status: str | None
    digest: str | None
    previous: str | None


class Label(TypedDict):
    label: str
    version: str
    digest: str
    status: str
    by: str
    kind: str
    at: str


class LabelMove(TypedDict):
    label: str
    move: Literal["set", "rollback", "remove"]
    version: str | None
    digest: str | None
    previous: str | None
    by: str
    kind: str
    at: str


class Labels(TypedDict):
    name: str
    labels: list[Label]
    history: list[LabelMove]
    next_cursor: str | None


class Locked(ExactSkill):
    status: str


class Lock(TypedDict):
    lock: list[Locked]


class LockProblem(TypedDict):
    name: str
    version: str
    problem: str
    message: str


class VerifiedLock(TypedDict):
    ok: bool
    problems: list[LockProblem]
    warnings: list[LockProblem]


# -- administration ----------------------------------------------------------------------------------------------


class Used(TypedDict):
    used: int | None
    limit: int | None


class NamespaceUse(TypedDict):
    namespace: str
    bundle_bytes: Used


class IdentityUse(TypedDict):
    identity: str
    blobs: Used
    blob_bytes: Used
    runs_per_minute: Used
    concurrent_runs: Used
    session_tools: NotRequired[Used]
    namespaces: list[NamespaceUse]


class Removed(TypedDict):
    count: int
    bytes: int


class EnvironmentLock(TypedDict):
    sha256: str
    packages: list[LockedPackage] | None


class BuildProgress(TypedDict):
    step: str
    done: int
    total: int


class EnvironmentOnServer(TypedDict):
    state: Literal["building", "ready", "failed"]
    message: str
    size_bytes: int
    changed_at: str | None
    here: bool
    progress: BuildProgress | None


class EnvironmentRebuild(TypedDict):
    state: Literal["running", "done", "failed"]
    message: str
    by: str
    began_at: str | None
    ended_at: str | None


class WarmProcess(TypedDict):
    state: Literal["starting", "ready", "failed"]
    memory_mb: float
    message: str


class Environment(TypedDict):
    name: str | None
    description: str
    default: bool
    dependencies: list[str]
    preload: list[str]
    state: Literal["pending", "building", "ready", "failed"]
    message: str
    progress: BuildProgress | None
    lock: EnvironmentLock | None
    size_bytes: int | None
    servers: list[EnvironmentOnServer]
    rebuild: EnvironmentRebuild | None
    warm: WarmProcess | None


class VersionWithLock(TypedDict):
    name: str
    version: str
    status: str


class DescribedEnvironment(Environment):
    used_at: str | None
    versions: list[VersionWithLock]


class EnvironmentPage(TypedDict):
    environments: list[Environment]
    next_cursor: str | None


class Sweep(TypedDict):
    dry_run: bool
    removed: dict[str, Removed]


class NewToken(TypedDict):
    token: str
    """Shown here and never again."""
    id: str
    name: str
    kind: IdentityKind
    scopes: list[str]
    namespaces: list[str]
    created_at: str
    created_by: str
    expires_at: str | None


class Token(TypedDict):
    id: str
    name: str
    kind: IdentityKind
    scopes: list[str]
    namespaces: list[str]
    status: Literal["live", "expired", "revoked"]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class Tokens(TypedDict):
    tokens: list[Token]


class AuditEntry(TypedDict):
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
    entries: list[AuditEntry]
    next_cursor: str | None
