"""Failures of the service: the reason in words, with the setting that is wrong, and the error for callers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from obstore.exceptions import BaseError

from skillery.errors import ContentMissing, SkilleryError, StorageFull, Unavailable
from skillery_s3.credentials import NoCredentials

log = logging.getLogger(__name__)

_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting '([\w-]+)'")
_STATUS = re.compile(r"status code: (\d{3})")
_MISSING = ("NoSuchKey", "")
_FULL = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"}
_CREDENTIALS = "the service refuses the credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `profile`"
_EXPIRED = "the credentials have expired: renew them"
_RIGHTS = "the credentials have no right for this"
_REGION_WRONG = "the bucket is in another region"
_CLOCK = "the clock of this machine and the clock of the service differ: synchronise them (NTP)"
_CERTIFICATE = "the certificate of the service is not valid: check its date and its name, or set `ca_file`"


class Reason(NamedTuple):
    """Why the service has failed: the setting, the text, and the code of the service."""

    setting: str
    """The setting to check; "" if no setting is wrong."""
    text: str
    code: str = ""
    """The error code of the service, or its HTTP status."""

    @property
    def line(self) -> str:
        setting = f" {self.setting}" if self.setting else ""
        return f"[backends.storage.s3]{setting}: {self.text}" + (f" ({self.code})" if self.code else "")


_REASONS = {
    "NoSuchBucket": ("bucket", "the service has no bucket with this name: create it, or correct the name"),
    "InvalidBucketName": ("bucket", "this is not the name of a bucket"),
    "InvalidAccessKeyId": ("credentials", _CREDENTIALS),
    "SignatureDoesNotMatch": ("credentials", _CREDENTIALS),
    "InvalidToken": ("credentials", _EXPIRED),
    "ExpiredToken": ("credentials", _EXPIRED),
    "AccessDenied": ("credentials", _RIGHTS),
    "AllAccessDisabled": ("credentials", _RIGHTS),
    "AuthorizationHeaderMalformed": ("region", _REGION_WRONG),
    "PermanentRedirect": ("region", _REGION_WRONG),
    "TemporaryRedirect": ("region", _REGION_WRONG),
    "IllegalLocationConstraintException": ("region", _REGION_WRONG),
    "RequestTimeTooSkewed": ("", _CLOCK),
    "ServerSideEncryptionConfigurationNotFoundError": ("encryption", "the service does not support this encryption"),
    "NotImplemented": ("", "the service does not support a request that this storage needs"),
}
_BY_STATUS = {
    "301": ("region", _REGION_WRONG),
    "307": ("region", _REGION_WRONG),
    "401": ("credentials", _CREDENTIALS),
    "403": ("credentials", _RIGHTS),
    "404": ("endpoint", "there is no S3 service at this address"),
}


def reason_of(error: BaseException) -> Reason:
    """Return the reason of an exception of obstore. Its text contains no part of a request or of an answer."""
    if isinstance(error, NoCredentials):
        return Reason("credentials", str(error))
    text = str(error)
    code, status = _first(_CODE, text), _first(_STATUS, text)
    setting, words = _REASONS.get(code) or _BY_STATUS.get(status) or _without_answer(text, code, status)
    if setting == "region" and (right_region := _first(_REGION, text)):
        words += f", {right_region}"
    return Reason(setting, words, code or status)


def _without_answer(text: str, code: str, status: str) -> tuple[str, str]:
    """Return the setting and the text for a failure with no code of the service, or an unknown one."""
    lower_text = text.lower()
    if code.startswith("KMS") or "encrypt" in code.lower():
        return "encryption", "the service cannot encrypt with this setting"
    if status:
        return "", "the service failed"
    if "redirect without location" in lower_text:
        return "region", _REGION_WRONG
    if "certificate" in lower_text:
        return "endpoint", _CERTIFICATE
    if "unsupported url scheme" in lower_text or "builder error" in lower_text:
        return "endpoint", "this is not the address of a service, such as https://s3.example.com"
    if (match := NO_CREDENTIALS.search(text)) is not None:
        return "credentials", match[1]
    return "endpoint", "the service cannot be reached: check its address, and that it runs"


NO_CREDENTIALS = re.compile(r"NoCredentials: ([^\n]+)")
"""The text of NoCredentials, in the message of obstore that called the source of credentials."""


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((group for group in match.groups() if group), "") if match else ""


def is_missing(error: BaseException) -> bool:
    """Return whether the service has no such object. A missing bucket is another failure."""
    return isinstance(error, FileNotFoundError) and _first(_CODE, str(error)) in _MISSING


@contextmanager
def speaking(subject: str, *, stores: bool = False) -> Iterator[None]:
    """Context manager that converts failures of the service to errors for callers, and logs the reason. `stores` is
    True for an upload.
    """
    try:
        yield
    except (BaseError, NoCredentials, FileNotFoundError, ValueError) as error:
        raise _to_caller(error, subject, stores=stores) from error


def _to_caller(error: Exception, subject: str, *, stores: bool) -> SkilleryError:
    if is_missing(error):
        return ContentMissing("the storage does not have the content")
    reason = reason_of(error)
    log.warning("%s failed: %s", subject, reason.line)
    if reason.code in _FULL:
        return StorageFull()
    hint = "Nothing was stored. Try again." if stores else "Try again."
    return Unavailable(f"the storage cannot be {'written' if stores else 'read'} now", hint=hint)
