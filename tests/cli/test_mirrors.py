"""`skillery mirror`: another server, its git repositories, foreign indexes and folders are followed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from skillery.client.logins.kept import changing, keep_login
from skillery.client.logins.login import Login
from skillery.database import Database
from skillery.database.tables import origin_statements
from skillery.proof import dsse
from skillery.proof.dsse import SigningKey
from skillery.proof.keychains import make_keys_statement
from skillery.proof.seals import make_seal, read_seal
from tests.cli.test_cli import Ended, skillery
from tests.conftest import ASKS_FOR_TOKENS, ON_SQLITE, Rpc, Server, clean_environment, publisher
from tests.importing.test_importing import sent
from tests.proof.test_seals import OFTEN
from tests.support.archives import zipped
from tests.support.browser import token_of
from tests.support.bundles import vouched
from tests.support.logins import Configuration
from tests.support.prefork import FORKED, PROGRAMS
from tests.support.processes import PATIENCE_SECONDS, eventually
from tests.support.tls_proxy import tls_in_front_of

SKILL = "---\nname: {name}\ndescription: Does {name}.\n---\n# {text}\n"


class Index:
    """An index of Agent Skills on loopback. `files` has all answers by path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                own.asked.append((self.path, self.headers.get("authorization")))
                body = own.files.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.send_header("content-length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            do_POST = do_GET

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def offer(self, *entries: dict[str, Any], **more: Any) -> None:
        self.files["/.well-known/agent-skills/index.json"] = json.dumps({"skills": entries, **more}).encode()

    def skill(self, name: str, text: str = "Text", **more: Any) -> dict[str, Any]:
        """Serve an archive of a skill, and return its entry."""
        return self.archive(name, {"SKILL.md": SKILL.format(name=more.pop("stated", name), text=text).encode()}, **more)

    def archive(self, name: str, files: dict[str, bytes], **more: Any) -> dict[str, Any]:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            for path, content in files.items():
                about = tarfile.TarInfo(path)
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
        content = made.getvalue()
        self.files[f"/{name}.tar.gz"] = content
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return {"name": name, "type": "archive", "description": "x", "url": f"/{name}.tar.gz", "digest": digest} | more


class User:
    """A user with mirrors, who imports into one server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.data = folder / "data"
        self.variables = {**Configuration(folder / "configuration").variables, "XDG_DATA_HOME": str(self.data)}

    def __call__(self, *words: str) -> Ended:
        return skillery("mirror", *words, **self.variables)

    def add(self, source: str, *words: str) -> str:
        made = self("add", source, *words, "--json")
        assert made.code == 0, made.err
        mirror_id: str = made.json["id"]
        return mirror_id

    def run(self, *words: str, code: int = 0) -> Ended:
        done = self("run", *words, "--url", self.url)
        assert done.code == code, done.out + done.err
        return done

    def result(self, mirror_id: str) -> str:
        [found] = [one for one in self("list", "--json").json["mirrors"] if one["id"] == mirror_id]
        return str(found["result"])


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    yield index
    index.close()


@pytest.fixture
def user(tmp_path: Path, server: Server) -> User:
    return User(tmp_path, server.url)


def stored(rpc: Rpc, namespace: str) -> dict[str, str]:
    """Return the skills of a namespace, by name: their latest versions."""
    found = rpc("list_skills", namespace=namespace, detail="summary", limit=100)["skills"]
    return {one["name"].removeprefix(f"{namespace}."): one["version"] for one in found}


@pytest.fixture(scope="module")
def asking(shared_server: Callable[..., Server]) -> Server:
    return shared_server("asks_for_tokens", "sqlite", **ASKS_FOR_TOKENS)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["server", "git"])
@pytest.mark.full(after=1)
def test_another_server_is_followed_with_the_login_of_the_user(
    kind: str, user: User, asking: Server, rpc: Rpc, new_name: str
) -> None:
    publish = publisher(Rpc(asking.url, token_of(asking, f"p{new_name}", "read", "publish", namespaces=("*",))))
    for name in ("one", "two.three"):
        publish(f"{new_name}.{name}")
    token = token_of(asking, f"m{new_name}", "read")
    assert skillery("login", "--url", asking.url, stdin=token.encode(), **user.variables).code == 0
    if kind == "git":
        written = skillery("connect", "npx", "--url", asking.url, "--write", **user.variables, HOME=str(user.data))
        assert written.code == 0, written.err
        user.variables["PATH"] = f"{PROGRAMS}:{os.environ['PATH']}"
        user.variables["GIT_CONFIG_GLOBAL"] = str(user.data / ".gitconfig")
    source = f"{asking.url}/git/{new_name}.git" if kind == "git" else f"{asking.url}/n/{new_name}"
    mirror = user.add(source)

    user.run()
    assert stored(rpc, new_name) == {"one": "1.0.0", "two.three": "1.0.0"}
    assert "unchanged" in user.run().out
    publish(f"{new_name}.one", "1.1.0")
    user.run(mirror)

    assert stored(rpc, new_name) == {"one": "1.1.0", "two.three": "1.0.0"}
    assert user.result(mirror) == "1 published, 1 unchanged"
    assert token not in "".join(path.read_text("utf-8", "replace") for path in user.data.rglob("*") if path.is_file())


KEYS = "/.well-known/skillery/keys"


class Signed:
    """A copy of a server with a signed skill, as an attacker without its key can serve it."""

    def __init__(self, index: Index, real: Server, name: str) -> None:
        self.index, self.http = index, real.rpc.http
        self.listing = f"/n/{name.partition('.')[0]}/.well-known/agent-skills/index.json"
        [self.entry] = self.http.get(self.listing).json()["skills"]
        address = f"/skills/{name}/1.0.0"
        for path in (KEYS, f"{address}.files", f"{address}.intoto.jsonl", self.entry["url"]):
            index.files[path] = self.http.get(path).content
        self.stored = real.rpc("read_skill_file", name=name, version="1.0.0", path="SKILL.md")
        self.show_seals()

    def show_seals(self, *envelopes: str) -> None:
        """Answer both methods that a mirror calls: read_skill_file and list_seals."""
        result = self.stored | {"seals": [{"envelope": envelope} for envelope in envelopes]}
        self.index.files["/rpc"] = json.dumps({"result": result}).encode()

    def offer(self, archive: bytes | None = None, **more: str) -> None:
        if archive is not None:
            self.index.files[self.entry["url"]] = archive
        digest = f"sha256:{hashlib.sha256(self.index.files[self.entry['url']]).hexdigest()}"
        self.index.offer(self.entry | {"digest": digest} | more)


@pytest.fixture
def signed(index: Index, sqlite_server: Server, new_name: str) -> Signed:
    publisher(sqlite_server.rpc)(f"{new_name}.pdf")
    return Signed(index, sqlite_server, f"{new_name}.pdf")


@pytest.mark.full
def test_a_mirror_with_keys_copies_only_signed_versions(
    user: User, signed: Signed, rpc: Rpc, new_name: str, tmp_path: Path
) -> None:
    (keys := tmp_path / "keys.json").write_bytes(signed.index.files[KEYS])
    whole = signed.index.files[signed.entry["url"]]
    mirror = user.add(signed.index.url, "--namespace", f"{new_name}m", "--keys", str(keys))
    attacks = [
        (gzip.compress(gzip.decompress(whole).replace(b"return", b"retorn")), {}, "its files are not those of"),
        (whole, {"name": "other"}, "names no version of this skill"),
    ]
    for archive, changed, message in attacks:
        signed.offer(archive, **changed)
        assert message in user.run(code=3).err
        assert stored(rpc, f"{new_name}m") == {}

    signed.offer(whole)
    user.run(mirror)
    assert list(stored(rpc, f"{new_name}m").values()) == ["1.0.0"]
    # Other keys, also an earlier state of the same chain, stop the refresh.
    signed.index.files[KEYS] = b'{"statements": []}'
    assert "its signer has changed" in user.run(code=3).err


@pytest.mark.full
def test_a_mirror_with_keys_notices_an_earlier_or_frozen_state(
    user: User, index: Index, shared_server: Callable[..., Server], new_name: str, tmp_path: Path
) -> None:
    server = shared_server("sealing", "sqlite", **OFTEN)
    publisher(server.rpc)(f"{new_name}.pdf")
    [newest] = eventually(lambda: server.rpc("list_seals", newest=True)["seals"], of=server.process)
    seal = read_seal(newest["envelope"].encode())
    own_key = SigningKey.read((server.home / "signing/ed25519.pem").read_bytes())
    days_ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    frozen, earlier = (
        dsse.seal(make_seal(replace(seal, **changes)), own_key.sign).decode()
        for changes in ({"at": days_ago}, {"seq": seal.seq - 1})
    )
    signed = Signed(index, server, f"{new_name}.pdf")
    (keys := tmp_path / "keys.json").write_bytes(index.files[KEYS])
    mirror = user.add(index.url, "--namespace", f"{new_name}m", "--keys", str(keys))

    signed.show_seals(frozen)
    signed.offer()
    assert "shows an earlier state" in user.run(code=3).err
    signed.show_seals(newest["envelope"])
    user.run(mirror)
    for seals, actual in (((earlier,), str(seal.seq - 1)), ((), "no seal")):
        signed.show_seals(*seals)
        error = user.run(code=3).err
        assert f"this mirror has seal {seal.seq}" in error
        assert f"{actual}: history was rewritten" in error


@pytest.mark.full
def test_a_mirror_refuses_a_registry_with_old_keys_and_no_seal(
    user: User, signed: Signed, sqlite_server: Server, rpc: Rpc, new_name: str, tmp_path: Path
) -> None:
    own_key = SigningKey.read((sqlite_server.home / "signing/ed25519.pem").read_bytes())
    days_ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    statement = json.loads(make_keys_statement({own_key.keyid: own_key.public_der}, None))
    statement["predicate"]["at"] = days_ago
    envelope = json.loads(dsse.seal(json.dumps(statement).encode(), own_key.sign))
    signed.index.files[KEYS] = json.dumps({"statements": [envelope]}).encode()
    (keys := tmp_path / "keys.json").write_bytes(signed.index.files[KEYS])
    user.add(signed.index.url, "--namespace", f"{new_name}m", "--keys", str(keys))
    signed.offer()

    assert f"the newest seal is missing, and the keys are of {days_ago}" in user.run(code=3).err
    assert stored(rpc, f"{new_name}m") == {}


@pytest.mark.full
def test_a_single_file_is_copied_with_keys(
    user: User, sqlite_server: Server, rpc: Rpc, new_name: str, tmp_path: Path
) -> None:
    manifest = {"name": f"{new_name}.one", "version": "1.0.0", "description": "Does one.", "kind": "instruction"}
    sqlite_server.rpc("create_skill", manifest=manifest, skill_md="# One\n", files=[])
    (keys := tmp_path / "keys.json").write_bytes(sqlite_server.rpc.http.get(KEYS).content)
    user.add(f"{sqlite_server.url}/n/{new_name}", "--namespace", f"{new_name}m", "--keys", str(keys))

    user.run()

    [name] = stored(rpc, f"{new_name}m")
    content = rpc("read_skill_file", name=f"{new_name}m.{name}", version="latest", path="SKILL.md")["content"]
    assert "Does one." in content
    assert content.endswith("# One\n")


def copied(user: User, origin: Server, rpc: Rpc, new_name: str, keys: Path) -> tuple[str, str]:
    """Mirror a skill with the keys of its server. Return its name in the registry of `rpc`, and the mirror's id."""
    publisher(origin.rpc)(f"{new_name}.pdf")
    keys.write_bytes(origin.rpc.http.get(KEYS).content)
    mirror = user.add(f"{origin.url}/n/{new_name}", "--namespace", f"{new_name}m", "--keys", str(keys))
    user.run()
    [leaf] = stored(rpc, f"{new_name}m")
    return f"{new_name}m.{leaf}", mirror


@pytest.mark.full(after=1)
def test_a_mirror_keeps_the_statements_of_its_origin(
    user: User, sqlite_server: Server, server: Server, new_name: str, tmp_path: Path
) -> None:
    rpc = server.rpc
    origin, name = sqlite_server.rpc, f"{new_name}.pdf"
    copy, _ = copied(user, sqlite_server, rpc, new_name, tmp_path / "keys.json")

    def lines(http: httpx.Client, of: str) -> list[str]:
        return http.get(f"/skills/{of}/1.0.0.intoto.jsonl").text.splitlines()

    page = rpc("list_attestations", name=copy)
    kept, digest = page["origin"], origin("describe_skill", name=name)["skill"]["digest"]
    assert (kept["name"], kept["version"], kept["digest"]) == (name, "1.0.0", digest)
    assert kept["source"] == f"{sqlite_server.url}/n/{new_name}"
    statements = {each["predicate"]: each for each in kept["statements"]}
    assert {"publication", "scan", "passed"} <= statements.keys()
    [key] = origin("list_keys")["keys"]
    assert {each["keyid"] for each in kept["statements"]} == {key["keyid"]}
    published = origin("list_attestations", name=name, predicate="publication")["attestations"][0]
    assert {"predicate": "publication", **{key: published[key] for key in ("by", "keyid", "summary")}} == statements[
        "publication"
    ]
    only = rpc("list_attestations", name=copy, predicate="scan")["origin"]["statements"]
    assert only == [statements["scan"]]

    document = rpc.http.get(f"/skills/{copy}/1.0.0.origin.json").json()
    assert document["statements"] == lines(origin.http, name)
    # The registry's own statements are separate, and only they meet a need.
    assert not set(lines(rpc.http, copy)) & set(document["statements"])
    explained = rpc("explain_policy", name=copy)
    assert explained["origin"] == kept
    own = {each["id"] for each in page["attestations"]}
    assert {each["id"] for need in explained["needs"] for each in need["evidence"]} <= own
    shown = re.sub(r"<[^>]*>", "", rpc.http.get(f"/s/{copy}", headers={"accept": "text/html"}).text)
    assert f"{name} 1.0.0 of {kept['source']}, as the importer has stated" in shown
    assert "signed with keys that this registry has not checked, sha256:" in shown

    database = Database(server.database or f"sqlite:///{server.home / 'skillery.db'}")
    documents = select(func.count()).where(origin_statements.c.source == kept["source"])
    assert database.read_now(lambda connection: connection.scalar(documents)) == 1
    rpc("purge_version", name=copy, version="1.0.0", reason="wrong")
    assert database.read_now(lambda connection: connection.scalar(documents)) == 0
    database.close()


@ON_SQLITE
@pytest.mark.full
def test_an_export_has_the_statements_of_an_origin(
    user: User, sqlite_server: Server, rpc: Rpc, new_name: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    copy, _ = copied(user, sqlite_server, rpc, new_name, tmp_path / "keys.json")
    kept = rpc("list_attestations", name=copy)["origin"]
    file = tmp_path / "skills.tar.gz"
    assert skillery("export", str(file), copy, "--url", rpc.url).code == 0
    there = start_server(new_home=True)
    assert skillery("import", str(file), "--source", "office", "--url", there.url).code == 0

    assert there.rpc("list_attestations", name=copy)["origin"] == kept | {"source": "office"}
    printed = skillery("policy", "explain", copy, "--url", there.url).out
    stated = f"{new_name}.pdf 1.0.0 of office, as the importer has stated"
    assert f"origin: {stated}; its keys are not checked (publication, " in printed


@ON_SQLITE
def test_statements_about_other_files_are_not_kept(
    user: User, sqlite_server: Server, rpc: Rpc, new_name: str, tmp_path: Path
) -> None:
    _, mirror = copied(user, sqlite_server, rpc, new_name, tmp_path / "keys.json")
    tree = user.data / "skillery/mirrors" / mirror / "tree"
    files = {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    [place] = [path for path in files if path.startswith(".skillery-origins/")]
    [code] = [path for path in files if path.endswith("main.py")]
    [skill_md] = [path for path in files if path.endswith("SKILL.md")]
    document = json.loads(files[place])
    first, *others = document["statements"]
    payload = json.loads(first) | {"payload": json.loads(others[0])["payload"]}
    changes: dict[str, tuple[str, bytes]] = {
        "is about sha256:": (code, files[code] + b"# changed\n"),
        "is not about this SKILL.md": (skill_md, files[skill_md] + b"\nchanged\n"),
        "signature": (place, json.dumps(document | {"statements": [json.dumps(payload)]}).encode()),
        "has no key that signs": (place, json.dumps(document | {"keys": []}).encode()),
        "too many entries": (place, json.dumps(document | {"statements": [first] * 65}).encode()),
        "is not valid": (place, files[place] + b" " * 1024 * 1024),
    }

    for number, (problem, (path, content)) in enumerate(changes.items()):
        namespace = f"{new_name}{number}"
        [skill] = sent(rpc, zipped(files | {path: content}), namespace=namespace, source="x")["skills"]
        assert skill["outcome"] == "published"
        [repair] = [each for each in skill["repairs"] if each["code"] == "origin_statements"]
        assert problem in repair["message"]
        assert rpc("list_attestations", name=skill["name"])["origin"] is None
    assert [*rpc.http.get(f"/skills/{skill['name']}/1.0.0.origin.json").json()["error"]]


@pytest.mark.parametrize(
    ("word", "predicate"),
    [
        ("evaluation", {"count": 1, "shares": {"with": "all"}}),
        ("evaluation", {"findability": {"expected": 1, "prompts": 1, "at_1": "all"}}),
        ("evaluation", {"tasks": {"cost": "much", "currency": "", "model": ""}}),
        ("evaluation", {"shares": {"with": 10**400}}),
        ("provenance", {"buildDefinition": {"externalParameters": ["abc"]}}),
        ("review", {"decision": [[[]]] * 1000, "reviewer": 10**4000}),
    ],
)
def test_odd_statements_of_an_origin_break_no_answer(
    sqlite_rpc: Rpc, new_name: str, word: str, predicate: dict[str, Any]
) -> None:
    name = f"{new_name}.count"
    [skill] = sent(sqlite_rpc, zipped(vouched(name, word, predicate)), source="x")["skills"]
    assert (skill["outcome"], skill.get("repairs")) == ("published", None)
    [statement] = sqlite_rpc("list_attestations", name=name)["origin"]["statements"]
    assert statement["predicate"] == word
    assert sqlite_rpc("explain_policy", name=name)["origin"]["statements"] == [statement]
    assert sqlite_rpc.http.get(f"/s/{name}", headers={"accept": "text/html"}).status_code == 200


def test_keys_need_the_address_of_a_server(user: User, tmp_path: Path, sqlite_server: Server) -> None:
    (keys := tmp_path / "keys.json").write_bytes(sqlite_server.rpc.http.get(KEYS).content)

    refused = user("add", "https://example.org/skills.git", "--keys", str(keys))

    assert (refused.code, "has no keys" in refused.err) == (3, True)


def test_new_versions_wait_for_a_review(user: User, index: Index, rpc: Rpc, new_name: str) -> None:
    index.offer(index.skill("pdf"))
    user.add(index.url, "--namespace", new_name, "--review")

    user.run()

    assert stored(rpc, new_name) == {}
    [version] = rpc("list_versions", name=f"{new_name}.pdf")["versions"]
    assert version["status"] == "in_review"


def test_removed_skills_are_reported_and_stay(user: User, index: Index, rpc: Rpc, new_name: str) -> None:
    index.offer(index.skill("one"), index.skill("two"))
    mirror = user.add(index.url, "--namespace", new_name)
    user.run()
    index.offer(index.skill("one"))

    done = user.run()

    assert f"{new_name}.two" in done.out
    assert user.result(mirror) == "1 unchanged, 1 removed from the source"
    assert set(stored(rpc, new_name)) == {"one", "two"}


@pytest.mark.full
def test_a_source_that_is_gone_changes_nothing_and_is_tried_again(
    user: User, index: Index, rpc: Rpc, new_name: str
) -> None:
    index.offer(index.skill("one"))
    mirror = user.add(index.url, "--namespace", new_name)
    user.run()
    whole = index.files.pop("/.well-known/agent-skills/index.json")
    for broken in (None, b"<html>", b'{"skills": 7}', whole.replace(b"{", b'{"truncated": true, ', 1)):
        if broken is not None:
            index.files["/.well-known/agent-skills/index.json"] = broken
        assert index.url in user.run(code=3).err
        assert user.result(mirror).startswith("error: ")
    index.files["/.well-known/agent-skills/index.json"] = whole

    assert "unchanged" in user.run().out
    assert set(stored(rpc, new_name)) == {"one"}


@ON_SQLITE
@pytest.mark.full
def test_entries_that_lie_are_left_out_and_keep_their_former_copy(
    user: User, index: Index, rpc: Rpc, new_name: str
) -> None:
    index.offer(index.skill("one"), index.skill("two"))
    mirror = user.add(index.url, "--namespace", new_name)
    user.run()
    bomb = index.archive("bomb", {"SKILL.md": b"# x", "zeros": bytes(300 * 1024 * 1024)})
    climbing = index.archive("climbing", {"SKILL.md": b"# x", "../../../outside": b"x"})
    changed = index.skill("one", "Changed", digest=f"sha256:{'0' * 64}")
    gone = {**index.skill("two", "Changed"), "url": "/none.tar.gz"}
    good = index.skill("three")
    odd = ({**good, "name": name} for name in ("../x", "A", "x" * 65, ".."))
    no_digest = {**good, "name": "four", "digest": "none"}
    urls = [{**good, "name": f"url-{at}", "url": url} for at, url in enumerate(("http://[", "//\u2100.example/x"))]
    index.offer(changed, gone, bomb, climbing, *urls, good, good, *odd, no_digest)

    done = user.run(code=3)

    twice = "'three': the index has the name twice"
    for told in ("'one': the content", "'two'", "'bomb'", "'climbing'", twice, "'../x'", "'url-0'", "'url-1'"):
        assert told in done.err, done.err
    assert set(stored(rpc, new_name)) == {"one", "two", "three"}
    assert set(stored(rpc, new_name).values()) == {"1.0.0"}
    assert "not copied" in user.result(mirror)
    assert not list(user.data.parent.rglob("outside"))
    assert {path.name for path in (user.data / "skillery" / "mirrors" / mirror).iterdir()} == {
        "mirror.json",
        "tree",
        "digests",
    }


def test_a_renamed_skill_is_reported(user: User, index: Index, rpc: Rpc, new_name: str) -> None:
    """The path in the source identifies a skill, so another stated name does not make another skill."""
    index.offer(index.skill("one"))
    user.add(index.url, "--namespace", new_name)
    user.run()
    index.offer(index.skill("one", "Changed", stated="another"))

    done = user.run()

    assert stored(rpc, new_name) == {"one": "1.0.1"}
    assert "another" in done.err


def test_the_token_stays_with_its_server(
    user: User, index: Index, tmp_path: Path, new_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Index()
    for name, value in user.variables.items():
        monkeypatch.setenv(name, value)
    with changing(index.url):
        keep_login(index.url, Login("sky_of_the_index"))
    with tls_in_front_of(int(other.url.rpartition(":")[2]), tmp_path) as (url, certificate):
        index.offer({**other.skill("far"), "url": f"{url}/far.tar.gz"}, index.skill("near"))
        user.variables["SSL_CERT_FILE"] = str(certificate)
        user.add(index.url, "--namespace", new_name)
        user.run()
    other.close()

    assert {sent for _, sent in index.asked} == {"Bearer sky_of_the_index"}
    assert other.asked == [("/far.tar.gz", None)]


def test_another_host_needs_https(user: User, index: Index, new_name: str) -> None:
    other = Index()
    index.offer({**other.skill("far"), "url": f"{other.url}/far.tar.gz"})
    user.add(index.url, "--namespace", new_name)

    assert "not encrypted" in user.run(code=3).err
    other.close()
    assert other.asked == []


class GitServer(BaseHTTPRequestHandler):
    """git's own server over http, for the repositories in `folder`."""

    folder: Path

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        about = {
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
        }
        made = subprocess.run(
            ["git", "http-backend"], input=body, env=os.environ | about, capture_output=True, check=True
        )
        head, _, content = made.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


def test_a_repository_gives_no_files_of_the_user(user: User, new_name: str, tmp_path: Path, rpc: Rpc) -> None:
    """The repository has a link to a file of the user. The user's folder is a repository too, as those of many are."""
    work = tmp_path / "served" / "x.git"
    (work / "pdf").mkdir(parents=True)
    (work / "stolen").mkdir()
    (user.data / ".git").mkdir(parents=True)
    (user.data / "secret.md").write_text("---\nname: secret\ndescription: x\n---\nthe secret")
    (work / "pdf" / "SKILL.md").write_text(SKILL.format(name="pdf", text="Text"))
    (work / "pdf" / "inside.md").symlink_to("SKILL.md")
    (work / "stolen" / "SKILL.md").symlink_to("../../../../../secret.md")
    (work / "pdf" / "raw.md").write_text("$Id$" * 3)
    (work / ".gitattributes").write_text("*.md ident filter=own working-tree-encoding=UTF-32\n")
    smudge = f"touch {user.data}/ran; cat"
    user.variables["GIT_CONFIG_GLOBAL"] = str(user.data / "gitconfig")
    (user.data / "gitconfig").write_text(f'[filter "own"]\n\tsmudge = "{smudge}"\n')
    (work / "pdf" / "itself").symlink_to("itself")
    (work / "there").symlink_to("back")
    (work / "back").symlink_to("there")
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    (work / ".git" / "info" / "attributes").write_text("* !ident !filter !working-tree-encoding\n")
    for words in (["add", "--all"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    handler = type("Served", (GitServer,), {"folder": tmp_path / "served"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = user.add(f"http://127.0.0.1:{server.server_address[1]}/x.git", "--namespace", new_name)
        user.run(mirror)
        server.shutdown()

    tree = user.data / "skillery" / "mirrors" / mirror / "tree"
    assert (tree / "stolen" / "SKILL.md").resolve() != user.data / "secret.md"
    assert (tree / "pdf" / "inside.md").is_symlink()
    assert (tree / "pdf" / "raw.md").read_bytes() == b"$Id$" * 3
    assert not (user.data / "ran").exists()
    assert set(stored(rpc, new_name)) == {"pdf"}


@pytest.mark.parametrize(("folders", "files", "message"), [(8, 16, "or 200000 files"), (101, 1, "100 folders")])
def test_a_repository_with_billions_of_files_or_deep_folders_is_refused(
    folders: int, files: int, message: str, user: User, tmp_path: Path
) -> None:
    work = tmp_path / "served" / "x.git"
    git = ["git", "-C", str(work), "-c", "user.name=x", "-c", "user.email=x@example.org"]

    def ran(*words: str, told: str = "") -> str:
        return subprocess.run([*git, *words], input=told, capture_output=True, text=True, check=True).stdout.strip()

    subprocess.run(["git", "init", "--quiet", str(work)], check=True)
    entry, made = "100644 blob", ran("hash-object", "-w", "--stdin", told="x")
    for _ in range(folders + 1):
        made = ran("mktree", told="".join(f"{entry} {made}\t{number}\n" for number in range(files)))
        entry = "040000 tree"
    ran("update-ref", "HEAD", ran("commit-tree", "-m", "x", made))
    handler = type("Served", (GitServer,), {"folder": tmp_path / "served"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = user.add(f"http://127.0.0.1:{server.server_address[1]}/x.git")
        ended = user("run", mirror)
        server.shutdown()

    assert (ended.code != 0, message in ended.out + ended.err) == (True, True)
    assert not (user.data / "skillery" / "mirrors" / mirror / "tree").exists()


def test_a_repository_leads_to_no_address_without_encryption(user: User, index: Index) -> None:
    """A server may move a repository, but a redirect to http could also lead to a host of the user's network."""

    class Moved(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("location", f"{index.url}{self.path}")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = user.add(f"http://127.0.0.1:{server.server_address[1]}/x.git")
        done = user.run(mirror, code=3)
        server.shutdown()

    assert "git cannot read the repository" in done.err
    assert index.asked == []


def test_git_ends_with_the_command_that_waits_for_it(user: User) -> None:
    """The program with which git talks to a server waits as long as the server sends."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mirror = user.add(f"http://127.0.0.1:{silent.getsockname()[1]}/x.git")
        command = [FORKED, "mirror", "run", mirror, "--url", user.url]
        with subprocess.Popen(command, env=clean_environment(user.variables)) as client:
            connection, _ = silent.accept()
            client.send_signal(signal.SIGINT)
            with connection:
                connection.settimeout(PATIENCE_SECONDS)
                while connection.recv(4096):
                    pass
    assert client.returncode == 130


@pytest.mark.full
def test_an_index_with_too_many_bytes_is_copied_up_to_the_limit(index: Index, tmp_path: Path) -> None:
    user = User(tmp_path, "http://127.0.0.1:9")
    one = index.archive("one", {"SKILL.md": b"# x", "noise": os.urandom(2**20), "zeros": bytes(200 * 2**20)})
    index.offer(*({**one, "name": f"s{number}"} for number in range(6)))
    mirror = user.add(index.url)

    done = user("run", mirror, "--url", user.url)

    assert "'s5': the skills of the index have more than" in done.err, done.err
    copied = user.data / "skillery" / "mirrors" / mirror / "tree"
    assert {path.name for path in copied.glob("s*")} == {f"s{number}" for number in range(5)}
    shutil.rmtree(copied)


def test_a_folder_is_followed(user: User, tmp_path: Path, rpc: Rpc, new_name: str) -> None:
    skill = tmp_path / "skills" / "pdf"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL.format(name="pdf", text="One"))
    user.add(str(tmp_path / "skills"), "--namespace", new_name)
    user.run()
    (skill / "SKILL.md").write_text(SKILL.format(name="pdf", text="Two"))

    user.run()

    assert stored(rpc, new_name) == {"pdf": "1.0.1"}


def test_a_mirror_is_refreshed_when_it_is_due(user: User, index: Index, new_name: str) -> None:
    index.offer(index.skill("one"))
    mirror = user.add(index.url, "--namespace", new_name, "--every", "1h")
    assert index.url in user.run().out

    assert user.run().out == ""
    assert index.url in user.run(mirror).out, "a named mirror is refreshed at once"


@pytest.mark.parametrize(
    "source",
    [
        "https://user:secret@host.example/x",
        "http://host.example",
        "ftp://host.example/x",
        "/no/such/folder",
        "https://host.example/?token=x",
        "ext::sh -c true",
        "--upload-pack=true",
    ],
)
def test_sources_that_cannot_be_followed_are_refused(source: str, user: User) -> None:
    assert user("add", "--", source).code in {1, 2, 3}
    assert user("list", "--json").json == {"mirrors": []}


def test_a_mirror_is_added_once_and_removed(user: User, index: Index) -> None:
    mirror = user.add(index.url)
    assert "skillery mirror remove" in user("add", index.url).err
    assert user("remove", mirror).code == 0
    assert user("remove", mirror).code == 3
    assert user("list").err.strip() == "No mirrors."
