"""The JSON texts of a version that answers contain unchanged."""

from __future__ import annotations

import msgspec

from skillery.formats.bundle import Bundle


def item_texts(bundle: Bundle) -> tuple[str, str]:
    """Return the items of the version in list_skills: of detail `names`, and of detail `summary`."""
    manifest = bundle.manifest
    names = {
        "name": manifest.name,
        "version": str(manifest.version),
        "description": manifest.description,
        "namespace": manifest.namespace,
        "kind": manifest.kind,
    }
    summary = names | {
        "tags": list(manifest.tags),
        "inputs": manifest.raw.get("inputs", {}),
        "tools": [tool.name for tool in bundle.tools],
    }
    return text_of(names), text_of(summary)


def text_of(value: object) -> str:
    return msgspec.json.encode(value).decode()
