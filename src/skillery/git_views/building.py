"""The making of the objects of a state: blobs and trees of its versions, then its commits. dulwich writes each
object.
"""

from __future__ import annotations

import hashlib
import stat
import unicodedata
import zlib
from collections.abc import Iterator, Sequence

import msgspec
from dulwich.object_format import SHA1
from dulwich.objects import Commit, ObjectID, object_header, serialize_tree, sorted_tree_items
from dulwich.pack import pack_object_header
from sqlalchemy import Connection, bindparam, func, select

from skillery.backends import Storage
from skillery.database import Database
from skillery.database.tables import skill_files, skill_versions
from skillery.errors import RepositoryTooLarge
from skillery.exports.facts import Contents, find_many_facts, make_conform
from skillery.exports.marketplaces import is_script, remote_instructions, thin_folder
from skillery.formats.agent_skill import MAX_DESCRIPTION, cut
from skillery.formats.bundle import SKILL_MD
from skillery.formats.paths import unportable_path
from skillery.git_views.repositories import BLOB, COMMIT, LENGTH_BYTES, MAGIC, TREE, StoredCommit, StoredTable
from skillery.git_views.states import Catalogue, Snapshot, State, catalogue_files, left_out_files
from skillery.registry.repositories import RepositoryVersion
from skillery.skills.files import FileRow

VERSIONS_AT_ONCE = 200
MOST_FILES = 200_000
"""The maximum number of files in a repository. The table of so many objects takes about 60 MB of memory."""
AUTHOR = b"Skillery <skillery@localhost>"
# The level of zlib. A higher level takes three times as long, and saves a tenth of the size.
LEVEL = 1
PIECE_BYTES = 256 * 1024
FILE, PROGRAM, FOLDER = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFDIR
Folder = dict[str, "Folder | tuple[int, int]"]
"""The entries of a folder by name. An entry is a folder, or the mode and the place of a blob."""

_FILES = (
    select(
        skill_files.c.version_id,
        skill_files.c.path,
        skill_files.c.sha256,
        skill_files.c.size_bytes,
        skill_files.c.executable,
    )
    .where(skill_files.c.version_id.in_(bindparam("versions", expanding=True)))
    .order_by(skill_files.c.version_id, skill_files.c.path)
)
_COUNT = select(func.count()).where(skill_files.c.version_id.in_(bindparam("versions", expanding=True)))
_MANIFEST = select(skill_versions.c.manifest_json).where(skill_versions.c.id == bindparam("version"))


class Builder:
    """Makes the pack of one state, for storing. Blocking.

    The place of an object is its number in the pack.
    """

    def __init__(self, database: Database, storage: Storage, state: State) -> None:
        self._database = database
        self._storage = storage
        self._state = state
        self._places: dict[bytes, int] = {}
        self._shas: list[bytes] = []
        self._kinds = bytearray()
        self._sizes: list[int] = []
        self._ends: list[int] = []
        self._position = len(MAGIC)
        self._entries = bytearray(MAGIC)
        self._folders: dict[int, int] = {}
        """The place of the tree of each version, by version id."""
        self._thin_folders: dict[int, int] = {}
        """The place of the tree of each version in a thin plugin, by version id."""
        self._objects: dict[int, list[int]] = {}
        """The places of all objects of each version, by version id."""
        self._descriptions: dict[int, str] = {}
        self._unportable: dict[int, str] = {}
        """The first path that Windows cannot store, by the id of the version. Shared repositories leave it out."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the pack: the compressed objects, then their table and its length.

        Raise RepositoryTooLarge before any content is read.
        """
        versions = self._state.versions()
        batches = [versions[at : at + VERSIONS_AT_ONCE] for at in range(0, len(versions), VERSIONS_AT_ONCE)]
        self._check_files(batches)
        for batch in batches:
            yield from self._add_versions(batch)
        commits: list[StoredCommit] = []
        for snapshot in self._state.snapshots:
            commits.append(self._add_commit(snapshot, commits))
            yield from self._ready()
        yield bytes(self._entries)
        table = StoredTable(
            b"".join(self._shas),
            bytes(self._kinds),
            self._sizes,
            self._ends,
            commits,
            {ref: number for number, snapshot in enumerate(self._state.snapshots) for ref in snapshot.refs},
            self._state.head,
        )
        encoded = msgspec.msgpack.encode(table)
        yield encoded
        yield len(encoded).to_bytes(LENGTH_BYTES, "big")

    def _check_files(self, batches: Sequence[Sequence[RepositoryVersion]]) -> None:
        """Raise RepositoryTooLarge if the repository has more than MOST_FILES files."""

        def count(connection: Connection) -> int:
            return sum(connection.scalar(_COUNT, {"versions": _ids(batch)}) or 0 for batch in batches)

        if self._database.read_now(count) > MOST_FILES:
            raise RepositoryTooLarge(
                f"this repository would contain more than {MOST_FILES} files, which is the limit",
                hint="Clone the repository of a namespace: /git/{namespace}.git.",
            )

    # -- versions ------------------------------------------------------------------------------------------------

    def _add_versions(self, batch: Sequence[RepositoryVersion]) -> Iterator[bytes]:
        """Add the objects of a batch of versions. Yield finished pieces of the pack."""
        ids = {"versions": _ids(batch)}
        rows, facts = self._database.read_now(
            lambda connection: (
                connection.execute(_FILES, ids).all(),
                find_many_facts(connection, version_ids=_ids(batch)),
            )
        )
        # One reader for all versions: it reads many small files with one query.
        files: dict[int, list[FileRow]] = {version.version_id: [] for version in batch}
        for version_id, path, sha256, size, executable in rows:
            files[version_id].append(FileRow(f"{version_id}/{path}", sha256, size, bool(executable)))
        contents = Contents(
            self._database, self._storage, [file for version in batch for file in files[version.version_id]]
        )
        for version in batch:
            skill_md = f"{version.version_id}/{SKILL_MD}"
            known = facts.get(version.version_id)
            if known is None:
                self._descriptions[version.version_id] = self._make_conform(contents, version)
            else:
                self._descriptions[version.version_id] = known.description
                if known.is_generated:
                    contents.replace_beginning(skill_md, known.head.encode(), known.skill_md_bytes)
            path = unportable_path(file.path.partition("/")[2] for file in files[version.version_id])
            if path is not None and self._state.is_shared:
                self._unportable[version.version_id] = path
            else:
                yield from self._add_version(version, contents, files[version.version_id])

    def _make_conform(self, contents: Contents, version: RepositoryVersion) -> str:
        """Replace SKILL.md in `contents` by the exported one, and return its description."""

        def look(connection: Connection) -> str:
            return str(connection.execute(_MANIFEST, {"version": version.version_id}).scalar_one())

        skill_md = f"{version.version_id}/{SKILL_MD}"
        skill = make_conform(contents, skill_md, version.name, self._database.read_now(look))
        return cut(skill.description, MAX_DESCRIPTION)

    def _add_version(self, version: RepositoryVersion, contents: Contents, files: Sequence[FileRow]) -> Iterator[bytes]:
        """Add the blobs and trees of one version, also those of its thin plugin. Yield finished pieces of the pack."""
        root: Folder = {}
        objects: list[int] = []
        is_thin = self._state.thin.namespace_of(version.name) is not None
        rest: Folder = {}
        scripts: list[str] = []
        for file in files:
            _, *parts = file.path.split("/")
            if not all(_is_safe(part) for part in parts):
                # git refuses to check out the whole repository if one path could be a part of `.git`.
                continue
            place = self._add(BLOB, contents.whole(file.path))
            objects.append(place)
            _folder(root, parts[:-1])[parts[-1]] = (PROGRAM if file.executable else FILE, place)
            if is_thin and is_script("/".join(parts), executable=file.executable):
                scripts.append("/".join(parts))
            elif is_thin:
                _folder(rest, parts[:-1])[parts[-1]] = (FILE, place)
            yield from self._ready()
        self._folders[version.version_id] = self._add_folder(root, objects)
        if scripts:
            skill_md = contents.whole(f"{version.version_id}/{SKILL_MD}").rstrip()
            place = self._add(BLOB, skill_md + remote_instructions(version, self._state.thin.server, scripts))
            objects.append(place)
            rest[SKILL_MD] = (FILE, place)
        if is_thin:
            self._thin_folders[version.version_id] = self._add_folder(rest, objects)
        self._objects[version.version_id] = objects

    def _add_folder(self, folder: Folder, objects: list[int]) -> int:
        """Add the trees of a folder and of folders below, append their places to `objects`, and return the place of the
        folder.
        """
        place = self._add_tree(self._entries_of(folder, objects))
        objects.append(place)
        return place

    def _entries_of(self, folder: Folder, objects: list[int]) -> dict[str, tuple[int, int]]:
        """Return the mode and place of each entry of a folder, after its folders were added."""
        return {
            name: (FOLDER, self._add_folder(entry, objects)) if isinstance(entry, dict) else entry
            for name, entry in folder.items()
        }

    # -- commits -------------------------------------------------------------------------------------------------

    def _add_commit(self, snapshot: Snapshot, earlier: Sequence[StoredCommit]) -> StoredCommit:
        versions = [version for version in snapshot.versions if version.version_id not in self._unportable]
        objects = [place for version in versions for place in self._objects[version.version_id]]
        folders = {version.index_name: (FOLDER, self._folders[version.version_id]) for version in versions}
        skills = self._add_tree(folders)
        root: Folder = {}
        catalogue: list[int] = []
        state = self._state
        about = Catalogue(state.owner, state.repository, versions, self._descriptions, state.thin)
        left_out = [
            (version, self._unportable[version.version_id])
            for version in snapshot.versions
            if version.version_id in self._unportable
        ]
        for path, content in (catalogue_files(about) | left_out_files(left_out)).items():
            *folders_of, name = path.split("/")
            catalogue.append(self._add(BLOB, content))
            _folder(root, folders_of)[name] = (FILE, catalogue[-1])
        for namespace, members in state.thin.members(versions).items():
            thin = self._add_tree(
                {member.index_name: (FOLDER, self._thin_folders[member.version_id]) for member in members}
            )
            catalogue.append(thin)
            _folder(root, thin_folder(namespace).split("/"))["skills"] = (FOLDER, thin)
        entries = self._entries_of(root, catalogue)
        tree = self._add_tree({**entries, "skills": (FOLDER, skills)})
        commit = Commit()
        commit.tree = self._hex(tree)
        commit.parents = [] if snapshot.parent is None else [self._hex(earlier[snapshot.parent].place)]
        commit.author = commit.committer = AUTHOR
        commit.author_time = commit.commit_time = snapshot.time
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = snapshot.message.encode()
        place = self._add(COMMIT, commit.as_raw_string())
        parents = [] if snapshot.parent is None else [snapshot.parent]
        return StoredCommit(place, parents, snapshot.time, sorted({place, tree, skills, *catalogue, *objects}))

    # -- objects -------------------------------------------------------------------------------------------------

    def _add_tree(self, entries: dict[str, tuple[int, int]]) -> int:
        """Add a tree with these entries (mode and place by name), and return its place."""
        named = {name.encode(): (mode, self._hex(place)) for name, (mode, place) in entries.items()}
        return self._add(TREE, b"".join(serialize_tree(sorted_tree_items(named, name_order=False))))

    def _add(self, kind: int, content: bytes) -> int:
        """Add an object unless the pack has it already. Return its place."""
        hasher = hashlib.sha1(object_header(kind, len(content)), usedforsecurity=False)
        hasher.update(content)
        sha = hasher.digest()
        place = self._places.get(sha)
        if place is not None:
            return place
        entry = bytes(pack_object_header(kind, None, len(content), SHA1)) + zlib.compress(content, LEVEL)
        self._entries += entry
        self._position += len(entry)
        self._places[sha] = len(self._sizes)
        self._shas.append(sha)
        self._kinds.append(kind)
        self._sizes.append(len(content))
        self._ends.append(self._position)
        return len(self._sizes) - 1

    def _hex(self, place: int) -> ObjectID:
        return ObjectID(self._shas[place].hex().encode())

    def _ready(self) -> Iterator[bytes]:
        """Yield the collected bytes if they are enough for a piece."""
        if len(self._entries) >= PIECE_BYTES:
            yield bytes(self._entries)
            self._entries.clear()


def _ids(batch: Sequence[RepositoryVersion]) -> list[int]:
    return [version.version_id for version in batch]


def _folder(root: Folder, parts: Sequence[str]) -> Folder:
    """Return the folder at a path below `root`, which is created if necessary."""
    for part in parts:
        subfolder = root.setdefault(part, {})
        assert isinstance(subfolder, dict)  # no path of a bundle is the folder of another
        root = subfolder
    return root


def _is_safe(name: str) -> bool:
    """Return whether Git checks out a file or folder with this name.

    The file systems of Windows and macOS treat some other names like `.git` (CVE-2014-9390).
    """
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return visible.casefold().partition(":")[0].rstrip(" .") not in (".git", "git~1")
