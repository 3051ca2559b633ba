"""The settings of the storage `s3`, from `[backends.storage.s3]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MIB = 1024 * 1024


class S3Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the storage, from `[backends.storage.s3]`."""

    bucket: str = ""
    """The name of the bucket. The bucket must exist."""
    prefix: str = ""
    """The folder of the objects in the bucket. Empty means the top of the bucket."""
    endpoint: str = ""
    """The address of the service. Empty means AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon S3."""
    region: str = ""
    """The region of the bucket. Empty means AWS_REGION, AWS_DEFAULT_REGION, or `us-east-1`."""
    profile: str = ""
    """The profile with the credentials. Empty means the usual chain, which begins with environment variables."""
    virtual_host: bool = False
    """True: the bucket is a part of the host name (`bucket.host`), and not of the path (`host/bucket`)."""
    allow_http: bool = False
    """True: the endpoint may be `http://`, without encryption."""
    ca_file: str = ""
    """A PEM file of certificate authorities that are trusted in addition to those of the system."""
    encryption: Literal["", "AES256", "aws:kms", "aws:kms:dsse", "sse-c"] = ""
    """Server-side encryption of new objects. Empty means the default of the bucket."""
    kms_key_id: str = ""
    """The key for `aws:kms` and `aws:kms:dsse`. Empty means the default key of the service."""
    bucket_key: bool = False
    """True: new objects use a bucket key, which needs fewer requests to KMS."""
    customer_key_file: str = ""
    """A file with the key for `sse-c`: 32 bytes in base64."""
    checksum: Literal["sha256", "off"] = "sha256"
    """`sha256`: the service checks the SHA-256 of each request. `off`: for services that refuse such requests."""
    part_mb: Annotated[int, msgspec.Meta(ge=5, le=1024)] = 8
    """The size of a part in MiB. A content has at most 10,000 parts."""
    parts_at_once: Annotated[int, msgspec.Meta(ge=1, le=32)] = 4
    """The number of parts of one content that are sent at the same time."""
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=300)] = 20
    """The time in seconds that the service may be silent."""
    retry_seconds: Annotated[int, msgspec.Meta(ge=0, le=120)] = 20
    """The time in seconds for which a failed request is repeated."""
