"""The signer: a registry whose key is in a transit engine, its outages, and the rotation of the key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openbao_here import SIGN, Transit
from skillery.backends import Place, Signer
from skillery.errors import StartupError, Unavailable
from skillery.proof.dsse import keyid_of
from skillery.testing import SignerContract
from skillery_openbao import open_signer
from skillery_openbao.settings import TransitSettings
from skillery_openbao.transit import OpenBaoSigner
from tests.cli.test_cli import skillery
from tests.conftest import Server, manifest, skill_files
from tests.proof.test_attestations import ADDRESS, keys_of
from tests.support.openbao import OpenBao
from tests.support.processes import eventually

pytest_plugins = ["openbao_fixtures"]
NAME = "acme.signed"


@pytest.fixture
def transit(bao: OpenBao, tmp_path: Path) -> Transit:
    return Transit(bao, tmp_path)


def signer_at(transit: Transit, **changed: Any) -> OpenBaoSigner:
    return open_signer(TransitSettings(**transit.settings(**changed)), Place(Path("/nowhere")))


@pytest.fixture(params=["ed25519", "ecdsa-p256"])
def signer(request: pytest.FixtureRequest, transit: Transit) -> Iterator[Signer]:
    transit.make_key(request.param)
    signer = signer_at(transit)
    yield signer
    asyncio.run(signer.close())


class TestOpenBaoSigner(SignerContract):
    @pytest.fixture
    def signer(self, signer: Signer) -> Signer:
        return signer


ANY = 'path "*" {{ capabilities = ["read", "update"] }}'


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("ed25519", {"key": "a/b"}, "key: 'a/b' is not a name of a key"),
        ("ed25519", {"key": "other", "policy": ANY}, "key: OpenBao has no key 'other'"),
        ("ed25519", {"mount": "none", "policy": ANY}, "mount: OpenBao has no engine 'none'"),
        ("ed25519", {"policy": SIGN.splitlines()[1]}, "the policy of the token must permit 'update' on 'transit-"),
        ("aes256-gcm96", {}, "key: 'skillery' is not a key of the type ed25519 or ecdsa-p256"),
    ],
    ids=["name", "key", "mount", "policy", "type"],
)
def test_a_signer_that_cannot_sign_is_named_at_start(
    transit: Transit, kind: str, changed: dict[str, Any], said: str
) -> None:
    transit.make_key(kind)

    with pytest.raises(StartupError) as refused:
        asyncio.run(start_and_close(transit, **changed))
    assert str(refused.value).startswith("[backends.signer.openbao]")
    assert said in str(refused.value)


async def start_and_close(transit: Transit, **changed: Any) -> None:
    signer = signer_at(transit, **changed)
    try:
        await signer.start()
    finally:
        await signer.close()


def test_a_key_that_can_leave_openbao_is_a_warning(transit: Transit, caplog: pytest.LogCaptureFixture) -> None:
    transit.make_key(exportable=True)

    asyncio.run(start_and_close(transit))
    assert "OpenBao permits to export the key 'skillery'" in caplog.text


def test_the_former_version_signs_after_a_rotation_and_another_key_does_not(
    transit: Transit, caplog: pytest.LogCaptureFixture
) -> None:
    transit.make_key()
    signer = signer_at(transit)
    try:
        old, _ = signer.sign(b"x")
        transit.rotate()
        new, _ = signer.sign(b"x")
        assert [keyid_of(public_der) for public_der in signer.public_keys()] == [new, old]
        assert signer.sign_with(old, b"x")[0] == old
        transit.remake_key()
        with pytest.raises(Unavailable):
            signer.sign_with(old, b"x")
        assert "'skillery' is not the key that it was before" in caplog.text
    finally:
        asyncio.run(signer.close())


@contextmanager
def running(home: Path, env: dict[str, str]) -> Iterator[Server]:
    server = Server(home, env=env, new_home=True)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.full
def test_a_registry_signs_in_openbao_through_outages_and_rotations(transit: Transit, tmp_path: Path) -> None:
    transit.make_key()
    section = transit.settings().items()
    named = {f"SKILLERY_BACKENDS_SIGNER_OPENBAO_{name.upper()}": str(value) for name, value in section}
    env: dict[str, Any] = {"SKILLERY_SIGNING_KEY": "openbao", "SKILLERY_SEALS_SECONDS": "1", **named}
    home = ("--home", str(tmp_path / "home"))

    def made(version: str) -> dict[str, Any]:
        return {"manifest": manifest(NAME, version), "skill_md": "# x\n", "files": skill_files()}

    with running(tmp_path / "home", env) as server:
        server.rpc("create_skill", **made("1.0.0"))
        [old] = keys_of(server.rpc)
        (tmp_path / "keys.json").write_bytes(server.rpc.http.get(ADDRESS).content)
        assert not (server.home / "signing").exists()
        transit.bao.seal()
        try:
            refused = server.rpc.error("create_skill", **made("1.1.0"))
            run = server.rpc("execute_skill", name=NAME, args={})
            assert server.rpc.error("describe_skill", name=NAME, version="1.1.0")["code"] == -32003
        finally:
            transit.bao.unseal()
        assert (refused["code"], "the signer cannot be reached" in refused["message"]) == (-32006, True), refused
        assert run["status"] == "completed"
        eventually(lambda: "result" in server.rpc.send("get_run_statement", {"run_id": run["run_id"]}))
        transit.rotate()
        server.rpc("create_skill", **made("1.2.0"))
        assert list(keys_of(server.rpc)) == [old]
    rotated = skillery("key", "rotate", *home, **env)
    assert rotated.code == 0, rotated.err
    again = skillery("key", "rotate", *home, **env)
    assert "is the newest key of the signer" in again.err
    with running(tmp_path / "home", env) as server:
        server.rpc("create_skill", **made("2.0.0"))
        assert list(keys_of(server.rpc)) == [old, rotated.out.strip()]
        for version in ("1.2.0", "2.0.0"):
            pinned = ("--keys", str(tmp_path / "keys.json"), "--url", server.url)
            verified = skillery("verify", f"{NAME}@{version}", *pinned)
            assert verified.code == 0, verified.err
