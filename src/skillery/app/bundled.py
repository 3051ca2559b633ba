"""The bundled skills.

A starting server publishes the missing bundled skills, with those checks of create_skill that execute no code, and
stores the packaged results of their examples. It also undoes changes of the guide that earlier releases permitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from skillery.database import Database
from skillery.database.tables import RESOLVABLE, skill_versions, skills
from skillery.errors import Conflict, NotFound, StartupError
from skillery.formats.manifest import toml_manifest
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.identity.access import BUNDLER
from skillery.identity.quotas import UNLIMITED
from skillery.publishing.folders import SkillFolder, read_skill_folder
from skillery.publishing.gate import PublishingRules
from skillery.publishing.publisher import Publisher
from skillery.registry.resolution import resolve
from skillery.versions.example_results import PassedSkill, add_passed_results, versions_without_results
from skillery.versions.lifecycle import change_visibility, undeprecate, unyank, yank

PACKAGED = Path(__file__).parents[1] / "_skills"
IN_CHECKOUT = Path(__file__).parents[3] / "skills"
GUIDE = "skills.protocol.guide"
PASSED = "passed.json"


def bundled_folders() -> list[Path]:
    return sorted(path.parent for path in _root().glob("*/skill.toml"))


def passed_skills() -> list[PassedSkill]:
    """Return the bundled skills whose examples passed in the tests of Skillery, with the results."""
    return list(msgspec.json.decode((_root() / PASSED).read_bytes(), type=dict[str, PassedSkill]).values())


def _root() -> Path:
    return PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT


def packaged_guide() -> str:
    """Return the text of the Skills Protocol Guide in the package. The registry cannot change it."""
    folder = next(folder for folder in bundled_folders() if folder.name == GUIDE)
    return (folder / "SKILL.md").read_text(encoding="utf-8")


async def publish_bundled(publisher: Publisher, database: Database) -> None:
    """Publish the missing versions of bundled skills. A present version is kept, even if another identity published it.

    Raise StartupError if a bundled skill cannot be published.
    """
    if await database.read(lambda connection: _is_hidden(connection) or bool(_changed(connection))):
        await database.write(_restore_guide)
    # Skillery's own tests import the bundled skills and run their examples, so that a first start need not wait for a
    # sandbox. An edited skill has another digest and is not verified.
    passed = await asyncio.to_thread(passed_skills)
    rules = PublishingRules(trials=False, passed=[skill.digest for skill in passed])
    for folder in await asyncio.to_thread(bundled_folders):
        manifest = toml_manifest((folder / "skill.toml").read_bytes())
        if not await database.read(partial(_is_there, manifest=manifest)):
            await _publish(publisher, await asyncio.to_thread(read_skill_folder, folder), rules)
    if await database.read(partial(versions_without_results, passed=passed)):
        await database.write(partial(add_passed_results, passed=passed))


def _changed(connection: Connection) -> list[tuple[str, str, bool]]:
    """Return (version, status, whether the server is the author) of each version of the guide that differs from what
    the server publishes.
    """
    columns = skill_versions.c
    statement = select(columns.version, columns.status, columns.publisher).join(skills, skills.c.id == columns.skill_id)
    changed = []
    for version, status, publisher in connection.execute(statement.where(skills.c.name == GUIDE)):
        is_bundled = publisher == BUNDLER.name
        if status in (("yanked", "deprecated") if is_bundled else RESOLVABLE):
            changed.append((version, status, is_bundled))
    return changed


def _is_hidden(connection: Connection) -> bool:
    visibility = connection.scalar(select(skills.c.visibility).where(skills.c.name == GUIDE))
    return visibility not in (None, "public")


def _restore_guide(connection: Connection) -> None:
    """Make the packaged version the latest version of the guide, visible to all callers. Yank the versions of others,
    which stay readable.

    Earlier releases did not reserve the namespace, so publishers and admins could change the guide.
    """
    if _is_hidden(connection):
        change_visibility(connection, BUNDLER, GUIDE, "public")
    for version, status, is_bundled in _changed(connection):
        if not is_bundled:
            yank(connection, BUNDLER, GUIDE, Version.parse(version), "The namespace is reserved.")
        elif status == "yanked":
            unyank(connection, BUNDLER, GUIDE, Version.parse(version))
    if _changed(connection):
        undeprecate(connection, BUNDLER, GUIDE)


def _is_there(connection: Connection, manifest: Mapping[str, Any]) -> bool:
    try:
        resolve(connection, BUNDLER, manifest["name"], Exact(Version.parse(manifest["version"])))
    except NotFound:
        return False
    return True


async def _publish(publisher: Publisher, skill: SkillFolder, rules: PublishingRules) -> None:
    try:
        # Unlimited, because a quota must not prevent a start.
        await publisher.create_skill(BUNDLER, skill.manifest, skill.skill_md, skill.files, rules, UNLIMITED)
    except Conflict:
        return  # the version exists
    except Exception as error:
        raise StartupError(f"the bundled skill '{skill.manifest.get('name')}' cannot be published: {error}") from error
