// Made by `make client` from the OpenRPC document: do not edit.
import type { CallOptions } from "./connection.ts";
import type { Content } from "./blobs.ts";

/** A file in the workspace of a run. */
export interface RunFile {
  /** Path below /workspace (e.g., 'report.docx') */
  path: string;
  /** Blob that is copied there */
  blob_id: string;
  /** Whether the copy is executable */
  executable?: boolean;
}

/** The manifest of a skill. */
export interface SkillToml {
  /** e.g. sales.leads.sync */
  name: string;
  /** MAJOR.MINOR.PATCH */
  version: string;
  /** A model reads it to choose a skill */
  description: string;
  /** action: to run; instruction: to read */
  kind?: "action" | "instruction";
  /** For lists; all segments of the name but the last by default */
  namespace?: string;
  tags?: string[];
  runtime?: RuntimeTable;
  /** The arguments, by name */
  inputs?: Record<string, string | InputTable>;
  permissions?: PermissionsTable;
  examples?: ExampleTable[];
  tool_examples?: ToolExampleTable[];
}

/** How a run starts, and what it needs. */
export interface RuntimeTable {
  language?: "python";
  /** The Python file, e.g. code/main.py */
  entrypoint?: string;
  /** The function that a run calls */
  export?: string;
  limits?: LimitsTable;
  /** Packages with versions, e.g. pandas>=2,<3 */
  dependencies?: string[];
  /** Python versions, e.g. >=3.11 */
  "requires-python"?: string;
  /** Whether a skill with permissions runs in workspaces */
  workspace?: boolean;
  /** Whether undeclared arguments fail a run */
  strict_inputs?: boolean;
}

/** Limits of a run. The server reduces them to its maximum. */
export interface LimitsTable {
  /** Memory in MiB */
  memory_mb?: number;
  processes?: number;
  cpus?: number;
  /** Files in MiB */
  disk_mb?: number;
  /** Time in milliseconds */
  timeout_ms?: number;
}

/** An argument of the function. Another `type` is accepted with a warning, and takes any value. */
export interface InputTable {
  /** string, integer, number, boolean, object, array, blob, any */
  type?: "any" | "array" | "blob" | "boolean" | "integer" | "number" | "object" | "string" | string;
  description?: string;
  /** The allowed values */
  enum?: unknown[];
  default?: unknown;
  required?: boolean;
}

/** What a run may use. A reviewer sees these entries. */
export interface PermissionsTable {
  /** Hosts, e.g. https://api.example.com or https://*.example.com:8443 */
  network?: string[];
  /** Names of secrets, which are environment variables of a run */
  secrets?: string[];
}

/** A run with its expected result. Publishing executes it as a test. */
export interface ExampleTable {
  name?: string;
  args?: Record<string, unknown>;
  /** Arguments that get blobs of these files */
  blobs?: Record<string, string | string[]>;
  input_blobs?: string[];
  /** The exact output */
  expect?: unknown;
  /** Members that the output has */
  expect_subset?: unknown;
  /** The type of the error */
  expect_error?: string;
  needs_permissions?: boolean;
}

/** A call of a tool with its expected result. Publishing executes it as a test. */
export interface ToolExampleTable {
  name?: string;
  args?: Record<string, unknown>;
  /** Arguments that get blobs of these files */
  blobs?: Record<string, string | string[]>;
  input_blobs?: string[];
  /** The exact output */
  expect?: unknown;
  /** Members that the output has */
  expect_subset?: unknown;
  /** The type of the error */
  expect_error?: string;
  needs_permissions?: boolean;
  /** The name of a tool in tools.json */
  tool: string;
}

/** A file of a new skill. */
export interface SkillFile {
  /** Path within the skill directory (e.g., 'code/main.py') */
  path: string;
  /** Content of the file */
  content: string;
  /** How `content` is written */
  encoding?: "base64" | "utf-8";
  /** Whether the file keeps an executable mode */
  executable?: boolean;
}

/** A skill in a lock of skills, as resolve_skills returns it. */
export interface LockEntry {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
  /** Digest of the bundle */
  digest: string;
  /** Status of the version when it was locked */
  status?: string;
}

/** A page of skills, sorted by the bytes of (namespace, name). */
export interface SkillPage {
  skills: SkillRow[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
  /** With counts: true: the number of matching rows of all pages, at most 1000 */
  total?: number;
  /** With counts: true: whether there are more than total */
  total_is_more?: boolean;
  /** With counts: true */
  facets?: Facets;
}

/** The latest version of a skill. */
export interface SkillRow {
  name: string;
  version: string;
  description: string;
  namespace: string;
  kind: "action" | "instruction";
  /** With detail 'summary' */
  tags?: string[];
  /** With detail 'summary' */
  inputs?: Record<string, unknown>;
  /** With detail 'summary' */
  tools?: string[];
  /** If the version is deprecated or yanked, with the successor */
  warnings?: string[];
  /** With catalogue: true */
  catalogue?: CatalogueEntry;
}

/** Facts about a version and the usage of its skill, for a row of a catalogue. */
export interface CatalogueEntry {
  status: "deprecated" | "draft" | "in_review" | "published" | "rejected" | "yanked";
  /** markdown for a skill without code */
  language: "bash" | "javascript" | "markdown" | "python";
  tags: string[];
  /** Whether it has examples and all passed */
  verified: boolean;
  /** Labels that point to this version */
  labels: string[];
  /** Number of entries of permissions.network */
  hosts: number;
  /** Number of entries of permissions.secrets */
  secrets: number;
  /** Time of the approval, or of the publication without a review */
  published_at: string;
  /** Ended runs of the skill in the last 30 days */
  runs_30d: number;
  /** Completed runs divided by completed and failed runs; null without any */
  success_rate_30d: number | null;
  deprecated: Deprecation | null;
}

/** The message of a deprecated skill, and its successor. */
export interface Deprecation {
  message: string;
  successor: string | null;
}

/** The numbers of matching rows by value. Each facet has the name of a param. The highest number is first. */
export interface Facets {
  /** One level below the param; at most 100 */
  namespace: FacetValue[];
  kind: FacetValue[];
  language: FacetValue[];
  /** In lower case, of the newest 5,000 matching rows; at most 30 */
  tags: FacetValue[];
  verified: FacetValue[];
  network: FacetValue[];
  secrets: FacetValue[];
  status: FacetValue[];
}

/** A value of a facet, and the number of rows that have the value. */
export interface FacetValue {
  /** As the param with the name of the facet takes it */
  value: string | boolean;
  count: number;
}

/** The result of describe_skill. */
export interface DescribedSkill {
  skill: Skill;
}

/** A version of a skill. */
export interface Skill {
  name: string;
  version: string;
  kind: "action" | "instruction";
  digest: string;
  status: "deprecated" | "draft" | "in_review" | "published" | "purged" | "rejected" | "yanked";
  visibility: "namespace" | "private" | "public";
  warnings: string[];
  /** skill.toml as JSON */
  manifest: Record<string, unknown>;
  lock?: SkillLock;
  approval?: Approval;
  rejected?: Objection;
  yanked?: Objection;
  deprecated?: Deprecation;
  /** From detail 'summary' on */
  labels?: string[];
  /** From detail 'summary' on */
  skill_md_frontmatter?: Record<string, unknown>;
  usage?: Usage;
  /** From detail 'summary' on */
  verified?: boolean;
  examples?: CheckedExample[];
  findings?: CheckFinding[];
  permissions_diff?: PermissionsDiff;
  /** From detail 'summary' on, if a CI job published it */
  provenance?: Provenance;
  /** With detail 'full' */
  skill_md?: string;
  /** With detail 'full' */
  files?: SkillFileEntry[];
}

/** The locked packages of a skill with dependencies. */
export interface SkillLock {
  sha256: string;
  /** null below detail 'full' if the lock is large */
  packages: SkillPackage[] | null;
  environments: EnvironmentState[];
}

/** A package in the lock of a skill. */
export interface SkillPackage {
  name: string;
  version: string;
  inferred?: boolean;
}

/** The state of an environment on one server. */
export interface EnvironmentState {
  state: string;
  message?: string;
  /** While it is being built */
  step?: string;
  done?: number;
  total?: number;
}

/** The reviewer who approved a version. */
export interface Approval {
  by: string;
  kind: string;
  at: string;
  digest: string;
  note: string;
}

/** The identity that rejected or yanked a version, and the reason. */
export interface Objection {
  by: string;
  kind: string;
  at: string;
  reason: string;
}

/** `usage` in describe_skill: counts of the runs of all callers, including runs that other runs started. */
export interface Usage {
  runs: number;
  completed: number;
  failed: number;
  cancelled: number;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
  last_run_at: string | null;
}

/** An example and the run that tested it. `waiting`: the example needs permissions, and runs at the approval. */
export interface CheckedExample {
  name: string;
  status: "failed" | "not_run" | "passed" | "waiting";
  run_id?: string | null;
  duration_ms?: number | null;
}

/** A finding about a version, with the waiver that applies to the finding, if there is one. */
export interface CheckFinding {
  rule: string;
  message: string;
  severity: "error" | "info" | "warning";
  file?: string | null;
  line?: number | null;
  waiver?: WaiverNote | null;
}

/** The part of a waiver that is shown with the waived finding. */
export interface WaiverNote {
  id: string;
  by: string;
  kind: string;
  at: string;
  reason: string;
  until: string | null;
}

/** The permissions that a version adds and removes. `against` is the other version, or None for a first version. */
export interface PermissionsDiff {
  against: string | null;
  added: PermissionNames;
  removed: PermissionNames;
}

/** Permissions in the notation of a manifest. */
export interface PermissionNames {
  network?: string[];
  secrets?: string[];
  workspace?: boolean;
}

/** The CI job that published a version, from signed claims. A field without a claim is "". */
export interface Provenance {
  issuer: string;
  subject: string;
  repository?: string;
  repository_id?: string;
  owner_id?: string;
  workflow?: string;
  ref?: string;
  commit?: string;
  environment?: string;
  run?: string;
}

/** A file of a bundle. */
export interface SkillFileEntry {
  path: string;
  size_bytes: number;
  sha256: string;
  executable: boolean;
}

/** The content of a file of a skill. */
export interface SkillFileContent {
  content: string;
  encoding: "base64" | "utf-8";
}

/** A run that has ended, or a run that was started in the background. A failed run is a result, not an error. */
export interface Run {
  /** queued and started only for a run in the background */
  status: "completed" | "failed" | "queued" | "started";
  run_id: string;
  summary: string;
  /** What the code returned; over 4096 bytes a blob_id, size_bytes, preview */
  output: unknown;
  output_blobs: string[];
  logs_preview: string;
  duration_ms: number;
  error?: RunError;
  skill?: ExactSkill;
  environment?: GivenEnvironment;
  waited_for_packages_ms?: number;
  degraded?: string[];
  network?: NetworkUse[];
  logs_blob?: string;
  files?: OutputFile[];
  /** Undeclared args, for example */
  warnings?: string[];
  workspace?: WorkspaceUse;
}

/** The reason why a run failed. */
export interface RunError {
  /** A failure type, or the class name of the exception */
  type: string;
  message: string;
  /** Frames of user code only */
  traceback?: string;
}

/** A skill in an exact version. */
export interface ExactSkill {
  name: string;
  version: string;
  digest: string;
}

/**
 * The named environment of a run, and the digest of its lock. `lock` is None if the environment has no lock yet.
 */
export interface GivenEnvironment {
  name: string;
  lock?: string | null;
}

/** Connections of a run to one host and port with the same outcome. */
export interface NetworkUse {
  host: string;
  port: number;
  allowed: boolean;
  reason: string;
  connections?: number;
  bytes_out?: number;
  bytes_in?: number;
}

/** A blob that a run wrote with a name: a path below /workspace/out, or the name of a picture. */
export interface OutputFile {
  path: string;
  blob_id: string;
  kind: string;
  size_bytes: number;
}

/** The use of a workspace by a run, as the result of the run shows it. */
export interface WorkspaceUse {
  id: string;
  /** Digest of the snapshot that the run started from */
  before: string;
  /** Digest of the snapshot that the run left; as before if nothing was saved */
  after: string;
  /** Files that were added, changed or removed */
  changed: number;
  /** Files that cannot be kept, such as pipes; at most 100 */
  left_out: string[];
  /** Why nothing was saved, although the run may write */
  not_saved?: string;
}

/** Result of `create_blob`. */
export interface NewBlob {
  blob_id: string;
  size_bytes: number;
  expires_at?: string | null;
}

/** The content of a blob, or a part of it. */
export interface BlobContent {
  content: string;
  encoding: "base64" | "utf-8";
  truncated: boolean;
  kind: string;
  size_bytes: number;
  expires_at?: string | null;
}

/** The Skills Protocol Guide, in Markdown. */
export interface Guide {
  content: string;
}

/** The result of a tool. A failed tool is a result, not an error. */
export interface ToolResult {
  /** What the agent gets: the handler's value, or {"error": "…"} */
  result: unknown;
  is_error: boolean;
  /** null for a tool of a session */
  skill: ExactSkill | null;
  /** null if there was nothing to run */
  run_id: string | null;
  logs_preview: string;
  output_blobs: string[];
  files?: OutputFile[];
  workspace?: WorkspaceUse;
  environment?: GivenEnvironment;
  /** queued or started, for a run in the background */
  status?: "completed" | "failed" | "queued" | "started";
  /** Undeclared args, for example */
  warnings?: string[];
}

/** A deleted blob. */
export interface DeletedBlob {
  blob_id: string;
  size_bytes: number;
}

/** The answer of `create_skill`. `warnings` are those of `check_skill`, with its findings. */
export interface CreatedSkill {
  name: string;
  version: string;
  digest: string;
  status: string;
  warnings?: string[];
}

/**
 * The result of `check_skill`. `ok` says whether the version could be published, `status` which status it would
 * get.
 */
export interface CheckedSkill {
  ok: boolean;
  name: string;
  version: string;
  digest: string;
  status: string;
  warnings: string[];
  findings: CheckFinding[];
  examples: CheckedExample[];
  permissions_diff: PermissionsDiff;
}

/** The answer of `create_skill` and of each step of a version. */
export interface NewVersion {
  name: string;
  version: string;
  digest: string;
  status: string;
}

/** A development version, which only its caller sees. */
export interface DevelopedSkill {
  name: string;
  version: string;
  digest: string;
  warnings: string[];
  findings: CheckFinding[];
  /** Time until the version ends, unless it is kept */
  kept_ms: number;
}

/** Skills whose development versions the call kept or ended. */
export interface KeptSkills {
  /** Without the skills that have no development version */
  names: string[];
  /** Time until the versions end, unless they are kept; 0 if ended */
  kept_ms: number;
}

/** A page of search results, best first. */
export interface FoundSkillPage {
  skills: FoundSkill[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
  /** With counts: true: the number of matching rows of all pages, at most 1000 */
  total?: number;
  /** With counts: true: whether there are more than total */
  total_is_more?: boolean;
  /** With counts: true */
  facets?: Facets;
  /** If the query was cut */
  warnings?: string[];
}

/** A skill that a search found. */
export interface FoundSkill {
  name: string;
  version: string;
  description: string;
  kind: "" | "action" | "instruction";
  /** With detail 'summary' */
  namespace?: string;
  /** With detail 'summary' */
  tags?: string[];
  /** With detail 'summary' */
  inputs?: Record<string, unknown>;
  /** With detail 'summary' */
  tools?: string[];
  /** With detail 'summary' */
  score?: number;
  /** With detail 'summary' */
  snippet?: string;
  /** With detail 'summary' */
  copies?: number;
  /** Of the first two skills; a question mark means optional */
  compact_inputs?: string;
  /** If the version is deprecated or yanked, with the successor */
  warnings?: string[];
  /** With catalogue: true */
  catalogue?: CatalogueEntry;
}

/** Two versions compared. `instructions` is the change of SKILL.md. `left_out` counts further changes. */
export interface VersionsDiff {
  same: boolean;
  old: DiffSide;
  new: DiffSide;
  permissions: PermissionsDiff;
  manifest: ManifestChange[];
  instructions: FileChange | null;
  files: FileChange[];
  left_out: number;
}

/** One of the two versions. `digest` is empty for a folder that is not published. */
export interface DiffSide {
  name: string;
  version: string;
  digest: string;
  /** The CI job that published the version */
  provenance?: Record<string, string> | null;
}

/** A value of the manifest that differs. `old` and `new` are its JSON, cut if long; null if there is no value. */
export interface ManifestChange {
  path: string;
  old: string | null;
  new: string | null;
}

/** A file that differs. `diff` has the hunks of a unified diff. If its lines cannot be shown, `note` says why. */
export interface FileChange {
  path: string;
  change: "added" | "changed" | "mode" | "removed";
  old: FileFacts | null;
  new: FileFacts | null;
  diff?: string;
  note?: string;
}

/** A file of a version. */
export interface FileFacts {
  sha256: string;
  size_bytes: number;
  executable: boolean;
}

/** A page of versions, in the order of their creation, most recent first by default. */
export interface VersionPage {
  versions: ListedVersion[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** A version of a skill. */
export interface ListedVersion {
  name: string;
  version: string;
  status: "deprecated" | "draft" | "in_review" | "published" | "purged" | "rejected" | "yanked";
  digest: string;
  kind: "action" | "instruction";
  publisher: Who;
  created_at: string;
  size_bytes: number;
  /** The CI job that published the version */
  provenance?: Provenance | null;
}

/** An identity. */
export interface Who {
  name: string;
  kind: string;
}

/** A purged version. Its number stays taken, and its digest stays known. */
export interface PurgedVersion {
  name: string;
  version: string;
  digest: string;
  status: "purged";
  deleted_contents: number;
  deleted_bytes: number;
  kept_files: string[];
}

/** The findings of a version after a recheck. `new` are those that the version did not have before. */
export interface RecheckedVersion {
  name: string;
  version: string;
  status: string;
  findings: CheckFinding[];
  new: CheckFinding[];
}

/** A waiver for findings of `rule`. `file` or `version` None: the waiver covers every file or every version. */
export interface Waiver {
  id: string;
  name: string;
  rule: string;
  file: string | null;
  version: string | null;
  reason: string;
  status: "expired" | "live" | "revoked";
  by: string;
  kind: string;
  at: string;
  until: string | null;
  revoked_by: string | null;
  revoked_at: string | null;
}

/** A page of waivers, newest first. */
export interface WaiverPage {
  waivers: Waiver[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** The answer of `set_label`, `rollback_label` and `remove_label`. A removed label has no version. */
export interface MovedLabel {
  name: string;
  label: string;
  version: string | null;
  status: string | null;
  digest: string | null;
  previous: string | null;
}

/** The labels of a skill, and a page of their moves, newest first. */
export interface Labels {
  name: string;
  labels: Label[];
  history: LabelMove[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** The version that a label points to, and the identity that moved it there. */
export interface Label {
  label: string;
  version: string;
  digest: string;
  status: string;
  by: string;
  kind: string;
  at: string;
}

/** One move of a label. */
export interface LabelMove {
  label: string;
  move: "remove" | "rollback" | "set";
  version: string | null;
  digest: string | null;
  previous: string | null;
  by: string;
  kind: string;
  at: string;
}

/** A lock of skills: exact versions with their digests. */
export interface Lock {
  lock: Locked[];
}

/** One skill in a lock. */
export interface Locked {
  name: string;
  version: string;
  digest: string;
  status: string;
}

/** The result of verify_lock. `ok` is true if `problems` is empty; `warnings` do not matter. */
export interface Verified {
  ok: boolean;
  problems: LockProblem[];
  warnings: LockProblem[];
}

export interface LockProblem {
  name: string;
  version: string;
  problem: "digest_changed" | "gone" | "invalid" | "purged" | "rejected" | "two_versions" | "yanked" | "deprecated" | "not_published";
  message: string;
}

/** The record of a run. */
export interface RunRecord {
  status: "completed" | "failed" | "queued" | "started";
  run_id: string;
  summary: string;
  output: unknown;
  output_blobs: string[];
  logs_preview: string;
  duration_ms: number | null;
  error?: RunError;
  skill?: ExactSkill;
  environment?: GivenEnvironment;
  degraded?: string[];
  network: NetworkUse[];
  logs_blob: string | null;
  method: string;
  /** The tool, if the run was a call of one */
  tool: string | null;
  identity: Who;
  parent_run_id: string | null;
  /** Runs of skills that the code called */
  called_runs?: string[];
  started_at: string | null;
  finished_at: string | null;
  limits: unknown;
  cancel_requested_at?: string;
  /** What the code said last, until the run ends */
  progress?: Progress;
  files?: OutputFile[];
  workspace?: WorkspaceUse;
  used?: RunUse;
}

/** The progress of a run, as its code has reported it with `runtime.progress`. */
export interface Progress {
  done: number;
  total?: number | null;
  text?: string;
}

/** What an ended run has used. null: not measured. */
export interface RunUse {
  /** Time in the queue; null if the run did not wait */
  queued_ms: number | null;
  /** Time in the sandbox before the code started */
  prepared_ms: number | null;
  /** The most memory of all processes together, with their files */
  memory_bytes: number | null;
  /** The most processes and threads at one time */
  processes: number | null;
  /** Size of the files in /workspace at the end of the code */
  disk_bytes: number | null;
}

/** A part of the log of a run. */
export interface RunLog {
  run_id: string;
  status: "completed" | "failed" | "queued" | "started";
  /** The log from start to next; control characters are escaped */
  text: string;
  /** Offset of the text in the log, in bytes */
  start: number;
  /** Offset behind the text: pass it as after to read on */
  next: number;
  /** Bytes between after and start that were not kept */
  dropped_bytes: number;
  /** Whether the run has ended and there is no more text */
  ended: boolean;
  progress?: Progress;
}

/** A page of runs, newest first. */
export interface RunPage {
  runs: RunRow[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** A run in a list. */
export interface RunRow {
  run_id: string;
  status: "completed" | "failed" | "queued" | "started";
  method: string;
  tool: string | null;
  skill: ExactSkill | null;
  summary: string;
  error_type: string | null;
  identity: Who;
  parent_run_id: string | null;
  started_at: string | null;
  finished_at: string | null;
  duration_ms: number | null;
}

/** A page of tools, by skill and name. */
export interface ToolPage {
  tools: ToolRow[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** A tool of a skill or of a session. */
export interface ToolRow {
  name: string;
  /** null for a tool of a session */
  skill: string | null;
  version: string | null;
  description: string;
  /** As the skill declares them */
  parameters: Record<string, unknown>;
}

/** The result of define_tool and remove_tool. `skill` and `version` are None for a tool of a session. */
export interface DefinedTool {
  name: string;
  skill: string | null;
  version: string | null;
  status: string;
}

/** A workspace. */
export interface WorkspaceInfo {
  id: string;
  name: string;
  /** Digest of its current snapshot */
  snapshot: string;
  size_bytes: number;
  files: number;
  created_at: string;
  /** Later by its ttl after each use */
  expires_at: string;
  /** The run that writes it now */
  run_id: string | null;
  /** The workspace, snapshot or run that it was forked from */
  parent: string | null;
}

/** A page of workspaces. */
export interface WorkspacePage {
  workspaces: WorkspaceInfo[];
  next_cursor: string | null;
}

/** A workspace with a page of its files and its snapshots, newest first. */
export interface DescribedWorkspace {
  workspace: WorkspaceInfo;
  entries: WorkspaceFile[];
  next_cursor: string | null;
  snapshots: Snapshot[];
}

/** A file, an empty folder or a symbolic link of a workspace. */
export interface WorkspaceFile {
  path: string;
  kind: "file" | "folder" | "link";
  size_bytes: number;
  sha256: string;
  executable: boolean;
}

/** A kept state of a workspace. */
export interface Snapshot {
  snapshot: string;
  size_bytes: number;
  files: number;
  /** The run that left it */
  run_id: string | null;
  created_at: string;
}

/** The content of a file of a workspace. */
export interface WorkspaceFileContent {
  content: string;
  encoding: "base64" | "utf-8";
}

/** A deleted workspace. */
export interface DeletedWorkspace {
  id: string;
}

export interface EnvironmentPage {
  environments: Environment[];
  next_cursor: string | null;
}

/** An environment of packages for runs. Environments without a name belong to skills. */
export interface Environment {
  name: string | null;
  description?: string;
  default?: boolean;
  dependencies?: string[];
  preload?: string[];
  state: "building" | "failed" | "pending" | "ready";
  message?: string;
  progress?: ShownProgress | null;
  lock: ShownLock | null;
  size_bytes?: number | null;
  servers?: OnServer[];
  rebuild?: ShownRebuild | null;
  warm?: WarmProcess | null;
}

export interface ShownProgress {
  step: string;
  done: number;
  total: number;
}

export interface ShownLock {
  sha256: string;
  packages: LockedPackage[] | null;
}

export interface LockedPackage {
  name: string;
  version: string;
}

/** State of an environment on one server. */
export interface OnServer {
  state: "building" | "failed" | "ready";
  message: string;
  size_bytes: number;
  changed_at: string | null;
  here: boolean;
  progress?: ShownProgress | null;
}

/** The last rebuild that was requested. */
export interface ShownRebuild {
  state: "done" | "failed" | "running";
  message: string;
  by: string;
  began_at: string | null;
  ended_at: string | null;
}

/** A process that imports the modules of `preload` ahead of runs. */
export interface WarmProcess {
  state: "failed" | "ready" | "starting";
  memory_mb: number;
  message: string;
}

export interface DescribedEnvironment {
  name: string | null;
  description?: string;
  default?: boolean;
  dependencies?: string[];
  preload?: string[];
  state: "building" | "failed" | "pending" | "ready";
  message?: string;
  progress?: ShownProgress | null;
  lock: ShownLock | null;
  size_bytes?: number | null;
  servers?: OnServer[];
  rebuild?: ShownRebuild | null;
  warm?: WarmProcess | null;
  used_at: string | null;
  versions: WithLock[];
}

/** A version that uses the environment. */
export interface WithLock {
  name: string;
  version: string;
  status: string;
}

/** A page of skills that were read or run in the last 30 days, by name. */
export interface SkillUsagePage {
  skills: SkillUsage[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** The usage of a skill in the last 30 days, by all callers. */
export interface SkillUsage {
  name: string;
  loads: number;
  reads: number;
  runs: number;
  clients: ClientReads[];
}

/** The reads of a skill by one program, as the program names itself. */
export interface ClientReads {
  client: string;
  loads: number;
  reads: number;
}

/** The use and the limit of each quota of an identity. */
export interface IdentityUse {
  identity: string;
  blobs: Used;
  blob_bytes: Used;
  runs_per_minute: Used;
  concurrent_runs: Used;
  session_tools: Used;
  workspaces: Used;
  workspace_bytes: Used;
  namespaces: NamespaceUse[];
}

export interface Used {
  used: number | null;
  limit: number | null;
}

/** The use of a namespace together with all namespaces below. */
export interface NamespaceUse {
  namespace: string;
  bundle_bytes: Used;
}

/** The result of a sweep: the removed items by step. In a dry run, the items that would be removed. */
export interface Garbage {
  dry_run: boolean;
  removed: Record<string, Swept>;
}

/** The number and bytes of the items that a step removed. In a dry run, the items that it would remove. */
export interface Swept {
  count?: number;
  bytes?: number;
}

/** Result of `create_token`. No other method returns `token`. */
export interface CreatedToken {
  token: string;
  id: string;
  name: string;
  kind: "agent" | "person";
  scopes: string[];
  namespaces: string[];
  created_at: string;
  created_by: string;
  expires_at: string | null;
}

/** Every token that was ever created, oldest first. */
export interface Tokens {
  tokens: Token[];
}

/** A token without its secret, as `list_tokens` returns it. */
export interface Token {
  id: string;
  name: string;
  kind: "agent" | "person";
  scopes: string[];
  namespaces: string[];
  status: "expired" | "live" | "revoked";
  created_at: string;
  created_by: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
}

/** What `revoke_identity` has ended, and what the identity leaves. */
export interface RevokedIdentity {
  name: string;
  tokens: string[];
  sessions: number;
  runs: string[];
  listed: boolean;
  left: LeftBehind;
}

/** What an identity leaves. Each list has at most 1,000 entries. Versions are `name@version`. */
export interface LeftBehind {
  published: string[];
  approved: string[];
  in_review: string[];
  skills: string[];
  workspaces: string[];
  trust_rules: string[];
  webhooks: string[];
  tokens: string[];
}

/** Result of `add_webhook`. No other method returns `secret`. */
export interface AddedWebhook {
  id: string;
  url: string;
  events: string[];
  skills: string[];
  /** The receiver verifies signatures with it */
  secret: string;
}

/** Every webhook, oldest first. */
export interface WebhookList {
  webhooks: Webhook[];
}

/** A webhook without its secret. */
export interface Webhook {
  id: string;
  url: string;
  /** Types of the events that it gets */
  events: string[];
  /** Skills and namespaces whose events it gets; empty: all */
  skills: string[];
  /** gone: the target answered 410 and gets no more events */
  state: "failing" | "gone" | "live";
  /** Events that are not delivered yet. At most 10000 are counted */
  waiting: number;
  /** Events that could not be delivered in time */
  dead_letters: number;
  /** Events that the target has accepted */
  delivered: number;
  delivered_at: string | null;
  /** Failed attempts to send the next event */
  attempts: number;
  /** When the next event is sent again, after a failure */
  next_at: string | null;
  /** Why the last attempt failed; null after a success */
  last_error: string | null;
  created_at: string;
  created_by: string;
}

/** Result of `test_webhook`. */
export interface WebhookTest {
  id: string;
  ok: boolean;
  /** HTTP status of the answer; null if there was no answer */
  status: number | null;
  /** Why the target did not accept the event */
  error: string | null;
  duration_ms: number;
}

/** Result of `remove_webhook`. */
export interface RemovedWebhook {
  id: string;
  url: string;
  /** Waiting events (at most 10000 are counted) and dead letters that were lost */
  dropped: number;
}

/** A page of the dead letters of a webhook, oldest first. */
export interface DeadLetterPage {
  dead_letters: DeadLetter[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** An event that a webhook did not accept in time. */
export interface DeadLetter {
  event_id: string;
  type: string;
  /** Time of the event */
  at: string;
  data: Record<string, unknown>;
  attempts: number;
  /** Why the last attempt failed */
  error: string;
  died_at: string;
}

/** A rule that lets CI jobs publish. */
export interface TrustRule {
  id: string;
  /** The skill, or the namespace and '.*', that the jobs may publish */
  target: string;
  provider: "github" | "gitlab" | "oidc";
  issuer: string;
  /** Claims that the token of a job must have */
  claims: Record<string, string>;
  /** Whose publishing rules apply to the jobs */
  kind: "agent" | "person";
  created_by: string;
  created_at: string;
  last_used_at: string | null;
}

/** The trust rules for the namespaces of the caller, oldest first. Admins get all rules. */
export interface TrustRules {
  rules: TrustRule[];
}

/** Result of `remove_trust_rule`. */
export interface RemovedTrustRule {
  id: string;
  target: string;
  /** Tokens of CI jobs that ended with the rule */
  ended: number;
}

/** A page of the audit trail, newest first. */
export interface AuditPage {
  entries: AuditEntry[];
  /** For the next page; null on the last page */
  next_cursor: string | null;
}

/** One entry of the audit trail, as `list_audit` returns it. */
export interface AuditEntry {
  seq: number;
  at: string;
  identity: Who | null;
  address: string | null;
  request_id: string | null;
  action: string;
  subject: string;
  outcome: "done" | "refused";
  code: number | null;
  type: string | null;
  count: number;
  before: unknown;
  after: unknown;
  hash: string;
}

/** Params of `list_skills`. */
export interface ListSkillsParams {
  /** Optional namespace to filter skills (e.g., 'salesforce') */
  namespace?: string;
  /** Level of detail to return */
  detail?: "names" | "summary";
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
  /** Only skills of this kind */
  kind?: "action" | "instruction";
  /** Only skills with all these tags */
  tags?: string[];
  /** Only skills in this language; 'markdown' means without code */
  language?: "bash" | "javascript" | "markdown" | "python";
  /** Only skills whose examples all passed (true), or only others (false) */
  verified?: boolean;
  /** Only skills without network access (false), or only with it (true) */
  network?: boolean;
  /** Only skills without secrets (false), or only with secrets (true) */
  secrets?: boolean;
  /** Add the number of matching skills, in all and by value of each filter */
  counts?: boolean;
  /** Add facts and usage to each skill */
  catalogue?: boolean;
  /** Only versions with this status; omit for latest versions, published or deprecated */
  status?: "deprecated" | "draft" | "in_review" | "published" | "rejected" | "yanked";
  /** Order: by name, by publication, or by runs */
  sort?: "name" | "newest" | "used";
}

/** Params of `describe_skill`. */
export interface DescribeSkillParams {
  /** Skill name (e.g., 'salesforce.leads.sync') */
  name: string;
  /** Skill version (omit for latest) */
  version?: string;
  /** Level of detail to return */
  detail?: "full" | "manifest" | "summary";
}

/** Params of `read_skill_file`. */
export interface ReadSkillFileParams {
  /** Skill name */
  name: string;
  /** Skill version (omit for latest) */
  version?: string;
  /** Path to file within skill directory (e.g., 'SKILL.md') */
  path: string;
}

/** Params of `execute_skill`. */
export interface ExecuteSkillParams {
  /** Skill name */
  name: string;
  /** Skill version (omit for latest) */
  version?: string;
  /** JSON-serializable arguments to pass to the skill */
  args?: Record<string, unknown>;
  /** Blob IDs to mount in the sandbox */
  input_blobs?: string[];
  /** Execution timeout in milliseconds */
  timeout_ms?: number;
  /** Path of a file to run as a program, in a skill without an entrypoint */
  script?: string;
  /** Named environment, for a skill that declares no packages; '' for none, omit for the default */
  environment?: string;
  /** Module to run as 'python -m' does, instead of 'script' */
  module?: string;
  /** Where a script or module starts */
  cwd?: "skill" | "workspace";
  /** Blobs to copy into the workspace: writable files at their paths */
  files?: RunFile[] | Record<string, Content>;
  /** Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf') */
  outputs?: string[];
  /** Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files */
  workspace?: string;
  /** 'read': save nothing, so that other runs may use the workspace */
  workspace_mode?: "read" | "write";
  /** Answer at once with the run_id; get_run and read_run_log follow the run */
  background?: boolean;
}

/** Params of `run_code`. */
export interface RunCodeParams {
  /** Programming language (MVP: python only) */
  language: "bash" | "javascript" | "python";
  /** Source code to execute */
  code: string;
  /** Function name to call */
  entrypoint?: string;
  /** Arguments to pass to entrypoint function */
  args?: Record<string, unknown>;
  /** Skill names to mount in sandbox */
  mount_skills?: string[];
  /** Blob IDs to mount in sandbox */
  input_blobs?: string[];
  /** Execution limits */
  limits?: Record<string, unknown>;
  /** Blobs to copy into the workspace: writable files at their paths */
  files?: RunFile[] | Record<string, Content>;
  /** Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf') */
  outputs?: string[];
  /** Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files */
  workspace?: string;
  /** 'read': save nothing, so that other runs may use the workspace */
  workspace_mode?: "read" | "write";
  /** Named environment whose Python packages the code may import; '' for none, omit for the default */
  environment?: string;
  /** Answer at once with the run_id; get_run and read_run_log follow the run */
  background?: boolean;
}

/** Params of `create_blob`. */
export interface CreateBlobParams {
  /** Content to store */
  content: string;
  /** MIME type (e.g., 'text/plain', 'application/json') */
  kind: string;
  encoding?: "base64" | "utf-8";
  ttl?: number;
}

/** Params of `read_blob`. */
export interface ReadBlobParams {
  /** Blob identifier */
  blob_id: string;
  /** How to sample the blob */
  mode?: "full" | "sample_head" | "sample_tail";
  /** Maximum bytes to return */
  max_bytes?: number;
}

/** Params of `load_skills_protocol_guide`. */
export interface LoadSkillsProtocolGuideParams {
}

/** Params of `call_tool`. */
export interface CallToolParams {
  /** Name of the tool, or 'skill/tool' if several skills have a tool of that name */
  name: string;
  /** Arguments for the tool */
  args?: Record<string, unknown>;
  /** Skill that offers the tool (omit for a tool of the session, else the most recently published one) */
  skill?: string;
  /** Version of that skill (omit for latest) */
  version?: string;
  /** Execution timeout in milliseconds */
  timeout_ms?: number;
  /** Blob IDs to mount in the sandbox */
  input_blobs?: string[];
  /** Blobs to copy into the workspace: writable files at their paths */
  files?: RunFile[] | Record<string, Content>;
  /** Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf') */
  outputs?: string[];
  /** Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files */
  workspace?: string;
  /** 'read': save nothing, so that other runs may use the workspace */
  workspace_mode?: "read" | "write";
  /** Session of the caller, by a name that the caller chooses; omit for the unnamed session */
  session?: string;
  /** Named environment, for a tool of a skill that declares no packages; '' for none */
  environment?: string;
  /** Answer at once with the run_id; get_run and read_run_log follow the run */
  background?: boolean;
}

/** Params of `delete_blob`. */
export interface DeleteBlobParams {
  /** Blob identifier */
  blob_id: string;
}

/** Params of `create_skill`. */
export interface CreateSkillParams {
  /** skill.toml as JSON: name, version, description, and further declarations */
  manifest: SkillToml;
  /** SKILL.md: markdown for the LLM, with YAML frontmatter at the top */
  skill_md: string;
  /** Code and resources of the skill */
  files?: SkillFile[];
  /** true: submit the version for review if it is not published at once; false: make it a draft */
  submit?: boolean;
}

/** Params of `check_skill`. */
export interface CheckSkillParams {
  /** skill.toml as JSON: name, version, description, and further declarations */
  manifest: SkillToml;
  /** SKILL.md: markdown for the LLM, with YAML frontmatter at the top */
  skill_md: string;
  /** Code and resources of the skill */
  files?: SkillFile[];
  /** true: submit the version for review if it is not published at once; false: make it a draft */
  submit?: boolean;
}

/** Params of `approve_version`. */
export interface ApproveVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
  /** Digest of the reviewed bundle: an approval of another digest is refused */
  digest?: string;
  /** Recorded with the approval */
  note?: string;
}

/** Params of `develop_skill`. */
export interface DevelopSkillParams {
  /** skill.toml as JSON: name, version, description, and further declarations */
  manifest: SkillToml;
  /** SKILL.md: markdown for the LLM, with YAML frontmatter at the top */
  skill_md: string;
  /** Code and resources of the skill */
  files?: SkillFile[];
}

/** Params of `keep_development`. */
export interface KeepDevelopmentParams {
  /** Names of the skills */
  names: string[];
}

/** Params of `end_development`. */
export interface EndDevelopmentParams {
  /** Names of the skills */
  names: string[];
}

/** Params of `search_skills`. */
export interface SearchSkillsParams {
  /** Words or a question */
  query: string;
  /** Maximum number of results */
  limit?: number;
  /** Only skills of this kind */
  kind?: "action" | "instruction";
  /** Only skills with all these tags */
  tags?: string[];
  /** Only skills in this language; 'markdown' means without code */
  language?: "bash" | "javascript" | "markdown" | "python";
  /** Only skills whose examples all passed (true), or only others (false) */
  verified?: boolean;
  /** Only skills without network access (false), or only with it (true) */
  network?: boolean;
  /** Only skills without secrets (false), or only with secrets (true) */
  secrets?: boolean;
  /** Add the number of matching skills, in all and by value of each filter */
  counts?: boolean;
  /** Add facts and usage to each skill */
  catalogue?: boolean;
  /** Only skills in this namespace and below it */
  namespace?: string;
  /** Pagination cursor from previous response */
  cursor?: string;
  /** Only skills with this status */
  status?: "deprecated" | "published";
  /** Order: best match, by name, by publication, or by runs */
  sort?: "best" | "name" | "newest" | "used";
  /** brief: what a model needs to choose a skill */
  detail?: "brief" | "summary";
}

/** Params of `diff_versions`. */
export interface DiffVersionsParams {
  /** Skill name */
  name: string;
  /** The older version, as a version spec: exact, range, label or digest */
  from_version: string;
  /** The newer version (omit for latest) */
  to_version?: string;
}

/** Params of `submit_version`. */
export interface SubmitVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
}

/** Params of `reject_version`. */
export interface RejectVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
  /** Reason for the author */
  reason: string;
}

/** Params of `yank_version`. */
export interface YankVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
  /** Reason for callers who request exactly this version */
  reason: string;
}

/** Params of `unyank_version`. */
export interface UnyankVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
}

/** Params of `deprecate_skill`. */
export interface DeprecateSkillParams {
  /** Skill name */
  name: string;
  /** Message that describe_skill shows */
  message: string;
  /** Name of the skill to use instead */
  successor?: string;
}

/** Params of `undeprecate_skill`. */
export interface UndeprecateSkillParams {
  /** Skill name */
  name: string;
}

/** Params of `set_visibility`. */
export interface SetVisibilityParams {
  /** Skill name */
  name: string;
  /** public: all callers; namespace: callers with a grant that covers the name; private: its publishers */
  visibility: "namespace" | "private" | "public";
}

/** Params of `list_versions`. */
export interface ListVersionsParams {
  /** Only versions of this skill */
  name?: string;
  /** Only versions with this status (e.g., 'in_review' for versions that wait for a reviewer) */
  status?: "deprecated" | "draft" | "in_review" | "published" | "purged" | "rejected" | "yanked";
  /** Only versions in this namespace and below it */
  namespace?: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `purge_version`. */
export interface PurgeVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
  /** Reason, for all readers of the skill */
  reason: string;
}

/** Params of `recheck_version`. */
export interface RecheckVersionParams {
  /** Skill name */
  name: string;
  /** Exact version */
  version: string;
}

/** Params of `waive_finding`. */
export interface WaiveFindingParams {
  /** Skill name */
  name: string;
  /** The finding's rule */
  rule: string;
  /** Reason, for all readers of the skill */
  reason: string;
  /** End of the waiver: '2027-01-31', a time, or '90d'; omit for no end */
  until?: string;
  /** Only findings in this file */
  file?: string;
  /** Only this exact version */
  version?: string;
}

/** Params of `list_waivers`. */
export interface ListWaiversParams {
  /** Only waivers of this skill */
  name?: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `revoke_waiver`. */
export interface RevokeWaiverParams {
  /** The waiver's id */
  id: string;
}

/** Params of `set_label`. */
export interface SetLabelParams {
  /** Skill name */
  name: string;
  /** Label (e.g., 'stable') */
  label: string;
  /** New target: a version, or a version spec to resolve now (another label, a range, 'latest') */
  version: string;
}

/** Params of `rollback_label`. */
export interface RollbackLabelParams {
  /** Skill name */
  name: string;
  /** Label (e.g., 'stable') */
  label: string;
}

/** Params of `remove_label`. */
export interface RemoveLabelParams {
  /** Skill name */
  name: string;
  /** Label (e.g., 'stable') */
  label: string;
}

/** Params of `list_labels`. */
export interface ListLabelsParams {
  /** Skill name */
  name: string;
  /** Only this label */
  label?: string;
  /** Maximum number of moves */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `resolve_skills`. */
export interface ResolveSkillsParams {
  /** 'name' or 'name@version spec' each, at most 1000 */
  skills: string[];
}

/** Params of `verify_lock`. */
export interface VerifyLockParams {
  /** 'lock' of resolve_skills */
  lock: LockEntry[];
}

/** Params of `get_run`. */
export interface GetRunParams {
  /** The run's id */
  run_id: string;
  /** Wait up to this long for the end of the run */
  wait_ms?: number;
}

/** Params of `read_run_log`. */
export interface ReadRunLogParams {
  /** The run's id */
  run_id: string;
  /** Offset in bytes: 'next' of the previous answer */
  after?: number;
  /** Maximum number of bytes */
  max_bytes?: number;
  /** Wait up to this long for more text */
  wait_ms?: number;
}

/** Params of `list_runs`. */
export interface ListRunsParams {
  /** Only runs of this skill */
  skill?: string;
  /** Only runs with this status */
  status?: "completed" | "failed" | "queued" | "started";
  /** Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h') */
  since?: string;
  /** Only runs of this identity (only admins may name others) */
  identity?: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `cancel_run`. */
export interface CancelRunParams {
  /** The run's id */
  run_id: string;
}

/** Params of `list_tools`. */
export interface ListToolsParams {
  /** Only tools of this skill: 'name' or 'name@version spec' */
  skill?: string;
  /** Session of the caller, by a name that the caller chooses; omit for the unnamed session */
  session?: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `define_tool`. */
export interface DefineToolParams {
  /** Tool name (lowercase with underscores) */
  name: string;
  /** What the tool does */
  description: string;
  /** JSON string of parameter definitions */
  parameters?: string;
  /** Body of the function that gets 'args' and returns the result */
  code: string;
  /** "true" to keep it as a skill that others can use */
  persistent?: string;
  /** Language of the code. If omitted: JavaScript if the server can run it, else Python */
  language?: "bash" | "javascript" | "python";
  /**
   * Namespace of a persistent tool. If omitted: none if the caller may publish names without a namespace, else the
   * first granted namespace
   */
  namespace?: string;
  /** Session of the caller, by a name that the caller chooses; omit for the unnamed session */
  session?: string;
}

/** Params of `remove_tool`. */
export interface RemoveToolParams {
  /** Tool name to remove, or 'skill/tool' */
  name: string;
  /** Session of the caller, by a name that the caller chooses; omit for the unnamed session */
  session?: string;
}

/** Params of `create_workspace`. */
export interface CreateWorkspaceParams {
  /** Workspace (ws_…) or snapshot (sha256:…) to fork, or a run (run_…) whose snapshot to fork */
  origin?: string;
  /** Any text, shown in lists */
  name?: string;
  /** Blobs to copy into a new workspace */
  files?: RunFile[] | Record<string, Content>;
  /** Seconds after its last use until it expires */
  ttl?: number;
}

/** Params of `list_workspaces`. */
export interface ListWorkspacesParams {
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `describe_workspace`. */
export interface DescribeWorkspaceParams {
  /** The workspace's id */
  workspace: string;
  /** Only files at or below this path */
  path?: string;
  /** Maximum number of files */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `read_workspace_file`. */
export interface ReadWorkspaceFileParams {
  /** The workspace's id */
  workspace: string;
  /** Path of the file (e.g., 'data/orders.csv') */
  path: string;
}

/** Params of `reset_workspace`. */
export interface ResetWorkspaceParams {
  /** The workspace's id */
  workspace: string;
  /** Digest of the snapshot (e.g., 'before' of a run) */
  snapshot: string;
}

/** Params of `delete_workspace`. */
export interface DeleteWorkspaceParams {
  /** The workspace's id */
  workspace: string;
}

/** Params of `list_environments`. */
export interface ListEnvironmentsParams {
  /** List all installed locks instead (for admins) */
  installed?: boolean;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `describe_environment`. */
export interface DescribeEnvironmentParams {
  /** Name of an environment, or the SHA-256 of a lock */
  name: string;
}

/** Params of `rebuild_environment`. */
export interface RebuildEnvironmentParams {
  /** Name of an environment, or the SHA-256 of a lock */
  name: string;
}

/** Params of `list_skill_usage`. */
export interface ListSkillUsageParams {
  /** Only skills of this namespace and below it */
  namespace?: string;
  /** Only skills that were read and not run */
  never_run?: boolean;
  /** Maximum number of skills */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `get_usage`. */
export interface GetUsageParams {
  /** Identity; omit for the caller (only admins may name others) */
  identity?: string;
  /** Namespace; omit for the namespaces of the caller's grants */
  namespace?: string;
}

/** Params of `collect_garbage`. */
export interface CollectGarbageParams {
  /** Only report what a sweep would remove */
  dry_run?: boolean;
  /** Only these steps of a sweep, by their names; omit for all */
  steps?: string[];
}

/** Params of `create_token`. */
export interface CreateTokenParams {
  /** Name of the identity; tokens with one name are one identity */
  name: string;
  /** Scopes of the token: read, run, publish, review, admin */
  scopes: string[];
  /** Namespace grants: names to publish or review ('sales.*'; '*' for all) */
  namespaces?: string[];
  /** Whether the token belongs to a person or an agent */
  kind?: "agent" | "person";
  /** Lifetime of the token (e.g., '90d'); omit for no end */
  expires?: string;
}

/** Params of `list_tokens`. */
export interface ListTokensParams {
}

/** Params of `revoke_token`. */
export interface RevokeTokenParams {
  /** The token's id */
  id: string;
}

/** Params of `revoke_identity`. */
export interface RevokeIdentityParams {
  /** Name of the identity, as list_tokens shows it */
  name: string;
}

/** Params of `add_webhook`. */
export interface AddWebhookParams {
  /** Target of the requests (e.g., 'https://hooks.example.org/skillery') */
  url: string;
  /** Types of events; omit for all except run_failed */
  events?: string[];
  /** Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all */
  skills?: string[];
}

/** Params of `list_webhooks`. */
export interface ListWebhooksParams {
}

/** Params of `test_webhook`. */
export interface TestWebhookParams {
  /** The webhook's id */
  id: string;
}

/** Params of `remove_webhook`. */
export interface RemoveWebhookParams {
  /** The webhook's id */
  id: string;
}

/** Params of `list_dead_letters`. */
export interface ListDeadLettersParams {
  /** The webhook's id */
  id: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Params of `add_trust_rule`. */
export interface AddTrustRuleParams {
  /** The skill ('sales.report') or the namespace ('sales.*') that the jobs may publish */
  target: string;
  /** The CI service; oidc for another issuer */
  provider: "github" | "gitlab" | "oidc";
  /** Issuer of the tokens; omit for github.com and gitlab.com */
  issuer?: string;
  /** Repository (e.g., 'acme/skills'), for github and gitlab */
  repository?: string;
  /** Number of the repository or project */
  repository_id?: string;
  /** Number of the owner (github) or group (gitlab) */
  owner_id?: string;
  /** File of the workflow (e.g., 'release.yml'); for gitlab, default .gitlab-ci.yml */
  workflow?: string;
  /** Branch or tag (e.g., 'refs/heads/main', 'refs/tags/*'); omit for all */
  ref?: string;
  /** Environment of the job; omit for all */
  environment?: string;
  /** Further claims that a token must have */
  claims?: Record<string, string>;
  /** Whose publishing rules apply to the jobs */
  kind?: "agent" | "person";
}

/** Params of `list_trust_rules`. */
export interface ListTrustRulesParams {
}

/** Params of `remove_trust_rule`. */
export interface RemoveTrustRuleParams {
  /** The rule's id */
  id: string;
}

/** Params of `list_audit`. */
export interface ListAuditParams {
  /** Only entries of this identity */
  identity?: string;
  /** Only this action, usually the name of a method */
  action?: string;
  /** Only this subject: a skill (with all its versions), name@version, or an id */
  subject?: string;
  /** Only changes, or only refused attempts */
  outcome?: "" | "done" | "refused";
  /** Only entries from this time on (e.g., '2026-11-22T09:30:00Z') */
  since?: string;
  /** Only entries before this time */
  until?: string;
  /** Maximum number of results */
  limit?: number;
  /** Pagination cursor from previous response */
  cursor?: string;
}

/** Methods that the server executes once for each Idempotency-Key. */
export const ONCE: readonly string[] = [
  "execute_skill",
  "run_code",
  "create_blob",
  "call_tool",
  "create_skill",
  "define_tool",
  "create_workspace"
];
/** Further methods that a client may call twice without harm: most of them change nothing. */
export const REPEATABLE: readonly string[] = [
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
  "list_waivers",
  "list_labels",
  "resolve_skills",
  "verify_lock",
  "get_run",
  "read_run_log",
  "list_runs",
  "list_tools",
  "list_workspaces",
  "describe_workspace",
  "read_workspace_file",
  "list_environments",
  "describe_environment",
  "list_skill_usage",
  "get_usage",
  "collect_garbage",
  "list_tokens",
  "list_webhooks",
  "test_webhook",
  "list_dead_letters",
  "list_trust_rules",
  "list_audit"
];
/** The tools of the protocol. */
export const TOOLS: readonly string[] = [
  "list_skills",
  "describe_skill",
  "read_skill_file",
  "execute_skill",
  "run_code",
  "create_blob",
  "read_blob",
  "load_skills_protocol_guide"
];
/** The defaults of params in tool calls of models, if they differ from those of the method. */
export const FOR_MODELS: Record<string, object> = {"search_skills": {"limit": 5, "detail": "brief"}};
/** Every method of the server. */
export abstract class Methods {
  abstract call(method: string, params?: object, options?: CallOptions): Promise<any>;

  /** Enumerate available skills, optionally filtering by namespace. Results are deterministically sorted. */
  listSkills(params: ListSkillsParams = {}, options?: CallOptions): Promise<SkillPage> {
    return this.call("list_skills", params, options);
  }

  /** Retrieve a skill's manifest and documentation frontmatter. */
  describeSkill(params: DescribeSkillParams, options?: CallOptions): Promise<DescribedSkill> {
    return this.call("describe_skill", params, options);
  }

  /** Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas). */
  readSkillFile(params: ReadSkillFileParams, options?: CallOptions): Promise<SkillFileContent> {
    return this.call("read_skill_file", params, options);
  }

  /** Execute a skill's entrypoint in an ephemeral sandbox. */
  executeSkill(params: ExecuteSkillParams, options?: CallOptions): Promise<Run> {
    return this.call("execute_skill", params, options);
  }

  /** Execute LLM-written code in a sandbox with specified skills and blobs mounted. */
  runCode(params: RunCodeParams, options?: CallOptions): Promise<Run> {
    return this.call("run_code", params, options);
  }

  /** Store large content as a blob and return its ID. */
  createBlob(params: CreateBlobParams, options?: CallOptions): Promise<NewBlob> {
    return this.call("create_blob", params, options);
  }

  /** Retrieve a preview of blob content. Full reads discouraged for large blobs. */
  readBlob(params: ReadBlobParams, options?: CallOptions): Promise<BlobContent> {
    return this.call("read_blob", params, options);
  }

  /**
   * Load the Skills Protocol Guide to learn how to use these tools. Call this first if you haven't read the guide
   * yet.
   */
  loadSkillsProtocolGuide(params: LoadSkillsProtocolGuideParams = {}, options?: CallOptions): Promise<Guide> {
    return this.call("load_skills_protocol_guide", params, options);
  }

  /** Call a tool of a skill or of a session. */
  callTool(params: CallToolParams, options?: CallOptions): Promise<ToolResult> {
    return this.call("call_tool", params, options);
  }

  /** Delete a blob of the caller. Admins may delete any blob. */
  deleteBlob(params: DeleteBlobParams, options?: CallOptions): Promise<DeletedBlob> {
    return this.call("delete_blob", params, options);
  }

  /** Publish a new skill, or a new version of a skill. The whole bundle is checked before anything is stored. */
  createSkill(params: CreateSkillParams, options?: CallOptions): Promise<CreatedSkill> {
    return this.call("create_skill", params, options);
  }

  /** Run all checks of create_skill and the examples, without publishing anything. */
  checkSkill(params: CheckSkillParams, options?: CallOptions): Promise<CheckedSkill> {
    return this.call("check_skill", params, options);
  }

  /** Publish a version that is in review. */
  approveVersion(params: ApproveVersionParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("approve_version", params, options);
  }

  /** Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything. */
  developSkill(params: DevelopSkillParams, options?: CallOptions): Promise<DevelopedSkill> {
    return this.call("develop_skill", params, options);
  }

  /** Keep serving development versions, which end 30 seconds after the last call. */
  keepDevelopment(params: KeepDevelopmentParams, options?: CallOptions): Promise<KeptSkills> {
    return this.call("keep_development", params, options);
  }

  /** Stop serving development versions. */
  endDevelopment(params: EndDevelopmentParams, options?: CallOptions): Promise<KeptSkills> {
    return this.call("end_development", params, options);
  }

  /** Find skills by words about the task, best first. */
  searchSkills(params: SearchSkillsParams, options?: CallOptions): Promise<FoundSkillPage> {
    return this.call("search_skills", params, options);
  }

  /** Compare two versions of a skill: permissions first, then manifest, instructions and files. */
  diffVersions(params: DiffVersionsParams, options?: CallOptions): Promise<VersionsDiff> {
    return this.call("diff_versions", params, options);
  }

  /** Ask for a review of a draft. */
  submitVersion(params: SubmitVersionParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("submit_version", params, options);
  }

  /** Reject a version that is in review. */
  rejectVersion(params: RejectVersionParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("reject_version", params, options);
  }

  /** Withdraw a published version: only requests for exactly this version still resolve. */
  yankVersion(params: YankVersionParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("yank_version", params, options);
  }

  /** Undo a yank. */
  unyankVersion(params: UnyankVersionParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("unyank_version", params, options);
  }

  /** Mark all published versions of a skill as deprecated. */
  deprecateSkill(params: DeprecateSkillParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("deprecate_skill", params, options);
  }

  /** Undo a deprecation. */
  undeprecateSkill(params: UndeprecateSkillParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("undeprecate_skill", params, options);
  }

  /** Set which callers can see a skill. */
  setVisibility(params: SetVisibilityParams, options?: CallOptions): Promise<NewVersion> {
    return this.call("set_visibility", params, options);
  }

  /** List versions of a skill or of all skills, the most recently created first. */
  listVersions(params: ListVersionsParams = {}, options?: CallOptions): Promise<VersionPage> {
    return this.call("list_versions", params, options);
  }

  /** Remove the files of a version permanently, for example after a leaked key. Its number cannot be used again. */
  purgeVersion(params: PurgeVersionParams, options?: CallOptions): Promise<PurgedVersion> {
    return this.call("purge_version", params, options);
  }

  /** Check a published version again with the checks of today, and store the findings. */
  recheckVersion(params: RecheckVersionParams, options?: CallOptions): Promise<RecheckedVersion> {
    return this.call("recheck_version", params, options);
  }

  /** Allow versions of a skill to be published in spite of a finding. */
  waiveFinding(params: WaiveFindingParams, options?: CallOptions): Promise<Waiver> {
    return this.call("waive_finding", params, options);
  }

  /** List the waivers of the skills that the caller reviews, newest first. */
  listWaivers(params: ListWaiversParams = {}, options?: CallOptions): Promise<WaiverPage> {
    return this.call("list_waivers", params, options);
  }

  /** Revoke a waiver. Versions that were published under it stay. */
  revokeWaiver(params: RevokeWaiverParams, options?: CallOptions): Promise<Waiver> {
    return this.call("revoke_waiver", params, options);
  }

  /** Point a label of a skill to a version. */
  setLabel(params: SetLabelParams, options?: CallOptions): Promise<MovedLabel> {
    return this.call("set_label", params, options);
  }

  /** Point a label to its previous published version. Repeated calls go further back. */
  rollbackLabel(params: RollbackLabelParams, options?: CallOptions): Promise<MovedLabel> {
    return this.call("rollback_label", params, options);
  }

  /** Remove a label. A rollback restores it. */
  removeLabel(params: RemoveLabelParams, options?: CallOptions): Promise<MovedLabel> {
    return this.call("remove_label", params, options);
  }

  /** List the labels of a skill, and their moves, newest first. */
  listLabels(params: ListLabelsParams, options?: CallOptions): Promise<Labels> {
    return this.call("list_labels", params, options);
  }

  /** Resolve skills to exact versions and digests, as a lock. */
  resolveSkills(params: ResolveSkillsParams, options?: CallOptions): Promise<Lock> {
    return this.call("resolve_skills", params, options);
  }

  /** Check whether the locked versions still exist with the same digests. */
  verifyLock(params: VerifyLockParams, options?: CallOptions): Promise<Verified> {
    return this.call("verify_lock", params, options);
  }

  /** Return the record of a run: its result, its caller, its times and its limits. */
  getRun(params: GetRunParams, options?: CallOptions): Promise<RunRecord> {
    return this.call("get_run", params, options);
  }

  /** Read the log of a run, also while it runs. */
  readRunLog(params: ReadRunLogParams, options?: CallOptions): Promise<RunLog> {
    return this.call("read_run_log", params, options);
  }

  /** List runs, newest first. */
  listRuns(params: ListRunsParams = {}, options?: CallOptions): Promise<RunPage> {
    return this.call("list_runs", params, options);
  }

  /** Stop a queued or started run. */
  cancelRun(params: CancelRunParams, options?: CallOptions): Promise<RunRecord> {
    return this.call("cancel_run", params, options);
  }

  /** List the tools that skills offer, and the tools of a session. */
  listTools(params: ListToolsParams = {}, options?: CallOptions): Promise<ToolPage> {
    return this.call("list_tools", params, options);
  }

  /** Define a tool, for a session or as a published skill. */
  defineTool(params: DefineToolParams, options?: CallOptions): Promise<DefinedTool> {
    return this.call("define_tool", params, options);
  }

  /** Remove a tool that was made with define_tool. */
  removeTool(params: RemoveToolParams, options?: CallOptions): Promise<DefinedTool> {
    return this.call("remove_tool", params, options);
  }

  /** Create a workspace: files that stay from run to run. */
  createWorkspace(params: CreateWorkspaceParams = {}, options?: CallOptions): Promise<WorkspaceInfo> {
    return this.call("create_workspace", params, options);
  }

  /** List your workspaces. */
  listWorkspaces(params: ListWorkspacesParams = {}, options?: CallOptions): Promise<WorkspacePage> {
    return this.call("list_workspaces", params, options);
  }

  /** Describe a workspace, its files and its snapshots. */
  describeWorkspace(params: DescribeWorkspaceParams, options?: CallOptions): Promise<DescribedWorkspace> {
    return this.call("describe_workspace", params, options);
  }

  /** Read a file of a workspace. */
  readWorkspaceFile(params: ReadWorkspaceFileParams, options?: CallOptions): Promise<WorkspaceFileContent> {
    return this.call("read_workspace_file", params, options);
  }

  /** Return a workspace to an earlier snapshot: undo runs with bad results. */
  resetWorkspace(params: ResetWorkspaceParams, options?: CallOptions): Promise<WorkspaceInfo> {
    return this.call("reset_workspace", params, options);
  }

  /** Delete a workspace and its snapshots. */
  deleteWorkspace(params: DeleteWorkspaceParams, options?: CallOptions): Promise<DeletedWorkspace> {
    return this.call("delete_workspace", params, options);
  }

  /** List the named environments, with the packages that the code of run_code may import. */
  listEnvironments(params: ListEnvironmentsParams = {}, options?: CallOptions): Promise<EnvironmentPage> {
    return this.call("list_environments", params, options);
  }

  /** Return one environment, and the versions that use its lock of packages. */
  describeEnvironment(params: DescribeEnvironmentParams, options?: CallOptions): Promise<DescribedEnvironment> {
    return this.call("describe_environment", params, options);
  }

  /** Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock. */
  rebuildEnvironment(params: RebuildEnvironmentParams, options?: CallOptions): Promise<DescribedEnvironment> {
    return this.call("rebuild_environment", params, options);
  }

  /** List how often skills were read and run in the last 30 days. */
  listSkillUsage(params: ListSkillUsageParams = {}, options?: CallOptions): Promise<SkillUsagePage> {
    return this.call("list_skill_usage", params, options);
  }

  /** Return the used amount and the limit of each quota. */
  getUsage(params: GetUsageParams = {}, options?: CallOptions): Promise<IdentityUse> {
    return this.call("get_usage", params, options);
  }

  /** Remove unreferenced and expired data. */
  collectGarbage(params: CollectGarbageParams = {}, options?: CallOptions): Promise<Garbage> {
    return this.call("collect_garbage", params, options);
  }

  /** Create a token. Only this answer contains it. */
  createToken(params: CreateTokenParams, options?: CallOptions): Promise<CreatedToken> {
    return this.call("create_token", params, options);
  }

  /** List all tokens, without their secrets. */
  listTokens(params: ListTokensParams = {}, options?: CallOptions): Promise<Tokens> {
    return this.call("list_tokens", params, options);
  }

  /** Revoke a token permanently. */
  revokeToken(params: RevokeTokenParams, options?: CallOptions): Promise<Token> {
    return this.call("revoke_token", params, options);
  }

  /** End an identity: its tokens, sessions and runs. Return its remaining data. */
  revokeIdentity(params: RevokeIdentityParams, options?: CallOptions): Promise<RevokedIdentity> {
    return this.call("revoke_identity", params, options);
  }

  /** Send events to a URL, as signed HTTP requests. Only this answer contains the secret. */
  addWebhook(params: AddWebhookParams, options?: CallOptions): Promise<AddedWebhook> {
    return this.call("add_webhook", params, options);
  }

  /** List all webhooks, without their secrets. */
  listWebhooks(params: ListWebhooksParams = {}, options?: CallOptions): Promise<WebhookList> {
    return this.call("list_webhooks", params, options);
  }

  /** Send a message of the type test to a webhook now. */
  testWebhook(params: TestWebhookParams, options?: CallOptions): Promise<WebhookTest> {
    return this.call("test_webhook", params, options);
  }

  /** Remove a webhook, its waiting events and its dead letters. */
  removeWebhook(params: RemoveWebhookParams, options?: CallOptions): Promise<RemovedWebhook> {
    return this.call("remove_webhook", params, options);
  }

  /** List the events that a webhook did not accept in time, oldest first. */
  listDeadLetters(params: ListDeadLettersParams, options?: CallOptions): Promise<DeadLetterPage> {
    return this.call("list_dead_letters", params, options);
  }

  /** Let CI jobs publish a skill or a namespace, without a stored token. */
  addTrustRule(params: AddTrustRuleParams, options?: CallOptions): Promise<TrustRule> {
    return this.call("add_trust_rule", params, options);
  }

  /** List the trust rules for the namespaces of the caller. */
  listTrustRules(params: ListTrustRulesParams = {}, options?: CallOptions): Promise<TrustRules> {
    return this.call("list_trust_rules", params, options);
  }

  /** Remove a trust rule, and end the tokens that CI jobs got by it. */
  removeTrustRule(params: RemoveTrustRuleParams, options?: CallOptions): Promise<RemovedTrustRule> {
    return this.call("remove_trust_rule", params, options);
  }

  /** List changes and refused attempts, newest first. */
  listAudit(params: ListAuditParams = {}, options?: CallOptions): Promise<AuditPage> {
    return this.call("list_audit", params, options);
  }
}
