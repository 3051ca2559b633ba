"""The skills that come with Skillery, published through create_skill's own path where they are absent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skillery.backends import ALL_SCOPES, Identity
from skillery.database import Database
from skillery.errors import Conflict, StartupError
from skillery.publishing import Publisher, SkillFolder, read_skill_folder

PACKAGED = Path(__file__).parents[1] / "_skills"
IN_CHECKOUT = Path(__file__).parents[3] / "skills"
BUNDLER = Identity("skillery", "agent", ALL_SCOPES, ("*",))


def bundled_folders() -> list[Path]:
    root = PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT
    return sorted(path.parent for path in root.glob("*/skill.toml"))


async def publish_bundled(publisher: Publisher, database: Database) -> None:
    """A version that is there already is left alone, also where somebody published another under its name."""
    for folder in await asyncio.to_thread(bundled_folders):
        skill = await asyncio.to_thread(read_skill_folder, folder)
        await _publish(publisher, skill)


async def _publish(publisher: Publisher, skill: SkillFolder) -> None:
    try:
        await publisher.create_skill(BUNDLER, skill.manifest, skill.skill_md, skill.files)
    except Conflict:
        return  # its version is taken: there is nothing to add
    except Exception as error:
        raise StartupError(f"the bundled skill '{skill.manifest.get('name')}' cannot be published: {error}") from error
