"""What each method answers, for the OpenRPC document: described here where the core answers JSON as it was stored, or
an object put together on the way. Whatever stands in an answer stands here; tests/api/test_openrpc.py compares them."""

from __future__ import annotations

import typing
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from skillery.api.rpc.answer import Answer, Cursor, Object, WhoDid
from skillery.api.rpc.methods import Method
from skillery.api.rpc.run_results import ListedRuns, OfferedTools, Run, RunRecord, ToolResult
from skillery.contents.blobs import NewBlob
from skillery.formats.permissions import PermissionsDiff
from skillery.identity.quotas import Used
from skillery.identity.tokens import Token
from skillery.maintenance.garbage.collector import Swept
from skillery.registry import CheckedExample, CheckFinding, Waiver
from skillery.registry.audit_trail import AuditEntry
from skillery.registry.locks import Locked
from skillery.registry.usage import Usage

Kind = Literal["action", "instruction"]
Status = Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected"]
Encoding = Literal["utf-8", "base64"]


# -- skills ------------------------------------------------------------------------------------------------------------


class ListedSkill(Answer):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    tags: Annotated[list[str] | UnsetType, Meta(description="With detail 'summary'")] = UNSET
    inputs: Annotated[Object | UnsetType, Meta(description="With detail 'summary'")] = UNSET
    tools: Annotated[list[Any] | UnsetType, Meta(description="With detail 'summary'")] = UNSET


class ListedSkills(Answer):
    """A page of skills, sorted by the bytes of (namespace, name)."""

    skills: list[ListedSkill]
    next_cursor: Cursor


class FoundSkill(Answer):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    tags: list[str]
    inputs: Object
    tools: list[Any]
    score: float
    snippet: str
    copies: int


class FoundSkills(Answer):
    """A page of what was found, the best first."""

    skills: list[FoundSkill]
    next_cursor: Cursor


class Approval(Answer):
    """Who approved a version."""

    by: str
    kind: str
    at: str
    digest: str
    note: str


class Objection(Answer):
    """Who rejected or yanked a version, and why."""

    by: str
    kind: str
    at: str
    reason: str


class Deprecation(Answer):
    """What is said of a skill that another should be used for."""

    message: str
    successor: str | None


class DescribedFile(Answer):
    """A file of a bundle."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool


class SkillDescription(Answer):
    """A version of a skill."""

    name: str
    version: str
    kind: Kind
    digest: str
    status: Status
    visibility: Literal["public", "namespace", "private"]
    warnings: list[str]
    manifest: Annotated[Object, Meta(description="skill.toml as JSON")]
    approval: Approval | UnsetType = UNSET
    rejected: Objection | UnsetType = UNSET
    yanked: Objection | UnsetType = UNSET
    deprecated: Deprecation | UnsetType = UNSET
    labels: Annotated[list[str] | UnsetType, Meta(description="From detail 'summary' on")] = UNSET
    skill_md_frontmatter: Annotated[Object | UnsetType, Meta(description="From detail 'summary' on")] = UNSET
    usage: Usage | UnsetType = UNSET
    verified: Annotated[bool | UnsetType, Meta(description="From detail 'summary' on")] = UNSET
    examples: list[CheckedExample] | UnsetType = UNSET
    findings: list[CheckFinding] | UnsetType = UNSET
    permissions_diff: PermissionsDiff | UnsetType = UNSET
    skill_md: Annotated[str | UnsetType, Meta(description="With detail 'full'")] = UNSET
    files: Annotated[list[DescribedFile] | UnsetType, Meta(description="With detail 'full'")] = UNSET


class DescribedSkill(Answer):
    """What describe_skill answers."""

    skill: SkillDescription


class FileContent(Answer):
    """A file of a skill."""

    content: str
    encoding: Encoding


class Guide(Answer):
    """The guide, in Markdown."""

    content: str


class ListedVersion(Answer):
    """A version of a skill."""

    name: str
    version: str
    status: Status
    digest: str
    kind: Kind
    publisher: WhoDid
    created_at: datetime
    size_bytes: int


class ListedVersions(Answer):
    """A page of versions, the one published last first."""

    versions: list[ListedVersion]
    next_cursor: Cursor


class PresentLabel(Answer):
    """Where a label points now, and who said so."""

    label: str
    version: str
    digest: str
    status: str
    by: str
    kind: str
    at: str


class LabelMove(Answer):
    """A move of a label."""

    label: str
    move: str
    version: str | None
    digest: str | None
    previous: str | None
    by: str
    kind: str
    at: str


class Labels(Answer):
    """The labels of a skill, and a page of their moves, newest first."""

    name: str
    labels: list[PresentLabel]
    history: list[LabelMove]
    next_cursor: Cursor


class Lock(Answer):
    """Exact versions."""

    lock: list[Locked]


class Waivers(Answer):
    """A page of waivers, newest first."""

    waivers: list[Waiver]
    next_cursor: Cursor


# -- blobs, usage, administration --------------------------------------------------------------------------------


class BlobContent(Answer):
    """What is shown of a blob."""

    content: str
    encoding: Encoding
    truncated: bool
    kind: str
    size_bytes: int
    expires_at: datetime | UnsetType = UNSET


class DeletedBlob(Answer):
    """A blob that is gone."""

    blob_id: str
    size_bytes: int


class NamespaceUsage(Answer):
    """How much a namespace and all below it uses."""

    namespace: str
    bundle_bytes: Used


class UsageOfIdentity(Answer):
    """How much is used, and how much may be."""

    identity: str
    blobs: Used
    blob_bytes: Used
    runs_per_minute: Used
    concurrent_runs: Used
    session_tools: Used
    namespaces: list[NamespaceUsage]


class Garbage(Answer):
    """What a sweep removed, by step."""

    dry_run: bool
    removed: dict[str, Swept]


class Tokens(Answer):
    """Every token that there has ever been."""

    tokens: list[Token]


class AuditEntries(Answer):
    """A page of the audit trail, newest first."""

    entries: list[AuditEntry]
    next_cursor: Cursor


_DESCRIBED: dict[str, Any] = {
    "rpc.discover": Object,
    "list_skills": ListedSkills,
    "describe_skill": DescribedSkill,
    "read_skill_file": FileContent,
    "execute_skill": Run,
    "run_code": Run,
    "create_blob": NewBlob,
    "read_blob": BlobContent,
    "load_skills_protocol_guide": Guide,
    "list_versions": ListedVersions,
    "list_tools": OfferedTools,
    "call_tool": ToolResult,
    "get_run": RunRecord,
    "list_runs": ListedRuns,
    "cancel_run": RunRecord,
    "list_labels": Labels,
    "resolve_skills": Lock,
    "search_skills": FoundSkills,
    "list_waivers": Waivers,
    "delete_blob": DeletedBlob,
    "get_usage": UsageOfIdentity,
    "collect_garbage": Garbage,
    "list_tokens": Tokens,
    "list_audit": AuditEntries,
}


def result_of(name: str, method: Method) -> Any:
    """The type of what a method answers; Any where nobody has said."""
    return _DESCRIBED.get(name) or typing.get_type_hints(method.call)["return"]
