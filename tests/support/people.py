"""A server with several callers: the header `x-who` states the caller and its grants."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import Rpc, manifest, skill_files

PLUGIN = """
from skillery import hookimpl
from skillery.backends import Identity, Offer
from skillery.errors import NotAuthenticated


class People:
    loopback_only = True

    async def authenticate(self, credentials):
        if "x-who" not in credentials.headers:
            raise NotAuthenticated("who is calling?")
        name, kind, scopes, grants = credentials.headers["x-who"].split(";")
        return Identity(name, kind, frozenset(scopes.split()), tuple(grants.split()))


@hookimpl
def skillery_authenticator():
    return Offer("people", lambda settings, place: People())
"""

CHECKS = """
from skillery import hookimpl
from skillery.backends import Finding


@hookimpl
def before_publish(publication):
    found = []
    for file in publication.files:
        for number, line in enumerate(file.content.split(b"\\n"), 1):
            for word, severity in ((b"FORBIDDEN", "error"), (b"UGLY", "warning"), (b"ODD", "info")):
                if word in line:
                    rule = f"no-{word.decode().lower()}"
                    found.append(Finding(rule, f"{word.decode()} stands there", severity, file.path, number))
    return found
"""


def people_settings(folder: Path, **more: str) -> dict[str, str]:
    """Return the settings of a server with the authenticator and a check, and write their modules to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "people.py").write_text(PLUGIN)
    (folder / "checks.py").write_text(CHECKS)
    drafts = {"SKILLERY_PUBLISHING_AGENTS": "draft"}  # so that tests see every step of a version
    return {"SKILLERY_PLUGINS_FOLDER": str(folder), "SKILLERY_AUTH": "people", **drafts, **more}


class Who(NamedTuple):
    name: str
    scopes: str = "read run"
    grants: str = ""
    kind: str = "person"


def headers_of(who: Who) -> dict[str, str]:
    return {"x-who": f"{who.name};{who.kind};{who.scopes};{who.grants}"}


class Caller(Rpc):
    """An Rpc client that calls as one identity."""

    def __init__(self, url: str, who: Who) -> None:
        super().__init__(url)
        self.http.headers.update(headers_of(who))

    @classmethod
    def same(cls, other: Rpc) -> Rpc:
        """Return another connection of the same caller, for another thread."""
        made = Rpc(other.url)
        made.http.headers["x-who"] = other.http.headers["x-who"]
        return made

    def create(self, name: str, version: str = "1.0.0", code: str | None = None, **more: Any) -> Any:
        files = [] if more.get("kind") == "instruction" else skill_files(*([code] if code else []))
        return self("create_skill", manifest=manifest(name, version, **more), skill_md=f"# {name}\n", files=files)

    def status(self, name: str, version: str = "1.0.0") -> str:
        """Return the status of the version as this caller sees it, or "unseen"."""
        reply = self.send("describe_skill", {"name": name, "version": version})
        return "unseen" if "error" in reply else str(reply["result"]["skill"]["status"])
