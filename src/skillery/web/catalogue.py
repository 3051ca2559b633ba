"""`/`: people find skills by words, filters and order. The address holds the complete state."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec
from markupsafe import Markup

from skillery.errors import InvalidParams, NotFound, SkilleryError
from skillery.formats.search_fields import without_markdown
from skillery.http.exchanges import ClientGone
from skillery.http.operations import Route
from skillery.http.requests import disconnected, only, send_bytes
from skillery.identity import access
from skillery.method import or_none
from skillery.skills.catalogue_counts import NO_FACETS, count_unlisted
from skillery.skills.catalogue_listings import SkillPage, SkillRow
from skillery.skills.descriptions import DescribeSkill, describe_skill
from skillery.skills.listings import ListSkills, list_skills
from skillery.skills.namespaces import (
    DescribeNamespace,
    Namespace,
    SetNamespace,
    describe_namespace,
    most_used,
    set_namespace,
)
from skillery.skills.search import SearchSkills, search_skills, suggest
from skillery.skills.search_results import FoundSkill, FoundSkillPage
from skillery.web.catalogue_filters import (
    LANGUAGES,
    SORTS,
    STATUSES,
    Choice,
    Filters,
    branches_of,
    facets_of,
    filters_of,
    tags_of,
)
from skillery.web.display import foreign, replaced, visible
from skillery.web.frame import Done, Form, Page, PageRequest, SeeOther, Undo, path_of
from skillery.web.sending import VERSION
from skillery.web.visits import cookie_of

# -- Requests whose browser does not wait for the answer any more, such as searches while the user types ---------------


T = TypeVar("T")


async def while_connected(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise ClientGone.

    The database still completes a statement that has begun. Call this function only for requests without a body.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


STEPS_COOKIE = "skillery-steps"
_JSON = "application/json"
_HEADERS = (("vary", "Accept"),)
_LINKS = {"rpc": "/rpc", "mcp": "/mcp", "tools": "/tools", "openapi": "/v1/openapi.json", "openrpc": "/openrpc.json"}
_MARKED = re.compile("«([^«»]*)»")
_LONGEST_SNIPPET = 400
_FIRST_SKILL = "text.csv.profile"
_TEXTS = ("title", "text", "contact")
"""The texts of a namespace that its form has, next to the pinned skills."""


async def show(request: PageRequest) -> Page:
    # Each pause of typing in the search field cancels the search before.
    return await while_connected(request.receive, _page(request))


async def _page(request: PageRequest) -> Page:
    """Return the catalogue page for the filters in the address."""
    filters = filters_of(request.query, [value for name, value in request.pairs if name == "tag"])
    access.require(request.identity, "read")
    cursor, params = request.query.get("cursor", ""), filters.params()
    problem = None
    skills: SkillPage | FoundSkillPage = SkillPage([], None, 0, False)
    try:
        if filters.q:
            skills = await request.do(search_skills, SearchSkills(**params, cursor=cursor, counts=True, catalogue=True))
        else:
            skills = await request.do(list_skills, ListSkills(**params, cursor=cursor, counts=True, catalogue=True))
    except InvalidParams as error:
        problem = error
    facets = or_none(skills.facets) or NO_FACETS
    values: dict[str, Any] = {
        "filters": filters,
        "sorts": {key: words for key, words in SORTS.items() if filters.q or key != "best"},
        "page": skills,
        "texts_of": _texts_of,
        "languages": LANGUAGES,
        "is_first": not cursor,
        "facets": facets_of(filters, facets),
        "branches": branches_of(filters, facets.namespace),
        "tags": tags_of(filters, facets.tags),
        "others": await _others(request, filters) if problem is None else [],
        "set_filters": filters.set_filters(),
        "problem": problem,
        "steps": await _steps(request, filters) if not cursor else None,
        "namespace": await _namespace(request, filters.ns) if filters.ns and not filters.q and not cursor else None,
        "similar": await _similar(request, filters.q) if filters.q and not skills.skills and not problem else [],
        "spaces": await _spaces(request) if filters.address() == "/" and not cursor else [],
        "everything": await _everything(request) if not skills.total else None,
        "same": json.dumps(
            {"method": "search_skills" if filters.q else "list_skills", "params": params}, ensure_ascii=False
        ),
        "can_publish": request.publishes(f"{filters.ns or 'x'}.x"),
        "can_describe": request.publishes(f"{filters.ns}.*"),
    }
    title = f"Skills for {filters.q}" if filters.q else f"Skills in {filters.ns}" if filters.ns else "Skills"
    return Page("catalogue.html", title, values, "skills")


def _texts_of(skill: SkillRow | FoundSkill) -> tuple[Markup, Markup | None]:
    """Return the description of a skill, and the part of SKILL.md that matches the search if the description does not.

    The style sheet shows two lines.
    """
    snippet = (or_none(skill.snippet) or "") if isinstance(skill, FoundSkill) else ""
    if "«" in snippet and unmarked(snippet).strip("… ") in without_markdown(skill.description):
        return marked(snippet), None
    has_match = "«" in snippet and unmarked(snippet) != skill.name
    return foreign(skill.description, 600), marked(snippet) if has_match else None


def marked(snippet: str) -> Markup:
    """Return a snippet of search_skills as HTML, with each text in « » as `<mark>`."""
    text, mark = snippet[:_LONGEST_SNIPPET], Markup("<mark>{}</mark>")
    html = replaced(text, _MARKED.finditer(text), lambda match: mark.format(visible(match[1])), visible)
    return Markup('<bdi class="foreign">{}</bdi>').format(html)


def unmarked(snippet: str) -> str:
    """Return a snippet without the marks « and »."""
    return snippet.replace("«", "").replace("»", "")


async def _others(request: PageRequest, filters: Filters) -> list[Choice]:
    """Return choices for the statuses that only publishers and reviewers see, with the number of versions in each."""
    if filters.q or not (request.may("publish") or request.may("review")):
        return []
    identity, selection, counts = request.identity, filters.of_versions(), request.site.core.catalogue.counts
    facets = await request.read_page(lambda connection: count_unlisted(connection, identity, selection, counts))
    statuses = [(str(facet.value), facet.count) for facet in facets if facet.value != filters.status]
    return [Choice(STATUSES[status], count, filters.address(status=status), is_set=False) for status, count in statuses]


async def _similar(request: PageRequest, query: str) -> list[tuple[str, str]]:
    """Return similar words and names of skills for a search without results, with their addresses."""
    words, names = await request.read_page(partial(suggest, identity=request.identity, query=query))
    searches = [(words, Filters(q=words).address())] if words else []
    return searches + [(name, path_of("s", name)) for name in names]


async def _spaces(request: PageRequest) -> list[tuple[str, int]]:
    """Return the most used namespaces with their uses, or none if there is only one."""
    spaces = await request.read_page(partial(most_used, identity=request.identity))
    return spaces if len(spaces) > 1 else []


async def _everything(request: PageRequest) -> tuple[int, bool]:
    """Return the number of skills that the caller sees without filters, and whether the number is a lower bound."""
    page = await request.do(list_skills, ListSkills(limit=1, counts=True))
    return or_none(page.total) or 0, page.total_is_more is True


async def _steps(request: PageRequest, filters: Filters) -> dict[str, Any] | None:
    """Return the first steps, which the page proposes on a new server: the skill to run first, or "", whether an admin
    should create a token, and whether the server admits all callers without a login.

    Return None if a user has published a skill, hidden the steps, or set a filter.
    """
    if request.known is None or filters.address() != "/" or cookie_of(request.headers, STEPS_COOKIE) == "off":
        return None
    if await request.site.core.first_skills.exist():
        return None
    try:
        await request.do(describe_skill, DescribeSkill(name=_FIRST_SKILL, detail="manifest"))
        first_skill = _FIRST_SKILL
    except SkilleryError:
        first_skill = ""
    is_open = request.visit.session is None
    return {"runs": first_skill, "needs_token": request.may("admin") and not is_open, "is_open": is_open}


async def _namespace(request: PageRequest, name: str) -> Namespace | None:
    """Return what is said about a namespace, or None if the caller sees no such namespace."""
    try:
        return await request.do(describe_namespace, DescribeNamespace(namespace=name))
    except (NotFound, InvalidParams):
        return None


async def change(request: PageRequest) -> SeeOther:
    """Set the texts of the namespace in the address, note wanted words, or hide the first steps by a cookie."""
    form = await request.form()
    if words := form.get("wanted").strip():
        await request.do(search_skills, SearchSkills(query=words, limit=1))  # records the words
        return SeeOther(Filters(q=words).address(), Done(f"The search for “{words[:80]}” is noted as wanted."))
    if form.get("action") == "set_namespace":
        return await _set_namespace(request, form)
    return SeeOther("/", None, (request.visit.cookies.setting(STEPS_COOKIE, "off"),))


async def _set_namespace(request: PageRequest, form: Form) -> SeeOther:
    name = request.query.get("ns", "")
    before = await request.do(describe_namespace, DescribeNamespace(namespace=name))
    texts = {key: form.get(key).strip() for key in _TEXTS}
    await request.do(set_namespace, SetNamespace(namespace=name, **texts, pinned=form.get("pinned").split()))
    former = {key: getattr(before, key) for key in _TEXTS} | ({} if before.contact_of == name else {"contact": ""})
    pinned, address = " ".join(skill.name for skill in before.pinned), Filters(ns=name).address()
    undo = Undo("Undo", address, {"action": "set_namespace", **former, "pinned": pinned})
    return SeeOther(address, Done(f"The texts of {name} are set.", undo))


def with_links(page: Route) -> Route:
    """Return the route of the catalogue whose `GET /` answers programs with links to the APIs as JSON."""

    async def answer(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "POST")
        if scope["method"] != "POST" and "text/html" not in headers.get("accept", ""):
            body = msgspec.json.encode({"name": "skillery", "version": VERSION, "links": _LINKS})
            await send_bytes(send, 200, body, _JSON, _HEADERS)
        else:
            await page.endpoint(scope, receive, send, headers)

    return page._replace(endpoint=answer)
