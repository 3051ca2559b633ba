"""The checks at start: settings, credentials, bucket, region and rights. Each failure is one line."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError

from skillery.errors import SkilleryError, StartupError
from skillery_s3.bucket import Bucket
from skillery_s3.credentials import NoCredentials
from skillery_s3.failures import reason_of
from skillery_s3.settings import S3Settings
from skillery_s3.unfinished import list_unfinished

log = logging.getLogger(__name__)
SECTION = "[backends.storage.s3]"
T = TypeVar("T")


def check_settings(settings: S3Settings) -> None:
    """Raise StartupError if a setting is missing or does not fit to another."""
    if not settings.bucket:
        raise StartupError(f"{SECTION} bucket: name the bucket that keeps the contents")
    address = urlsplit(settings.endpoint)
    if settings.endpoint and (address.scheme not in {"http", "https"} or not address.hostname):
        raise StartupError(
            f"{SECTION} endpoint: '{settings.endpoint}' is not an address such as https://s3.example.com"
        )
    if address.scheme == "http" and not settings.allow_http:
        raise StartupError(f"{SECTION} endpoint: '{settings.endpoint}' has no encryption: use https, or set allow_http")
    if settings.kms_key_id and not settings.encryption.startswith("aws:kms"):
        raise StartupError(f'{SECTION} kms_key_id: a key of KMS needs encryption = "aws:kms" or "aws:kms:dsse"')
    if bool(settings.customer_key_file) != (settings.encryption == "sse-c"):
        raise StartupError(f'{SECTION} customer_key_file: set it together with encryption = "sse-c", and only then')
    if any(part in {"", ".", ".."} for part in settings.prefix.strip("/").split("/")) and settings.prefix.strip("/"):
        raise StartupError(f"{SECTION} prefix: '{settings.prefix}' has an empty part, '.' or '..'")


def try_bucket(bucket: Bucket) -> None:
    """List, write, read and delete an object. Raise StartupError with the setting that is wrong, or the missing
    right.
    """
    key, content = f"check/{secrets.token_hex(8)}", b"check"
    _try("ListBucket", bucket, lambda: obstore.list_with_delimiter(bucket.quick, "check"))
    _try("PutObject", bucket, lambda: obstore.put(bucket.quick, key, content, use_multipart=False))
    stored = _try("GetObject", bucket, lambda: obstore.get(bucket.quick, key).bytes())
    _try("DeleteObject", bucket, lambda: obstore.delete(bucket.quick, key))
    if bytes(stored) != content:
        raise StartupError(f"{SECTION} endpoint: {_where(bucket)} returns other bytes than were stored")
    try:
        next(list_unfinished(bucket), None)
    except SkilleryError:
        log.warning(
            "unfinished uploads are not removed: allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or "
            "set a lifecycle rule for them"
        )


def _try(right: str, bucket: Bucket, call: Callable[[], T]) -> T:
    """Return the result of `call`, a request that needs the right `right`. Raise StartupError with the reason and this
    right.
    """
    try:
        return call()
    except (BaseError, NoCredentials, FileNotFoundError, ValueError) as error:
        reason = reason_of(error)
        missing_right = f"; needed: s3:{right}" if reason.code in {"AccessDenied", "403"} else ""
        raise StartupError(f"{reason.line}: {_where(bucket)}{missing_right}") from None


def _where(bucket: Bucket) -> str:
    folder = f", prefix '{bucket.prefix}'" if bucket.prefix else ""
    return f"bucket '{bucket.settings.bucket}' at {urlsplit(bucket.address).netloc}, region {bucket.region}{folder}"
