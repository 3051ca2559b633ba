"""Checks at start: each wrong setting gives one line that names it and the remedy."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from s3_here import new_prefix, open_here
from skillery.errors import StartupError, Unavailable
from skillery.testing.storage import get, put
from tests.support.certificates import certificate
from tests.support.fault_proxy import Fault, FaultProxy, error_body
from tests.support.weed import Weed

pytest_plugins = ["s3_fixtures"]
pytestmark = pytest.mark.usefixtures("keys")
AWS_MALFORMED = error_body("AuthorizationHeaderMalformed", "<Region>eu-central-1</Region>")
HOUR = timedelta(hours=1)


def refusal(endpoint: str, home: Path, **settings: Any) -> str:
    """Return the one line with which the storage refuses to open."""
    with pytest.raises(StartupError) as refused:
        open_here(endpoint, home, **settings)
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith("[backends.storage.s3]")
    return line


def test_a_wrong_bucket_is_named(weed: Weed, tmp_path: Path) -> None:
    line = refusal(weed.endpoint, tmp_path, bucket="nothing-here")

    assert "bucket: the service has no bucket with this name" in line
    assert "'nothing-here'" in line


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_named(weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "not-the-right-one")
    line = refusal(weed.endpoint, tmp_path)

    assert "credentials: the service refuses the credentials" in line
    assert "not-the-right-one" not in line


def test_no_credentials_are_named(weed: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refusal(weed.endpoint, tmp_path)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("", -1, status=400, body=AWS_MALFORMED), "region: the bucket is in another region, eu-central-1"),
        (Fault("", -1, status=301, body=error_body("PermanentRedirect")), "region: the bucket is in another region"),
        (Fault("", -1, status=403, body=error_body("RequestTimeTooSkewed")), "the clock of this machine"),
        (Fault("GET .*list-type", -1, status=403, body=error_body("AccessDenied")), "needed: s3:ListBucket"),
        (Fault("PUT", -1, status=403, body=error_body("AccessDenied")), "needed: s3:PutObject"),
        (Fault("GET .*check/", -1, status=403, body=error_body("AccessDenied")), "needed: s3:GetObject"),
        (Fault("DELETE", -1, status=403, body=error_body("AccessDenied")), "needed: s3:DeleteObject"),
        (Fault("PUT", -1, status=400, body=error_body("KMS.NotFoundException")), "encryption: "),
        (Fault("", -1, status=404, body=b"<html>a web page</html>"), "endpoint: there is no S3 service"),
        (Fault("", -1, status=503, body=error_body("SlowDown")), "the service failed (SlowDown)"),
        (Fault("", -1, refuse=True), "endpoint: the service cannot be reached"),
        (Fault("", -1, seconds=5), "endpoint: the service cannot be reached"),
        (Fault("GET .*check/", -1, wrong_answer=True), "other bytes than were stored"),
    ],
)
def test_a_service_that_refuses_is_explained(proxy: FaultProxy, tmp_path: Path, fault: Fault, said: str) -> None:
    proxy.faults = [fault]
    timeout = 1 if fault.seconds else 20  # a loaded machine may take longer than a second for other answers

    assert said in refusal(proxy.url, tmp_path, timeout_seconds=timeout, retry_seconds=1)


def test_a_service_that_is_down_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        line = refusal(f"http://{address}", tmp_path)

    assert "endpoint: the service cannot be reached" in line
    assert address in line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bucket": ""}, "bucket: name the bucket"),
        ({"endpoint": "s3.example.com"}, "endpoint: 's3.example.com' is not an address"),
        ({"allow_http": False}, "endpoint: "),
        ({"kms_key_id": "key"}, "kms_key_id: "),
        ({"encryption": "sse-c"}, "customer_key_file: "),
        ({"customer_key_file": "/key"}, "customer_key_file: "),
        ({"encryption": "sse-c", "customer_key_file": "/nowhere"}, "cannot be read"),
        ({"encryption": "sse-c", "customer_key_file": "/dev/null"}, "32 bytes"),
        ({"ca_file": "/nowhere"}, "ca_file: "),
        ({"prefix": "a//b"}, "prefix: "),
        ({"prefix": "../b"}, "prefix: "),
        ({"profile": "unknown"}, "the profile 'unknown' has no"),
    ],
)
def test_a_wrong_setting_is_named(weed: Weed, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    endpoint = settings.pop("endpoint", weed.endpoint)

    assert said in refusal(endpoint, tmp_path, **settings)


def test_missing_rights_to_remove_parts_are_only_a_warning(
    proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.faults = [Fault("uploads=", -1, status=403, body=error_body("AccessDenied"))]
    open_here(proxy.url, tmp_path)

    assert "s3:ListBucketMultipartUploads" in caplog.text


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(weed: Weed, tmp_path: Path) -> Iterator[Any]:
    running: list[FaultProxy] = []

    def start(expires_in: timedelta) -> tuple[str, str]:
        context, file = certificate(tmp_path, expires_in)
        running.append(FaultProxy(weed.endpoint, context))
        return running[0].url, str(file)

    yield start
    running[0].close()


def test_a_private_authority_is_trusted_with_ca_file(tls: Any, tmp_path: Path) -> None:
    url, file = tls(HOUR)
    storage = open_here(url, tmp_path, allow_http=False, ca_file=file)

    assert get(storage, put(storage, b"over TLS")) == b"over TLS"
    assert storage.remove_unfinished(datetime.now(UTC), True) == 0


def test_an_expired_certificate_is_named(tls: Any, tmp_path: Path) -> None:
    url, file = tls(-HOUR)

    assert "certificate of the service is not valid" in refusal(url, tmp_path, ca_file=file)


def test_an_unknown_authority_is_named(tls: Any, tmp_path: Path) -> None:
    url, _ = tls(HOUR)

    assert "certificate of the service is not valid" in refusal(url, tmp_path)


# -- encryption --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ({"encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"encryption": "aws:kms", "kms_key_id": "key", "bucket_key": True},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
        ),
    ],
    ids=["AES256", "kms"],
)
def test_uploads_ask_for_the_encryption_of_the_settings(
    proxy: FaultProxy, tmp_path: Path, settings: dict[str, Any], headers: dict[str, str]
) -> None:
    proxy.faults = [Fault("^PUT", -1, status=200), Fault("^GET .*check/", -1, status=200, body=b"check")]
    open_here(proxy.url, tmp_path, **settings)
    (sent,) = [sent for line, sent in zip(proxy.seen, proxy.headers, strict=True) if line.startswith("PUT")]

    assert {name: sent.get(name) for name in headers} == headers


def test_encrypted_objects_are_read(weed: Weed, tmp_path: Path) -> None:
    storage = open_here(weed.endpoint, tmp_path, encryption="AES256")

    assert get(storage, put(storage, b"encrypted")) == b"encrypted"


def test_a_key_of_the_customer_is_needed_to_read(weed: Weed, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(base64.b64encode(os.urandom(32)))
    prefix = new_prefix()
    storage = open_here(weed.endpoint, tmp_path, prefix, encryption="sse-c", customer_key_file=str(key))
    digest = put(storage, b"encrypted")

    assert get(storage, digest) == b"encrypted"
    assert storage.sign(digest, 60, {}) is None
    with pytest.raises(Unavailable):
        open_here(weed.endpoint, tmp_path, prefix).open(digest)
