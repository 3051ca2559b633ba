"""The issuers of CI services: bounded reads of their metadata and keys, and the names of the claims in their tokens."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

import httpx

from cellblock.egress.lookups import Bounds, LookUpThreads, RunLookUps
from cellblock.egress.policy import DEFAULT_PORTS, Denied, Scheme, canonical_host
from cellblock.egress.resolver import AddressRules, checked_addresses
from cellblock.egress.streams import Caps
from skillery.errors import Unavailable
from skillery.formats.wording import quoted

MOST_BYTES = 512 * 1024
"""The maximum size of a document."""
SECONDS = 5.0
"""The maximum time of one read."""


class Documents:
    """Reads documents of issuers from addresses that the rules of the egress proxy allow."""

    def __init__(self, allow_private: Sequence[str], agent: str) -> None:
        """`allow_private` are private addresses and networks to allow. `agent` is the User-Agent.

        Raise ValueError if an address is invalid.
        """
        self._rules = AddressRules(allow_private)
        self._agent = agent
        self._tls: ssl.SSLContext | None = None
        threads = LookUpThreads(bounds=Bounds(in_all=4, of_identity=4, of_run=4))
        # An admin has named the issuers, so they may be names of the network of this server.
        self._lookups = RunLookUps(threads, "trust", Caps(look_up_seconds=SECONDS), of_the_house=True)

    async def fetch(self, address: str) -> bytes:
        """Return the document at an address. Raise Unavailable. See `skillery.backends.Place.fetch`."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._read(urlsplit(address))
        except Denied as error:
            raise _unavailable(address, error.reason) from None
        except TimeoutError:
            raise _unavailable(address, "no answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            raise _unavailable(address, (str(error) or type(error).__name__).splitlines()[0][:200]) from None

    async def _read(self, url: SplitResult) -> bytes:
        """Read the document from the addresses of the host, in order, until one connects. Raise Denied or an error of
        httpx.
        """
        *others, last = await self._addresses(url)
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx.create_ssl_context)
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=SECONDS) as client:
            for address in others:
                with suppress(httpx.ConnectError):
                    return await self._get(client, url, address)
            return await self._get(client, url, last)

    async def _get(self, client: httpx.AsyncClient, url: SplitResult, address: str) -> bytes:
        """Read the document from one address of the host."""
        port = url.port or DEFAULT_PORTS[cast(Scheme, url.scheme)]
        host_in_url = f"[{address}]" if ":" in address else address
        address_url = f"{url.scheme}://{host_in_url}:{port}{url.path or '/'}" + (f"?{url.query}" if url.query else "")
        headers = {"host": url.netloc, "user-agent": self._agent, "accept": "application/json"}
        # A small compressed answer could have gigabytes.
        headers["accept-encoding"] = "identity"
        # The certificate must be valid for the name, not for the address.
        tls_options = {"sni_hostname": url.hostname}
        body = bytearray()
        async with client.stream("GET", address_url, headers=headers, extensions=tls_options) as response:
            if response.status_code != 200:
                raise Denied(f"it answers with status {response.status_code}")
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MOST_BYTES:
                    raise Denied(f"it answers with more than {MOST_BYTES} bytes")
        return bytes(body)

    async def _addresses(self, url: SplitResult) -> list[str]:
        """Return the permitted addresses of the host. Raise Denied if the URL or an address is not permitted."""
        if url.scheme not in {"http", "https"} or url.username or url.password or url.fragment or not url.hostname:
            raise Denied("it is not an http or https address")
        addresses = self._literal(url.hostname)
        if addresses is None:
            addresses = await checked_addresses(self._lookups, self._rules, canonical_host(url.hostname))
        if url.scheme == "http" and not all(ipaddress.ip_address(address).is_loopback for address in addresses):
            raise Denied("http is permitted on loopback only: use https")
        return addresses

    def _literal(self, host: str) -> list[str] | None:
        """Return the IP address that `host` is, as a list, or None if `host` is a name. Raise Denied if the address is
        forbidden.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return None
        problem = self._rules.problem(host)
        if problem:
            raise Denied(f"{host} {problem}; an admin can list it in the setting trust.allow_private")
        return [host]


def _unavailable(address: str, reason: str) -> Unavailable:
    return Unavailable(f"{quoted(address[:300])} cannot be read: {reason}")


# -- The providers of CI jobs: their issuers, and the names of their claims --------------------------------------------


Name = Literal["github", "gitlab", "oidc"]


class Provider(NamedTuple):
    """A CI service, or `oidc` for any other issuer of tokens."""

    issuer: str
    """The issuer of its public service. "" means that each rule names an issuer."""
    claims: Mapping[str, str]
    """The name of the claim for each field of `skillery.backends.Provenance`."""
    default_workflow: str = ""
    event: str = ""
    """The name of the claim with the event that started the job."""
    refused_events: frozenset[str] = frozenset()
    """Events for which people without write access to the repository can start a job of the repository."""

    def workflow_pattern(self, host: str, repository: str, workflow: str) -> str:
        """Return the pattern of the claim for a workflow file, on any branch or tag."""
        if self.default_workflow:
            return f"{host}/{repository}//{workflow}@refs/*"
        return f"{repository}/.github/workflows/{workflow}@refs/*"


PROVIDERS: Mapping[Name, Provider] = {
    "github": Provider(
        issuer="https://token.actions.githubusercontent.com",
        claims={
            "repository": "repository",
            "repository_id": "repository_id",
            "owner_id": "repository_owner_id",
            "workflow": "workflow_ref",
            "ref": "ref",
            "commit": "sha",
            "environment": "environment",
            "run": "run_id",
        },
        event="event_name",
        refused_events=frozenset({"pull_request_target", "workflow_run"}),
    ),
    "gitlab": Provider(
        issuer="https://gitlab.com",
        claims={
            "repository": "project_path",
            "repository_id": "project_id",
            "owner_id": "namespace_id",
            "workflow": "ci_config_ref_uri",
            "ref": "ref_path",
            "commit": "sha",
            "environment": "environment",
            "run": "pipeline_id",
        },
        default_workflow=".gitlab-ci.yml",
        event="pipeline_source",
        refused_events=frozenset({"merge_request_event", "external_pull_request_event"}),
    ),
    "oidc": Provider(issuer="", claims={}),
}
WRITTEN_REFS = ("refs/heads/", "refs/tags/")
"""Prefixes of refs that only people with write access to a repository can change. Pull requests have other refs."""
BY_START = frozenset({"ref", "ref_path", "workflow_ref", "ci_config_ref_uri"})
"""Claims whose value in a rule may end with `*`, and then matches all values with this start. No branch or tag contains
`*`.
"""


def service_of(name: Name, issuer: str) -> Provider:
    """Return the CI service of an issuer: the service with this public issuer, else the provider `name`."""
    return next((provider for provider in PROVIDERS.values() if provider.issuer == issuer), PROVIDERS[name])
