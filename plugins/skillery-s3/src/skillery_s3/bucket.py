"""A bucket of a service: its address, its client, and signed addresses of its objects."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from obstore.store import S3Store

from skillery.errors import StartupError
from skillery_s3.credentials import CredentialChain, Environment, from_environment, from_profile
from skillery_s3.machine_credentials import from_container, from_instance, from_web_identity
from skillery_s3.settings import S3Settings
from skillery_s3.signing import signed_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

QUICK_SECONDS = 2
"""The time for which a failed request of a check is repeated."""
CONNECT_SECONDS = 5
USUAL_CHAIN = (from_environment, from_profile, from_web_identity, from_container, from_instance)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Bucket:
    """A bucket: its settings, its address, and clients of obstore. `quick` does not repeat requests for long."""

    def __init__(self, settings: S3Settings, environment: Environment = os.environ) -> None:
        self.settings = settings
        self.prefix = settings.prefix.strip("/")
        self.region = settings.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
        self.region = self.region or "us-east-1"
        self.address = _address(settings, environment, self.region)
        profile_sources = (partial(from_profile, name=settings.profile),)
        self.credentials = CredentialChain(profile_sources if settings.profile else USUAL_CHAIN, environment)
        self.store = self._open(settings.retry_seconds)
        self.quick = self._open(min(QUICK_SECONDS, settings.retry_seconds))

    def sign(self, method: str, key: str, query: Mapping[str, str], seconds: int) -> str:
        """Return a signed address of an object, or of the bucket if `key` is "". Raise NoCredentials without
        credentials.
        """
        full_key = f"{self.prefix}/{key}" if self.prefix and key else key
        url = self.address + (f"/{quote(full_key, safe='/-_.~')}" if full_key else "")
        return signed_url(method, url, query, self.credentials.find(), self.region, seconds)

    def _open(self, retry_seconds: int) -> S3Store:
        """Return a client of the bucket that repeats failed requests for `retry_seconds`."""
        retry: RetryConfig = {
            "retry_timeout": timedelta(seconds=retry_seconds),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        }
        return S3Store(
            self.settings.bucket,
            prefix=self.prefix or None,
            config=_config(self.settings, self.address, self.region),
            client_options=_client_options(self.settings),
            retry_config=retry,
            credential_provider=self.credentials,
        )


def _address(settings: S3Settings, environment: Environment, region: str) -> str:
    """Return the address of the bucket, without a slash at the end."""
    address = settings.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    endpoint = urlsplit(address or f"https://s3.{region}.amazonaws.com")
    host = endpoint.netloc.removesuffix(_DEFAULT_PORTS.get(endpoint.scheme, ""))
    base_address = f"{endpoint.scheme}://{settings.bucket + '.' if settings.virtual_host else ''}{host}{endpoint.path}"
    return base_address.rstrip("/") + ("" if settings.virtual_host else f"/{settings.bucket}")


def _config(settings: S3Settings, address: str, region: str) -> S3Config:
    """Return the configuration of obstore for these settings."""
    config: S3Config = {
        # The client takes this address as that of the bucket, also if the bucket is in its path.
        "virtual_hosted_style_request": True,
        "endpoint": address,
        "aws_endpoint_url_s3": address,
        "region": region,
        "skip_signature": False,
        "conditional_put": "etag",
        # One request for each object: some services do not have the request for several objects.
        "disable_bulk_delete": True,
    }
    if settings.checksum == "sha256":
        config["checksum_algorithm"] = "SHA256"
    if settings.encryption:
        config["server_side_encryption"] = settings.encryption
    if settings.kms_key_id:
        config["sse_kms_key_id"] = settings.kms_key_id
    if settings.bucket_key:
        config["sse_bucket_key_enabled"] = True
    if settings.encryption == "sse-c":
        config["sse_customer_key_base64"] = _customer_key(settings.customer_key_file)
    return config


def _customer_key(file: str) -> str:
    """Return the key in the file in base64. Raise StartupError if it is not a key of 32 bytes."""
    setting = "[backends.storage.s3] customer_key_file"
    try:
        text = Path(file).expanduser().read_text().strip()
        if len(base64.b64decode(text, validate=True)) == 32:
            return text
    except OSError as error:
        raise StartupError(f"{setting}: '{file}' cannot be read: {os.strerror(error.errno or 0)}") from None
    except ValueError:
        pass
    raise StartupError(f"{setting}: '{file}' does not contain 32 bytes in base64 (openssl rand -base64 32)")


def _client_options(settings: S3Settings) -> ClientConfig:
    """Return the options of the HTTP client for these settings."""
    options: ClientConfig = {
        "allow_http": settings.allow_http,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=settings.timeout_seconds),
        # The usual limit of 30 s for a whole answer would end downloads to slow callers.
        "timeout": timedelta(days=1),
        "default_content_type": "application/octet-stream",
    }
    if settings.ca_file:
        options["root_certificate"] = authorities(settings)
    return options


def authorities(settings: S3Settings) -> str:
    """Return the PEM text of `ca_file`."""
    try:
        return Path(settings.ca_file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not a text"
        raise StartupError(f"[backends.storage.s3] ca_file: '{settings.ca_file}' cannot be read: {reason}") from None
