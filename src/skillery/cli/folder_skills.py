"""Folders in place of names: `skillery run ./greet`, `skillery code analysis.py --mount ./greet`.

A text with a slash is a folder, and so are `.` and `..`. A plain name is always the skill of the registry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skillery.cli.failures import run_async, signals_interrupt
from skillery.cli.options import Target, name_and_version
from skillery.cli.output import clean

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.publishing.folders import SkillFolder
    from skillery.settings.load import Settings

T = TypeVar("T")


def is_folder(text: str) -> bool:
    """Return whether a text names a folder and not a published skill."""
    return "/" in text or text in {".", ".."}


def folders_in(texts: Sequence[str]) -> set[str]:
    """Return the texts that name folders. For each plain name that is also a folder, say on stderr that it is the skill
    of the registry.
    """
    folders = set(filter(is_folder, texts))
    for text in dict.fromkeys(texts):
        if text not in folders and any(Path(text, name).is_file() for name in ("skill.toml", "SKILL.md")):
            click.echo(clean(f"note: '{text}' means the skill of the registry; the folder is ./{text}"), err=True)
    return folders


def reference_of(name: str, version: str | None) -> str:
    """Return the folder, or the reference of a published skill. Raise UsageError for a folder with --version."""
    if version is None:
        return name
    if is_folder(name):
        raise click.UsageError(f"the version of the folder '{name}' is in its skill.toml: leave --version out")
    return "@".join(str(part) for part in name_and_version(name, version))


def with_skills(
    target: Target, skills: Sequence[str], work: Callable[[AsyncClient, list[str]], Coroutine[Any, Any, T]]
) -> T:
    """Call `work` with a client and the references of the skills (NAME@VERSION), and return its result.

    If one of the skills is a folder, the client uses a temporary registry in this process. This registry has the
    folders, and copies of the other skills. Raise UsageError if a skill is a folder and --url is given.
    """
    from skillery.cli.connection import with_client

    folders = folders_in(skills)
    if not folders:
        return with_client(target, lambda client: work(client, list(skills)), sandbox=True)
    if target.origin == "--url":
        raise click.UsageError("a folder runs on this machine: leave --url out, or publish the folder there first")

    async def connected() -> T:
        found = await _read(target, skills, folders)
        async with temporary_client(target.load().settings, found) as client:
            references = [f"{skill.manifest.get('name')}@{skill.manifest.get('version')}" for skill in found]
            return await work(client, references)

    with signals_interrupt():
        return run_async(connected())


async def _read(target: Target, skills: Sequence[str], folders: Set[str]) -> list[SkillFolder]:
    """Return the skills in their order: folders from the disk, others from the registry."""
    from skillery.cli.connection import connect
    from skillery.publishing.folders import read_skill_folder

    read = {text: read_skill_folder(Path(text)) for text in folders}
    if len(read) < len(set(skills)):
        async with connect(target) as client:
            read |= {text: await _published(client, text) for text in skills if text not in read}
    return [read[text] for text in skills]


async def _published(client: AsyncClient, reference: str) -> SkillFolder:
    """Return a copy of a published skill."""
    import base64

    from skillery.formats.bundle import BundleFile
    from skillery.publishing.folders import SkillFolder

    name, version = name_and_version(reference, None)
    described: Any = (await client.describe_skill(name=name, version=version, detail="full"))["skill"]
    digest, files = described["digest"], []
    for file in described["files"]:
        answer: Any = await client.read_skill_file(name=name, version=digest, path=file["path"])
        content = answer["content"]
        raw = base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()
        files.append(BundleFile(file["path"], raw, file["executable"]))
    return SkillFolder(described["manifest"], described["skill_md"], files, [])


@asynccontextmanager
async def temporary_client(settings: Settings, skills: Sequence[SkillFolder]) -> AsyncIterator[AsyncClient]:
    """Context manager: yield a client of a temporary registry in this process, which has the skills."""
    from skillery.app.routes import create_app
    from skillery.authoring.temporary_home import open_temporary_home
    from skillery.cli.connection import BASE_URL, SENT_ONCE, HomeClient, InProcessTransport
    from skillery.cli.output import show_log

    show_log(settings)
    async with open_temporary_home(settings, skills) as (core, edge):
        await core.sandbox.start()
        transport = InProcessTransport(create_app(core, edge, for_browsers=False))
        async with HomeClient(BASE_URL, "", retries=SENT_ONCE, transport=transport) as client:
            yield client
