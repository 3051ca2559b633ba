"""Uploads in parts that a killed server left unfinished. The service keeps their parts, and charges for them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import httpx

from skillery.errors import Unavailable
from skillery_s3.bucket import Bucket, authorities
from skillery_s3.keys import digest_in

SIGNED_SECONDS = 60


class Unfinished(NamedTuple):
    """An upload in parts that has not ended."""

    key: str
    """The key below the prefix."""
    upload: str
    begun_at: datetime


def list_unfinished(bucket: Bucket) -> Iterator[Unfinished]:
    """Yield the unfinished uploads of contents. Raise Unavailable if the service does not list them."""
    folder = f"{bucket.prefix}/" if bucket.prefix else ""
    marker: dict[str, str] = {}
    while True:
        page = _parsed(_send(bucket, "GET", "", {"uploads": "", "prefix": folder, **marker}))
        for upload in page.findall("{*}Upload"):
            key = _text(upload, "Key").removeprefix(folder)
            if digest_in(key):  # other programs may upload to the same bucket
                yield Unfinished(key, _text(upload, "UploadId"), datetime.fromisoformat(_text(upload, "Initiated")))
        if _text(page, "IsTruncated") != "true":
            return
        marker = {"key-marker": _text(page, "NextKeyMarker"), "upload-id-marker": _text(page, "NextUploadIdMarker")}


def abort(bucket: Bucket, unfinished: Unfinished) -> None:
    """Remove the parts of an upload. Do nothing if the upload has ended. Raise Unavailable if the service fails."""
    _send(bucket, "DELETE", unfinished.key, {"uploadId": unfinished.upload}, ended=404)


def _send(bucket: Bucket, method: str, key: str, query: dict[str, str], ended: int = 0) -> bytes:
    """Return the body of the answer to a signed request. The status `ended` counts as success, too."""
    address = bucket.sign(method, key, query, SIGNED_SECONDS)
    try:
        with httpx.Client(timeout=bucket.settings.timeout_seconds, verify=_trusted(bucket)) as client:
            answer = client.request(method, address)
    except httpx.HTTPError as error:
        raise Unavailable(f"unfinished uploads: {type(error).__name__}", hint="Try again.") from error
    if answer.is_error and answer.status_code != ended:
        raise Unavailable(f"unfinished uploads: the service answered {answer.status_code}", hint="Try again.")
    return answer.content


def _trusted(bucket: Bucket) -> ssl.SSLContext | bool:
    if not bucket.address.startswith("https:"):
        return False  # without TLS, reading all certificates would only take time
    context = ssl.create_default_context()
    if bucket.settings.ca_file:
        context.load_verify_locations(cadata=authorities(bucket.settings))
    return context


def _parsed(answer: bytes) -> Xml.Element:
    try:
        return Xml.fromstring(answer)  # noqa: S314 - expat limits entities, and loads none from elsewhere
    except Xml.ParseError:
        raise Unavailable("unfinished uploads: the answer of the service is not a list", hint="Try again.") from None


def _text(element: Xml.Element, name: str) -> str:
    child = element.find(f"{{*}}{name}")
    return (child.text or "") if child is not None else ""
