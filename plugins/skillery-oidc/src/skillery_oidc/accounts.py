"""Accounts that an identity provider provisions by SCIM: users, groups, and what they mean for tokens and sessions.

The values of the database have one key for each fact, so that requests at the same time do not overwrite each other.
One transaction writes all facts of a request:

- `scim/User/ID` and `scim/Group/ID`: the attributes. `scim/inactive/ID`: the user is deactivated.
- `scim/is/KIND/ATTRIBUTE/HASH`: the id of the resource with this value.
- `scim/was/User/ATTRIBUTE/HASH`: the user with this value was deleted, and the provider has not created another one.
- `scim/identity/HASH`: the id of the user with this identity. The key outlives the user.
- `scim/in/USER/GROUP` and `scim/of/GROUP/USER`: a member. The keys exist together.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Identity, Values
from skillery.errors import NotAuthenticated
from skillery_oidc.memory import Memory
from skillery_oidc.rules import claimed_text, identities_of
from skillery_oidc.scim_resources import Resource, ScimError
from skillery_oidc.settings import OidcSettings, ScimSettings

REMEMBERED_SECONDS = 1.0
"""An account is read at most once in this time. So a change takes effect within a second on every server."""
MOST_JOINED = 10_000
"""The maximum number of members that one transaction adds to a group or removes: 10,000 take 0.4 s."""
_ID = re.compile("[0-9a-f]{32}")
UNIQUE = {"User": ("userName", "externalId"), "Group": ("displayName", "externalId")}
EndIdentities = Callable[[Sequence[str], Identity], None]


class AccountRefused(NotAuthenticated):
    """Raised if the provider has deactivated, deleted or not provisioned the user of a token."""

    subject = "account"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="The administrators of the identity provider manage the accounts.")


class Account(NamedTuple):
    """What a server knows about the user of a token."""

    user: str = ""
    """The key of the user. Empty for a token that belongs to no user."""
    claims: tuple[tuple[str, Any], ...] = ()
    """The claims that the account replaces."""
    refusal: str = ""

    def applied_to(self, claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims for the rules. Raise AccountRefused if the user may not enter."""
        if self.refusal:
            raise AccountRefused(self.refusal)
        return claims | dict(self.claims)


class Accepted(NamedTuple):
    """An accepted token."""

    identity: Identity
    expires: float
    """The end of the token, with the accepted skew, in seconds since 1970."""

    account: Account
    """The account of the user when the token was verified."""

    @property
    def is_valid(self) -> bool:
        return datetime.now(UTC).timestamp() < self.expires


class Accounts:
    """The accounts in the values of the database. The methods without `async` block."""

    def __init__(self, settings: OidcSettings, scim: ScimSettings, values: Values, ends: EndIdentities) -> None:
        self._settings = settings
        self._scim = scim
        self._values = values
        self._ends = ends
        self._accounts: Memory[Account] = Memory()
        self._identities: Memory[bool] = Memory()

    # -- Tokens and sessions -------------------------------------------------------------------------------------------

    async def find(self, claims: Mapping[str, Any]) -> Account:
        """Return the account of the user of a token."""
        claim, attribute = next(iter(self._scim.claims.items()))
        text = claimed_text(claim, claims)
        return await self.read(_index("User", attribute, text)) if text else Account()

    async def read(self, user: str) -> Account:
        """Return an account by its key, at most REMEMBERED_SECONDS old."""
        if not user:
            return Account()
        account = self._accounts.find(user.encode())
        if account is None:
            account = await asyncio.to_thread(self._read, user)
            self._accounts.keep(user.encode(), account, REMEMBERED_SECONDS, self._accounts.age)
        return account

    def _read(self, user: str) -> Account:
        stored = self._values.get(user)
        record = self._record("User", stored.decode()) if stored else None
        if record is None and (stored or self._values.get(_was(user)) is not None):
            return Account(user, (), "the identity provider has deleted this user")
        if record is None:
            missing = "the identity provider has not provisioned this user" if self._scim.required else ""
            return Account(user, (), missing)
        if self._is_inactive(record["id"]):
            return Account(user, (), "the identity provider has deactivated this user")
        groups = self.groups_of(record["id"])
        names = [group[name] for group in groups for name in ("displayName", "externalId") if name in group]
        return Account(user, ((self._scim.groups, names), *self._claims_of(record).items()))

    async def check(self, identity: str) -> None:
        """Raise AccountRefused if the user of an identity is deactivated or deleted."""
        key = _key_of_identity(identity)
        ended = self._identities.find(key.encode())
        if ended is None:
            ended = await asyncio.to_thread(self._has_ended, key)
            self._identities.keep(key.encode(), ended, REMEMBERED_SECONDS, self._identities.age)
        if ended:
            raise AccountRefused(f"the identity provider has deactivated or deleted the user of '{identity}'")

    def _has_ended(self, key: str) -> bool:
        user = self._values.get(key)
        return user is not None and (self._record("User", user.decode()) is None or self._is_inactive(user.decode()))

    def _claims_of(self, record: Resource) -> dict[str, str]:
        return {claim: record[name] for claim, name in self._scim.claims.items() if name in record}

    # -- Resources -----------------------------------------------------------------------------------------------------

    def create(self, kind: str, resource: Resource, caller: Identity) -> Resource:
        """Store a resource, and return it. Raise ScimError 409 if there is a resource with the same name or id."""
        return self._store(kind, {"id": uuid.uuid4().hex, "created": _now()}, resource, caller)

    def replace(self, kind: str, old: Resource, resource: Resource, caller: Identity) -> Resource:
        """Store the new attributes of a resource. Raise ScimError 409 if another resource has the name or id."""
        return self._store(kind, old, resource, caller)

    def delete(self, kind: str, old: Resource, caller: Identity) -> None:
        """Delete a resource. The user of a deleted account is refused until the provider creates the account again."""
        if kind == "User":
            self._values.set(f"scim/inactive/{old['id']}", b"")
            self._end(old, caller)
        changes: dict[str, bytes | None] = {f"scim/{kind}/{old['id']}": None, f"scim/inactive/{old['id']}": None}
        for key in _index_keys(kind, old):
            changes |= {key: None} | ({_was(key): b""} if kind == "User" else {})
        members = self._memberships(kind, old["id"])
        for start in range(MOST_JOINED, len(members), MOST_JOINED):
            batch = members[start : start + MOST_JOINED]
            self._values.change_many({key: None for pair in batch for key in _member(*pair, None)})
        for pair in members[:MOST_JOINED]:
            changes |= _member(*pair, None)
        # The record last: if a batch fails, the client can repeat the request.
        self._values.change_many(changes)

    def find_resource(self, kind: str, resource_id: str) -> Resource | None:
        """Return the stored attributes of a resource, with `active` or `members`, or None."""
        record = self._record(kind, resource_id)
        if record and kind == "User":
            return record | {"active": not self._is_inactive(resource_id)}
        if record:
            members = [{"value": user} for user, _ in self._memberships(kind, resource_id)]
            return record | ({"members": members} if members else {})
        return None

    def find_by(self, kind: str, attribute: str, value: str) -> str | None:
        """Return the id of the resource with a value of `id` or of an attribute of UNIQUE, or None."""
        if attribute == "id":
            return value
        stored = self._values.get(_index(kind, attribute, value))
        return stored.decode() if stored else None

    def ids(self, kind: str) -> list[str]:
        prefix = f"scim/{kind}/"
        return [key.removeprefix(prefix) for key in self._values.keys(prefix)]

    def groups_of(self, user: str) -> list[Resource]:
        return list(self._records("Group", [group for _, group in self._memberships("User", user)]).values())

    def _record(self, kind: str, resource_id: str) -> Resource | None:
        """Return the stored attributes of a resource, or None if it does not exist."""
        return self._records(kind, [resource_id]).get(resource_id)

    def _records(self, kind: str, ids: Sequence[str]) -> dict[str, Resource]:
        """Return the stored attributes of the resources that exist, by id, in the order of `ids`."""
        keys = {f"scim/{kind}/{resource_id}": resource_id for resource_id in ids if _ID.fullmatch(resource_id)}
        stored = self._values.get_many(keys)
        # Earlier servers stored {} while they created a resource.
        return {keys[key]: msgspec.json.decode(stored[key]) for key in keys if stored.get(key, b"{}") != b"{}"}

    def _is_inactive(self, user: str) -> bool:
        return self._values.get(f"scim/inactive/{user}") is not None

    def _store(self, kind: str, old: Resource, resource: Resource, caller: Identity) -> Resource:
        kept = {name: value for name, value in resource.items() if name not in ("active", "members", "groups")}
        record = {**kept, "id": old["id"], "created": old["created"], "changed": _now()}
        # Only the differences are written, so that requests at the same time do not undo each other.
        joins, leaves = _differences(_members(old), _members(resource))
        if len(joins) + len(leaves) > MOST_JOINED:
            raise ScimError(
                413, f"one request adds or removes at most {MOST_JOINED:,} members: PATCH the group several times"
            )
        known = self._records("User", joins)
        for user in joins:
            if user not in known:
                raise ScimError(400, f"there is no user {user[:80]!r}", "invalidValue")
        is_active, new_id = resource.get("active", True), record["id"].encode()
        changes: dict[str, bytes | None] = {}
        if kind == "User":
            names = identities_of(self._claims_of(record), self._settings)
            record["identities"] = list(dict.fromkeys([*old.get("identities", ()), *names]))
            changes |= {_key_of_identity(name): new_id for name in names}
        if not is_active or not old.get("active", True):
            changes[f"scim/inactive/{record['id']}"] = None if is_active else b""
        changes[f"scim/{kind}/{record['id']}"] = msgspec.json.encode(record)
        for users, value in ((leaves, None), (joins, b"")):
            for user in users:
                changes |= _member(user, record["id"], value)
        self._change(kind, changes, _index_keys(kind, old), _index_keys(kind, record), new_id)
        if kind == "User" and not is_active:
            self._end(record, caller)
        return self.find_resource(kind, record["id"]) or record

    def _change(
        self,
        kind: str,
        changes: dict[str, bytes | None],
        old: Mapping[str, str],
        new: Mapping[str, str],
        new_id: bytes,
    ) -> None:
        """Make the changes of a resource, and give it the names `new`. Raise ScimError 409 for names of others."""
        changes |= dict.fromkeys(old) | dict.fromkeys(new, new_id)
        if kind == "User":
            changes |= dict.fromkeys(map(_was, new))
        is_stored = False
        while not is_stored:
            holders = self._values.get_many(new)
            for key, name in new.items():
                if holders.get(key, new_id) != new_id:
                    raise ScimError(409, f"another {kind} has this {name}", "uniqueness")
            is_stored = self._values.change_many(changes, {key: holders.get(key) for key in new})

    def _end(self, record: Resource, caller: Identity) -> None:
        """End the identities of a user who is refused now."""
        names = [name for name in record.get("identities", ()) if self._is_of(name, record["id"])]
        # SCIM ignores the case of userName, and names of identities do not.
        self._ends(list(dict.fromkeys(spelling for name in names for spelling in (name, name.lower()))), caller)

    def _is_of(self, name: str, user: str) -> bool:
        return self._values.get(_key_of_identity(name)) == user.encode()

    # -- Members -------------------------------------------------------------------------------------------------------

    def _memberships(self, kind: str, resource_id: str) -> list[tuple[str, str]]:
        """Return the pairs of user and group that contain a user or a group."""
        prefix = f"scim/{'in' if kind == 'User' else 'of'}/{resource_id}/"
        others = [key.removeprefix(prefix) for key in self._values.keys(prefix)]
        return [(resource_id, other) if kind == "User" else (other, resource_id) for other in others]


def _member(user: str, group: str, value: bytes | None) -> dict[str, bytes | None]:
    """Return the changes that store a member or, with None, remove it."""
    return {f"scim/of/{group}/{user}": value, f"scim/in/{user}/{group}": value}


def _members(resource: Resource) -> set[str]:
    return {member.get("value", "") for member in resource.get("members", ())}


def _differences(old: set[str], new: set[str]) -> tuple[list[str], list[str]]:
    """Return the added and the removed elements."""
    return sorted(new - old), sorted(old - new)


def _index(kind: str, attribute: str, value: str) -> str:
    return f"scim/is/{kind}/{attribute}/{_hash(value if attribute == 'externalId' else _without_case(value))}"


def _index_keys(kind: str, resource: Resource) -> dict[str, str]:
    """Return the keys of the unique attributes of a resource, with the names of the attributes."""
    return {_index(kind, name, resource[name]): name for name in UNIQUE[kind] if name in resource}


def _was(key: str) -> str:
    """Return the key that says that the user with the value of another key was deleted."""
    return key.replace("scim/is/", "scim/was/", 1)


def _key_of_identity(name: str) -> str:
    return f"scim/identity/{_hash(_without_case(name))}"


def _without_case(name: str) -> str:
    """Return a name in lower case. Names that differ in more than their case stay different, because a token gets the
    groups of the account with its name: `casefold` makes "ss" of "ß", and `lower` an ASCII letter of the Kelvin sign.
    """
    return name.lower() if unicodedata.is_normalized("NFC", name) else name


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
