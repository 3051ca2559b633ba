"""Checks of `list_skills`."""

from __future__ import annotations

from typing import Any

from skills_protocol_conformance.connection import Reply
from skills_protocol_conformance.samples import MANY
from skills_protocol_conformance.session import GUIDE, Session, result_of, rows_of
from skills_protocol_conformance.statement import Check, Failed, at, expect

DEFAULT_LIMIT = 50
BASIC = ("name", "version", "description", "namespace", "kind")


def page(session: Session) -> Any:
    """The list of one namespace."""
    _publish(session)
    return session.result("list_skills", namespace=session.namespace)


def summary_page(session: Session) -> Any:
    """The list with `detail`: "summary"."""
    _publish(session)
    return session.result("list_skills", namespace=session.namespace, detail="summary")


def last_page(session: Session) -> Any:
    """The last page of a list."""
    page = session.result("list_skills", namespace=session.many(), limit=MANY)
    expect(len(rows_of(page)) == MANY, f"the list with `limit` {MANY} has {len(rows_of(page))} rows")
    return page


def first_page(session: Session) -> Any:
    """The first page of a longer list."""
    return session.result("list_skills", namespace=session.many(), limit=10)


def _publish(session: Session) -> None:
    for key in ("probe", "notes"):
        session.skill(key)


def row(session: Session) -> Any:
    """The row of an action skill."""
    return _row_of(page(session), session.skill("probe"))


def instruction_row(session: Session) -> Any:
    """The row of an instruction skill."""
    return _row_of(page(session), session.skill("notes"))


def guide_row(session: Session) -> Any:
    """The row of the canonical guide."""
    return _row_of(session.result("list_skills", namespace="skills.protocol"), GUIDE)


def _row_of(page: Any, name: str) -> dict[str, Any]:
    for row in rows_of(page):
        if row.get("name") == name:
            return row
    raise Failed(f"the list does not have {name}", page)


def has_name_and_version(session: Session) -> None:
    """The row of a skill has its name and its latest version."""
    expect(row(session).get("version") == "0.2.0", "`version` is not 0.2.0, the latest one", row(session))


def filters_by_namespace(session: Session) -> None:
    """With `namespace`, the list has the skills of this namespace only."""
    names = {skill.get("name"): skill.get("namespace") for skill in rows_of(page(session))}
    expect(
        {session.skill("probe"), session.skill("notes")} <= names.keys(), "a skill of the namespace is missing", names
    )
    prefix = f"{session.namespace}."
    foreign = {name: own for name, own in names.items() if not f"{own}.".startswith(prefix)}
    expect(not foreign, "the list has skills of other namespaces", foreign)


def unknown_namespace_is_empty(session: Session) -> None:
    """A namespace without skills is an empty list."""
    rows = rows_of(session.result("list_skills", namespace="conformancenothinghere"))
    expect(not rows, "the list of an unused namespace is not empty", rows)


def lists_all_without_a_namespace(session: Session) -> None:
    """Without `namespace`, the list has skills of several namespaces."""
    _publish(session)
    names = {skill.get("name") for skill in session.walk(200)}
    missing = {session.skill("probe"), session.skill("notes"), GUIDE} - names
    expect(not missing, f"the complete list does not have {', '.join(sorted(missing))}")


def default_detail_is_names(session: Session) -> None:
    """Without `detail`, the list is that of `detail`: "names"."""
    _publish(session)
    names = session.result("list_skills", namespace=session.many(), limit=3, detail="names")
    default = session.result("list_skills", namespace=session.many(), limit=3)
    expect(rows_of(default) == rows_of(names), 'the list without `detail` is not that of "names"', default)


def summary_has_the_same_skills(session: Session) -> None:
    """The list with `detail`: "summary" has the same skills."""
    few = {"namespace": session.many(), "limit": 5}
    names, summary = (rows_of(session.result("list_skills", **few, detail=detail)) for detail in ("names", "summary"))
    expect([r.get("name") for r in names] == [r.get("name") for r in summary], "the skills are not the same", summary)


def summary_has(name: str) -> Check:
    """Make a check: rows of the list with `detail`: "summary" have this basic field."""

    def check(session: Session) -> None:
        found = _row_of(summary_page(session), session.skill("probe"))
        expect(isinstance(found.get(name), str) and found[name], f"`{name}` is not a text", found)

    check.__doc__ = f'A row of the list with `detail`: "summary" has `{name}`.'
    return check


def limit_is_kept(session: Session) -> None:
    """A page has at most `limit` rows."""
    for limit in (1, 3):
        rows = rows_of(session.result("list_skills", namespace=session.many(), limit=limit))
        expect(len(rows) == limit, f"the page with `limit` {limit} of more skills has {len(rows)} rows", rows)


def default_limit_is_50(session: Session) -> None:
    """Without `limit`, a page has 50 rows."""
    default = session.result("list_skills", namespace=session.many())
    count = len(rows_of(default))
    expect(count == DEFAULT_LIMIT, f"the page without `limit` has {count} rows of {MANY}")
    expect(default.get("next_cursor") is not None, "`next_cursor` is null, but more skills follow")


def cursor_leads_on(session: Session) -> None:
    """The cursor of a page gives the rows after that page."""
    first = first_page(session)
    more = {"namespace": session.many(), "limit": 10, "cursor": at(first, "next_cursor")}
    second = session.result("list_skills", **more)
    names = [[skill.get("name") for skill in rows_of(part)] for part in (first, second)]
    expect(not set(names[0]) & set(names[1]), "the second page repeats rows of the first one", names[1])
    whole = [skill.get("name") for skill in rows_of(last_page(session))]
    expect(names[0] + names[1] == whole[:20], "two pages of 10 are not the first 20 rows of the list", names)


def pages_have_every_skill_once(session: Session) -> None:
    """All pages together have each skill exactly once."""
    rows = session.walk(7, namespace=session.many())
    names = [(skill.get("name"), skill.get("version")) for skill in rows]
    repeated = sorted({str(name) for name in names if names.count(name) > 1})
    expect(not repeated, f"pages of 7 repeat {', '.join(repeated)}")
    missing = {skill.get("name") for skill in rows_of(last_page(session))} - {name for name, _ in names}
    expect(not missing, f"pages of 7 do not have {', '.join(sorted(map(str, missing)))}")


def null_cursor_is_the_start(session: Session) -> None:
    """`cursor`: null is the first page."""
    reply: Reply = session.ask("list_skills", {"namespace": session.many(), "limit": 10, "cursor": None})
    expect(rows_of(result_of(reply)) == rows_of(first_page(session)), "the rows are not those of the first page")


def null_namespace_is_no_filter(session: Session) -> None:
    """`namespace`: null lists the skills of all namespaces."""
    rows = rows_of(session.result("list_skills", namespace=None, detail="names", limit=50))
    expect({row.get("namespace") for row in rows} - {None, ""}, "the list has no skill with a namespace", rows)


def is_sorted_deterministically(session: Session) -> None:
    """Equal calls have equal lists, and pages of other sizes have the same order."""
    params = {"namespace": session.many(), "limit": MANY}
    again, known = (rows_of(result_of(session.send("list_skills", params))) for _ in range(2))
    expect(again == known, "two equal calls have different lists")
    paged = [skill.get("name") for skill in session.walk(13, namespace=session.many())]
    expect(paged == [skill.get("name") for skill in known], "pages of 13 have another order than one page", paged)


def is_sorted_by_name(session: Session) -> None:
    """The list is in the order of (namespace, name)."""
    keys = [(str(skill.get("namespace")), str(skill.get("name"))) for skill in rows_of(last_page(session))]
    expect(keys == sorted(keys), "the list is not sorted by (namespace, name)", keys[:5])


def searches_nothing(session: Session) -> None:
    """A word of a description as `namespace` finds nothing."""
    name = session.skill("probe")
    reply = session.ask("list_skills", {"namespace": "pelican"})
    found = [] if reply.error else [skill.get("name") for skill in rows_of(result_of(reply))]
    expect(name not in found, "`namespace` finds a skill by a word of its description", found)


def rows_are_complete(session: Session) -> None:
    """Each row has the five basic fields."""
    incomplete = [skill for skill in rows_of(page(session)) if not set(BASIC) <= skill.keys()]
    expect(not incomplete, "a row does not have all of name, version, description, namespace, kind", incomplete)
