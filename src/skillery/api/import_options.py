"""The query of `POST /import`: the parameters that become the options of an import."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec

from skillery.edge.operations import in_query
from skillery.errors import InvalidParams
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.wording import did_you_mean, quoted
from skillery.importing import ImportOptions
from skillery.publishing import Mode

MAX_PARAM = 64 * 1024
_PARAMS = {
    "namespace": "Namespace that is put before the names of all skills.",
    "permissions": "Permissions of skills without a skill.toml, as a JSON object.",
    "name": "Name of the archive. A skill at its root without a name gets this name.",
    "source": "Source of the archive. A later import finds a skill again by its source and path.",
    "default_source": "The source, if no source is stated. Without both, the source is `name`.",
    "take_over": "Names of skills of other sources that this source takes over, separated by commas.",
    "prune": "true: yank the skills that the source does not contain anymore.",
    "dry_run": "true: report what the import would do, and change nothing.",
    "review": "true: each new version waits for a review.",
    "packages": "infer: lock undeclared packages too. declared: lock only declared packages.",
    "nested": "split: a SKILL.md in the folder of another skill is a separate skill. keep: it is a file of that skill.",
}
_PACKAGES: dict[str, Mode] = {"infer": "lock", "declared": "off"}
MOST_TAKEN_OVER = 1000
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": True}
PARAMETERS = tuple(in_query(name, description) for name, description in _PARAMS.items())


def options_of(scope: Any) -> ImportOptions:
    """Return the options in the query. Raise InvalidParams or InvalidName if an option is not valid."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - set(_PARAMS))
    if unknown:
        near = did_you_mean(unknown[0], _PARAMS)
        raise InvalidParams(
            f"there is no parameter {quoted(unknown[0])}{near}", hint=f"POST /import takes {', '.join(_PARAMS)}."
        )
    given = {key: values[-1] for key, values in query.items()}
    name = given.get("name", "")[:200]
    stated, default = (_source(given, key) for key in ("source", "default_source"))
    default = default or (name if name.isprintable() else "")
    if "prune" in given and not (stated or default):
        raise InvalidParams(
            "'prune' needs 'source': 'prune' yanks skills that are gone from the source",
            hint="Give both.",
            param="prune",
        )
    return ImportOptions(
        namespace=parse_namespace(given.get("namespace", "")),
        permissions=_permissions(given["permissions"]) if "permissions" in given else None,
        name=name,
        source=stated or default,
        is_default_source=not stated,
        take_over=_names(given.get("take_over", ""), prune="prune" in given),
        prune=_flag(given, "prune"),
        dry_run=_flag(given, "dry_run"),
        review=_flag(given, "review"),
        packages=_packages(given["packages"]) if "packages" in given else None,
        split=_nested(given.get("nested", "keep")) == "split",
    )


def _source(given: dict[str, str], key: str) -> str:
    source = given.get(key, "")
    if len(source) > 200 or not source.isprintable():
        raise InvalidParams(f"the parameter '{key}' is longer than 200 characters or not printable", param=key)
    return source


def _names(text: str, *, prune: bool) -> frozenset[str]:
    names = frozenset(parse_skill_name(name.strip()) for name in text.split(",") if name.strip())
    if names and prune:
        raise InvalidParams(
            "'take_over' and 'prune' exclude each other: a sync never takes over a name",
            hint="Import it once with 'take_over', then sync it.",
            param="take_over",
        )
    if len(names) > MOST_TAKEN_OVER:
        raise InvalidParams(
            f"'take_over' has {len(names)} names, at most {MOST_TAKEN_OVER} are allowed", param="take_over"
        )
    return names


def _packages(text: str) -> Mode:
    if text not in _PACKAGES:
        raise InvalidParams(
            f"the parameter 'packages' is {quoted(text)}", hint="Write infer or declared.", param="packages"
        )
    return _PACKAGES[text]


def _permissions(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text[:MAX_PARAM], type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidParams(
            "the parameter 'permissions' is not a JSON object",
            hint='Send the [permissions] of a skill.toml as JSON, e.g. {"network": ["https://api.example.org"]}.',
            param="permissions",
        ) from None


def _flag(given: dict[str, str], key: str) -> bool:
    text = given.get(key, "false").lower()
    if text not in _FLAGS:
        raise InvalidParams(f"the parameter {key!r} is {quoted(text)}", hint="Write true or false.", param=key)
    return _FLAGS[text]


def _nested(text: str) -> str:
    if text not in {"keep", "split"}:
        raise InvalidParams(
            f"the parameter 'nested' is {quoted(text)}", hint="Write keep (the default) or split.", param="nested"
        )
    return text
