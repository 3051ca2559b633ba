"""Licences that SKILL.md and licence files state, and the origins of imported skills."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

_OSI = {
    *(
        "0bsd",
        "afl-3.0",
        "agpl-3.0",
        "agpl-3.0-only",
        "agpl-3.0-or-later",
        "apache-2.0",
        "artistic-2.0",
        "blueoak-1.0.0",
    ),
    *("bsd-1-clause", "bsd-2-clause", "bsd-2-clause-patent", "bsd-3-clause", "bsl-1.0", "cddl-1.0", "ecl-2.0"),
    *("epl-1.0", "epl-2.0", "eupl-1.2", "gpl-2.0", "gpl-2.0-only", "gpl-2.0-or-later", "gpl-3.0", "gpl-3.0-only"),
    *("gpl-3.0-or-later", "isc", "lgpl-2.1", "lgpl-2.1-only", "lgpl-2.1-or-later", "lgpl-3.0", "lgpl-3.0-only"),
    *("lgpl-3.0-or-later", "mit", "mit-0", "mpl-2.0", "ms-pl", "mulanpsl-2.0", "ncsa", "ofl-1.1", "osl-3.0"),
    *("postgresql", "psf-2.0", "python-2.0", "unicode-3.0", "unlicense", "upl-1.0", "zlib"),
}
"""SPDX ids of licences that the Open Source Initiative has approved, in lower case."""
_SPELLINGS = {
    **dict.fromkeys(("apache 2.0", "apache license 2.0", "apache license, version 2.0"), "Apache-2.0"),
    **dict.fromkeys(("mit license", "the mit license"), "MIT"),
}
_MOST_LICENCE = 40


def spelled(licence: str) -> str:
    """Return a licence with the SPDX id instead of another name."""
    return _SPELLINGS.get(licence.lower(), licence)


def is_open_licence(licence: str) -> bool:
    """Return whether a licence is an SPDX expression of licences that the Open Source Initiative has approved."""
    words = re.split(r"[\s()]+", spelled(licence)[:300].lower())
    ids = [word for word in words if word and word not in ("and", "or")]
    return bool(ids) and all(word in _OSI for word in ids)


def licence_of(frontmatter: Mapping[str, object]) -> str:
    """Return the licence in a frontmatter as lists group it: an SPDX expression of open licences, `other` or `none`."""
    stated = frontmatter.get("license")
    text = " ".join(stated[:300].split()) if isinstance(stated, str) else ""
    if not text:
        return "none"
    if not is_open_licence(text) or len(spelled(text)) > _MOST_LICENCE:
        return "other"
    try:
        return canonicalize_license_expression(spelled(text))
    except InvalidLicenseExpression:
        return "other"


# -- Licence files -----------------------------------------------------------------------------------------------------


MOST_BYTES = 64 * 1024
"""The maximum size of a licence file that is read."""
OTHER = "other"
_LICENCE_FILE = re.compile(r"(?:licen[cs]e|copying)(?:\.(?:md|txt|rst))?", re.IGNORECASE)
_MOST_BEFORE = 40
_MOST_BEHIND = 12
_APPENDIX = "end of terms and conditions appendix how to apply"
_MOST_APPENDIX = 220
_LIMITING = {
    *("but", "cannot", "don", "except", "excluding", "however", "isn", "neither", "never", "no", "nor", "not", "only"),
    *("unless", "without"),
}
"""Words next to a licence that may take back what it grants, as "the files are not under the MIT license" does."""


class _Text(NamedTuple):
    """A licence by its first words, the number of its words, and the first digits of the SHA-256 of its words."""

    licence: str
    start: str
    words: int
    digest: str


_TEXTS = (
    _Text("MIT", "permission is hereby granted free of charge to any person", 163, "0cf21bdfd1964a97"),
    _Text("Apache-2.0", "apache license version 2 0 january 2004", 1426, "37599287c15c2f2e"),
    _Text("BSD-2-Clause", "redistribution and use in source and binary forms", 184, "986c3c3199a93b91"),
    _Text("BSD-3-Clause", "redistribution and use in source and binary forms", 214, "53075742228962c7"),
    _Text("BSD-3-Clause", "redistribution and use in source and binary forms", 217, "9b83d3dee0616d07"),
    _Text("ISC", "permission to use copy modify and or distribute this software", 112, "217da0747cec63a2"),
    _Text("MPL-2.0", "mozilla public license version 2 0", 2426, "9eab7902f21bef03"),
    _Text("MPL-2.0", "mozilla public license version 2 0", 2426, "f82071285728ca3e"),
    _Text("Unlicense", "this is free and unencumbered software released into the", 193, "f6f86d4356bc8b42"),
)


def is_licence_file(path: str) -> bool:
    """Return whether a file has the usual name of a licence file."""
    return _LICENCE_FILE.fullmatch(path.rpartition("/")[2]) is not None


def licence_of_text(content: bytes) -> str:
    """Return the SPDX id of the open licence that is the whole text of a licence file, or `other`. Only a title, names
    of holders and the appendix of the licence may stand next to it. If other words may limit it, return `other`.
    """
    if len(content) > MOST_BYTES:
        return OTHER
    text = " ".join(re.findall("[a-z0-9]+", content.decode("utf-8", "replace").lower()))
    for known in _TEXTS:
        before, start, rest = text.partition(known.start)
        all_words = (start + rest).split()
        own, behind = " ".join(all_words[: known.words]), all_words[known.words :]
        has_appendix, ahead = " ".join(behind).startswith(_APPENDIX), before.split()
        most = _MOST_APPENDIX if has_appendix else _MOST_BEHIND
        is_known = hashlib.sha256(own.encode()).hexdigest().startswith(known.digest)
        if is_known and len(ahead) <= _MOST_BEFORE and len(behind) <= most:
            limited = _LIMITING.intersection(ahead if has_appendix else [*ahead, *behind])
            return OTHER if limited else known.licence
    return OTHER


# -- The origin of an import -------------------------------------------------------------------------------------------


class Origin(Struct, frozen=True, omit_defaults=True):
    """The source of an imported version, as its importer has stated it."""

    source: str
    path: str
    commit: Annotated[str, Meta(description="Hash of the git commit whose files the version has")] = ""
    committed_at: Annotated[datetime | None, Meta(description="Time of the last commit that changed the files")] = None
    licence: Annotated[
        str, Meta(description="Licence in a file of the skill or above it, if SKILL.md states none; or 'other'")
    ] = ""
    licence_path: Annotated[str, Meta(description="The path of this file in the source")] = ""
