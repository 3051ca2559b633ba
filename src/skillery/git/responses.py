"""The responses of `git-upload-pack`, as pieces of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skillery import __version__
from skillery.git.requests import Fetch, ListRefs, MalformedRequest, Mark, pkt
from skillery.git_views import ObjectTable, OpenRepository, Selected, WantNotFound, pack_pieces
from skillery.git_views.selection import NothingSelected, common, select

AGENT = f"agent=skillery/{__version__}"
NO_ID = "0" * 40
FLUSH, DELIMITER = Mark.FLUSH.value, Mark.DELIMITER.value
V0_CAPABILITIES = (
    "multi_ack_detailed side-band-64k ofs-delta no-progress shallow deepen-since deepen-not deepen-relative filter "
    "allow-tip-sha1-in-want allow-reachable-sha1-in-want object-format=sha1"
)
SIDE_BAND = "side-band-64k"
PACK_BAND = b"\x01"


def advertise_v2() -> bytes:
    """Return the capabilities of this server in v2. The client asks for branches in its next request."""
    lines = ("version 2", AGENT, "ls-refs", "fetch=shallow filter", "object-format=sha1")
    return b"".join(pkt(f"{line}\n") for line in lines) + FLUSH


def advertise_v0(table: ObjectTable, version: int) -> bytes:
    """Return the capabilities of this server and all branches and tags, for v0 and v1."""
    symref = f" symref=HEAD:{table.head}" if table.head else ""
    capabilities = f"{V0_CAPABILITIES}{symref} {AGENT}"
    refs = list(_refs(table)) or [("capabilities^{}", NO_ID)]
    lines = [f"{sha} {name}" for name, sha in refs]
    lines[0] += f"\0{capabilities}"
    service = pkt("# service=git-upload-pack\n") + FLUSH
    return (
        service + (pkt("version 1\n") if version == 1 else b"") + b"".join(pkt(f"{line}\n") for line in lines) + FLUSH
    )


def list_refs(table: ObjectTable, refs: ListRefs) -> bytes:
    """Return the branches and tags that a v2 request asks for."""
    lines = []
    for name, sha in _refs(table):
        if not refs.prefixes or name.startswith(refs.prefixes):
            target = f" symref-target:{table.head}" if name == "HEAD" and refs.symrefs else ""
            lines.append(pkt(f"{sha} {name}{target}\n"))
    return b"".join(lines) + FLUSH


def refuse(reason: str) -> bytes:
    """Return a line that makes Git print the reason and exit."""
    return pkt(f"ERR {reason}\n")


def fetch_v2(opened: OpenRepository, request: Fetch) -> Iterator[bytes]:
    """Yield the response to a v2 request for objects. Raise MalformedRequest before the first piece. Blocking."""
    selection = request.selection
    if not selection.wants:
        yield FLUSH
        return
    selected = _select(opened, request)
    if selection.haves and not request.is_done:
        known = common(opened.table, selection.haves)
        yield pkt("acknowledgments\n") + b"".join(pkt(f"ACK {sha}\n") for sha in known)
        if not known:
            yield pkt("NAK\n") + FLUSH
            return
        yield pkt("ready\n") + DELIMITER
    if selection.depth.is_limited:
        yield pkt("shallow-info\n") + b"".join(_boundary(selected)) + DELIMITER
    yield pkt("packfile\n")
    yield from _in_side_band(pack_pieces(opened.table, opened.stream, selected.places))


def fetch_v0(opened: OpenRepository, request: Fetch) -> Iterator[bytes]:
    """Yield the response to a v0 or v1 request for objects. Raise MalformedRequest before the first piece. Blocking."""
    selected = _select(opened, request)
    if request.selection.depth.is_limited:
        yield b"".join(_boundary(selected)) + FLUSH
    known = common(opened.table, request.selection.haves)
    is_detailed = "multi_ack_detailed" in request.capabilities
    if is_detailed:
        yield b"".join(pkt(f"ACK {sha} common\n") for sha in known)
    elif known:
        yield pkt(f"ACK {known[0]}\n")
    if not request.is_done:
        if request.has_round:
            yield from _end_of_round(known, is_detailed)
        return
    if known and is_detailed:
        yield pkt(f"ACK {known[-1]}\n")
    elif not known:
        yield pkt("NAK\n")
    pieces = pack_pieces(opened.table, opened.stream, selected.places)
    yield from _in_side_band(pieces) if SIDE_BAND in request.capabilities else pieces


def _end_of_round(known: Sequence[str], is_detailed: bool) -> Iterator[bytes]:
    """Yield the end of an answer that sends no pack yet. `known` are the commits that both sides have."""
    if known and is_detailed:
        yield pkt(f"ACK {known[-1]} ready\n")
    if is_detailed or not known:
        yield pkt("NAK\n")


def _select(opened: OpenRepository, request: Fetch) -> Selected:
    """Return the objects to send. Raise MalformedRequest if a wanted object does not exist or nothing is left."""
    try:
        return select(opened.table, opened.stream, request.selection)
    except WantNotFound as error:
        raise MalformedRequest(f"upload-pack: not our ref {error}") from None
    except NothingSelected:
        raise MalformedRequest("no commits selected for shallow requests") from None


def _refs(table: ObjectTable) -> Iterator[tuple[str, str]]:
    """Yield the names of branches and tags, and the ids of their commits. HEAD is first."""
    if table.head is not None:
        yield "HEAD", table.commit_id(table.refs[table.head])
    for name, number in sorted(table.refs.items()):
        yield name, table.commit_id(number)


def _boundary(selected: Selected) -> Iterator[bytes]:
    """Yield the changes of the boundary of the client's shallow clone."""
    yield from (pkt(f"shallow {sha}") for sha in selected.shallow)
    yield from (pkt(f"unshallow {sha}") for sha in selected.unshallow)


def _in_side_band(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a pack as lines of the side band."""
    for piece in pieces:
        yield pkt(PACK_BAND + piece)
    yield FLUSH
