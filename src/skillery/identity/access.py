"""Access rules: scopes decide which methods an identity may call, and namespace grants decide for which skills."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from skillery.backends import ALL_SCOPES, Identity, Scope
from skillery.errors import NotAllowed
from skillery.formats.wording import quoted

RESERVED = "skills.protocol.*"
"""The skills that teach the protocol to every agent. Only the server publishes and changes them."""
BUNDLER = Identity("skillery", "agent", ALL_SCOPES, ("*",))
"""The server, when it publishes the bundled skills. Tokens may have the same name: compare with `is`."""


class ApprovalRules(NamedTuple):
    """Whether publishers and agents may approve versions. The default is the strictest rule."""

    reviewers: Literal["people", "any"] = "people"
    """Whether only people approve versions, or agents too."""
    self_approval: bool = False
    """Whether reviewers approve versions that they have published."""
    policy: str = ""
    """The policy that has these rules. "": the settings of publishing."""

    def refusal(self, identity: Identity, publisher: str) -> str:
        """Return why the identity approves no version of the publisher, as the end of a sentence, or ""."""
        if self.reviewers == "people" and identity.kind != "person":
            return f"is an agent: only people approve versions ({self.setting_of('reviewers')})"
        if not self.self_approval and identity.name == publisher:
            return f"published it: another reviewer approves it ({self.setting_of('self_approval')})"
        return ""

    def setting_of(self, key: str) -> str:
        """Return the setting that has the rule `key`."""
        return f"policy {self.policy!r}" if self.policy else f"setting publishing.{key}"


def is_admin(identity: Identity) -> bool:
    return "admin" in identity.scopes


def is_auditor(identity: Identity) -> bool:
    """Return whether the identity reads the audit trail, and the runs and the usage of all identities."""
    return allows(identity, "audit")


def allows(identity: Identity, scope: Scope) -> bool:
    """Return whether the identity has the scope. `admin` includes every scope."""
    return scope in identity.scopes or is_admin(identity)


def require(identity: Identity, scope: Scope) -> None:
    """Raise NotAllowed if the identity does not have the scope. `admin` includes every scope."""
    if allows(identity, scope):
        return
    raise NotAllowed(
        f"'{identity.name}' does not have the scope '{scope}'",
        hint=f"Ask an admin for a token with the scope '{scope}'.",
        scope=scope,
    )


def covers(identity: Identity, name: str) -> bool:
    """Return whether a grant covers a skill. Admins may use all names."""
    return is_admin(identity) or any(grant_covers(grant, name) for grant in identity.namespaces)


def grant_covers(grant: str, name: str) -> bool:
    """Return whether a grant covers a skill: `sales.*` covers names that start with `sales.`, `sales.report` only
    itself, `*` all names. A name such as `sales.lab.*` means a whole namespace.
    """
    return grant in {"*", name} or (grant.endswith(".*") and name.startswith(grant[:-1]))


def covers_all(identity: Identity, pattern: str) -> bool:
    """Return whether the grants cover a whole namespace (`sales.*`), or all names (`*`)."""
    if pattern == "*":
        return is_admin(identity) or "*" in identity.namespaces
    return covers(identity, pattern)


def is_reserved(identity: Identity, name: str) -> bool:
    """Return whether only the server may publish and change skills with this name or grant (`skills.protocol.*`)."""
    return identity is not BUNDLER and grant_covers(RESERVED, name)


def require_unreserved(identity: Identity, name: str) -> None:
    """Raise NotAllowed if only the server may publish and change the skill."""
    if is_reserved(identity, name):
        raise NotAllowed(
            f"'{name}' is reserved: only the server publishes and changes the skills of {RESERVED}",
            hint="Choose a name outside of skills.protocol.",
            name=name,
        )


def require_namespace(identity: Identity, scope: Scope, name: str) -> None:
    """Raise NotAllowed if the name is reserved, if the identity does not have the scope, or if no grant covers it."""
    require_unreserved(identity, name)
    require_grant(identity, scope, name)


def require_grant(identity: Identity, scope: Scope, name: str) -> None:
    """Raise NotAllowed if the identity does not have the scope, or has no grant that covers `name`.

    A reviewer without any grant may review everything. For other scopes, every identity except an admin needs a grant.
    """
    require(identity, scope)
    if _reaches(identity, scope, name):
        return
    parent, dot, _ = name.rpartition(".")
    grant = f"{parent}.*" if dot else "*"
    grants = ", ".join(quoted(namespace) for namespace in identity.namespaces) or "none"
    own_namespace = next(
        (namespace.removesuffix(".*") for namespace in identity.namespaces if namespace.endswith(".*")), None
    )
    advice = (
        f"Call it {own_namespace}.… instead (an import takes a namespace), or ask"
        if own_namespace and scope == "publish"
        else "Ask"
    )
    raise NotAllowed(
        f"'{identity.name}' has the scope '{scope}', but no namespace grant that covers '{name}'",
        hint=f"The call needs the grant '{grant}', and this identity has {grants}. "
        f"{advice} an admin for a token with it.",
        scope=scope,
        grant=grant,
        grants=list(identity.namespaces),
    )


def publishes(identity: Identity, name: str) -> bool:
    """Return whether the identity may publish and change the skill."""
    return allows(identity, "publish") and covers(identity, name) and not is_reserved(identity, name)


def reviews(identity: Identity, name: str) -> bool:
    """Return whether the identity may review versions of the skill."""
    return is_admin(identity) or ("review" in identity.scopes and _reaches(identity, "review", name))


def approves(identity: Identity, name: str, publisher: str, rules: ApprovalRules) -> bool:
    """Return whether the identity may approve a version of the skill that `publisher` has published."""
    return reviews(identity, name) and not rules.refusal(identity, publisher)


def _reaches(identity: Identity, scope: Scope, name: str) -> bool:
    """Return whether a grant of the identity covers the name. For the scope `review`, an identity without grants covers
    all names.
    """
    return covers(identity, name) or (scope == "review" and not identity.namespaces)


# -- The form of an identity in results --------------------------------------------------------------------------------


class Who(msgspec.Struct, frozen=True):
    """An identity: its name and kind."""

    name: str
    kind: str
