"""Bundles that tests make in their own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, digest_of
from skillery.formats.origins import OriginDocument, make_document, mirrored_skill_md
from skillery.formats.python_source import source_problem
from skillery.formats.skill_md import SkillMd
from skillery.formats.unfinished_bundle import begin_bundle
from skillery.proof import dsse
from skillery.proof.keychains import make_keys_statement
from skillery.proof.statements import make_statement


def make_bundle(
    manifest: Mapping[str, object],
    skill_md: str | SkillMd,
    files: Sequence[BundleFile],
    limits: BundleLimits = BundleLimits(),  # noqa: B008 - frozen
    *,
    skip_broken_tools: bool = False,
) -> Bundle:
    """Check a bundle and compile its Python files in this process.

    Raise the errors of `begin_bundle` and `UnfinishedBundle.finish`.
    """
    begun = begin_bundle(manifest, skill_md, files, limits, skip_broken_tools=skip_broken_tools)
    problems = {source.path: source_problem(source.path, source.content, source.export) for source in begun.sources}
    return begun.finish({path: problem for path, problem in problems.items() if problem})


def vouched(name: str, word: str, *predicates: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of a skill, and a document of its origin with statements of a new key."""
    key, folder = dsse.SigningKey.new(), name.rpartition(".")[2]
    toml = f'name = "{name}"\nversion = "1.0.0"\ndescription = "Count"\n'.encode()
    digest = digest_of([BundleFile("SKILL.md", b"# A\n"), BundleFile("skill.toml", toml)])
    chain = [dsse.seal(make_keys_statement({key.keyid: key.public_der}, None), key.sign).decode()]
    unsigned = OriginDocument(name, "1.0.0", chain, (), b"# A\n", toml)
    payloads = (make_statement(word, name, "1.0.0", digest, predicate) for predicate in predicates)
    document = make_document(unsigned, [dsse.seal(payload, key.sign) for payload in payloads], digest)
    return {
        f"{folder}/SKILL.md": mirrored_skill_md(unsigned),
        f"{folder}/skill.toml": toml,
        f".skillery-origins/{folder}.json": document,
    }
