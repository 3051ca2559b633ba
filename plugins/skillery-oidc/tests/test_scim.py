"""Accounts by SCIM 2.0: a client of another author, the requests of Okta and Entra ID, and the end of access."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from oidc_here import OidcProvider, settings_of, shared_provider
from skillery.errors import StartupError
from skillery_oidc.accounts import MOST_JOINED
from skillery_oidc.settings import check_settings
from test_oidc_browser import Site, configure, rows_of
from test_oidc_server import pooled_sso, refused, who, write_settings
from tests import conftest
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.processes import eventually, free_port

__all__ = ["pooled_sso"]
start_server, postgres = conftest.start_server, conftest.postgres
migrated_postgres_database = conftest.migrated_postgres_database
ANN = {"userName": "ann"}
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
SCIM = """
[backends.authenticator.oidc.scim]
claims = { sub = "userName" }

[[backends.authenticator.oidc.rules]]
claims = { groups = ["skill-admins", "7f5c"] }
identity = "{sub}"
scopes = ["read", "run", "publish", "admin"]

[[backends.authenticator.oidc.rules]]
identity = "{sub}"
scopes = ["read", "run"]
"""


class Provisioned:
    """A server, and the client of the identity provider that provisions its accounts."""

    def __init__(self, server: Server, provider: OidcProvider) -> None:
        self.server = server
        self.provider = provider
        self.base = f"{server.url}/x/oidc/scim/v2"
        headers = {"authorization": f"Bearer {new_token(server, 'okta', 'accounts')}"}
        self.http = httpx.Client(headers=headers | {"content-type": "application/scim+json"}, timeout=300)
        # Imported here, because these models cost a second, and each process of the suite collects this module.
        from scim2_client.engines.httpx2 import SyncSCIMClient

        # The models of users and groups come from the server, so they have no static types.
        self.scim: Any = SyncSCIMClient(httpx2.Client(base_url=self.base, headers=headers, timeout=300))
        self.scim.discover()

    def remove_all(self) -> None:
        """Remove the users and groups of earlier tests."""
        for kind in ("Groups", "Users"):
            for row in self.http.get(f"{self.base}/{kind}").json()["Resources"]:
                assert self.http.delete(f"{self.base}/{kind}/{row['id']}").status_code == 204

    def user(self, name: str, **more: Any) -> Any:
        return self.scim.create(self.scim.get_resource_model("User")(user_name=name, **more))

    def group(self, name: str, *members: Any) -> Any:
        model = self.scim.get_resource_model("Group")
        return self.scim.create(model(display_name=name, members=[{"value": member.id} for member in members]))

    def patch(self, resource: Any, *operations: dict[str, Any], status: int = 200) -> dict[str, Any]:
        """Send a PATCH as a provider does. Return the answer."""
        path = f"{self.base}/{type(resource).__name__}s/{resource.id}"
        answer = self.http.patch(path, json={"schemas": [PATCH], "Operations": list(operations)})
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def is_refused(self, token: str) -> bool:
        return Rpc(self.server.url, token).http.post("/rpc", json={}).status_code == 401

    def is_admin(self, token: str) -> bool:
        call = {"jsonrpc": "2.0", "id": 1, "method": "list_tokens", "params": {}}
        return "result" in Rpc(self.server.url, token).http.post("/rpc", json=call).json()


def new_token(server: Server, name: str, scope: str) -> str:
    options = ("--name", name, "--scope", scope, "--home", str(server.home), "--json")
    token: str = skillery("token", "create", *options, SKILLERY_DATABASE=server.database).json["token"]
    return token


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


@pytest.fixture
def start(
    start_server: Callable[..., Server], pooled_sso: Callable[..., Server], provider: OidcProvider, tmp_path: Path
) -> Callable[..., Provisioned]:
    """Return `start(settings)`, which returns a server without users and groups. Tests share the servers on SQLite."""

    def start(tables: str = SCIM, database: str = "") -> Provisioned:
        if not database:
            provisioned = Provisioned(pooled_sso(tables=tables), provider)
            provisioned.remove_all()
            return provisioned
        port = free_port()
        provider.resource = f"http://127.0.0.1:{port}"
        config = write_settings(provider, tmp_path, tables)
        server = start_server("--config", str(config), "--port", str(port), env={"SKILLERY_DATABASE": database})
        server.database = database
        return Provisioned(server, provider)

    return start


@pytest.mark.full
def test_endpoints_pass_scim2_tester(start: Callable[..., Provisioned]) -> None:
    """scim2-tester discovers the service, then creates, reads, changes, patches and deletes users and groups."""
    provisioned = start()

    from scim2_tester import Status, check_server

    results = check_server(provisioned.scim)

    failed = [
        f"{result.title}: {result.reason}" for result in results if result.status in (Status.ERROR, Status.CRITICAL)
    ]
    assert failed == []
    assert sum(result.status == Status.SUCCESS for result in results) > 50


OKTA = {"op": "replace", "value": {"active": False}}
ENTRA = {"op": "Replace", "path": "active", "value": "False"}


@pytest.mark.full
@pytest.mark.parametrize(("operation", "kind"), [(OKTA, "sqlite"), (ENTRA, "postgres")])
def test_deactivation_ends_tokens_and_runs_within_a_second(
    operation: dict[str, Any], kind: str, start: Callable[..., Provisioned], request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue("migrated_postgres_database")() if kind == "postgres" else ""
    provisioned = start(database=database)
    provider, server = provisioned.provider, provisioned.server
    ann = provisioned.user("Ann@acme.org", external_id="00u1", active=True)
    token, own = provider.sign(sub="ann@acme.org"), new_token(server, "Ann@acme.org", "run")
    other = provider.sign(sub="bob@acme.org")
    assert who(server, token) == "Ann@acme.org"
    run = Rpc(server.url, own)("run_code", language="python", code="import time\ntime.sleep(600)", background=True)

    assert provisioned.patch(ann, operation)["active"] is False

    eventually(lambda: provisioned.is_refused(token) and provisioned.is_refused(own))
    assert "deactivated" in refused(server, token).json()["error"]["message"]
    root = Rpc(server.url, new_token(server, "root", "admin"))
    eventually(lambda: root("get_run", run_id=run["run_id"])["status"] == "failed")
    entries = root("list_audit", action="revoke_identity")["entries"]
    assert [(entry["subject"], entry["identity"]["name"]) for entry in entries] == [("Ann@acme.org", "okta")]
    assert who(server, other) == "bob@acme.org"

    provisioned.patch(ann, {"op": "replace", "path": "active", "value": True})

    eventually(lambda: not provisioned.is_refused(token))
    assert provisioned.is_refused(own)


@pytest.mark.full
def test_deactivation_ends_sessions_of_browsers(
    start_server: Callable[..., Server], provider: OidcProvider, tmp_path: Path
) -> None:
    port = free_port()
    client, config = configure(provider, port, tmp_path, SCIM)
    site = Site(start_server("--config", str(config), "--port", str(port)), provider, client)
    provisioned = Provisioned(site.server, provider)
    site.sign_in()
    name = site.browser.who()
    assert name
    user = provisioned.user(name)
    assert site.browser.who() == name

    from scim2_models import PatchOp

    patch: Any = PatchOp
    provisioned.scim.modify(type(user), user.id, patch[type(user)].model_validate({"Operations": [OKTA]}))

    eventually(lambda: site.browser.who() is None)
    assert rows_of(site.server) == []
    assert site.sign_in().status_code == 401


@pytest.mark.full
def test_groups_of_scim_replace_the_groups_of_the_token(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    ann, bob = provisioned.user("ann"), provisioned.user("bob")
    token = provisioned.provider.sign(sub="ann", groups=["skill-admins"])
    assert not provisioned.is_admin(token)
    admins, id_only = provisioned.group("skill-admins", ann, bob), provisioned.group("readers")

    eventually(lambda: provisioned.is_admin(token))
    assert [group.display for group in provisioned.scim.query(type(ann), ann.id).groups] == ["skill-admins"]

    # Entra ID names the members in the value, Okta in the path.
    provisioned.patch(admins, {"op": "Remove", "path": "members", "value": [{"value": ann.id}]})
    eventually(lambda: not provisioned.is_admin(token))
    assert [member.value for member in provisioned.scim.query(type(admins), admins.id).members] == [bob.id]
    provisioned.patch(admins, {"op": "add", "path": "members", "value": [{"value": ann.id}]})
    eventually(lambda: provisioned.is_admin(token))
    provisioned.patch(admins, {"op": "remove", "path": f'members[value eq "{ann.id}"]'})
    eventually(lambda: not provisioned.is_admin(token))

    # Tokens of Entra ID have the object ids of groups, which are externalId in SCIM.
    provisioned.patch(id_only, {"op": "add", "value": {"externalId": "7f5c", "members": [{"value": ann.id}]}})
    eventually(lambda: provisioned.is_admin(token))
    provisioned.scim.delete(type(id_only), id_only.id)
    eventually(lambda: not provisioned.is_admin(token))


@pytest.mark.full
def test_only_the_case_of_a_name_is_ignored(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    provisioned.group("skill-admins", provisioned.user("klauss"))
    sign = provisioned.provider.sign

    assert provisioned.is_admin(sign(sub="KLAUSS"))
    for other in ("klau\u017fs", "klau\u00df"):
        assert who(provisioned.server, sign(sub=other)) == other
    assert provisioned.is_refused(sign(sub="\u212alauss"))


@pytest.mark.full
def test_deleted_users_stay_out_until_they_are_created_again(
    start: Callable[..., Provisioned], migrated_postgres_database: Callable[[], str]
) -> None:
    provisioned = start(database=migrated_postgres_database())
    ann = provisioned.user("ann")
    token = provisioned.provider.sign(sub="ann")
    assert who(provisioned.server, token) == "ann"

    provisioned.scim.delete(type(ann), ann.id)

    eventually(lambda: provisioned.is_refused(token))
    assert provisioned.http.get(f"{provisioned.base}/Users/{ann.id}").status_code == 404
    assert (
        provisioned.http.get(f"{provisioned.base}/Users", params={"filter": 'userName eq "ann"'}).json()["totalResults"]
        == 0
    )
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: provisioned.http.post(f"{provisioned.base}/Users", json=ANN), range(4))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    eventually(lambda: not provisioned.is_refused(token))
    assert provisioned.http.get(f"{provisioned.base}/Users/{ann.id}%00").status_code == 404


@pytest.mark.full
def test_a_renamed_user_is_refused_by_the_old_name_after_deactivation(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    ann = provisioned.user("ann")
    old, own = provisioned.provider.sign(sub="ann"), new_token(provisioned.server, "ann", "read")
    provisioned.patch(ann, {"op": "replace", "path": "userName", "value": "ann.smith"})
    assert who(provisioned.server, provisioned.provider.sign(sub="ann.smith")) == "ann.smith"

    provisioned.patch(ann, OKTA)

    eventually(lambda: provisioned.is_refused(old) and provisioned.is_refused(own))


@pytest.mark.full
def test_filters_find_users_by_the_attributes_that_providers_ask_for(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    ann = provisioned.user("Ann", external_id="00u1")
    provisioned.group("Staff", ann)

    def total(kind: str, text: str, **more: str) -> int:
        answer = provisioned.http.get(f"{provisioned.base}/{kind}", params={"filter": text, **more})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["totalResults"])

    from scim2_models import SearchRequest

    query: Any = SearchRequest.model_validate({"filter": 'userName eq "ann"', "count": 1})
    page = provisioned.scim.query(type(ann), query_parameters=query)
    assert [user.id for user in page.resources] == [ann.id]
    assert total("Users", 'urn:ietf:params:scim:schemas:core:2.0:User:externalId eq "00u1"') == 1
    assert total("Users", f'id eq "{ann.id}"') == 1
    assert total("Users", 'externalId eq "00U1"') == 0
    assert total("Groups", 'displayName eq "staff"', excludedAttributes="members") == 1
    wrong = provisioned.http.get(f"{provisioned.base}/Users", params={"filter": 'userName sw "a" or active eq true'})
    assert (wrong.status_code, wrong.json()["scimType"]) == (400, "invalidFilter")
    taken = provisioned.http.post(f"{provisioned.base}/Users", json={"userName": "ANN"})
    assert (taken.status_code, taken.json()["scimType"]) == (409, "uniqueness")


@pytest.mark.full
def test_lists_have_pages(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    names = {provisioned.user(f"user{number}").user_name for number in range(5)}

    pages = [
        provisioned.http.get(f"{provisioned.base}/Users", params={"startIndex": begin, "count": 2}).json()
        for begin in (1, 3, 5)
    ]

    assert {user["userName"] for page in pages for user in page["Resources"]} == names
    assert {page["totalResults"] for page in pages} == {5}


@pytest.mark.full
def test_only_the_scope_accounts_provisions(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    address = f"{provisioned.base}/Users"
    robot = {"authorization": f"Bearer {new_token(provisioned.server, 'robot', 'read')}"}

    assert httpx.get(address).status_code == 401
    assert httpx.get(address, headers=robot).status_code == 403
    assert httpx.get(address, headers=provisioned.http.headers).status_code == 200
    own_token = provisioned.http.headers["authorization"].partition(" ")[2]
    assert Rpc(provisioned.server.url, own_token).error("list_skills")["data"]["scope"] == "read"


@pytest.mark.full
def test_members_that_join_at_the_same_time_all_belong_to_the_group(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    users, group = [provisioned.user(f"user{number}") for number in range(8)], provisioned.group("all")

    def join(user: Any) -> None:
        provisioned.patch(group, {"op": "add", "path": "members", "value": [{"value": user.id}]})

    threads = [threading.Thread(target=join, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    members = provisioned.scim.query(type(group), group.id).members
    assert {member.value for member in members} == {user.id for user in users}
    many = [{"value": f"{number:032x}"} for number in range(MOST_JOINED + 1)]
    refused = provisioned.patch(group, {"op": "add", "path": "members", "value": many}, status=413)
    assert f"at most {MOST_JOINED:,} members" in refused["detail"]


@pytest.mark.full
def test_a_refused_change_changes_nothing(start: Callable[..., Provisioned]) -> None:
    provisioned = start()
    provisioned.user("ann")
    bob = provisioned.user("bob", active=True)
    group = provisioned.group("all", bob)

    rename = {"op": "replace", "value": {"active": False, "userName": "ann"}}
    assert provisioned.patch(bob, rename, status=409)["scimType"] == "uniqueness"

    assert provisioned.scim.query(type(bob), bob.id).active is True
    assert provisioned.scim.query(type(group), group.id) == group


@pytest.mark.full
def test_with_required_only_provisioned_users_enter(start: Callable[..., Provisioned]) -> None:
    provisioned = start(SCIM.replace('"userName" }', '"userName" }\nrequired = true'))
    provisioned.user("ann")

    assert who(provisioned.server, provisioned.provider.sign(sub="ann")) == "ann"
    message = refused(provisioned.server, provisioned.provider.sign(sub="bob")).json()["error"]["message"]
    assert message == "the identity provider has not provisioned this user"


def test_a_start_without_a_rule_for_the_claims_of_scim_is_refused(provider: OidcProvider) -> None:
    with pytest.raises(StartupError, match="preferred_username"):
        check_settings(settings_of(provider, scim={}))


@pytest.mark.full
def test_wrong_patches_change_nothing(start: Callable[..., Provisioned]) -> None:
    patches: list[tuple[dict[str, Any], str]] = [
        ({"op": "move", "path": "active"}, "invalidSyntax"),
        ({"op": "remove"}, "noTarget"),
        ({"op": "remove", "path": "userName"}, "invalidValue"),
        ({"op": "replace", "path": "actve", "value": False}, "invalidPath"),
        ({"op": "replace", "path": "active", "value": "perhaps"}, "invalidValue"),
        ({"op": "replace", "path": "groups", "value": []}, "mutability"),
        ({"op": "replace", "path": 'emails[type eq "home"].value', "value": "a@b.c"}, "noTarget"),
    ]
    provisioned = start()
    ann = provisioned.user("ann", active=True)
    wrong = {}
    for operation, kind in patches:
        answer = provisioned.patch(ann, operation, status=400)
        if answer["scimType"] != kind or provisioned.scim.query(type(ann), ann.id) != ann:
            wrong[str(operation)] = answer

    assert wrong == {}


@pytest.mark.full
def test_the_default_mapping_of_entra_is_accepted(start: Callable[..., Provisioned]) -> None:
    """Attributes that the server does not keep are ignored: job title, phone numbers, and those of enterprises."""
    provisioned = start()
    ann = provisioned.user("ann")

    shown = provisioned.patch(
        ann,
        {"op": "Add", "path": 'emails[type eq "work"].value', "value": "ann@acme.org"},
        {"op": "Add", "path": "name.givenName", "value": "Ann"},
        {"op": "Add", "path": "title", "value": "Analyst"},
        {"op": "Add", "path": 'phoneNumbers[type eq "work"].value', "value": "1"},
        {"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department", "value": "x"},
        {"op": "Replace", "value": {"displayName": "Ann A.", "name.familyName": "A."}},
    )

    assert shown["emails"] == [{"type": "work", "value": "ann@acme.org"}]
    assert (shown["name"], shown["displayName"]) == ({"givenName": "Ann", "familyName": "A."}, "Ann A.")
    assert set(shown) == {"schemas", "id", "userName", "active", "name", "displayName", "emails", "groups", "meta"}
