"""The name of an imported skill in the registry, and a note if it differs from the stated name."""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.errors import NameTaken
from skillery.formats.repairs import Repair
from skillery.formats.semver import Version
from skillery.identity import access
from skillery.importing.aliases import AliasRecord, Imported, find_imported, find_same_files
from skillery.importing.free_names import Alias, endings_of, free_name, holder_of, is_free, owned_path
from skillery.importing.identity import tree_path
from skillery.importing.preparation import PreparedSkill, SkillReader, same_files


class NamedSkill(NamedTuple):
    """The registry name of an imported skill, with the alias for its record."""

    name: str
    alias: Alias
    before: Alias | None = None
    """The alias that an earlier import recorded, or None."""
    imported: Imported | None = None
    """The last import of the same alias or of the same files, or None if the skill is new or taken over."""
    owns: bool = True
    """Whether the source may publish new versions of the skill."""
    is_known: bool = False
    """True if `imported` was imported under `alias` or `before`."""
    takes_over: bool = False
    notes: tuple[Repair, ...] = ()

    def recorded(self, prepared: PreparedSkill) -> AliasRecord:
        return AliasRecord(
            self.alias, prepared.key, prepared.source_digest, self.owns, self.before, takes_over=self.takes_over
        )


class Naming:
    """Determines the names of the skills of one import, one skill after another."""

    def __init__(self, identity: Identity, skill_reader: SkillReader, take_over: Set[str]) -> None:
        self._identity = identity
        self._skill_reader = skill_reader
        self._take_over = take_over
        self._claimed: dict[str, str] = {}
        """The paths of the named skills, by name."""
        self.taken_over: set[str] = set()

    def name(self, connection: Connection, prepared: PreparedSkill, alias: Alias, before: Alias | None) -> NamedSkill:
        """Return the name of a skill.

        Raise NotAllowed if the identity may not publish under this name, and NameTaken if the skill of the alias is
        invisible to the identity.
        """
        named = self._find_name(connection, prepared, alias, before)
        self._claimed.setdefault(named.name, prepared.located.root)
        if named.takes_over:
            self.taken_over.add(named.name)
        return named

    def name_again(self, connection: Connection, prepared: PreparedSkill, alias: Alias) -> NamedSkill:
        """Return another name for a skill, because another import has just taken the first name."""
        named = self._new(connection, prepared, alias, None)
        self._claimed.setdefault(named.name, prepared.located.root)
        return named

    def _find_name(
        self, connection: Connection, prepared: PreparedSkill, alias: Alias, before: Alias | None
    ) -> NamedSkill:
        imported = self._imported(connection, prepared, before) if before is not None else None
        if imported is not None and _is_renamed(prepared, imported):
            imported = None
        is_same = imported is not None and same_files(imported.source_digest, prepared.source_digest)
        takes_over = prepared.wanted in self._take_over and prepared.wanted not in self.taken_over
        if imported is not None and takes_over and imported.owns and imported.name == prepared.wanted:
            # An earlier import of this source already took the skill over.
            self.taken_over.add(imported.name)
            takes_over = False
        if imported is not None and (imported.owns or is_same) and not takes_over:
            notes = (_name_note(imported.name),) if _has_other_name(prepared, imported.name) else ()
            return NamedSkill(imported.name, alias, before, imported, imported.owns, is_known=True, notes=notes)
        # A generated name reveals that a name exists, so the caller must be allowed to publish under the wanted name.
        access.require_namespace(self._identity, "publish", prepared.wanted)
        if takes_over:
            return self._taken_over(connection, prepared, alias, before)
        same = find_same_files(connection, self._identity, alias.namespace, prepared.key, prepared.source_digest)
        if same is not None:
            note = _note(
                "copy", f"it has the same files as '{same.name}', which {self._holder(connection, alias, same.name)}"
            )
            return NamedSkill(same.name, alias, before, same, owns=False, notes=(note,))
        return self._new(connection, prepared, alias, before)

    def _imported(self, connection: Connection, prepared: PreparedSkill, alias: Alias) -> Imported | None:
        try:
            return find_imported(connection, self._identity, alias)
        except NameTaken:
            access.require_namespace(self._identity, "publish", prepared.wanted)
            raise

    def _taken_over(
        self, connection: Connection, prepared: PreparedSkill, alias: Alias, before: Alias | None
    ) -> NamedSkill:
        name = prepared.wanted
        notes: tuple[Repair, ...] = ()
        if not is_free(connection, alias, name, may_continue=False):
            holder = self._holder(connection, alias, name).replace("belongs", "belonged").replace("was", "had been")
            notes = (_note("taken_over", f"it takes over '{name}', which {holder}"),)
        return NamedSkill(name, alias, before, None, owns=True, takes_over=True, notes=notes)

    def _new(self, connection: Connection, prepared: PreparedSkill, alias: Alias, before: Alias | None) -> NamedSkill:
        wanted = prepared.wanted
        # A skill.toml states the registry name, so the import may continue a skill that was published by hand.
        may_continue = prepared.manifest is not None and not prepared.is_name_repaired
        claimed = partial(self._is_claimed, prepared)
        endings = self._endings(connection, prepared, alias)
        name = free_name(connection, alias, wanted, endings, claimed, may_continue=may_continue)
        notes: tuple[Repair, ...] = ()
        if name != wanted:
            notes = (self._name_taken_note(connection, prepared, alias, name),)
        elif _has_other_name(prepared, name):
            notes = (_name_note(name),)
        return NamedSkill(name, alias, before, None, notes=notes)

    def _endings(self, connection: Connection, prepared: PreparedSkill, alias: Alias) -> Iterable[str]:
        """Return endings that distinguish the skill from another skill of its source with the wanted name, if any."""
        wanted, root = prepared.wanted, prepared.located.root
        holder = self._claimed.get(wanted)
        if holder is None and self._is_claimed(prepared, wanted):
            holder = self._skill_reader.root_named(wanted)
        if holder is None:
            path = owned_path(connection, alias.source, wanted)
            holder = tree_path(path) if path is not None else None
        return () if holder is None else endings_of(root, holder, wanted, self._skill_reader.elements_like(root))

    def _name_taken_note(self, connection: Connection, prepared: PreparedSkill, alias: Alias, name: str) -> Repair:
        wanted = prepared.wanted
        if self._is_claimed(prepared, wanted):
            return _note("name", f"'{wanted}' is another skill of this import; in the registry this one is '{name}'")
        holder = self._holder(connection, alias, wanted)
        if holder.endswith("of this source"):
            return _note("name", f"'{wanted}' {holder}; in the registry this one is '{name}'")
        return _note(
            "name_taken",
            f"'{wanted}' {holder}; in the registry this one is '{name}'. Give --namespace NS to put the skills below a "
            f"namespace, or --take-over {wanted} to publish this one as the next version of '{wanted}'",
        )

    def _holder(self, connection: Connection, alias: Alias, name: str) -> str:
        return holder_of(connection, self._identity, alias.source, name)

    def _is_claimed(self, prepared: PreparedSkill, name: str) -> bool:
        """Return whether another skill of this import has the name.

        For a repaired name, also return True if it is the name of another folder, because that skill may be read later.
        """
        return name in self._claimed or (
            prepared.is_name_repaired and self._skill_reader.is_other_folder(prepared.located, name)
        )


def _is_renamed(prepared: PreparedSkill, imported: Imported) -> bool:
    """Return whether the author has changed the name in skill.toml. The result is then a different skill."""
    is_renamed = imported.stated != prepared.key and imported.name != prepared.wanted
    return prepared.manifest is not None and is_renamed


def _has_other_name(prepared: PreparedSkill, name: str) -> bool:
    return name != (prepared.stated if prepared.is_name_repaired else prepared.wanted)


def _note(code: str, message: str) -> Repair:
    """Return a note about a name. The note does not count as a repair."""
    return Repair(code, message, harmless=True)


def _name_note(name: str) -> Repair:
    return _note("name", f"its name in the registry is '{name}'")


# -- Versions of imported skills ---------------------------------------------------------------------------------------


FIRST = Version(1, 0, 0)


def next_version(declared: Version | None, taken: list[Version]) -> Version:
    """Return the declared version if it is free, else the lowest free patch after it.

    Without a declared version, return the next patch after all taken versions, or 1.0.0 for a new skill. `taken` is
    sorted.
    """
    precedences = {version.precedence for version in taken}
    if declared is not None and declared.precedence not in precedences:
        return declared
    if not taken:
        return FIRST
    version = declared.next_patch() if declared is not None else taken[-1].next_patch()
    while version.precedence in precedences:
        version = version.next_patch()
    return version
