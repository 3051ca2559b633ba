"""The gate of the HTTP endpoints: it authenticates callers, checks Host and Origin, and records refused requests."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from skillery.audit.refusals import Refusals
from skillery.backends import Authenticator, Credentials, Identity, Resource, Scope
from skillery.context.request import current
from skillery.errors import NotAllowed, NotAuthenticated, SkilleryError, TooManyFailedLogins, Unavailable
from skillery.http.operations import challenge
from skillery.http.requests import HttpRefusal, address_of, retry_after
from skillery.identity import access
from skillery.methods.errors import INVALID_REQUEST, codes_of, error_object, plain_error
from skillery.settings.load import is_loopback

FORBIDDEN = 403
"""The status of HttpRefusal for a Host or an Origin that is not allowed. No other HttpRefusal has this status."""
LOGIN = "login"
"""The action in the audit trail for a request without a token, or with a token that is not valid."""
KNOCK = "knock"
"""Action in the audit trail for a request whose Host or Origin header is not allowed."""
ANONYMOUS = Identity("", scopes=frozenset({"read"}))
"""The identity of callers without credentials. No token has the name "", so nothing private belongs to this
identity.
"""


class Gate:
    """Decides which callers may use an endpoint."""

    def __init__(
        self,
        authenticator: Authenticator,
        refusals: Refusals,
        allowed_hosts: frozenset[str],
        allowed_origins: frozenset[str],
        resource: Resource | None,
    ) -> None:
        """Store the parts. `allowed_hosts` and `allowed_origins` are in lower case. `resource` tells clients where
        they get a token.
        """
        self._authenticator = authenticator
        self._refusals = refusals
        self._allowed_hosts = allowed_hosts
        self._allowed_origins = allowed_origins
        self._resource = resource
        self.failed_logins: Counter[Literal["missing", "refused", "limited"]] = Counter()
        """Requests without valid credentials: without any, with others, and above the limit of their address."""

    def check_browser(self, scope: Any, headers: Mapping[str, str]) -> None:
        """Protect the server from web pages that a user of this computer visits in a browser.

        Raise HttpRefusal 403 if the Host is not a name of this server (DNS rebinding), or if there is an Origin that is
        not this server and is not in the setting allowed_origins.
        """
        host = headers.get("host", "").lower()
        if not self._is_our_host(scope, host):
            hint = "Call it by the address it is bound to, or list the name in the setting allowed_hosts."
            message = f"the Host {host[:100]!r} is not one of this server's"
            raise HttpRefusal(FORBIDDEN, plain_error(INVALID_REQUEST, message, "host_not_allowed", hint))
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"{scope['scheme']}://{host}", *self._allowed_origins}:
            hint = "List it in the setting allowed_origins if its pages are meant to."
            message = f"the Origin {origin[:100]!r} may not call this server"
            raise HttpRefusal(FORBIDDEN, plain_error(INVALID_REQUEST, message, "origin_not_allowed", hint))

    def _is_our_host(self, scope: Any, host: str) -> bool:
        name = without_port(host)
        if name in self._allowed_hosts or host in self._allowed_hosts or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        local = (scope.get("server") or ("", None))[0]
        return str(address) == local or (address.is_loopback and is_loopback(local))

    async def authenticate(self, scope: Any, headers: Mapping[str, str]) -> Identity:
        """Return the caller, and record the name of the caller in the current request, for the log.

        Raise HttpRefusal 401 if the credentials are missing or not valid, or 429 if too many logins from the address
        failed. Raise Unavailable if the database is unavailable.
        """
        try:
            identity = await self._authenticator.authenticate(Credentials(headers, address_of(scope)))
        except NotAuthenticated as error:
            self.note_refusal(None, LOGIN, "", error)
            self._count(error, "refused" if "authorization" in headers else "missing")
            raise self._refusal(error, scope, headers) from None
        request = current.get()
        if request is not None:
            request.identity = identity.name
        return identity

    async def still_admits(self, identity: Identity, scope: Any, headers: Mapping[str, str]) -> bool:
        """Return whether the credentials of an admitted request still give the same identity.

        While the database or an identity provider is unavailable, nothing has changed.
        """
        try:
            return await self._authenticator.authenticate(Credentials(headers, address_of(scope))) == identity
        except NotAuthenticated:
            return False
        except Unavailable:
            return True

    def missing_credentials(self, scope: Any, headers: Mapping[str, str]) -> HttpRefusal:
        """Return 401 for a caller without credentials, without an entry in the audit trail.

        Clients of git always begin without credentials, and send them after this answer.
        """
        error = NotAuthenticated("this address needs credentials", hint="Send a token.")
        return self._refusal(error, scope, headers)

    def failed_login(self, error: NotAuthenticated, scope: Any, headers: Mapping[str, str]) -> HttpRefusal:
        """Record a failed login in the audit trail. Return the answer: 401, or 429 after too many failures."""
        self.note_refusal(None, LOGIN, "", error)
        self._count(error, "refused")
        return self._refusal(error, scope, headers)

    def _count(self, error: NotAuthenticated, reason: Literal["missing", "refused"]) -> None:
        self.failed_logins["limited" if isinstance(error, TooManyFailedLogins) else reason] += 1

    def _refusal(self, error: NotAuthenticated, scope: Any, headers: Mapping[str, str]) -> HttpRefusal:
        """Return the answer to a caller that is not authenticated: 401, or 429 after too many failures."""
        if isinstance(error, TooManyFailedLogins):
            return HttpRefusal(429, error_object(error), [retry_after(error.data["retry_after_ms"])])
        wanted = challenge(self._resource, scope, headers)
        return HttpRefusal(401, error_object(error), [("www-authenticate", wanted)])

    async def admit(self, scope: Any, headers: Mapping[str, str], needs: Scope, action: str) -> Identity:
        """Return the caller. Raise the errors of `authenticate`, and NotAllowed if the caller does not have the scope
        `needs`.

        The audit trail records a refusal under `action`: usually the method that does the same as the endpoint.
        """
        identity = await self.authenticate(scope, headers)
        try:
            access.require(identity, needs)
        except NotAllowed as error:
            self.note_refusal(identity, action, "", error)
            raise
        return identity

    async def admit_reader(self, scope: Any, headers: Mapping[str, str], *, or_anonymous: bool) -> Identity:
        """Return the caller of a download. Raise the errors of `admit`.

        If `or_anonymous`, return ANONYMOUS for a caller without an Authorization header, unless the authenticator knows
        the caller by other means.
        """
        if or_anonymous and "authorization" not in headers:
            try:
                await self._authenticator.authenticate(Credentials(headers, address_of(scope)))
            except NotAuthenticated:
                return ANONYMOUS
        return await self.admit(scope, headers, "read", "read_skill_file")

    def refused_login(
        self,
        scope: Any,
        headers: Mapping[str, str],
        error: NotAuthenticated,
        *,
        action: str,
        reason: str,
        actor: Identity | None,
    ) -> HttpRefusal:
        """Return the refusal of a login that failed outside of the authenticator: 401, or 429 after too many failures.

        The failure counts towards the limit of its address. The audit trail records `reason` and the name of `actor`.
        """
        wait = self._authenticator.note_failure(address_of(scope))
        code = codes_of(error).rpc
        self._refusals.note(actor, action, "", code=code, error_type=error.type, reason=reason)
        if wait is not None:
            error = TooManyFailedLogins(
                f"{error.message}, and too many logins from this address have failed",
                hint=error.hint,
                retry_after_ms=max(1, round(wait * 1000)),
            )
        self._count(error, "refused")
        return self._refusal(error, scope, headers)

    def note_refusal(self, identity: Identity | None, action: str, subject: str, error: SkilleryError) -> None:
        """Record a refusal in the audit trail. `identity` is None for a caller who is not authenticated."""
        token = error.token if isinstance(error, NotAuthenticated) else ""
        self._refusals.note(identity, action, subject, code=codes_of(error).rpc, error_type=error.type, token=token)

    def note_foreign_origin(self, error: Mapping[str, Any]) -> None:
        """Record in the audit trail that `check_browser` refused a request. The caller is not authenticated at that
        time.
        """
        self._refusals.note(None, KNOCK, "", code=error["code"], error_type=error["data"]["type"])


def without_port(host: str) -> str:
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        return name if closed and (not port or port[0] == ":") else host
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host
