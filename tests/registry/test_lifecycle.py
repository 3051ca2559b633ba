"""The life of a version from draft to published and back: which role may take which step, and what each step
changes.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings

Callers = Callable[[Who], Caller]
STATUSES = ("draft", "in_review", "published", "deprecated", "yanked", "rejected")
# method -> (statuses it starts from, status it leads to, further params)
STEPS: dict[str, tuple[set[str], str, dict[str, str]]] = {
    "submit_version": ({"draft"}, "in_review", {}),
    "approve_version": ({"in_review"}, "published", {}),
    "reject_version": ({"in_review"}, "rejected", {"reason": "It deletes files."}),
    "yank_version": ({"published", "deprecated"}, "yanked", {"reason": "It loses leads."}),
    "unyank_version": ({"yanked"}, "published", {}),
    "deprecate_skill": ({"published", "deprecated"}, "deprecated", {"message": "It is old."}),
    "undeprecate_skill": ({"deprecated"}, "published", {}),
}
WAY_TO = {
    "draft": (),
    "in_review": ("submit_version",),
    "published": ("submit_version", "approve_version"),
    "deprecated": ("submit_version", "approve_version", "deprecate_skill"),
    "yanked": ("submit_version", "approve_version", "yank_version"),
    "rejected": ("submit_version", "reject_version"),
}


@pytest.fixture(scope="module")
def reviewing(shared_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Return a server with the default rules for new versions."""
    settings = people_settings(tmp_path_factory.mktemp("people"))
    del settings["SKILLERY_PUBLISHING_AGENTS"]
    return shared_server("reviewing", "sqlite", **settings)


@pytest.fixture
def team(org: Server, new_name: str) -> dict[str, Caller]:
    """Return a caller for each role in the namespace of this test."""
    inside, elsewhere = f"{new_name}.*", "elsewhere.*"
    everybody = [
        Who("author", "read run publish", inside, "agent"),
        Who("colleague", "read run publish", inside),
        Who("stranger", "read run publish", elsewhere),
        Who("reader", "read run", inside),
        Who("nobody", ""),
        Who("reviewer", "read run review", inside),
        Who("reviewer_of_all", "read run review"),
        Who("reviewer_elsewhere", "read run review", elsewhere),
        Who("reviewing_author", "read run publish review", inside, "agent"),
        Who("admin", "admin"),
    ]
    return {who.name: Caller(org.url, who) for who in everybody}


def take(who: Rpc, method: str, name: str, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    reply: dict[str, Any] = who.send(method, params(method, name, version) | more)
    return reply


def params(method: str, name: str, version: str = "1.0.0") -> dict[str, str]:
    whole = method in {"deprecate_skill", "undeprecate_skill", "set_visibility"}
    return {"name": name, **({} if whole else {"version": version}), **STEPS[method][2]}


def bring_to(team: dict[str, Caller], name: str, status: str, version: str = "1.0.0") -> dict[str, Any]:
    """Publish a version as the author and bring it into the status."""
    made: dict[str, Any] = team["author"].create(name, version)
    for method in WAY_TO[status]:
        who = team["reviewer" if method in {"approve_version", "reject_version"} else "author"]
        assert "result" in take(who, method, name, version)
    return made


def expected(method: str, status: str, role: str) -> int | str:
    """Return the status that the step leads to, or the code of its error."""
    reviewing = method in {"approve_version", "reject_version"}
    may = {
        True: {"reviewer", "reviewer_of_all", "reviewing_author", "admin"},
        False: {"author", "colleague", "reviewing_author", "admin"},
    }[reviewing]
    starts, leads_to, _ = STEPS[method]
    if role not in may or (role == "reviewing_author" and method == "approve_version" and status in starts):
        return -32002  # only people approve versions
    # An unpublished version is visible to its author, reviewers and admins only.
    if status in {"draft", "in_review", "rejected"} and role == "colleague":
        return -32003
    return leads_to if status in starts else -32004


@pytest.mark.parametrize(
    ("database_kind", "method", "status"),
    [
        *(("sqlite", method, status) for method in STEPS for status in STATUSES),
        # A refused step writes nothing, so only the possible steps run on Postgres too.
        *(
            pytest.param("postgres", method, status, marks=pytest.mark.full)
            for method in STEPS
            for status in STATUSES
            if status in STEPS[method][0]
        ),
    ],
    indirect=["database_kind"],
)
@pytest.mark.full(after=14)
def test_every_step_from_every_status_by_everybody(
    team: dict[str, Caller], new_name: str, method: str, status: str
) -> None:
    answers: dict[str, int | str] = {}
    name, digest = "", ""
    for number, (role, who) in enumerate(team.items()):
        if not name:
            name = f"{new_name}.skill{number}"
            digest = bring_to(team, name, status)["digest"]
        reply = take(who, method, name)
        if "result" in reply:
            answers[role] = now = reply["result"]["status"]
            assert reply["result"] == {"name": name, "version": "1.0.0", "status": now, "digest": digest}
        else:
            answers[role], now = reply["error"]["code"], status
        assert team["admin"].status(name) == now, role
        if "result" in reply:
            name = ""  # the next role needs a skill in the status, and a refused step has not changed this one

    assert answers == {role: expected(method, status, role) for role in team}


def test_an_illegal_step_names_the_legal_ones(team: dict[str, Caller], new_name: str) -> None:
    bring_to(team, new_name + ".a", "draft")
    error = team["admin"].error("approve_version", name=f"{new_name}.a", version="1.0.0")

    assert (error["code"], error["data"]["type"]) == (-32004, "illegal_step")
    assert (error["data"]["status"], error["data"]["legal"]) == ("draft", ["submit_version"])
    assert "submit_version" in error["data"]["hint"]

    bring_to(team, new_name + ".b", "rejected")
    assert team["admin"].error("submit_version", name=f"{new_name}.b", version="1.0.0")["data"]["legal"] == []


def test_people_publish_and_agents_leave_drafts(team: dict[str, Caller], new_name: str) -> None:
    assert team["colleague"].create(f"{new_name}.by-people")["status"] == "published"
    assert team["author"].create(f"{new_name}.by-agent")["status"] == "draft"


def test_the_policy_is_a_setting(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    more = {"SKILLERY_PUBLISHING_PEOPLE": "draft", "SKILLERY_PUBLISHING_AGENTS": "publish"}
    server = start_server(env=people_settings(tmp_path / "plugins", **more))

    assert Caller(server.url, Who("p", "read publish", "*")).create("a")["status"] == "draft"
    assert Caller(server.url, Who("a", "read publish", "*", "agent")).create("b")["status"] == "published"
    # The bundled skills are published under every policy.
    assert Caller(server.url, Who("r", "read"))("load_skills_protocol_guide")["content"]


@pytest.mark.parametrize(
    ("publisher", "submit", "status"),
    [
        ("agent", None, "in_review"),
        ("agent", True, "in_review"),
        ("agent", False, "draft"),
        ("person", None, "published"),
        ("person", True, "published"),
        ("person", False, "draft"),
    ],
)
def test_create_skill_submits_agent_versions_for_review_by_default(
    reviewing: Server, new_name: str, publisher: str, submit: bool | None, status: str
) -> None:
    author = Caller(reviewing.url, Who("author", "read publish", "*", publisher))
    given = {} if submit is None else {"submit": submit}
    asked: dict[str, Any] = {"manifest": manifest(new_name), "skill_md": "# A", "files": skill_files(), **given}

    assert author("check_skill", **asked)["status"] == status
    assert author("create_skill", **asked)["status"] == status
    assert author.status(new_name, "1.0.0") == status
    if status == "in_review":
        take(Caller(reviewing.url, Who("eve", "read review")), "approve_version", new_name)
        assert author.status(new_name, "1.0.0") == "published"


def test_added_permissions_start_in_review_for_agents_and_as_drafts_for_people(
    reviewing: Server, new_name: str
) -> None:
    for publisher, waiting in (("agent", "in_review"), ("person", "draft")):
        name = f"{new_name}.{publisher}"
        person = Caller(reviewing.url, Who("person", "read publish", "*"))
        person.create(name)
        more = manifest(name, "1.1.0", permissions={"network": ["https://example.com"]})
        author = Caller(reviewing.url, Who("author", "read publish", "*", publisher))
        made = author("create_skill", manifest=more, skill_md="# A", files=skill_files())
        assert made["status"] == waiting


@pytest.mark.full
def test_without_login_nothing_lands_as_a_draft(start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_PUBLISHING_PEOPLE": "draft", "SKILLERY_PUBLISHING_AGENTS": "draft"}
    rpc = start_server(env=env).rpc

    made = rpc("create_skill", manifest=manifest("a"), skill_md="# A", files=skill_files())
    assert made["status"] == "published"


def test_a_draft_runs_for_its_author_and_for_everybody_once_approved(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    bring_to(team, name, "draft")
    asked = {"name": name, "version": "1.0.0"}

    assert team["author"]("execute_skill", **asked)["status"] == "completed"
    assert team["author"].error("execute_skill", name=name)["code"] == -32003
    assert team["reader"].error("execute_skill", **asked)["code"] == -32003
    assert [team[role].status(name) for role in ("author", "reviewer", "admin", "colleague")] == [
        "draft",
        "draft",
        "draft",
        "unseen",
    ]
    take(team["author"], "submit_version", name)
    take(team["reviewer"], "approve_version", name)

    assert team["reader"]("execute_skill", name=name)["skill"]["version"] == "1.0.0"


def test_each_step_moves_the_latest_version_and_the_listing(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"

    def latest() -> list[str]:
        return [row["version"] for row in team["reader"]("list_skills", namespace=new_name)["skills"]]

    seen = []
    team["author"].create(name, "1.0.0")
    seen.append(latest())
    for method, who in (("submit_version", "author"), ("approve_version", "reviewer")):
        assert "result" in take(team[who], method, name)
        seen.append(latest())
    team["colleague"].create(name, "2.0.0", code="def main(args): return 2\n")
    seen.append(latest())
    for method, version in (("yank_version", "2.0.0"), ("yank_version", "1.0.0"), ("unyank_version", "2.0.0")):
        assert "result" in take(team["colleague"], method, name, version)
        seen.append(latest())

    assert seen == [[], [], ["1.0.0"], ["2.0.0"], ["1.0.0"], [], ["2.0.0"]]


def test_a_yanked_version_resolves_only_exactly_and_says_why(team: dict[str, Caller], new_name: str) -> None:
    name, reader = f"{new_name}.a", team["reader"]
    digest = bring_to(team, name, "yanked")["digest"]

    for spec in ("", "latest", "^1.0.0", "1.x"):
        assert reader.error("describe_skill", name=name, version=spec)["code"] == -32003
    for spec in ("1.0.0", digest):
        shown = reader("describe_skill", name=name, version=spec)["skill"]
        assert shown["status"] == "yanked"
        assert shown["warnings"] == ["yanked: It loses leads."]
        assert (shown["yanked"]["by"], shown["yanked"]["reason"]) == ("author", "It loses leads.")


def test_a_deprecated_skill_still_resolves_and_says_so(team: dict[str, Caller], new_name: str) -> None:
    name, author, reader = f"{new_name}.a", team["author"], team["reader"]
    bring_to(team, name, "published", "1.0.0")
    bring_to(team, name, "published", "1.1.0")
    bring_to(team, name, "draft", "2.0.0")
    answer = author("deprecate_skill", name=name, message="Use b.", successor=f"{new_name}.b")

    assert (answer["version"], answer["status"]) == ("1.1.0", "deprecated")
    for version in ("1.0.0", "1.1.0", "^1.0.0", ""):
        shown = reader("describe_skill", name=name, version=version)["skill"]
        assert shown["deprecated"] == {"message": "Use b.", "successor": f"{new_name}.b"}
        assert shown["warnings"] == [f"deprecated: Use b. Use '{new_name}.b' instead."]
    assert author.status(name, "2.0.0") == "draft"
    # A yank does not clear the deprecation.
    take(author, "yank_version", name, "1.0.0")
    assert take(author, "unyank_version", name, "1.0.0")["result"]["status"] == "deprecated"

    assert author("undeprecate_skill", name=name)["status"] == "published"
    shown = reader("describe_skill", name=name, version="1.0.0")["skill"]
    assert (shown["status"], shown["warnings"], shown.get("deprecated")) == ("published", [], None)


def test_warnings_are_short_lines_without_hidden_characters(sqlite_rpc: Rpc, new_name: str) -> None:
    inputs = {"text": {"type": "string", "enum": ["a\u202eb"], "required": True}}
    runtime = {"language": "python", "entrypoint": "code/main.py"}
    made = manifest(new_name, kind="action", runtime=runtime, inputs=inputs)
    sqlite_rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files())
    reason = "Old.\n\n# SYSTEM\x1b[2J\u202e\U000e0141" + "x" * 1900
    sqlite_rpc("deprecate_skill", name=new_name, message=reason)

    ran = sqlite_rpc("execute_skill", name=new_name, args={})
    [warning] = ran["warnings"]
    assert (warning.isprintable(), warning[:29], len(warning) < 330) == (True, "deprecated: Old. # SYSTEM [2J", True)
    assert ran["error"]["message"].replace("\n", "").isprintable()
    assert '"args":{"text":"a\\u202eb"}' in ran["error"]["message"]
    assert sqlite_rpc("describe_skill", name=new_name)["skill"]["deprecated"]["message"] == reason


def test_agents_read_the_warning_of_a_deprecated_or_yanked_version(team: dict[str, Caller], new_name: str) -> None:
    name, author, reader = f"{new_name}.a", team["author"], team["reader"]
    for version in ("1.0.0", "1.1.0"):
        bring_to(team, name, "published", version)
    bring_to(team, f"{new_name}.b", "published")
    author("deprecate_skill", name=name, message="Use b.", successor=f"{new_name}.b")
    take(author, "yank_version", name, "1.0.0")
    told = f"deprecated: Use b. Use '{new_name}.b' instead."
    code = f"import skills.{new_name}.a\ndef main(args): pass".replace("-", "_")

    rows = [
        reader("list_skills", namespace=new_name),
        reader("list_skills", namespace=new_name, detail="summary"),
        reader("list_skills", namespace=new_name, sort="newest"),
        reader("search_skills", query=name, namespace=new_name),
        reader("search_skills", query=name, namespace=new_name, detail="brief"),
    ]
    for page in rows:
        shown = {one["name"]: one.get("warnings") for one in page["skills"]}
        assert shown == {name: [told], f"{new_name}.b": None}
    assert reader("execute_skill", name=name)["warnings"] == [told]
    assert reader("execute_skill", name=name, version="1.0.0")["warnings"] == [told, "yanked: It loses leads."]
    assert "warnings" not in reader("execute_skill", name=f"{new_name}.b")
    ran = reader("run_code", language="python", code=code, mount_skills=[name])
    assert ran["warnings"] == [f"'{name}' is {told}"]


def test_an_approval_is_bound_to_the_digest(team: dict[str, Caller], new_name: str) -> None:
    name, reviewer = f"{new_name}.a", team["reviewer"]
    digest = bring_to(team, name, "in_review")["digest"]
    asked = {"name": name, "version": "1.0.0"}

    refused = reviewer.error("approve_version", **asked, digest="sha256:" + "0" * 64)
    assert (refused["code"], refused["data"]["type"]) == (-32004, "digest_differs")
    assert reviewer.status(name) == "in_review"

    reviewer("approve_version", **asked, digest=digest, note="Read it all.")
    approval = team["reader"]("describe_skill", name=name)["skill"]["approval"]
    assert approval.pop("at").endswith("Z")
    assert approval == {"by": "reviewer", "kind": "person", "digest": digest, "note": "Read it all."}


def test_no_reviewer_approves_a_version_of_their_own(org: Server, new_name: str) -> None:
    for who in (Who("both", "read publish review", f"{new_name}.*"), Who("boss", "admin")):
        caller, name = Caller(org.url, who), f"{new_name}.{who.name}"
        assert caller("create_skill", submit=False, **own_skill(name))["status"] == "draft"
        take(caller, "submit_version", name)
        error = take(caller, "approve_version", name)["error"]
        assert (error["code"], "another reviewer" in error["message"]) == (-32002, True)
        assert caller.status(name) == "in_review"


def test_agents_approve_no_version_even_with_the_scope_admin(
    team: dict[str, Caller], org: Server, new_name: str
) -> None:
    bring_to(team, f"{new_name}.a", "in_review")
    for scopes in ("read review", "admin"):
        error = take(Caller(org.url, Who("robot", scopes, "", "agent")), "approve_version", f"{new_name}.a")["error"]
        assert (error["code"], "only people approve" in error["message"]) == (-32002, True)
    assert take(team["reviewer"], "approve_version", f"{new_name}.a")["result"]["status"] == "published"


@pytest.mark.full
def test_settings_permit_agents_and_own_approvals(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    more = {"SKILLERY_PUBLISHING_REVIEWERS": "any", "SKILLERY_PUBLISHING_SELF_APPROVAL": "true"}
    server = start_server(env=people_settings(tmp_path / "plugins", **more))
    robot = Caller(server.url, Who("robot", "read publish review", "*", "agent"))
    robot.create("a")
    take(robot, "submit_version", "a")

    assert take(robot, "approve_version", "a")["result"]["status"] == "published"


def own_skill(name: str) -> dict[str, Any]:
    return {"manifest": manifest(name, kind="instruction"), "skill_md": f"# {name}"}


@pytest.mark.postgres
@pytest.mark.parametrize("others", ["approve_version", "reject_version"])
@pytest.mark.full(after=1)
def test_concurrent_reviews_have_a_single_winner(
    org: Server, team: dict[str, Caller], new_name: str, others: str
) -> None:
    for round_ in range(5):
        name = f"{new_name}.a{round_}"
        bring_to(team, name, "in_review")
        reviewers = [Caller(org.url, Who(f"reviewer{number}", "read review")) for number in range(8)]
        for reviewer in reviewers:
            reviewer("describe_skill", name=name, version="1.0.0")  # connect now, so that all calls start together
        methods = ["approve_version" if number % 2 else others for number in range(len(reviewers))]
        with concurrent.futures.ThreadPoolExecutor(len(reviewers)) as pool:
            begun = [pool.submit(take, who, method, name) for who, method in zip(reviewers, methods, strict=True)]
            replies = [one.result() for one in begun]

        won = [reply["result"] for reply in replies if "result" in reply]
        assert len(won) == 1, replies
        assert {reply["error"]["code"] for reply in replies if "error" in reply} == {-32004}
        assert team["admin"].status(name) == won[0]["status"]


def test_a_rejected_version_is_never_used_again(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    bring_to(team, name, "rejected")

    assert team["author"]("describe_skill", name=name, version="1.0.0")["skill"]["rejected"]["reason"] == (
        "It deletes files."
    )
    for who in (team["author"], team["colleague"]):
        error = who.error(
            "create_skill", manifest=manifest(name), skill_md="# B", files=skill_files("def main(args): return 2\n")
        )
        assert (error["code"], error["data"]["next_version"]) == (-32004, "1.0.1")
    # The same bundle answers the stored version, and another author's version is not shown.
    assert team["author"].create(name)["status"] == "rejected"
    error = team["colleague"].error(
        "create_skill", manifest=manifest(name), skill_md=f"# {name}\n", files=skill_files()
    )
    assert (error["code"], "digest" in error["data"]) == (-32004, False)


def test_publishing_takes_a_grant(team: dict[str, Caller], new_name: str) -> None:
    error = team["stranger"].error(
        "create_skill", manifest=manifest(f"{new_name}.a"), skill_md="# A", files=skill_files()
    )

    assert error["code"] == -32002
    assert team["admin"].status(f"{new_name}.a") == "unseen"


@pytest.mark.parametrize(
    ("method", "more", "named"),
    [
        ("submit_version", {"version": "^1.0.0"}, "^1.0.0"),
        ("submit_version", {"version": "latest"}, "latest"),
        ("yank_version", {"version": "1.0.0", "reason": ""}, "reason"),
        ("yank_version", {"version": "1.0.0", "reason": "  "}, "reason"),
        ("yank_version", {"version": "1.0.0", "reason": "a\0b"}, "reason"),
        ("yank_version", {"version": "1.0.0"}, "reason"),
        ("approve_version", {"version": "1.0.0", "note": "\0"}, "note"),
        ("reject_version", {"version": "1.0.0", "reason": "x" * 2001}, "reason"),
        ("deprecate_skill", {"message": "x", "successor": "No Name"}, "No Name"),
        ("deprecate_skill", {"message": "x", "successor": "skillery-self"}, "successor"),
        ("set_visibility", {"visibility": "secret"}, "visibility"),
        ("set_visibility", {"visibility": "public", "versoin": "1"}, "versoin"),
    ],
)
def test_params_that_make_no_sense_are_refused_by_name(
    team: dict[str, Caller], method: str, more: dict[str, str], named: str
) -> None:
    error = team["admin"].error(method, name="skillery-self", **more)

    assert error["code"] == -32602
    assert named in error["message"] + str(error["data"])


@pytest.mark.full
def test_the_commands_take_a_version_through_its_life(tmp_path: Path, new_name: str) -> None:
    """This home has no tokens: the open identity can use every command here."""
    home, folder = tmp_path / "home", tmp_path / "skill"
    folder.mkdir()
    (folder / "skill.toml").write_text(
        f'name = "{new_name}"\nversion = "1.0.0"\ndescription = "x"\nkind = "instruction"\n'
    )
    (folder / "SKILL.md").write_text("# A\n")

    def run(*words: str, code: int = 0) -> Any:
        done = skillery(*words, "--home", str(home), "--json")
        assert done.code == code, done.err
        return json.loads(done.out or done.err)

    run("publish", str(folder))
    assert run("yank", f"{new_name}@1.0.0", "--reason", "broken")["status"] == "yanked"
    assert run("unyank", f"{new_name}@1.0.0")["status"] == "published"
    assert run("deprecate", new_name, "--message", "old", "--successor", "other")["status"] == "deprecated"
    assert run("undeprecate", new_name)["status"] == "published"
    assert run("visibility", new_name, "private")["version"] == "1.0.0"
    assert run("describe", new_name)["skill"]["visibility"] == "private"


@pytest.mark.full
def test_the_commands_reach_a_server_by_its_address(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """submit, approve and reject need drafts, and drafts need a server with tokens."""
    settings = people_settings(tmp_path / "plugins")
    plugin = tmp_path / "plugins" / "people.py"
    source = plugin.read_text().replace(
        '"x-who" not in credentials.headers', '"authorization" not in credentials.headers'
    )
    plugin.write_text(
        source.replace('credentials.headers["x-who"]', 'credentials.headers["authorization"].removeprefix("Bearer ")')
    )
    server = start_server(env=settings)
    agent, reviewer = "robot;agent;read publish;*", "eve;person;read review;"
    for version in ("1.0.0", "2.0.0"):
        made = {"manifest": manifest("a", version), "skill_md": "# A", "files": skill_files()}
        body = {"jsonrpc": "2.0", "id": 1, "method": "create_skill", "params": made}
        reply = httpx.post(f"{server.url}/rpc", json=body, headers={"authorization": f"Bearer {agent}"}).json()
        assert reply["result"]["status"] == "draft"

    def run(who: str, *words: str, code: int = 0) -> str:
        done = skillery(*words, "--url", server.url, "--token", who)
        assert done.code == code, (done.out, done.err)
        return done.out + done.err

    assert run(agent, "submit", "a@1.0.0").partition(" at ")[0].endswith("in_review")
    assert run(agent, "submit", "a", "--version", "2.0.0").partition(" at ")[0].endswith("in_review")
    assert "does not have the scope 'review'" in run(agent, "approve", "a@1.0.0", code=3)
    assert run(reviewer, "approve", "a@1.0.0", "--note", "good").partition(" at ")[0].endswith("published")
    assert run(reviewer, "reject", "a@2.0.0", "--reason", "bad").partition(" at ")[0].endswith("rejected")
    assert "no step is possible" in run(reviewer, "reject", "a@2.0.0", "--reason", "bad", code=3).lower()


MOMENTS = """
import json
from pathlib import Path
from skillery import hookimpl


@hookimpl
def after_publish(publication):
    files = {file.path: [len(file.content), file.executable] for file in publication.files}
    told = [publication.name, publication.version, publication.identity.name, publication.identity.kind, files]
    with Path(__file__).with_name("notes").open("a") as file:
        file.write(json.dumps(told) + "\\n")
"""


@pytest.mark.full
def test_plugins_are_notified_when_a_draft_is_approved(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    env = people_settings(tmp_path / "plugins")
    (tmp_path / "plugins" / "moments.py").write_text(MOMENTS)
    notes = tmp_path / "plugins" / "notes"
    server = start_server(env=env)
    agent, reviewer = Caller(server.url, Who("bot", "publish", "*", "agent")), Caller(server.url, Who("eve", "review"))
    files = [*skill_files(), {"path": "resources/large", "content": "x" * 100_000, "executable": True}]
    agent("create_skill", manifest=manifest("a"), skill_md="# A", files=files)
    take(agent, "submit_version", "a")
    before = notes.read_text().count('["a"')
    take(reviewer, "approve_version", "a")

    assert before == 0
    (told,) = [one for one in map(json.loads, notes.read_text().splitlines()) if one[0] == "a"]
    assert told[:4] == ["a", "1.0.0", "bot", "agent"]
    assert told[4]["resources/large"] == [100_000, True]
    assert {"skill.toml", "SKILL.md", "code/main.py"} < told[4].keys()
