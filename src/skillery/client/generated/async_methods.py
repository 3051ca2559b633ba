"""Made by `make client`: do not edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from skillery.client.blobs import Source
from skillery.client.generated.results import (
    AddedWebhook,
    AuditPage,
    BlobContent,
    CheckedSkill,
    CreatedSkill,
    CreatedToken,
    DeadLetterPage,
    DefinedTool,
    DeletedBlob,
    DeletedWorkspace,
    DescribedEnvironment,
    DescribedSkill,
    DescribedWorkspace,
    DevelopedSkill,
    EnvironmentPage,
    FoundSkillPage,
    Garbage,
    Guide,
    IdentityUse,
    KeptSkills,
    Labels,
    Lock,
    Locked,
    MovedLabel,
    NewBlob,
    NewVersion,
    PurgedVersion,
    RecheckedVersion,
    RemovedTrustRule,
    RemovedWebhook,
    RevokedIdentity,
    Run,
    RunLog,
    RunPage,
    RunRecord,
    SkillFileContent,
    SkillPage,
    SkillUsagePage,
    Token,
    Tokens,
    ToolPage,
    ToolResult,
    TrustRule,
    TrustRules,
    Verified,
    VersionPage,
    VersionsDiff,
    Waiver,
    WaiverPage,
    WebhookList,
    WebhookTest,
    WorkspaceFileContent,
    WorkspaceInfo,
    WorkspacePage,
)
from skillery.client.generated.values import RunFile, SkillFile


class AsyncMethods:
    """Every method of the server, awaited."""

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Any:
        raise NotImplementedError

    async def list_skills(
        self,
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
        counts: Add the number of matching skills, in all and by value of each filter
        catalogue: Add facts and usage to each skill
        status: Only versions with this status; omit for latest versions, published or deprecated
        sort: Order: by name, by publication, or by runs
        """
        answer: SkillPage = await self.call(
            "list_skills",
            {
                "namespace": namespace,
                "detail": detail,
                "limit": limit,
                "cursor": cursor,
                "kind": kind,
                "tags": tags,
                "language": language,
                "verified": verified,
                "network": network,
                "secrets": secrets,
                "counts": counts,
                "catalogue": catalogue,
                "status": status,
                "sort": sort,
            },
        )
        return answer

    async def describe_skill(
        self, name: str, *, version: str | None = None, detail: Literal["manifest", "summary", "full"] | None = None
    ) -> DescribedSkill:
        """Retrieve a skill's manifest and documentation frontmatter.

        name: Skill name (e.g., 'salesforce.leads.sync')
        version: Skill version (omit for latest)
        detail: Level of detail to return
        """
        answer: DescribedSkill = await self.call("describe_skill", {"name": name, "version": version, "detail": detail})
        return answer

    async def read_skill_file(self, name: str, path: str, *, version: str | None = None) -> SkillFileContent:
        """Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas).

        name: Skill name
        version: Skill version (omit for latest)
        path: Path to file within skill directory (e.g., 'SKILL.md')
        """
        answer: SkillFileContent = await self.call("read_skill_file", {"name": name, "version": version, "path": path})
        return answer

    async def execute_skill(
        self,
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
        files: Sequence[RunFile] | Mapping[str, Source] | None = None,
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
        answer: Run = await self.call(
            "execute_skill",
            {
                "name": name,
                "version": version,
                "args": args,
                "input_blobs": input_blobs,
                "timeout_ms": timeout_ms,
                "script": script,
                "environment": environment,
                "module": module,
                "cwd": cwd,
                "files": files,
                "outputs": outputs,
                "workspace": workspace,
                "workspace_mode": workspace_mode,
                "background": background,
            },
            idempotency_key=idempotency_key,
        )
        return answer

    async def run_code(
        self,
        language: Literal["python", "javascript", "bash"],
        code: str,
        *,
        entrypoint: str | None = None,
        args: Mapping[str, Any] | None = None,
        mount_skills: list[str] | None = None,
        input_blobs: list[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        files: Sequence[RunFile] | Mapping[str, Source] | None = None,
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
        answer: Run = await self.call(
            "run_code",
            {
                "language": language,
                "code": code,
                "entrypoint": entrypoint,
                "args": args,
                "mount_skills": mount_skills,
                "input_blobs": input_blobs,
                "limits": limits,
                "files": files,
                "outputs": outputs,
                "workspace": workspace,
                "workspace_mode": workspace_mode,
                "environment": environment,
                "background": background,
            },
            idempotency_key=idempotency_key,
        )
        return answer

    async def create_blob(
        self,
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
        answer: NewBlob = await self.call(
            "create_blob",
            {"content": content, "kind": kind, "encoding": encoding, "ttl": ttl},
            idempotency_key=idempotency_key,
        )
        return answer

    async def read_blob(
        self,
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
        answer: BlobContent = await self.call("read_blob", {"blob_id": blob_id, "mode": mode, "max_bytes": max_bytes})
        return answer

    async def load_skills_protocol_guide(self) -> Guide:
        """Load the Skills Protocol Guide to learn how to use these tools. Call this first if you haven't read the guide yet."""
        answer: Guide = await self.call("load_skills_protocol_guide", {})
        return answer

    async def call_tool(
        self,
        name: str,
        *,
        args: Mapping[str, Any] | None = None,
        skill: str | None = None,
        version: str | None = None,
        timeout_ms: int | None = None,
        input_blobs: list[str] | None = None,
        files: Sequence[RunFile] | Mapping[str, Source] | None = None,
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
        answer: ToolResult = await self.call(
            "call_tool",
            {
                "name": name,
                "args": args,
                "skill": skill,
                "version": version,
                "timeout_ms": timeout_ms,
                "input_blobs": input_blobs,
                "files": files,
                "outputs": outputs,
                "workspace": workspace,
                "workspace_mode": workspace_mode,
                "session": session,
                "environment": environment,
                "background": background,
            },
            idempotency_key=idempotency_key,
        )
        return answer

    async def delete_blob(self, blob_id: str) -> DeletedBlob:
        """Delete a blob of the caller. Admins may delete any blob.

        blob_id: Blob identifier
        """
        answer: DeletedBlob = await self.call("delete_blob", {"blob_id": blob_id})
        return answer

    async def create_skill(
        self,
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
        answer: CreatedSkill = await self.call(
            "create_skill",
            {"manifest": manifest, "skill_md": skill_md, "files": files, "submit": submit},
            idempotency_key=idempotency_key,
        )
        return answer

    async def check_skill(
        self,
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
        answer: CheckedSkill = await self.call(
            "check_skill", {"manifest": manifest, "skill_md": skill_md, "files": files, "submit": submit}
        )
        return answer

    async def approve_version(
        self, name: str, version: str, *, digest: str | None = None, note: str | None = None
    ) -> NewVersion:
        """Publish a version that is in review.

        name: Skill name
        version: Exact version
        digest: Digest of the reviewed bundle: an approval of another digest is refused
        note: Recorded with the approval
        """
        answer: NewVersion = await self.call(
            "approve_version", {"name": name, "version": version, "digest": digest, "note": note}
        )
        return answer

    async def develop_skill(
        self, manifest: Mapping[str, Any], skill_md: str, *, files: Sequence[SkillFile] | None = None
    ) -> DevelopedSkill:
        """Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything.

        manifest: skill.toml as JSON: name, version, description, and further declarations
        skill_md: SKILL.md: markdown for the LLM, with YAML frontmatter at the top
        files: Code and resources of the skill
        """
        answer: DevelopedSkill = await self.call(
            "develop_skill", {"manifest": manifest, "skill_md": skill_md, "files": files}
        )
        return answer

    async def keep_development(self, names: list[str]) -> KeptSkills:
        """Keep serving development versions, which end 30 seconds after the last call.

        names: Names of the skills
        """
        answer: KeptSkills = await self.call("keep_development", {"names": names})
        return answer

    async def end_development(self, names: list[str]) -> KeptSkills:
        """Stop serving development versions.

        names: Names of the skills
        """
        answer: KeptSkills = await self.call("end_development", {"names": names})
        return answer

    async def search_skills(
        self,
        query: str,
        *,
        limit: int | None = None,
        kind: Literal["action", "instruction"] | None = None,
        tags: list[str] | None = None,
        language: Literal["python", "javascript", "bash", "markdown"] | None = None,
        verified: bool | None = None,
        network: bool | None = None,
        secrets: bool | None = None,
        counts: bool | None = None,
        catalogue: bool | None = None,
        namespace: str | None = None,
        cursor: str | None = None,
        status: Literal["published", "deprecated"] | None = None,
        sort: Literal["best", "name", "newest", "used"] | None = None,
        detail: Literal["brief", "summary"] | None = None,
    ) -> FoundSkillPage:
        """Find skills by a few words about the task, the best first. Word forms and typos do not matter.

        query: A few words or a question; skills with most of the words are found
        limit: Maximum number of results
        kind: Only skills of this kind
        tags: Only skills with all these tags
        language: Only skills in this language; 'markdown' means without code
        verified: Only skills whose examples all passed (true), or only others (false)
        network: Only skills without network access (false), or only with it (true)
        secrets: Only skills without secrets (false), or only with secrets (true)
        counts: Add the number of matching skills, in all and by value of each filter
        catalogue: Add facts and usage to each skill
        namespace: Only skills in this namespace and below it
        cursor: Pagination cursor from previous response
        status: Only skills with this status
        sort: Order: best match, by name, by publication, or by runs
        detail: brief: what a model needs to choose a skill
        """
        answer: FoundSkillPage = await self.call(
            "search_skills",
            {
                "query": query,
                "limit": limit,
                "kind": kind,
                "tags": tags,
                "language": language,
                "verified": verified,
                "network": network,
                "secrets": secrets,
                "counts": counts,
                "catalogue": catalogue,
                "namespace": namespace,
                "cursor": cursor,
                "status": status,
                "sort": sort,
                "detail": detail,
            },
        )
        return answer

    async def diff_versions(self, name: str, from_version: str, *, to_version: str | None = None) -> VersionsDiff:
        """Compare two versions of a skill: permissions first, then manifest, instructions and files.

        name: Skill name
        from_version: The older version, as a version spec: exact, range, label or digest
        to_version: The newer version (omit for latest)
        """
        answer: VersionsDiff = await self.call(
            "diff_versions", {"name": name, "from_version": from_version, "to_version": to_version}
        )
        return answer

    async def submit_version(self, name: str, version: str) -> NewVersion:
        """Ask for a review of a draft.

        name: Skill name
        version: Exact version
        """
        answer: NewVersion = await self.call("submit_version", {"name": name, "version": version})
        return answer

    async def reject_version(self, name: str, version: str, reason: str) -> NewVersion:
        """Reject a version that is in review.

        name: Skill name
        version: Exact version
        reason: Reason for the author
        """
        answer: NewVersion = await self.call("reject_version", {"name": name, "version": version, "reason": reason})
        return answer

    async def yank_version(self, name: str, version: str, reason: str) -> NewVersion:
        """Withdraw a published version: only requests for exactly this version still resolve.

        name: Skill name
        version: Exact version
        reason: Reason for callers who request exactly this version
        """
        answer: NewVersion = await self.call("yank_version", {"name": name, "version": version, "reason": reason})
        return answer

    async def unyank_version(self, name: str, version: str) -> NewVersion:
        """Undo a yank.

        name: Skill name
        version: Exact version
        """
        answer: NewVersion = await self.call("unyank_version", {"name": name, "version": version})
        return answer

    async def deprecate_skill(self, name: str, message: str, *, successor: str | None = None) -> NewVersion:
        """Mark all published versions of a skill as deprecated.

        name: Skill name
        message: Message that describe_skill shows
        successor: Name of the skill to use instead
        """
        answer: NewVersion = await self.call(
            "deprecate_skill", {"name": name, "message": message, "successor": successor}
        )
        return answer

    async def undeprecate_skill(self, name: str) -> NewVersion:
        """Undo a deprecation.

        name: Skill name
        """
        answer: NewVersion = await self.call("undeprecate_skill", {"name": name})
        return answer

    async def set_visibility(self, name: str, visibility: Literal["public", "namespace", "private"]) -> NewVersion:
        """Set which callers can see a skill.

        name: Skill name
        visibility: public: all callers; namespace: callers with a grant that covers the name; private: its publishers
        """
        answer: NewVersion = await self.call("set_visibility", {"name": name, "visibility": visibility})
        return answer

    async def list_versions(
        self,
        *,
        name: str | None = None,
        status: Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"] | None = None,
        namespace: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> VersionPage:
        """List versions of a skill or of all skills, the most recently created first.

        name: Only versions of this skill
        status: Only versions with this status (e.g., 'in_review' for versions that wait for a reviewer)
        namespace: Only versions in this namespace and below it
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: VersionPage = await self.call(
            "list_versions", {"name": name, "status": status, "namespace": namespace, "limit": limit, "cursor": cursor}
        )
        return answer

    async def purge_version(self, name: str, version: str, reason: str) -> PurgedVersion:
        """Remove the files of a version permanently, for example after a leaked key. Its number cannot be used again.

        name: Skill name
        version: Exact version
        reason: Reason, for all readers of the skill
        """
        answer: PurgedVersion = await self.call("purge_version", {"name": name, "version": version, "reason": reason})
        return answer

    async def recheck_version(self, name: str, version: str) -> RecheckedVersion:
        """Check a published version again with the checks of today, and store the findings.

        name: Skill name
        version: Exact version
        """
        answer: RecheckedVersion = await self.call("recheck_version", {"name": name, "version": version})
        return answer

    async def waive_finding(
        self,
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
        answer: Waiver = await self.call(
            "waive_finding",
            {"name": name, "rule": rule, "reason": reason, "until": until, "file": file, "version": version},
        )
        return answer

    async def list_waivers(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> WaiverPage:
        """List the waivers of the skills that the caller reviews, newest first.

        name: Only waivers of this skill
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: WaiverPage = await self.call("list_waivers", {"name": name, "limit": limit, "cursor": cursor})
        return answer

    async def revoke_waiver(self, id: str) -> Waiver:
        """Revoke a waiver. Versions that were published under it stay.

        id: The waiver's id
        """
        answer: Waiver = await self.call("revoke_waiver", {"id": id})
        return answer

    async def set_label(self, name: str, label: str, version: str) -> MovedLabel:
        """Point a label of a skill to a version.

        name: Skill name
        label: Label (e.g., 'stable')
        version: New target: a version, or a version spec to resolve now (another label, a range, 'latest')
        """
        answer: MovedLabel = await self.call("set_label", {"name": name, "label": label, "version": version})
        return answer

    async def rollback_label(self, name: str, label: str) -> MovedLabel:
        """Point a label to its previous published version. Repeated calls go further back.

        name: Skill name
        label: Label (e.g., 'stable')
        """
        answer: MovedLabel = await self.call("rollback_label", {"name": name, "label": label})
        return answer

    async def remove_label(self, name: str, label: str) -> MovedLabel:
        """Remove a label. A rollback restores it.

        name: Skill name
        label: Label (e.g., 'stable')
        """
        answer: MovedLabel = await self.call("remove_label", {"name": name, "label": label})
        return answer

    async def list_labels(
        self, name: str, *, label: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Labels:
        """List the labels of a skill, and their moves, newest first.

        name: Skill name
        label: Only this label
        limit: Maximum number of moves
        cursor: Pagination cursor from previous response
        """
        answer: Labels = await self.call(
            "list_labels", {"name": name, "label": label, "limit": limit, "cursor": cursor}
        )
        return answer

    async def resolve_skills(self, skills: list[str]) -> Lock:
        """Resolve skills to exact versions and digests, as a lock.

        skills: 'name' or 'name@version spec' each, at most 1000
        """
        answer: Lock = await self.call("resolve_skills", {"skills": skills})
        return answer

    async def verify_lock(self, lock: Sequence[Locked]) -> Verified:
        """Check whether the locked versions still exist with the same digests.

        lock: 'lock' of resolve_skills
        """
        answer: Verified = await self.call("verify_lock", {"lock": lock})
        return answer

    async def get_run(self, run_id: str, *, wait_ms: int | None = None) -> RunRecord:
        """Return the record of a run: its result, its caller, its times and its limits.

        run_id: The run's id
        wait_ms: Wait up to this long for the end of the run
        """
        answer: RunRecord = await self.call("get_run", {"run_id": run_id, "wait_ms": wait_ms})
        return answer

    async def read_run_log(
        self, run_id: str, *, after: int | None = None, max_bytes: int | None = None, wait_ms: int | None = None
    ) -> RunLog:
        """Read the log of a run, also while it runs.

        run_id: The run's id
        after: Offset in bytes: 'next' of the previous answer
        max_bytes: Maximum number of bytes
        wait_ms: Wait up to this long for more text
        """
        answer: RunLog = await self.call(
            "read_run_log", {"run_id": run_id, "after": after, "max_bytes": max_bytes, "wait_ms": wait_ms}
        )
        return answer

    async def list_runs(
        self,
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
        identity: Only runs of this identity (only admins may name others)
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: RunPage = await self.call(
            "list_runs",
            {"skill": skill, "status": status, "since": since, "identity": identity, "limit": limit, "cursor": cursor},
        )
        return answer

    async def cancel_run(self, run_id: str) -> RunRecord:
        """Stop a queued or started run.

        run_id: The run's id
        """
        answer: RunRecord = await self.call("cancel_run", {"run_id": run_id})
        return answer

    async def list_tools(
        self,
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
        answer: ToolPage = await self.call(
            "list_tools", {"skill": skill, "session": session, "limit": limit, "cursor": cursor}
        )
        return answer

    async def define_tool(
        self,
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
        answer: DefinedTool = await self.call(
            "define_tool",
            {
                "name": name,
                "description": description,
                "parameters": parameters,
                "code": code,
                "persistent": persistent,
                "language": language,
                "namespace": namespace,
                "session": session,
            },
            idempotency_key=idempotency_key,
        )
        return answer

    async def remove_tool(self, name: str, *, session: str | None = None) -> DefinedTool:
        """Remove a tool that was made with define_tool.

        name: Tool name to remove, or 'skill/tool'
        session: Session of the caller, by a name that the caller chooses; omit for the unnamed session
        """
        answer: DefinedTool = await self.call("remove_tool", {"name": name, "session": session})
        return answer

    async def create_workspace(
        self,
        *,
        origin: str | None = None,
        name: str | None = None,
        files: Sequence[RunFile] | Mapping[str, Source] | None = None,
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
        answer: WorkspaceInfo = await self.call(
            "create_workspace",
            {"origin": origin, "name": name, "files": files, "ttl": ttl},
            idempotency_key=idempotency_key,
        )
        return answer

    async def list_workspaces(self, *, limit: int | None = None, cursor: str | None = None) -> WorkspacePage:
        """List your workspaces.

        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: WorkspacePage = await self.call("list_workspaces", {"limit": limit, "cursor": cursor})
        return answer

    async def describe_workspace(
        self, workspace: str, *, path: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> DescribedWorkspace:
        """Describe a workspace, its files and its snapshots.

        workspace: The workspace's id
        path: Only files at or below this path
        limit: Maximum number of files
        cursor: Pagination cursor from previous response
        """
        answer: DescribedWorkspace = await self.call(
            "describe_workspace", {"workspace": workspace, "path": path, "limit": limit, "cursor": cursor}
        )
        return answer

    async def read_workspace_file(self, workspace: str, path: str) -> WorkspaceFileContent:
        """Read a file of a workspace.

        workspace: The workspace's id
        path: Path of the file (e.g., 'data/orders.csv')
        """
        answer: WorkspaceFileContent = await self.call("read_workspace_file", {"workspace": workspace, "path": path})
        return answer

    async def reset_workspace(self, workspace: str, snapshot: str) -> WorkspaceInfo:
        """Return a workspace to an earlier snapshot: undo runs with bad results.

        workspace: The workspace's id
        snapshot: Digest of the snapshot (e.g., 'before' of a run)
        """
        answer: WorkspaceInfo = await self.call("reset_workspace", {"workspace": workspace, "snapshot": snapshot})
        return answer

    async def delete_workspace(self, workspace: str) -> DeletedWorkspace:
        """Delete a workspace and its snapshots.

        workspace: The workspace's id
        """
        answer: DeletedWorkspace = await self.call("delete_workspace", {"workspace": workspace})
        return answer

    async def list_environments(
        self, *, installed: bool | None = None, limit: int | None = None, cursor: str | None = None
    ) -> EnvironmentPage:
        """List the named environments, with the packages that the code of run_code may import.

        installed: List all installed locks instead (for admins)
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: EnvironmentPage = await self.call(
            "list_environments", {"installed": installed, "limit": limit, "cursor": cursor}
        )
        return answer

    async def describe_environment(self, name: str) -> DescribedEnvironment:
        """Return one environment, and the versions that use its lock of packages.

        name: Name of an environment, or the SHA-256 of a lock
        """
        answer: DescribedEnvironment = await self.call("describe_environment", {"name": name})
        return answer

    async def rebuild_environment(self, name: str) -> DescribedEnvironment:
        """Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock.

        name: Name of an environment, or the SHA-256 of a lock
        """
        answer: DescribedEnvironment = await self.call("rebuild_environment", {"name": name})
        return answer

    async def list_skill_usage(
        self,
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
        answer: SkillUsagePage = await self.call(
            "list_skill_usage", {"namespace": namespace, "never_run": never_run, "limit": limit, "cursor": cursor}
        )
        return answer

    async def get_usage(self, *, identity: str | None = None, namespace: str | None = None) -> IdentityUse:
        """Return the used amount and the limit of each quota.

        identity: Identity; omit for the caller (only admins may name others)
        namespace: Namespace; omit for the namespaces of the caller's grants
        """
        answer: IdentityUse = await self.call("get_usage", {"identity": identity, "namespace": namespace})
        return answer

    async def collect_garbage(self, *, dry_run: bool | None = None, steps: list[str] | None = None) -> Garbage:
        """Remove unreferenced and expired data.

        dry_run: Only report what a sweep would remove
        steps: Only these steps of a sweep, by their names; omit for all
        """
        answer: Garbage = await self.call("collect_garbage", {"dry_run": dry_run, "steps": steps})
        return answer

    async def create_token(
        self,
        name: str,
        scopes: list[str],
        *,
        namespaces: list[str] | None = None,
        kind: Literal["person", "agent"] | None = None,
        expires: str | None = None,
    ) -> CreatedToken:
        """Create a token. Only this answer contains it.

        name: Name of the identity; tokens with one name are one identity
        scopes: Scopes of the token: read, run, publish, review, admin
        namespaces: Namespace grants: names to publish or review ('sales.*'; '*' for all)
        kind: Whether the token belongs to a person or an agent
        expires: Lifetime of the token (e.g., '90d'); omit for no end
        """
        answer: CreatedToken = await self.call(
            "create_token", {"name": name, "scopes": scopes, "namespaces": namespaces, "kind": kind, "expires": expires}
        )
        return answer

    async def list_tokens(self) -> Tokens:
        """List all tokens, without their secrets."""
        answer: Tokens = await self.call("list_tokens", {})
        return answer

    async def revoke_token(self, id: str) -> Token:
        """Revoke a token permanently.

        id: The token's id
        """
        answer: Token = await self.call("revoke_token", {"id": id})
        return answer

    async def revoke_identity(self, name: str) -> RevokedIdentity:
        """End an identity: its tokens, sessions and runs. Return its remaining data.

        name: Name of the identity, as list_tokens shows it
        """
        answer: RevokedIdentity = await self.call("revoke_identity", {"name": name})
        return answer

    async def add_webhook(
        self, url: str, *, events: list[str] | None = None, skills: list[str] | None = None
    ) -> AddedWebhook:
        """Send events to a URL, as signed HTTP requests. Only this answer contains the secret.

        url: Target of the requests (e.g., 'https://hooks.example.org/skillery')
        events: Types of events; omit for all except run_failed
        skills: Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all
        """
        answer: AddedWebhook = await self.call("add_webhook", {"url": url, "events": events, "skills": skills})
        return answer

    async def list_webhooks(self) -> WebhookList:
        """List all webhooks, without their secrets."""
        answer: WebhookList = await self.call("list_webhooks", {})
        return answer

    async def test_webhook(self, id: str) -> WebhookTest:
        """Send a message of the type test to a webhook now.

        id: The webhook's id
        """
        answer: WebhookTest = await self.call("test_webhook", {"id": id})
        return answer

    async def remove_webhook(self, id: str) -> RemovedWebhook:
        """Remove a webhook, its waiting events and its dead letters.

        id: The webhook's id
        """
        answer: RemovedWebhook = await self.call("remove_webhook", {"id": id})
        return answer

    async def list_dead_letters(
        self, id: str, *, limit: int | None = None, cursor: str | None = None
    ) -> DeadLetterPage:
        """List the events that a webhook did not accept in time, oldest first.

        id: The webhook's id
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: DeadLetterPage = await self.call("list_dead_letters", {"id": id, "limit": limit, "cursor": cursor})
        return answer

    async def add_trust_rule(
        self,
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
        answer: TrustRule = await self.call(
            "add_trust_rule",
            {
                "target": target,
                "provider": provider,
                "issuer": issuer,
                "repository": repository,
                "repository_id": repository_id,
                "owner_id": owner_id,
                "workflow": workflow,
                "ref": ref,
                "environment": environment,
                "claims": claims,
                "kind": kind,
            },
        )
        return answer

    async def list_trust_rules(self) -> TrustRules:
        """List the trust rules for the namespaces of the caller."""
        answer: TrustRules = await self.call("list_trust_rules", {})
        return answer

    async def remove_trust_rule(self, id: str) -> RemovedTrustRule:
        """Remove a trust rule, and end the tokens that CI jobs got by it.

        id: The rule's id
        """
        answer: RemovedTrustRule = await self.call("remove_trust_rule", {"id": id})
        return answer

    async def list_audit(
        self,
        *,
        identity: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        outcome: Literal["done", "refused", ""] | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AuditPage:
        """List changes and refused attempts, newest first.

        identity: Only entries of this identity
        action: Only this action, usually the name of a method
        subject: Only this subject: a skill (with all its versions), name@version, or an id
        outcome: Only changes, or only refused attempts
        since: Only entries from this time on (e.g., '2026-11-22T09:30:00Z')
        until: Only entries before this time
        limit: Maximum number of results
        cursor: Pagination cursor from previous response
        """
        answer: AuditPage = await self.call(
            "list_audit",
            {
                "identity": identity,
                "action": action,
                "subject": subject,
                "outcome": outcome,
                "since": since,
                "until": until,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return answer
