"""The bundled skills. A starting server publishes the missing bundled skills, with the checks of create_skill that
execute no code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from skillery.backends import ALL_SCOPES, Identity
from skillery.database import Database
from skillery.errors import Conflict, NotFound, StartupError
from skillery.formats.manifest import toml_manifest
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.identity.quotas import UNLIMITED
from skillery.publishing import Publisher, PublishingRules, SkillFolder, read_skill_folder
from skillery.registry import BUNDLED_BY, resolve

PACKAGED = Path(__file__).parents[1] / "_skills"
IN_CHECKOUT = Path(__file__).parents[3] / "skills"
BUNDLER = Identity(BUNDLED_BY, "agent", ALL_SCOPES, ("*",))
# Skillery's own tests import the bundled skills and run their examples, so that a first start need not wait for a
# sandbox.
RULES = PublishingRules(trials=False)


def bundled_folders() -> list[Path]:
    root = PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT
    return sorted(path.parent for path in root.glob("*/skill.toml"))


async def publish_bundled(publisher: Publisher, database: Database) -> None:
    """Publish the missing versions of bundled skills. A present version is kept, even if another identity published it.

    Raise StartupError if a bundled skill cannot be published.
    """
    for folder in await asyncio.to_thread(bundled_folders):
        manifest = toml_manifest((folder / "skill.toml").read_bytes())
        if not await database.read(partial(_is_there, manifest=manifest)):
            await _publish(publisher, await asyncio.to_thread(read_skill_folder, folder))


def _is_there(connection: Connection, manifest: Mapping[str, Any]) -> bool:
    try:
        resolve(connection, BUNDLER, manifest["name"], Exact(Version.parse(manifest["version"])))
    except NotFound:
        return False
    return True


async def _publish(publisher: Publisher, skill: SkillFolder) -> None:
    try:
        # Unlimited, because a quota must not prevent a start.
        await publisher.create_skill(BUNDLER, skill.manifest, skill.skill_md, skill.files, RULES, UNLIMITED)
    except Conflict:
        return  # the version exists
    except Exception as error:
        raise StartupError(f"the bundled skill '{skill.manifest.get('name')}' cannot be published: {error}") from error
