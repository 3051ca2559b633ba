"""list_skills: one row for each skill, in byte order, page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import ON_SQLITE, Rpc

Publish = Callable[..., dict[str, Any]]


def names(answer: dict[str, Any]) -> list[str]:
    return [skill["name"] for skill in answer["skills"]]


def all_pages(rpc: Rpc, **params: Any) -> list[list[dict[str, Any]]]:
    pages, cursor = [], None
    while True:
        answer = rpc("list_skills", cursor=cursor, **params)
        pages.append(answer["skills"])
        cursor = answer["next_cursor"]
        if cursor is None:
            return pages


def test_a_row_has_the_five_fields_of_the_specification(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(f"{new_name}.leads.sync", "0.1.0", namespace=new_name, description="Sync leads.")

    assert rpc("list_skills", namespace=new_name) == {
        "skills": [
            {
                "name": f"{new_name}.leads.sync",
                "version": "0.1.0",
                "description": "Sync leads.",
                "namespace": new_name,
                "kind": "action",
            }
        ],
        "next_cursor": None,
    }


def test_the_summary_adds_tags_inputs_and_tools(rpc: Rpc, publish: Publish, new_name: str) -> None:
    inputs = {"env": {"type": "string", "description": "Which."}}
    publish(f"{new_name}.a", tags=["x", "y"], inputs=inputs)

    (row,) = rpc("list_skills", namespace=new_name, detail="summary")["skills"]

    assert row["tags"] == ["x", "y"]
    assert row["inputs"] == inputs
    assert row["tools"] == []


def test_the_latest_version_is_listed_and_no_other(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for version in ("1.2.0", "1.10.0", "2.0.0-rc.1", "1.9.0"):
        publish(f"{new_name}.a", version)
    for version in ("1.0.0-alpha.9", "1.0.0-alpha.10"):
        publish(f"{new_name}.only-pre", version)

    rows = rpc("list_skills", namespace=new_name)["skills"]

    assert [(row["name"], row["version"]) for row in rows] == [
        (f"{new_name}.a", "1.10.0"),
        (f"{new_name}.only-pre", "1.0.0-alpha.10"),
    ]


def test_a_namespace_matches_itself_and_below_by_whole_segments(rpc: Rpc, publish: Publish, new_name: str) -> None:
    inside = [f"{new_name}.one", f"{new_name}.deep.er.two"]
    outside = [f"{new_name}-x.three", f"{new_name}x.four", f"{new_name}_y.five"]
    for name in inside + outside:
        publish(name)

    assert sorted(names(rpc("list_skills", namespace=new_name))) == sorted(inside)
    assert names(rpc("list_skills", namespace=f"{new_name}.deep")) == [f"{new_name}.deep.er.two"]
    assert names(rpc("list_skills", namespace=f"{new_name}.de")) == []


def test_rows_are_sorted_by_the_bytes_of_namespace_and_name(rpc: Rpc, publish: Publish, new_name: str) -> None:
    made = [
        f"{new_name}{part}"
        for part in (".b", ".a", ".a-b", ".a.c", ".a_b", ".a0", ".a.b", ".a-b.c", "-z.a", ".10", ".9")
    ]
    for name in made:
        publish(name)

    rows = [row for page in all_pages(rpc, limit=3) for row in page if row["name"].startswith(new_name)]

    assert sorted(row["name"] for row in rows) == sorted(made)
    assert rows == sorted(rows, key=lambda row: (row["namespace"].encode(), row["name"].encode()))


@ON_SQLITE
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("detail", ["names", "summary"])
@pytest.mark.full(after=4)
def test_pages_together_are_the_whole_whatever_their_size(
    rpc: Rpc, publish: Publish, new_name: str, limit: int, detail: str
) -> None:
    made = sorted(
        [f"{new_name}.n{number}" for number in range(5)] + [f"{new_name}.sub.n{number}" for number in range(2)]
    )
    for name in made:
        publish(name)

    pages = all_pages(rpc, namespace=new_name, limit=limit, detail=detail)

    assert sorted(row["name"] for page in pages for row in page) == made
    assert all(len(page) == limit for page in pages[:-1])
    assert pages[-1]


def test_a_cursor_survives_another_limit_and_new_skills(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for letter in "acde":
        publish(f"{new_name}.{letter}")
    first = rpc("list_skills", namespace=new_name, limit=2)
    publish(f"{new_name}.b")

    rest = rpc("list_skills", namespace=new_name, limit=50, cursor=first["next_cursor"])

    assert names(first) == [f"{new_name}.a", f"{new_name}.c"]
    assert names(rest) == [f"{new_name}.d", f"{new_name}.e"]


def test_a_cursor_is_bound_to_namespace_and_detail(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for letter in "abc":
        publish(f"{new_name}.{letter}")
    cursor = rpc("list_skills", namespace=new_name, limit=1)["next_cursor"]

    for other in ({"namespace": ""}, {"namespace": f"{new_name}.a"}, {"namespace": new_name, "detail": "summary"}):
        error = rpc.error("list_skills", cursor=cursor, **other)
        assert error["code"] == -32602
        assert error["data"]["type"] == "invalid_cursor"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(st.text(min_size=1, max_size=80), st.from_regex(r"[A-Za-z0-9_-]{1,80}", fullmatch=True)))
def test_foreign_cursor_is_an_invalid_param(rpc: Rpc, cursor: str) -> None:
    assert rpc.error("list_skills", cursor=cursor)["code"] == -32602


def test_an_altered_cursor_is_an_invalid_param(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for letter in "ab":
        publish(f"{new_name}.{letter}")
    cursor = rpc("list_skills", namespace=new_name, limit=1)["next_cursor"]

    altered = {
        cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :] for place in range(len(cursor))
    }
    altered |= {cursor + "A", cursor[:-1], cursor + "=", " " + cursor}

    for one in altered - {cursor}:
        assert rpc.error("list_skills", namespace=new_name, cursor=one)["code"] == -32602, one


def test_an_unused_namespace_is_an_empty_list(rpc: Rpc) -> None:
    assert rpc("list_skills", namespace="nobody.here") == {"skills": [], "next_cursor": None}


@pytest.mark.parametrize("namespace", ["Upper", "a..b", ".a", "a b", "ä", "a" * 200])
def test_malformed_namespace_is_an_invalid_param(rpc: Rpc, namespace: str) -> None:
    assert rpc.error("list_skills", namespace=namespace)["code"] == -32602


def test_the_namespace_follows_the_latest_version(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(f"{new_name}.a.b.c", "1.0.0", namespace=new_name)
    publish(f"{new_name}.a.b.c", "1.1.0", namespace=f"{new_name}.a")
    publish(f"{new_name}.a.b.c", "1.0.1", namespace=f"{new_name}.a.b")

    (row,) = rpc("list_skills", namespace=f"{new_name}.a")["skills"]

    assert (row["version"], row["namespace"]) == ("1.1.0", f"{new_name}.a")
