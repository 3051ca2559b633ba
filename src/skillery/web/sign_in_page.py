"""The page of the sign-in, for login and for pages whose session has ended."""

from __future__ import annotations

from typing import NamedTuple

from skillery.context.request import current_id
from skillery.web.frame import Page, PageRequest
from skillery.web.unsent import Unsent, page_with_form


class Link(NamedTuple):
    """A link to the login of an authenticator at another address."""

    name: str
    """The name of the authenticator."""
    title: str


class Problem(NamedTuple):
    """The reason why a sign-in has failed, or why it is needed, for the user."""

    message: str
    hint: str = ""


ENDED = Problem("Your session has ended. Nothing was sent", "Sign in to continue.")
TOO_OLD = Problem("This change needs a sign-in of the last 15 minutes. Nothing was changed", "Sign in again.")


def sign_in_page(
    request: PageRequest,
    next_address: str = "",
    problem: Problem | None = None,
    status: int = 200,
    unsent: Unsent | None = None,
) -> Page:
    """Return the page of the sign-in. `unsent` is the text of a form, which the page keeps for the user."""
    session = request.visit.session if problem is None else None
    sessions = request.site.visits.sessions
    values = {
        "name": session.identity.name if session is not None else None,
        "kind": session.identity.kind if session is not None else "",
        "takes_token": sessions.accept_tokens,
        "links": [Link(name, one.login_title() or name) for name, one in sessions.logins.items()],
        "next_address": next_address,
        "problem": problem,
        "is_failed": False,
        "unsent": unsent,
        "is_refused": status == 401 and unsent is None,
        "request_id": current_id() if status >= 400 else None,
    }
    return Page("sign_in.html", "Sign in" if session is None else "Signed in", values, status=status)


def ended_page(request: PageRequest, unsent: Unsent) -> Page:
    """Return the page for a form whose session has ended."""
    return sign_in_page(request, page_with_form(request), ENDED, 401, unsent)


def too_old_page(request: PageRequest, unsent: Unsent) -> Page:
    """Return the page for a change that needs a recent sign-in."""
    return sign_in_page(request, page_with_form(request), TOO_OLD, 403, unsent)


def failed_page(status: int, problem: Problem) -> Page:
    """Return the page for a login that cannot continue."""
    values = {"problem": problem, "is_failed": True, "unsent": None, "request_id": current_id()}
    return Page("sign_in.html", "Sign in", values, status=status)
