"""Signed addresses: requests that need no other credentials (AWS Signature Version 4, query parameters)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from skillery_s3.credentials import Credentials


def signed_url(
    method: str, url: str, query: Mapping[str, str], credentials: Credentials, region: str, seconds: int
) -> str:
    """Return the address for one kind of request, valid for `seconds` seconds. `url` has an encoded path and no query.

    The service refuses the address with another method or another query.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    signing = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": now,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.token:
        signing["X-Amz-Security-Token"] = credentials.token
    pairs = "&".join(f"{_encoded(name)}={_encoded(value)}" for name, value in sorted((signing | dict(query)).items()))
    address = urlsplit(url)
    request = "\n".join((method, address.path, pairs, f"host:{address.netloc}\n", "host", "UNSIGNED-PAYLOAD"))
    text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()))
    signature = hmac.new(_key(credentials, scope), text.encode(), hashlib.sha256).hexdigest()
    return f"{url}?{pairs}&X-Amz-Signature={signature}"


def _key(credentials: Credentials, scope: str) -> bytes:
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~")
