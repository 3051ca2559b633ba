"""The eight facts with which a person decides whether to trust a version: source, licence, review, rights, code, tests,
signatures and use. Each fact comes from the records of this server. Green is what the server has proved, and an open
licence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode, urlsplit

from skillery.attestations.evaluations import evaluation_text
from skillery.attestations.evidence import Evidence, count_attestations
from skillery.errors import Unavailable
from skillery.formats.check_results import CheckedExample
from skillery.formats.licences import OTHER, is_licence_file, is_open_licence, spelled
from skillery.formats.network import is_open_to_anybody, parse_network_pattern
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.formats.wording import first_names
from skillery.identity.secret_grants import granted
from skillery.importing.aliases import is_removed
from skillery.method import or_none
from skillery.publishing.file_findings import DEAD_REFERENCE, NOT_PORTABLE
from skillery.publishing.passing import ExplainedPolicy, explained
from skillery.runs.failures import FailureGroup, read_failure
from skillery.skills.descriptions import Skill
from skillery.web.display import LIMITS, Language, ago, counted, limit_in_words, number, size
from skillery.web.frame import PageRequest, path_of
from skillery.web.skill_opened import Opened, examples_of, permissions_of, reader_of, without_value
from skillery.web.views.kinds import ending_of

Sign = Literal["ok", "none", "look", "bad"]
_LANGUAGES = {"py": "Python", "ts": "TypeScript", "rb": "Ruby", "pl": "Perl", "ps1": "PowerShell"}
_LANGUAGES |= dict.fromkeys(("js", "mjs", "cjs"), "JavaScript") | dict.fromkeys(("sh", "bash"), "shell")
"""Languages of scripts by the ending of the file."""
_DOCUMENTS = {
    *("md", "markdown", "txt", "rst", "adoc", "html", "css", "csv", "tsv", "json", "jsonl", "yaml", "yml", "toml"),
    *("xml", "xsd", "ini", "lock", "sql", "tex", "bib", "pdf", "docx", "xlsx", "pptx", "ics", "srt", "tmpl", "j2"),
    *("png", "jpg", "jpeg", "gif", "webp", "svg", "ico", "mp3", "mp4", "wav", "ttf", "otf", "woff", "woff2"),
    *("license", "licence", "copying", "notice", "authors", "readme", "changelog", "gitignore"),
}
"""Endings of files that are no programs, and names of such files without an ending."""
_LEAST_RUNS = 20
"""With fewer runs, a share of failures says nothing."""


class TrustFact(NamedTuple):
    """One of the eight facts, as a page shows it."""

    sign: Sign
    """`ok`: this server has proved the fact, or the licence is open. `look`: a person should look at the fact."""
    words: str
    detail: str = ""
    address: str = ""
    """The address to which the words lead, or ""."""


class Records(NamedTuple):
    """The records of the server from which the facts come."""

    policy: ExplainedPolicy | None
    evidence: Sequence[Evidence]
    unverified: int
    """The number of attestations that do not verify."""
    granted: frozenset[str]
    """The secrets of the manifest that are granted to the skill."""
    valueless: frozenset[str]
    """The secrets of the manifest that have no value on this server."""
    is_removed: bool
    """Whether the source of the skill does not have it any more."""
    failure: FailureGroup | None = None
    """What most failed runs have in common, if many fail."""


async def read_trust(request: PageRequest, opened: Opened) -> tuple[dict[str, TrustFact], ExplainedPolicy | None]:
    """Return the eight facts about a version by name, in the order of the page, and its policy."""
    records, language = await _records(request, opened), request.language
    facts = {
        "source": _source(opened, records),
        "licence": _licence(opened),
        "review": _review(opened, records),
        "rights": _rights(opened.skill.manifest, records, language),
        "code": _code(opened, language),
        "tests": _tests(opened, examples_of(request, opened), records),
        "signed": _signed(opened, records),
        "use": _use(opened, records.failure, language, publishes=request.publishes(opened.name)),
    }
    return facts, records.policy


async def _records(request: PageRequest, opened: Opened) -> Records:
    identity, passing = reader_of(request), request.site.core.passing
    secrets = permissions_of(opened.skill.manifest)[1]
    valueless = await without_value(request, secrets)
    if opened.facts.created_at is None:
        return Records(None, (), 0, frozenset(), valueless, is_removed=False)

    def read(connection: Any) -> Records:
        judged = passing.read(connection, identity, opened.name, Exact(Version.parse(opened.version)))
        stored = count_attestations(connection, judged.row.version_id)
        names = frozenset(granted(connection, opened.name, secrets) if secrets else ())
        removed = is_removed(connection, opened.name)
        failure = read_failure(connection, identity, judged.row.skill_id, opened.name) if _fails(opened) else None
        policy = explained(connection, judged)
        return Records(policy, judged.evidence, stored - len(judged.evidence), names, valueless, removed, failure)

    try:
        return await request.read_page(read)
    except Unavailable:  # the chain of the registry's keys does not verify
        return Records(None, (), -1, frozenset(), valueless, is_removed=False)


def is_text_only(skill: Skill) -> bool:
    """Return whether a version has no code to run, and only documents."""
    files = or_none(skill.files) or ()
    runs = bool(skill.manifest.get("runtime")) or any(file.path == "tools.json" for file in files)
    return not runs and all(not file.executable and ending_of(file.path) in _DOCUMENTS for file in files)


def _source(opened: Opened, records: Records) -> TrustFact:
    publisher = opened.facts.publisher
    by = f"Published by {'the agent ' if publisher.kind == 'agent' else ''}{publisher.name}."
    if opened.facts.created_at is None:
        return TrustFact("none", "Your own folder", "Only you see this development version.")
    if job := or_none(opened.skill.provenance):
        commit = f" from commit {job.commit[:8]}" if job.commit else ""
        words, address = (f"{job.repository}", _repository(records.evidence)) if job.repository else (job.subject, "")
        return TrustFact("ok", words, f"Built{commit}, proved by the token of its CI job. {by}", address)
    for each in records.evidence:
        stated = each.predicate.get("buildDefinition", {}).get("externalParameters", {})
        if each.word != "provenance" or not stated.get("source"):
            continue
        source, path = str(stated["source"]), str(stated.get("path", ""))
        words = source.removeprefix("https://").removesuffix(".git")
        address = source if source.startswith("https://") and urlsplit(source).hostname else ""
        commit = origin.commit if (origin := or_none(opened.skill.origin)) else ""
        where = ", ".join(filter(None, (path, commit and f"commit {commit[:8]}")))
        detail = f"{where + '. ' if where else ''}Stated by the importer {stated.get('stated_by', '')}, not proved."
        if records.is_removed:
            return TrustFact("bad", words, f"The source no longer has this skill. {detail}", address)
        return TrustFact("none", words, detail, address)
    return TrustFact("none", "No source", f"{by} No attestation says where it was made.")


def _repository(evidence: Sequence[Evidence]) -> str:
    """Return the address of the repository from which a CI job has published the version, or ""."""
    for each in evidence:
        for source in each.predicate.get("buildDefinition", {}).get("resolvedDependencies", ()):
            address = str(source.get("uri", "")).removeprefix("git+").rpartition("@")[0]
            if each.word == "provenance" and address.startswith("https://"):
                return address
    return ""


def _licence(opened: Opened) -> TrustFact:
    stated = (or_none(opened.skill.skill_md_frontmatter) or {}).get("license")
    text = " ".join(stated.split()) if isinstance(stated, str) else ""
    files = or_none(opened.skill.files) or ()
    file = next((file.path for file in files if "/" not in file.path and is_licence_file(file.path)), "")
    address = path_of("s", f"{opened.name}@{opened.version}", "files", file) if file else ""
    origin, where = or_none(opened.skill.origin), "its SKILL.md"
    if not text and origin and origin.licence:
        where = f"{origin.licence_path} of its source"
        text = "Another licence" if origin.licence == OTHER else origin.licence
    if not text:
        detail = f"{file} is in its files." if file else "Its SKILL.md names no licence."
        return TrustFact("none", "Not stated", detail, address)
    if is_open_licence(text):
        return TrustFact("ok", spelled(text), f"From {where}. An open licence.", address)
    return TrustFact("look", text[:120], f"From {where}. Not a known open licence.", address)


def _review(opened: Opened, records: Records) -> TrustFact:
    skill = opened.skill
    if rejected := or_none(skill.rejected):
        return TrustFact("bad", f"Rejected by {rejected.by}, {ago(rejected.at)}", rejected.reason)
    policy = records.policy
    need = next((need for need in policy.needs if need.need == "review"), None) if policy else None
    if policy and need and not need.ok:
        return TrustFact("look", "Waits for a review" if policy.waiting else "Not reviewed", f"{need.missing}.")
    if approval := or_none(skill.approval):
        names = dict.fromkeys([approval.by, *(each.by for each in need.evidence)] if need else [approval.by])
        digits = opened.digest.partition(":")[2][:8]
        same = f"For these files, digest {digits}." if approval.digest == skill.digest else "For other files."
        words = f"by {' and '.join(names)}, {ago(approval.at)}"
        return TrustFact("ok" if approval.digest == skill.digest else "look", words, f"{same} {approval.note}".strip())
    return TrustFact("none", "No review", "This server requires none for it.")


def _rights(manifest: Mapping[str, Any], records: Records, language: Language) -> TrustFact:
    runtime = manifest.get("runtime") or {}
    hosts, secrets = permissions_of(manifest)
    stated = runtime.get("limits") or {}
    limits = [limit_in_words(name, stated[name], language) for name in LIMITS if name in stated]
    details = [f"Up to {', '.join(limits)}." if limits else "The default limits of this server."]
    if runtime.get("workspace"):
        details.insert(0, "It reads and changes files of a workspace that a caller passes.")
    for name in reversed(secrets):
        value = ", and has no value here" if name in records.valueless else ""
        details.insert(0, f"{name} is {'granted' if name in records.granted else 'not granted'}{value}.")
    if not hosts and not secrets:
        return TrustFact("ok", "No network, no secrets", " ".join(details))
    named = [host.removeprefix("https://") for host in hosts]
    more = [counted(len(named) - 3, "other host", language)] if len(named) > 4 else []
    uses = [f"reach {', '.join([*named[:3], *more] if more else named)}"] if hosts else []
    uses += [f"use {counted(len(secrets), 'secret', language)}"] if secrets else []
    words = ", ".join(uses)
    patterns = map(parse_network_pattern, hosts)
    is_open = any(not isinstance(pattern, str) and is_open_to_anybody(pattern) for pattern in patterns)
    if is_open and secrets:
        details.insert(0, "It may send its secrets to hosts that anyone can register.")
    address = path_of("s", f"{manifest['name']}@{manifest['version']}", "files", "skill.toml") if more else ""
    sign: Sign = "bad" if is_open and secrets else "look"
    return TrustFact(sign, words[:1].upper() + words[1:], " ".join(details), address)


def _code(opened: Opened, language: Language) -> TrustFact:
    skill, files = opened.skill, or_none(opened.skill.files) or ()
    contents = f"{counted(len(files), 'file', language)}, {size(opened.facts.size_bytes, language)}."
    findings = [finding for finding in or_none(skill.findings) or () if finding.waiver is None]
    errors = [finding for finding in findings if finding.severity == "error"]
    warnings = [f for f in findings if f.severity == "warning" and f.rule not in (DEAD_REFERENCE, NOT_PORTABLE)]
    unknown = [file for file in files if ending_of(file.path) not in _LANGUAGES]
    programs = [file for file in unknown if file.executable]
    others = [file for file in unknown if not file.executable and ending_of(file.path) not in _DOCUMENTS]
    endings = map(ending_of, (file.path for file in files))
    languages = Counter(_LANGUAGES[ending] for ending in endings if ending in _LANGUAGES)
    kind = "script" if skill.kind == "instruction" else "file"
    parts = [counted(count, f"{name} {kind}", language) for name, count in languages.most_common()]
    lock = or_none(skill.lock)
    npm = or_none(lock.npm) if lock else None
    packages = sum(len(part.packages or ()) for part in (lock, npm) if part)
    parts += [counted(packages, "package", language)] if packages else []
    parts += [counted(len(programs), "other executable file", language)] if programs else []
    parts += [counted(len(others), "file of another kind", language, "files of other kinds")] if others else []
    words = "Text only" if is_text_only(skill) else ", ".join(parts) or "No code"
    details = [contents]
    if words == "Text only":
        details.append("It runs no code.")
    elif lock and or_none(lock.sha256):
        details.append(f"Lock {str(lock.sha256).partition(':')[2][:8] or str(lock.sha256)[:8]}.")
    address = "#findings" if errors or warnings else ""
    if errors or warnings:
        noticed = [counted(len(errors), "error", language)] if errors else []
        noticed += [counted(len(warnings), "warning", language)] if warnings else []
        details.insert(0, f"{' and '.join(noticed)} from its checks.")
    scripts = or_none(skill.scripts) or ()
    if lacking := [script for script in scripts if script.missing]:
        names = first_names(list(dict.fromkeys(name for script in lacking for name in script.missing)), 3)
        of_scripts = counted(len(scripts), "script", language)
        details.insert(0, f"{len(lacking)} of {of_scripts} cannot run here: this server does not offer {names}.")
    sign: Sign = "bad" if errors else "look" if warnings or programs or others or lacking else "ok"
    return TrustFact(sign, words, " ".join(details), address)


def _tests(opened: Opened, examples: Sequence[CheckedExample], records: Records) -> TrustFact:
    fact = _examples(opened, examples)
    stated = [each.predicate for each in records.evidence if each.word == "evaluation"]
    if not stated:
        return fact
    judged = [each for each in stated if each.get("count")] or stated
    # An evaluation of prompts alone does not hide that of the cases.
    shown = [judged[-1], *(stated[-1:] if stated[-1] is not judged[-1] else [])]
    detail = f"{fact.detail} Evaluation: {' · '.join(map(evaluation_text, shown))}.".strip()
    sign: Sign = "look" if fact.sign == "ok" and judged[-1].get("verdict") == "worse" else fact.sign
    return fact._replace(sign=sign, detail=detail, address=fact.address or "#evaluations")


def _examples(opened: Opened, examples: Sequence[CheckedExample]) -> TrustFact:
    if not examples:
        return TrustFact("none", "No examples", "No test shows what it returns.")
    passed = sum(example.status == "passed" for example in examples)
    words = f"{passed} of {counted(len(examples), 'example')} passed"
    if any(example.status == "failed" for example in examples):
        return TrustFact("bad", words, "", "#examples")
    if passed < len(examples):
        waits = any(example.status == "waiting" for example in examples)
        why = "The others run when a reviewer approves." if waits else "The others did not run on this server."
        return TrustFact("look", words, why, "#examples")
    return TrustFact("ok", words, f"Before {opened.version} was published.", "#examples")


def _signed(opened: Opened, records: Records) -> TrustFact:
    evidence, policy = records.evidence, records.policy
    if records.unverified < 0:
        text = "The keys of this registry do not verify. An admin finds the reason in the log."
        return TrustFact("bad", "Keys not valid", text)
    if records.unverified:
        text = counted(records.unverified, "attestation")
        return TrustFact("bad", f"{text} not valid", "Their facts are left out. An admin finds the reason in the log.")
    if not evidence:
        return TrustFact("none", "No signature", "No attestation says who made or checked it.")
    words = dict.fromkeys("policy met" if each.word == "passed" else each.word for each in evidence)
    own = list(dict.fromkeys(each.by for each in evidence if each.is_personal))
    keys = f", {' and '.join(own)} with a personal key" if own else ""
    detail = f"{', '.join(words)}, verified now{keys}."
    address = f"/skills/{opened.name}/{opened.version}.intoto.jsonl"
    if policy and policy.former_signer:
        changed = f"The signer changed from {policy.former_signer} to {policy.signer or 'none'}."
        return TrustFact("look", "Another signer", changed, address)
    return TrustFact("ok", counted(len(evidence), "attestation"), detail[:1].upper() + detail[1:], address)


def _ends(opened: Opened) -> tuple[int, int]:
    """Return the completed and the failed runs of the last 30 days."""
    days = opened.facts.days
    return sum(day.completed for day in days), sum(day.failed for day in days)


def _fails(opened: Opened) -> bool:
    """Return whether at least 5 % of enough runs failed."""
    completed, failed = _ends(opened)
    return completed + failed >= _LEAST_RUNS and failed >= 0.05 * (completed + failed)


def _use(opened: Opened, failure: FailureGroup | None, language: Language, *, publishes: bool) -> TrustFact:
    days, (completed, failed) = opened.facts.days, _ends(opened)
    runs, ended = sum(day.runs for day in days), completed + failed
    if not runs:
        loads = sum(day.loads for day in days)
        words = f"{counted(loads, 'load', language)} in 30 days" if loads else "No use yet"
        return TrustFact("none", words, "No run in 30 days.")
    words = f"{counted(runs, 'run', language)} in 30 days"
    detail = f"{number(completed, language)} of {number(ended, language)} completed."
    if ended < _LEAST_RUNS:
        return TrustFact("none" if failed else "ok", words, detail)
    if failed:
        share = 100 * failed / ended
        words += f", {number(share, language, 0 if share >= 10 else 1)} % fail"
    if not _fails(opened):
        return TrustFact("ok", words, detail)
    address = ""
    if failure and failure.error_type:
        # The message has parts of values. Readers who do not publish the skill see only the type.
        most = f"{failure.error_type}: {failure.message}" if publishes and failure.message else failure.error_type
        detail = f"{detail} Most failures since {failure.since_version}: {most}"
        address = f"/insight/failures?{urlencode({'skill': opened.name})}" if publishes else ""
    return TrustFact("look" if failed <= 0.15 * ended else "bad", words, detail, address)
