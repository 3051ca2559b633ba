"""`skillery publish --trusted`: get a token of the registry for the CI job in which the command runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import click

from skillery.cli.connection import json_answer
from skillery.cli.options import Target
from skillery.errors import NotAuthenticated, Unavailable

ID_TOKEN = "SKILLERY_ID_TOKEN"  # noqa: S105 - the name of a variable
REQUEST_URL, REQUEST_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"


def trusted_target(target: Target, publishes: str) -> Target:
    """Return the target with a token for the skill `publishes`, or for the target of the trust rule if it is "".

    Raise UsageError if the options do not fit, NotAuthenticated if there is no token, and Unavailable.
    """
    if not target.url:
        raise click.UsageError("--trusted needs --url: the public address of the server")
    if target.token:
        raise click.UsageError("--trusted gets a token for this job: leave out --token and SKILLERY_TOKEN")
    token = _token_of_job(target.url, os.environ)
    body = {"token": token, **({"target": publishes} if publishes else {})}
    answer = json_answer("POST", f"{target.url}/auth/exchange", json=body)
    return target._replace(token=str(answer.get("token", "")))


def _token_of_job(audience: str, environ: Mapping[str, str]) -> str:
    """Return the token of the CI service: GitLab sets a variable, GitHub answers a request of the job."""
    if token := environ.get(ID_TOKEN):
        return token
    address, secret = environ.get(REQUEST_URL), environ.get(REQUEST_TOKEN)
    if not address or not secret:
        raise NotAuthenticated(
            "this command does not run in a CI job that can get a token",
            hint="GitHub Actions: give the job 'permissions: id-token: write'. GitLab: give it 'id_tokens' with "
            f"{ID_TOKEN} and 'aud: {audience}'.",
        )
    if not _is_safe(address):
        raise NotAuthenticated(f"{REQUEST_URL} is not an https address")
    joined = address + ("&" if urlsplit(address).query else "?") + urlencode({"audience": audience})
    answer = json_answer("GET", joined, headers={"authorization": f"Bearer {secret}"})
    value = answer.get("value")
    if not isinstance(value, str) or not value:
        raise Unavailable("the CI service answered without a token", hint="Try the job again.")
    return value


def _is_safe(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"})
