"""The storage `s3`: contents as objects in a bucket of an S3-compatible service.

An object is named by the SHA-256 of its content. Uploads of large contents are sent in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery_s3.settings import S3Settings

if TYPE_CHECKING:
    from skillery_s3.storage import S3Storage


def open_storage(settings: S3Settings, place: Place) -> S3Storage:
    """Return the storage. Raise StartupError if the bucket cannot be used with these settings."""
    # A server with another storage does not load the client library.
    from skillery_s3.bucket import Bucket
    from skillery_s3.start import check_settings, try_bucket
    from skillery_s3.storage import S3Storage

    check_settings(settings)
    bucket = Bucket(settings)
    try_bucket(bucket)
    return S3Storage(bucket, place.home / "s3")


@hookimpl
def skillery_storage() -> Offer:
    return Offer("s3", open_storage, S3Settings)
