"""describe_namespace and set_namespace: what publishers say about a namespace, over JSON-RPC and the command line."""

from __future__ import annotations

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Server, publisher
from tests.support.people import Caller, Who


def owner_of(server: Server, namespace: str) -> Caller:
    return Caller(server.url, Who(f"o-{namespace}", "read publish", f"{namespace}.*"))


def test_texts_of_a_namespace_are_set_separately(org: Server, new_name: str) -> None:
    owner, reader = owner_of(org, new_name), Caller(org.url, Who("rita"))
    owner.create(f"{new_name}.report.weekly")
    owner.create(f"{new_name}.pack")

    assert reader("describe_namespace", namespace=new_name)["by"] is None
    owner("set_namespace", namespace=new_name, title="Sales", text="Reports and\npacks", contact="sales@example.com")
    owner("set_namespace", namespace=new_name, pinned=[f"{new_name}.report.weekly", f"{new_name}.pack"])
    owner("set_namespace", namespace=f"{new_name}.report", title="Reports")
    described = reader("describe_namespace", namespace=new_name)
    below = reader("describe_namespace", namespace=f"{new_name}.report")

    assert (described["title"], described["text"], described["by"]) == ("Sales", "Reports and\npacks", f"o-{new_name}")
    assert [skill["name"] for skill in described["pinned"]] == [f"{new_name}.report.weekly", f"{new_name}.pack"]
    assert described["pinned"][0]["description"]
    assert (below["title"], below["contact"], below["contact_of"]) == ("Reports", "sales@example.com", new_name)
    assert owner("set_namespace", namespace=new_name, title="", contact="", pinned=[])["contact_of"] is None


def test_namespaces_without_visible_skills_do_not_exist_for_readers(org: Server, new_name: str) -> None:
    owner, reader = owner_of(org, new_name), Caller(org.url, Who("rita"))
    owner.create(f"{new_name}.secret")
    owner.create(f"{new_name}.open")
    owner("set_visibility", name=f"{new_name}.secret", visibility="private")
    owner("set_namespace", namespace=new_name, text="x", pinned=[f"{new_name}.secret", f"{new_name}.open"])

    assert len(owner("describe_namespace", namespace=new_name)["pinned"]) == 2
    assert [skill["name"] for skill in reader("describe_namespace", namespace=new_name)["pinned"]] == [
        f"{new_name}.open"
    ]
    owner("set_visibility", name=f"{new_name}.open", visibility="private")
    error = reader.error("describe_namespace", namespace=new_name)
    assert (error["code"], error["data"]["type"]) == (-32003, "namespace_not_found")
    assert owner("describe_namespace", namespace=new_name)["text"] == "x"
    assert owner("describe_namespace", namespace=f"{new_name}.later")["contact"] == ""


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"title": "x" * 81}, "title has 81 characters, at most 80 are allowed"),
        ({"text": "x" * 501}, "text has 501 characters"),
        ({"contact": "a\nb"}, "contact has a line break"),
        ({"text": "a\0"}, "NUL"),
        ({"pinned": ["no.such.skill"]}, "there is no published skill 'no.such.skill'"),
        ({"pinned": [f"a.b{number}" for number in range(7)]}, "7 skills are pinned, at most 6"),
        ({"namespace": ""}, "which is not valid"),
        ({"namespace": "No Name"}, "is not a namespace"),
    ],
)
def test_wrong_texts_of_a_namespace_are_refused(
    org: Server, new_name: str, params: dict[str, object], message: str
) -> None:
    error = owner_of(org, new_name).error("set_namespace", **{"namespace": new_name, **params})

    assert error["code"] == -32602
    assert message in error["message"]


def test_only_publishers_of_a_whole_namespace_set_its_texts(org: Server, new_name: str) -> None:
    single = Caller(org.url, Who("sina", "read publish", f"{new_name}.report"))
    for caller, namespace in (
        (single, new_name),
        (owner_of(org, new_name), "skills.protocol"),
        (Caller(org.url, Who("ron", "read run")), new_name),
    ):
        error = caller.error("set_namespace", namespace=namespace, title="Mine")
        assert error["data"]["type"] == "not_allowed"


@pytest.mark.full
def test_the_command_line_sets_and_shows_a_namespace(sqlite_server: Server, new_name: str) -> None:
    publisher(sqlite_server.rpc)(f"{new_name}.a")
    url = ("--url", sqlite_server.url)

    made = skillery("namespace", "set", new_name, "--title", "Tools", "--contact", "#t", "--pin", f"{new_name}.a", *url)
    assert made.code == 0, made.err
    shown = skillery("namespace", "show", new_name, *url).out
    assert "title: Tools" in shown
    assert "contact: #t" in shown
    assert f"pinned: {new_name}.a" in shown
    assert skillery("namespace", "set", new_name, "--pin", "", *url).code == 0
    assert skillery("namespace", "show", new_name, "--json", *url).json["pinned"] == []
