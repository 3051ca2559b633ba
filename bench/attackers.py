"""Attacks. Each is a bounded number of requests to one server on this machine.

`python -m bench.attackers NAME` runs one attack in a separate process and prints the outcome. It is expected that the
server refuses, answers with an error or closes the connection. The address and the token are read from stdin.
"""

from __future__ import annotations

import gzip
import json
import keyword
import re
import socket
import string
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bench.crowd import crowd
from bench.prober import LAST, set_priority
from bench.victim import MIB, Answer, Victim, batch, flood, mib, post, read_answer
from tests.support.browser import Browser

CHUNKED = "Transfer-Encoding: chunked"
FILE_SKILL, FILE_MIB = "attack.file", 12
LIST_NAMESPACE, LIST_SKILLS, LIST_INPUT_BYTES = "attack.list", 40, 200_000
MCP = ("Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2025-11-25")


class Attack(NamedTuple):
    point: int
    """Number in the list of attacks that a server must withstand."""
    what: str
    run: Callable[[Victim], str]
    """Function that runs the attack and returns the outcome."""
    has_budget: bool = False
    """Whether `bodies_mb` or `answers_mb` limits the memory of the attack."""


# -- trailers ------------------------------------------------------------------------------------------------------


def ended_body(victim: Victim) -> bytes:
    """Return a complete chunked body, so that the following bytes are trailers."""
    return victim.head("POST", "/rpc", CHUNKED, login=False) + b"1\r\n{\r\n0\r\n"


def trailer_lines(victim: Victim) -> str:
    lines = b"X-T: value\r\n"
    most, seconds = (8 * MIB, 1) if victim.small else (120 * MIB, 4)
    return flood(victim, ended_body(victim), lines * 5_000, connections=4, most=most, seconds=seconds).text()


def trailer_value(victim: Victim) -> str:
    most, seconds = (8 * MIB, 1) if victim.small else (120 * MIB, 5)
    opening = ended_body(victim) + b"X-Trailer: "
    return flood(victim, opening, b"v" * 65_536, connections=2, most=most, seconds=seconds).text()


def chunk_extension(victim: Victim) -> str:
    most, seconds = (8 * MIB, 1) if victim.small else (120 * MIB, 4)
    opening = victim.head("POST", "/rpc", CHUNKED, login=False) + b"1;name="
    return flood(victim, opening, b"v" * 65_536, connections=4, most=most, seconds=seconds).text()


# -- answers -------------------------------------------------------------------------------------------------------


def many_files(victim: Victim) -> str:
    calls = 4 if victim.small else 40
    return post(victim, "/rpc", batch(calls, "read_skill_file", name=FILE_SKILL, path="big.txt")).text()


def unread_blobs(victim: Victim) -> str:
    """Send batches whose answers are not read for some seconds."""
    calls, seconds = (10, 1) if victim.small else (100, 8)
    body = batch(calls, "read_blob", blob_id=victim.blob, mode="full")
    head = victim.head("POST", "/rpc", f"Content-Length: {len(body)}", "Connection: close")
    connections = [victim.connect(receive_buffer=4096) for _ in range(6)]
    for connection in connections:
        connection.sendall(head + body)
    time.sleep(seconds)
    for connection in connections:
        connection.settimeout(2)
    answers = [read_answer(connection, 3) for connection in connections]
    for connection in connections:
        connection.close()
    return f"after {seconds} s unread: {counted(answers)}, {mib(sum(answer.size for answer in answers))} MiB read"


def many_lists(victim: Victim) -> str:
    calls = 6 if victim.small else 60
    return post(victim, "/rpc", batch(calls, "list_skills", detail="summary", namespace=LIST_NAMESPACE)).text()


# -- sources that are slow to compile --------------------------------------------------------------------------------


def identifiers(count: int) -> list[str]:
    """Return the shortest identifiers."""
    letters = string.ascii_letters
    pairs = (first + second for first in letters for second in letters + string.digits + "_")
    return [*letters, *(pair for pair in pairs if not keyword.iskeyword(pair))][:count]


def pattern(names: list[str], others: Iterable[str]) -> str:
    """Return Python source that is slow to compile: a `match` statement with the pattern `[names] | [others]`.

    The compiler sorts the names of the second alternative by swaps. The more their order differs from the order of
    `names`, the more swaps it makes.
    """
    return f"def main(args):\n match args:\n  case [{','.join(names)}]|[{','.join(others)}]: pass\n"


def publish_all(victim: Victim, sources: list[str]) -> str:
    runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
    calls = [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "create_skill",
            "params": {
                "manifest": {
                    "name": f"attack.bomb{time.time_ns()}.n{number}",
                    "version": "1.0.0",
                    "description": "x",
                    "runtime": runtime,
                },
                "skill_md": "# x",
                "files": [{"path": "code/main.py", "content": source}],
            },
        }
        for number, source in enumerate(sources)
    ]
    began = time.monotonic()
    answer = post(victim, "/rpc", json.dumps(calls).encode())
    return f"{answer.kinds()} after {time.monotonic() - began:.1f} s"


def reversed_names(victim: Victim) -> str:
    names = identifiers(600 if victim.small else 2600)
    return publish_all(victim, [pattern(names, reversed(names))] * 8)


def interleaved_names(victim: Victim) -> str:
    names = identifiers(160 if victim.small else 640)
    return publish_all(victim, [pattern(names, names[::2] + names[1::2])] * 2)


# -- large bodies --------------------------------------------------------------------------------------------------


def values(size: int, value: bytes) -> bytes:
    """Return an array of this size in bytes."""
    return b"[" + b",".join([value] * (size // (len(value) + 1))) + b"]"


def array_of_ones(victim: Victim) -> str:
    return post(victim, "/rpc", values((2 if victim.small else 28) * MIB, b"1")).kinds()


def tool_call(size: int) -> bytes:
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_skills","arguments":{"x":%s}}}'
    return call % values(size, b"[[[]]]")


def large_mcp(victim: Victim) -> str:
    return post(victim, "/mcp", tool_call((1 if victim.small else 28) * MIB), *MCP).kinds()


def small_mcp(victim: Victim) -> str:
    body = tool_call(900_000)
    return counted([post(victim, "/mcp", body, *MCP) for _ in range(2 if victim.small else 10)])


def nested_garbage(victim: Victim) -> str:
    body = b"[" * ((4 if victim.small else 60) * MIB)
    return ", ".join(f"{path} {post(victim, path, body, *MCP).kinds()}" for path in ("/rpc", "/mcp"))


def nested_pairs(victim: Victim) -> str:
    """Send valid JSON with nested arrays, as deep as decoders allow."""
    body = b"[" + b",".join([b"[" * 400 + b"]" * 400] * ((1 if victim.small else 60) * MIB // 801)) + b"]"
    return ", ".join(f"{path} {post(victim, path, body, *MCP).kinds()}" for path in ("/rpc", "/mcp"))


def counted(answers: Iterable[Answer]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in Counter(answer.kinds() for answer in answers).items())


# -- foreign text --------------------------------------------------------------------------------------------------

AT_ONCE = 8


def together(
    victim: Victim,
    path: str,
    body: bytes,
    kind: str = "application/json",
    verb: str = "POST",
    fields: Iterable[str] = (),
) -> str:
    """Send a request from eight attackers at once."""
    all_fields = ("Accept: */*", "Git-Protocol: version=2", "Connection: close", *fields)
    head = victim.head(verb, path, f"Content-Length: {len(body)}", *all_fields)
    request = head.replace(b"Content-Type: application/json", b"Content-Type: " + kind.encode()) + body

    def send(_: int) -> Answer:
        with victim.connect() as connection:
            connection.sendall(request)
            return read_answer(connection)

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(send, range(AT_ONCE)))
    return f"{counted(answers)} after {time.monotonic() - began:.1f} s"


def imports_in_blanks(victim: Victim) -> str:
    code = (
        f"# from skills import{' ' * (4_000 if victim.small else 40_000)}!\nfrom skills import x\ndef main(a): pass\n"
    )
    call = {"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": {"language": "python", "code": code}}
    return together(victim, "/rpc", json.dumps(call).encode())


def signed_in(victim: Victim) -> Browser:
    browser = Browser(f"http://{victim.host}:{victim.port}", accept="text/html")
    browser.sign_in(victim.token)
    return browser


TABLES = """import os
def main(args):
    os.makedirs("out")
    for number in range(8):
        open(f"out/{number}.csv", "w").write('1,"a",2\\n' + '"' * COUNT + "x")
"""


def previews_of_quotes(victim: Victim) -> str:
    """Open the page of a run that wrote eight tables of quotes."""
    code = TABLES.replace("COUNT", "240" if victim.small else "16_000")
    call = {"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": {"language": "python", "code": code}}
    found = re.search(rb'"run_id":"([^"]+)"', post(victim, "/rpc", json.dumps(call).encode()).start)
    if found is None:
        return "no run"
    cookies = "; ".join(f"{name}={value}" for name, value in signed_in(victim).http.cookies.items())
    page = f"/runs/{found[1].decode()}"
    return together(
        victim._replace(token=""), page, b"", verb="GET", fields=("Accept: text/html", f"Cookie: {cookies}")
    )


def uploads_of_digits(victim: Victim) -> str:
    """Upload an archive with a header of digits through the page /publish."""
    browser = signed_in(victim)
    fields = {name: (None, value) for name, value in browser.fields("/publish").items()}
    request = browser.http.build_request(
        "POST", "/publish", files={**fields, "archive": ("x.tar.gz", archive_of_digits(victim))}
    )
    cookies = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    more = ("Accept: text/html", f"Cookie: {cookies}", f"Origin: {browser.url}")
    return together(victim._replace(token=""), "/publish", request.read(), request.headers["content-type"], fields=more)


def header_of_digits(victim: Victim) -> str:
    return together(victim, "/import?namespace=attack.tar", archive_of_digits(victim), "application/gzip")


def archive_of_digits(victim: Victim) -> bytes:
    digits = b"0" * (8_192 if victim.small else 65_536)
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(digits)
    return gzip.compress(info.tobuf() + digits + bytes(1024))


def differences_of_words(victim: Victim) -> str:
    """Compare two versions whose lines have the same words in another order."""
    name, count = "attack.words", 99 if victim.small else 199
    for version, words in (("1.0.0", "a b "), ("1.1.0", "b a ")):
        params = {
            "manifest": {"name": name, "version": version, "description": "x", "kind": "instruction"},
            "skill_md": "\n".join(f"{line} {words * count}" for line in range(60)),
            "files": [],
        }
        post(
            victim, "/rpc", json.dumps({"jsonrpc": "2.0", "id": 1, "method": "create_skill", "params": params}).encode()
        )
    params = {"name": name, "from_version": "1.0.0", "to_version": "1.1.0"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "diff_versions", "params": params}
    return together(victim, "/rpc", json.dumps(call).encode())


def repeated_refs(victim: Victim) -> str:
    line = b"0013deepen-not HEAD"
    body = b"0011command=fetch0001" + line * (2_000 if victim.small else 150_000) + b"0000"
    return together(victim, "/git/_all.git/git-upload-pack", body, "application/x-git-upload-pack-request")


# -- all of them ---------------------------------------------------------------------------------------------------


def busy(victim: Victim) -> str:
    """Use processor time without an attack, as the baseline."""
    until = time.monotonic() + (1 if victim.small else 4)
    while time.monotonic() < until:
        sum(range(10_000))
    return ""


def connections(victim: Victim) -> str:
    return crowd(victim)


ATTACKS: dict[str, Attack] = {
    "trailer-lines": Attack(1, "endless trailer lines, 4 connections", trailer_lines),
    "trailer-value": Attack(1, "one endless trailer value, 2 connections", trailer_value),
    "chunk-extension": Attack(1, "an endless chunk extension, 4 connections", chunk_extension),
    "connections": Attack(3, "slow connections, 1024 descriptors", connections),
    "files": Attack(4, f"a batch of 40 `read_skill_file`, {FILE_MIB} MiB each", many_files, True),
    "blobs": Attack(4, "6 unread batches of 100 `read_blob`, 1 MiB each", unread_blobs, True),
    "lists": Attack(4, "a batch of 60 `list_skills` over large `[inputs]`", many_lists, True),
    "reversed": Attack(7, "8 patterns of 2,600 names, the second half reversed", reversed_names),
    "interleaved": Attack(7, "2 patterns of 640 names, the second half interleaved", interleaved_names),
    "blanks": Attack(9, "8 × `run_code` with 40,000 blanks behind an import", imports_in_blanks),
    "previews": Attack(9, "8 × the page of a run with 8 tables of 16,000 quotes", previews_of_quotes),
    "uploads": Attack(9, "8 × an upload to `/publish` of a tar header of 64 KiB digits", uploads_of_digits),
    "digits": Attack(9, "8 × `/import` of a tar header of 64 KiB digits", header_of_digits),
    "words": Attack(9, "8 × `diff_versions` of 60 lines with 400 words", differences_of_words),
    "refs": Attack(9, "8 × git fetch with 150,000 `deepen-not`", repeated_refs),
    "array": Attack(8, "`/rpc`: 28 MiB array of `1`", array_of_ones, True),
    "mcp-large": Attack(8, "`/mcp`: 28 MiB of small values", large_mcp, True),
    "mcp-small": Attack(8, "`/mcp`: 10 bodies of 0.9 MB of small values", small_mcp, True),
    "garbage": Attack(8, "60 MiB of `[`", nested_garbage, True),
    "nested": Attack(8, "60 MiB of nested arrays", nested_pairs, True),
}
"""Attacks by the names that `python -m bench.attackers` accepts."""
BASELINE = Attack(0, "no attack, only a busy process", busy)


def main() -> None:
    set_priority(LAST)
    victim = Victim(*json.loads(sys.stdin.read()))
    attack = ATTACKS.get(sys.argv[1], BASELINE)
    socket.setdefaulttimeout(60)
    sys.stdout.write(attack.run(victim))


if __name__ == "__main__":
    main()
