"""The storage under test, at the object store of the tests."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import obstore

from skillery.backends import Place
from skillery_s3 import open_storage
from skillery_s3.bucket import Bucket
from skillery_s3.settings import S3Settings
from skillery_s3.storage import S3Storage
from tests.support.weed import BUCKET, KEYS

_numbers = itertools.count()


def settings_of(endpoint: str, prefix: str, **changed: Any) -> S3Settings:
    values: dict[str, Any] = {
        "bucket": BUCKET,
        "endpoint": endpoint,
        "prefix": prefix,
        "allow_http": True,
        "retry_seconds": 5,
    }
    return S3Settings(**(values | changed))


def new_prefix() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def open_here(endpoint: str, home: Path, prefix: str = "", **changed: Any) -> S3Storage:
    """Open the storage as a server does. Each call without a prefix has an empty one of its own."""
    return open_storage(settings_of(endpoint, prefix or new_prefix(), **changed), Place(home))


def keys_below(endpoint: str, prefix: str) -> dict[str, int]:
    """Return the sizes of all objects below a prefix, by key."""
    bucket = Bucket(settings_of(endpoint, prefix), KEYS)
    return {found["path"]: found["size"] for page in obstore.list(bucket.store) for found in page}
