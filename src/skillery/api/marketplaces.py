"""`/marketplace.json`: the skills of the registry as plugins of a marketplace, for clients that do not read git."""

from __future__ import annotations

import hashlib
from typing import Any

from skillery.api.exports import ASK_AGAIN, DownloadParts, DownloadResponse, reader_of, send_download, whose
from skillery.edge.addresses import query_of
from skillery.edge.http import only
from skillery.edge.operations import in_query
from skillery.errors import InvalidParams
from skillery.exports.marketplaces import SOURCE_KINDS, Asked, SourceKind
from skillery.formats.labels import LATEST, parse_label
from skillery.formats.names import parse_namespace
from skillery.formats.wording import quoted
from skillery.methods.errors import encode

PARAMETERS = (
    in_query("namespace", "Only the skills of this namespace and below it."),
    in_query("label", "The versions with this label. Without it, the latest version of each skill."),
    in_query(
        "sources",
        "Where clients get a plugin. `archive` is a zip with its SHA-256, which clients download only over https. "
        "`git` is the repository of the skill. Without it, `archive` over https, else `git`.",
        enum=SOURCE_KINDS,
    ),
)


async def send_marketplace(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Answer `/marketplace.json`."""
    only(scope, "GET", "HEAD")
    identity = await reader_of(parts, scope, headers)
    query = query_of(scope, *(one.name for one in PARAMETERS))
    # The gate has checked that the Host is a name of this server.
    address = (parts.public_url or f"{scope['scheme']}://{headers['host']}").rstrip("/")
    label = query.get("label", LATEST)
    asked = Asked(
        parse_namespace(query.get("namespace", "")),
        label if label == LATEST else parse_label(label),
        _sources(query.get("sources", ""), address, has_git=parts.has_git),
        address,
    )
    content = encode(await parts.marketplaces.find(identity, asked))
    size = len(content)
    sha256 = hashlib.sha256(content).hexdigest()
    answer = DownloadResponse("application/json", size, sha256, whose(identity, ASK_AGAIN), [], [content], memory=size)
    await send_download(parts, scope, send, headers, answer)


def _sources(text: str, address: str, *, has_git: bool) -> SourceKind:
    if not text:
        return "archive" if address.startswith("https:") or not has_git else "git"
    if text not in SOURCE_KINDS:
        raise InvalidParams(f"the parameter 'sources' is {quoted(text)}", hint=f"Write {' or '.join(SOURCE_KINDS)}.")
    if text == "git" and not has_git:
        raise InvalidParams(
            "this server has no git repositories", hint="Pass sources=archive, or ask an admin to set git = true."
        )
    return text
