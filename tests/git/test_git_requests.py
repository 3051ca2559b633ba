"""Requests that the program `git` does not send, limits, and servers that make the same objects."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillery.git.requests import MalformedRequest, parse_filter, parse_v0, parse_v2, pkt, read_lines
from tests.conftest import ON_SQLITE, Server, manifest, skill_files
from tests.git.clones import Git, files_of

fuzzed = settings(max_examples=int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100")), deadline=None)
REQUEST = "application/x-git-upload-pack-request"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def repository(server: Server) -> Iterator[httpx.Client]:
    """Yield a client for the repository of a namespace with one skill."""
    name = f"requests{os.getpid()}"
    server.rpc("create_skill", manifest=manifest(f"{name}.one"), skill_md="# One\n", files=skill_files())
    with httpx.Client(base_url=f"{server.url}/git/{name}.git", headers={"content-type": REQUEST}) as client:
        yield client


def fetch(*arguments: str, done: bool = True) -> bytes:
    lines = [pkt(f"{one}\n") for one in (*arguments, *(["done"] if done else []))]
    return pkt("command=fetch\n") + pkt("object-format=sha1\n") + b"0001" + b"".join(lines) + b"0000"


def post(
    client: httpx.Client, body: bytes, version: int = 2, *, encoding: str = "identity", kind: str = REQUEST
) -> httpx.Response:
    headers = {"content-encoding": encoding, "content-type": kind}
    return client.post(
        "/git-upload-pack",
        content=body,
        headers=headers | ({"git-protocol": f"version={version}"} if version else {}),
    )


def head_of(client: httpx.Client) -> str:
    listed = post(client, pkt("command=ls-refs\n") + b"0001" + pkt("ref-prefix HEAD\n") + b"0000").content
    assert listed.endswith(b" HEAD\n0000")
    return listed[4:44].decode()


def test_fetch_accepts_a_thousand_wants_and_refuses_unknown_wants(repository: httpx.Client) -> None:
    head = head_of(repository)

    many = post(repository, gzip.compress(fetch(*[f"want {head}"] * 1000)), encoding="gzip")
    assert many.content.startswith(b"000dpackfile\n")
    assert b"PACK\x00\x00\x00\x02" in many.content
    unknown = [f"want {number:040x}" for number in range(1000)]
    refused = post(repository, fetch(f"want {head}", *unknown))
    assert refused.status_code == 200
    assert refused.content == pkt(f"ERR upload-pack: not our ref {0:040x}\n")
    old = pkt(f"want {head} side-band-64k\n") + b"".join(pkt(f"{one}\n") for one in unknown) + b"0000" + pkt("done\n")
    assert post(repository, old, 0).content == refused.content


def test_malformed_requests_get_a_line_that_git_prints(repository: httpx.Client) -> None:
    head = head_of(repository)
    for version, body in (
        (2, b"zzzz"),
        (2, b"0003"),
        (2, b"00ffwant"),
        (2, pkt("command=object-info\n") + b"0000"),
        (2, fetch("want 1234")),
        (2, fetch(f"want {head}", "deepen x")),
        (2, fetch(f"want {head}", "filter sparse:oid=x")),
        (2, pkt("command=fetch") + pkt("object-format=sha256") + b"0000"),
        (0, pkt(f"want {head}\n") + pkt("have it\n") + b"0000"),
        (0, pkt(f"want {head}\n") + b"0000" + pkt("want more\n")),
        (0, pkt(b"\xff\xfe") + b"0000"),
    ):
        answer = post(repository, body, version)
        assert answer.status_code == 200, body
        assert answer.headers["content-type"] == "application/x-git-upload-pack-result"
        assert answer.content[4:8] == b"ERR ", body
    for body in (b"", b"0000"):
        assert post(repository, body, 0).content == b""
        assert post(repository, body, 2).content == b""


@ON_SQLITE
def test_requests_are_bounded(repository: httpx.Client) -> None:
    bomb = gzip.compress(b"\0" * 64 * MIB)
    assert post(repository, bomb, encoding="gzip").status_code == 413
    torn = gzip.compress(fetch())[:-10]
    assert b"ERR" in post(repository, torn, encoding="gzip").content
    assert b"ERR" in post(repository, b"not a gzip", encoding="gzip").content
    assert post(repository, b"0" * (4 * MIB + 1)).status_code == 413
    for lines in (["deepen-not HEAD"] * 70_000, [f"deepen-not b{number}" for number in range(2_000)]):
        assert b"ERR" in post(repository, gzip.compress(fetch(*lines)), encoding="gzip").content
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
        assert post(repository, b"0000", kind=kind).status_code == 415


def test_other_addresses_and_methods_are_refused(repository: httpx.Client, server: Server) -> None:
    for path in ("/HEAD", "/objects/info/packs", "/info/refs", "/config", "", "/git-upload-pack"):
        assert repository.get(path).status_code == 404, path
    for path in ("/git/.git/info/refs", "/git/_x.git/info/refs", "/git/n/.git/info/refs", "/git/a/b.git/info/refs"):
        assert server.rpc.http.get(f"{path}?service=git-upload-pack").status_code == 404, path
    assert repository.get(f"/info/refs?{'&'.join('a=b' for _ in range(100))}").status_code == 404
    pushed = repository.get("/info/refs?service=git-receive-pack")
    assert pushed.status_code == 403
    assert pushed.text.startswith("this repository is read-only")
    assert repository.post("/git-receive-pack", content=b"0000").status_code == 403


@pytest.mark.full
def test_two_servers_make_the_same_objects_and_limits_name_the_namespace(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    first = start_server(home="first")
    for name in ("small.one", "small.two", "large.one"):
        more = {"big.txt": "x" * 1_200_000} if name.startswith("large") else {}
        first.rpc("create_skill", manifest=manifest(name), skill_md=f"# {name}\n", files=skill_files(**more))
    first.rpc("set_label", name="small.one", label="stable", version="1.0.0")
    first.stop()
    shutil.copytree(first.home, tmp_path / "second")
    first = start_server(home="first", env={"SKILLERY_LOG_REQUESTS": "yes", "SKILLERY_LOG_LEVEL": "debug"})
    second = start_server(home="second", env={"SKILLERY_INDEX_SKILLS": "3", "SKILLERY_GIT_MAX_MB": "1"})
    one, two = Git(tmp_path / "one", first.url), Git(tmp_path / "two", second.url)

    for repository in ("small", "n/small.one"):
        assert one.refs(repository) == two.refs(repository)
        assert files_of(one.clone(repository, repository)) == files_of(two.clone(repository, repository))
        assert one.objects(repository) == two.objects(repository)
    assert "refs/heads/stable" in one.refs("small")
    assert "HEAD" in one.refs("_all")
    for repository, reason in (("_all", "more than 3 skills"), ("large", "at most 1048576")):
        refused = two.run("clone", two.address(repository), "refused")
        assert refused.returncode != 0
        assert reason in refused.stderr
        assert "/git/{namespace}.git" in refused.stderr

    hidden = "my-hidden-token"
    address = first.url.replace("http://", f"http://any:{hidden}@")
    one("clone", "--quiet", f"{address}/git/small.git", "with-token")
    first.rpc.http.get(f"/git/small.git/info/refs?service=git-upload-pack&token={hidden}")
    first.stop()
    assert "/git" in first.log.read_text()
    assert hidden not in first.log.read_text()


@pytest.mark.full
def test_the_setting_turns_the_addresses_off(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_GIT": "false"})

    assert server.rpc.http.get("/git/_all.git/info/refs?service=git-upload-pack").status_code == 404


# -- parsers ---------------------------------------------------------------------------------------------------

ids = st.from_regex(r"[0-9a-f]{40}", fullmatch=True)
words = st.sampled_from(
    [b"want ", b"have ", b"shallow ", b"deepen ", b"deepen-since ", b"filter ", b"done", b"command="]
)
lines = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda word, rest: word + rest, words, st.one_of(ids.map(str.encode), st.binary(max_size=50))),
)
bodies = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.one_of(lines.map(pkt), st.sampled_from([b"0000", b"0001", b"0002", b"0003", b"0004"]), st.binary(max_size=5))
    ).map(b"".join),
)


@fuzzed
@given(bodies)
def test_any_body_is_a_request_or_malformed(body: bytes) -> None:
    for parse in (parse_v0, parse_v2, lambda text: list(read_lines(text))):
        try:
            parse(body)
        except MalformedRequest as error:
            assert str(error).isprintable()  # noqa: PT017 - most bodies are malformed


@pytest.mark.full
@fuzzed
@given(st.lists(ids, min_size=1), st.lists(ids), st.booleans())
def test_both_protocols_read_the_same_request(wants: list[str], haves: list[str], is_done: bool) -> None:
    asked = [f"want {one}" for one in wants]
    had = [f"have {one}" for one in haves]
    new = parse_v2(fetch(*asked, *had, done=is_done))
    text = [pkt(f"{one}\n") for one in asked] + [b"0000"] + [pkt(f"{one}\n") for one in had]
    old = parse_v0(b"".join(text) + (pkt("done\n") if is_done else b"0000"))

    assert new is not None
    assert old is not None
    assert (old.selection, old.is_done) == new[:2]
    assert list(old.selection.wants) == wants
    assert list(old.selection.haves) == haves


@fuzzed
@given(st.text(max_size=30))
def test_a_filter_is_known_or_refused_by_its_name(text: str) -> None:
    try:
        parse_filter(text)
    except MalformedRequest as error:
        assert repr(text) in str(error)  # noqa: PT017 - nearly all texts are refused
    else:
        assert text in ("blob:none", "tree:0") or text.startswith("blob:limit=")
