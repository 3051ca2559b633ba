"""Bills of materials: a version with its locked packages, as CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json)."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from skillery.backends import PackageMount
from skillery.environments.queries import Locked
from skillery.environments.store import Environments
from skillery.formats.bundle import Bundle
from skillery.formats.npm import is_npm_lock, read_npm_lock
from skillery.formats.package_json import FILE, license_of
from skillery.formats.requirements import read_lock
from skillery.formats.wording import printable
from skillery.proof.dsse import ProofError
from skillery.proof.statements import unverified_statement
from skillery.registry.version_rows import VersionRow

MOST_METADATA = 64 * 1024
"""The maximum number of bytes of a file of a package that are read for its licence."""
MOST_NAME = 100
SECONDS = 120.0
"""The time that a publication waits for its packages, if a policy needs their licences."""
MOST_CLASSIFIERS = 10
_HEADER = re.compile(r"(License-Expression|License|Classifier): *(\S[^\n]*)", re.ASCII)
_DIST_INFO = re.compile(r"([^/-]+)-[^/-]+\.dist-info")
_CLASSIFIER = "License :: "
Component = dict[str, Any]


class Source(NamedTuple):
    """Where the files of a version come from: an address or name, and a path."""

    name: str = ""
    path: str = ""


def make_sbom(row: VersionRow, locks: Iterable[Locked], source: Source, release: str) -> bytes:
    """Return the bill of materials of a version. Licences of packages that are not installed are absent. `release` is
    the release of the server. Blocking.

    Raise InvalidLock if a lock cannot be read.
    """
    components = {component["bom-ref"]: component for locked in locks for component in _components(locked)}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'skillery:{row.name}@{row.digest}')}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "skillery", "version": release}]},
            "component": _skill(row, source),
        },
        "components": [components[ref] for ref in sorted(components)],
    }
    return msgspec.json.encode(document)


async def licences_of(bundle: Bundle, locks: Iterable[bytes], environments: Environments) -> dict[str, list[str]]:
    """Return the licences of a bundle and of its locked packages, by their references in the bill of materials. The
    list of a package whose licence is unknown is empty. The packages are installed for that.
    """
    stated = bundle.skill_md.typed.get("license")
    own = _licences([stated] if isinstance(stated, str) else [])
    licences = {f"skillery:{bundle.manifest.name}@{bundle.manifest.version}": _texts(own)}
    for lock in locks:
        mount = await environments.ready(lock, SECONDS)
        locked = Locked(lock, mount if isinstance(mount, PackageMount) else None)
        for component in await asyncio.to_thread(list, _components(locked)):
            reference = component["bom-ref"]
            licences[reference] = _texts(component) or licences.get(reference, [])
    return licences


def _texts(component: Component) -> list[str]:
    rows = component.get("licenses", ())
    return [row["expression"] if "expression" in row else row["license"]["name"] for row in rows]


def source_of(row: VersionRow, envelopes: Sequence[str]) -> Source:
    """Return the source of a version, from its attestations of the kind `provenance` and its publication."""
    for envelope in reversed(envelopes):
        try:
            predicate = unverified_statement(envelope.encode()).predicate
            parameters = predicate["buildDefinition"]["externalParameters"]
            return Source(str(parameters.get("source") or parameters["repository"]), str(parameters.get("path", "")))
        except (ProofError, KeyError, TypeError, AttributeError):
            continue
    job = msgspec.json.decode(row.provenance_json) if row.provenance_json else {}
    return Source(str(job.get("repository", "")))


def _skill(row: VersionRow, source: Source) -> Component:
    """Return the component of the version itself. Its hash is the digest of the version."""
    licence = msgspec.json.decode(row.frontmatter_json).get("license")
    component: Component = {
        "type": "application",
        "bom-ref": f"skillery:{row.name}@{row.version}",
        "name": row.name,
        "version": row.version,
        "hashes": [{"alg": "SHA-256", "content": row.digest.rpartition(":")[2]}],
        **_licences([licence] if isinstance(licence, str) else []),
    }
    if "://" in source.name:
        component["externalReferences"] = [{"type": "vcs", "url": quote(source.name, safe=":/?#[]@!$&'()*+,;=%~")}]
    properties = {"skillery:source": source.name, "skillery:path": source.path}
    listed = [{"name": name, "value": value} for name, value in properties.items() if value]
    return component | ({"properties": listed} if listed else {})


def _components(locked: Locked) -> Iterator[Component]:
    if is_npm_lock(locked.content):
        yield from _of_npm(locked)
        return
    licences = dict(_licences_of_wheels(locked.mount.folder)) if locked.mount is not None else {}
    for pin in read_lock(locked.content):
        yield _library(f"pkg:pypi/{pin.name}", pin.name, pin.version, pin.hashes, licences.get(pin.name, []))


def _of_npm(locked: Locked) -> Iterator[Component]:
    for package in read_npm_lock(locked.content).packages:
        pin, licences = package.pin, []
        if locked.mount is not None:
            licences = license_of(_head(locked.mount.folder / package.path / FILE))
        scope = {"scope": "optional"} if package.optional else {}
        purl = f"pkg:npm/{quote(pin.name, safe='/')}"
        yield _library(purl, pin.name, pin.version, pin.hashes, licences) | scope


def _library(purl: str, name: str, version: str, hashes: Iterable[str], licences: Sequence[str]) -> Component:
    """Return the component of a package. `hashes` are those of all files that the lock permits."""
    purl = f"{purl}@{quote(version, safe='')}"
    algorithms = {"sha256": "SHA-256", "sha512": "SHA-512"}
    named = (value.partition(":") for value in sorted(hashes))
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": algorithms[algorithm], "content": digest} for algorithm, _, digest in named],
        **_licences(licences),
    }


# -- Licences. Packages state them in their own words --------------------------------------------------------------


def _licences(texts: Sequence[str]) -> Component:
    """Return the field `licenses`: an SPDX expression if the only text is one, else the texts as names."""
    try:
        [text] = texts
        # A part of an expression would permit more than the whole.
        if len(text) <= MOST_NAME:
            return {"licenses": [{"expression": canonicalize_license_expression(text)}]}
    except (ValueError, InvalidLicenseExpression):
        pass
    names = [name for text in texts if (name := printable(text.strip(), MOST_NAME))]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _licences_of_wheels(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each installed package with the licences in its metadata."""
    for path in folder.glob("*.dist-info"):
        if match := _DIST_INFO.fullmatch(path.name):
            yield canonicalize_name(match[1]), _stated(_head(path / "METADATA").decode("utf-8", "replace"))


def _stated(metadata: str) -> list[str]:
    """Return the licences in the headers of a METADATA: the expression, else the classifiers, else the free text."""
    headers = [match for line in metadata.partition("\n\n")[0].splitlines() if (match := _HEADER.fullmatch(line))]
    values = {name: [match[2].strip() for match in headers if match[1] == name] for name in ("License", "Classifier")}
    expressions = [match[2].strip() for match in headers if match[1] == "License-Expression"]
    named = [text.rpartition(" :: ")[2] for text in values["Classifier"] if text.startswith(_CLASSIFIER)]
    return expressions[:1] or named[:MOST_CLASSIFIERS] or values["License"][:1]


def _head(path: Path) -> bytes:
    """Return the first bytes of a file of an installed package, b"" if it is absent."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_METADATA)
    except OSError:
        return b""
