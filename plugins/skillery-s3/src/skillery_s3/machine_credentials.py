"""The credentials of a machine: a web identity (Kubernetes), a container, or an instance in a cloud."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import httpx

from skillery_s3.credentials import Credentials, Environment, NoCredentials, read_answer

SECONDS = 5.0
INSTANCE_SECONDS = 1.0
"""On a machine outside of a cloud, the metadata address does not answer."""
CONTAINER = "http://169.254.170.2"
INSTANCE = "http://169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"


def from_web_identity(environment: Environment) -> Credentials | None:
    """Return credentials in exchange for the token of a service account (STS AssumeRoleWithWebIdentity), or None
    without such a token.
    """
    path, role = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"), environment.get("AWS_ROLE_ARN")
    if not path or not role:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    address = environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise NoCredentials(f"AWS_WEB_IDENTITY_TOKEN_FILE cannot be read: {os.strerror(error.errno or 0)}") from None
    fields = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": environment.get("AWS_ROLE_SESSION_NAME") or "skillery",
        "WebIdentityToken": token,
    }
    return _read_sts(_send("POST", address, "the token service", data=fields).content)


def from_container(environment: Environment) -> Credentials | None:
    """Return the credentials that the container service gives to this container, or None outside of one."""
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    address = CONTAINER + relative if relative else environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not address:
        return None
    token = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    if path := environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        token = Path(path).read_text().strip()
    headers = {"authorization": token} if token else {}
    return read_answer(_send("GET", address, "the container's credentials", headers=headers).content)


def from_instance(environment: Environment) -> Credentials | None:
    """Return the credentials of the role of this instance (IMDSv2), or None if there is no role or no cloud."""
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    service_url = (environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or INSTANCE).rstrip("/")
    try:
        with httpx.Client(base_url=service_url, timeout=INSTANCE_SECONDS, trust_env=False) as client:
            lifetime_header = {"x-aws-ec2-metadata-token-ttl-seconds": "3600"}
            token = client.put("/latest/api/token", headers=lifetime_header).raise_for_status().text
            client.headers["x-aws-ec2-metadata-token"] = token
            role = client.get(ROLES).raise_for_status().text.split()[0]
            return read_answer(client.get(ROLES + role).raise_for_status().content)
    except (httpx.HTTPError, IndexError):
        return None


def _send(method: str, address: str, subject: str, **arguments: Any) -> httpx.Response:
    try:
        with httpx.Client(timeout=SECONDS) as client:
            return client.request(method, address, **arguments).raise_for_status()
    except httpx.HTTPStatusError as error:
        raise NoCredentials(f"{subject} answered {error.response.status_code}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoCredentials(f"{subject} cannot be reached: {type(error).__name__}") from None


def _read_sts(answer: bytes) -> Credentials:
    try:
        element = Xml.fromstring(answer).find(".//{*}Credentials")  # noqa: S314 - expat limits entities, and loads none
        texts = {child.tag.rpartition("}")[2]: child.text or "" for child in element} if element is not None else {}
        expires = datetime.fromisoformat(texts["Expiration"])
        return Credentials(texts["AccessKeyId"], texts["SecretAccessKey"], texts["SessionToken"], expires)
    except (Xml.ParseError, KeyError, ValueError):
        raise NoCredentials("the token service gave an answer without credentials") from None
