"""A registry that exists for one command and has the skills of some folders: a run there is a run of a published skill.

The registry is in a temporary folder. It has no secrets, and its blobs are deleted with it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from skillery.app.composition import open_server
from skillery.app.home import Home
from skillery.app.routes import Edge
from skillery.authoring.folder_runs import AUTHOR
from skillery.authoring.packages import FOLDER, wait_for_home
from skillery.identity.quotas import UNLIMITED
from skillery.methods.core import Core
from skillery.plugins import load_plugins
from skillery.publishing.folders import SkillFolder
from skillery.publishing.gate import PublishingRules
from skillery.settings.groups import Quotas
from skillery.settings.load import Settings

# `skillery test` runs the examples.
RULES = PublishingRules(trials=False)


@asynccontextmanager
async def open_temporary_home(settings: Settings, skills: Sequence[SkillFolder]) -> AsyncIterator[tuple[Core, Edge]]:
    """Open a new registry with these skills. Raise StartupError, and the errors of `Publisher.create_skill`."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="skillery-")))
        if _need_packages(settings, skills):
            await _share_environments(settings.home / FOLDER, folder, stack)
        home = Home(folder)
        stack.callback(home.close)
        plugins = load_plugins(settings.plugins_folder)
        opened = open_server(_settings(settings, folder), plugins, home, bundled=False)
        core, edge = await stack.enter_async_context(opened)
        for skill in skills:
            await core.publisher.create_skill(AUTHOR, skill.manifest, skill.skill_md, skill.files, RULES, UNLIMITED)
        yield core, edge


def _settings(settings: Settings, home: Path) -> Settings:
    """Return the settings of this machine for a registry that only this command reaches."""
    return msgspec.structs.replace(
        settings,
        home=home,
        host="127.0.0.1",
        database="",
        storage="directory",
        auth="open",
        secrets="database",
        quotas=Quotas(),
        default_visibility="public",
        grace_seconds=0.0,
    )


def _need_packages(settings: Settings, skills: Sequence[SkillFolder]) -> bool:
    runtimes: list[Any] = [skill.manifest.get("runtime") for skill in skills]
    declared = any(isinstance(runtime, dict) and runtime.get("dependencies") for runtime in runtimes)
    return declared or bool(settings.environments)


async def _share_environments(shared: Path, folder: Path, stack: AsyncExitStack) -> None:
    """Use the locks and environments that `skillery test` keeps, so that packages are installed once."""
    stack.callback((await wait_for_home(shared)).close)
    await asyncio.to_thread(_copy_locks, shared, folder)


def _copy_locks(shared: Path, folder: Path) -> None:
    # The shared database has locks and no skills.
    for file in shared.glob("skillery.db*"):
        shutil.copy(file, folder)
    (shared / "environments").mkdir(exist_ok=True)
    (folder / "environments").symlink_to(shared / "environments")
