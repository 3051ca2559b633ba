"""Functions that convert params to values of the core."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import plain_path
from skillery.formats.version_spec import VersionSpec, parse_version_spec
from skillery.methods import params
from skillery.runs import RunFile, parse_files

T = TypeVar("T")


def which(name: str, version: str) -> tuple[str, VersionSpec]:
    return parse_skill_name(name), parse_version_spec(version)


def run_files(files: Sequence[params.RunFile]) -> tuple[RunFile, ...]:
    """Return the files to copy into the workspace of a run. Raise InvalidPath or InvalidParams if a file is not
    valid.
    """
    return (
        parse_files([RunFile(plain_path(file.path), file.blob_id, file.executable) for file in files]) if files else ()
    )


def sentence(value: str, where: str) -> str:
    """Return `value` without surrounding blanks. Raise InvalidParams if `value` is blank or contains a NUL.

    `where` is the name of the parameter, for the error.
    """
    if "\0" in value or not value.strip():
        reason = "contains a NUL character" if "\0" in value else "is blank"
        raise InvalidParams(f"'{where}' {reason}", hint="Write a sentence.", param=where)
    return value.strip()


def opaque_id(text: str) -> str:
    if "\0" in text:
        raise InvalidParams(
            "an id cannot contain a NUL character", hint="Pass the id unchanged, as a method returned it.", param="id"
        )
    return text


def identity_name(name: str) -> str:
    """Return the name. Raise InvalidParams if the name contains a NUL. Any other name is valid, because
    authenticators choose the names.
    """
    if "\0" in name:
        raise InvalidParams(
            "'identity' contains a NUL character", hint="Write the name of an identity.", param="identity"
        )
    return name


def given(value: T | msgspec.UnsetType) -> T | None:
    return None if value is msgspec.UNSET else value


def decoded(content: str, encoding: str, where: str) -> bytes:
    if encoding == "utf-8":
        return content.encode("utf-8")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams(
            f"'{where}' is not valid base64", hint="Leave 'encoding' out for plain text.", param=where
        ) from None
