"""A server with a policy for authors that sign with Sigstore: publishing, its policy, and the check of a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from private_sigstore import ISSUER, PrivateSigstore
from tests.cli.test_cli import skillery
from tests.conftest import Server, manifest, skill_files
from tests.proof.test_keys import skill_folder

NAME = "acme.report"
WORKFLOW = f"sigstore:{ISSUER}|https://github.com/acme/skills/.github/workflows/release.yml"
POLICY = f'[policy."acme.*"]\nneeds = ["author"]\nauthors = ["{WORKFLOW}@refs/tags/*"]\n'


@pytest.fixture
def sigstore() -> PrivateSigstore:
    return PrivateSigstore()


@pytest.fixture
def server(sigstore: PrivateSigstore, tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "skillery.toml").write_text(POLICY)
    root = sigstore.write_trusted_root(tmp_path / "trusted_root.json")
    running = Server(home, env={"SKILLERY_BACKENDS_SIGSTORE_OFFLINE_TRUSTED_ROOT": root})
    yield running
    running.stop()


@pytest.mark.full
def test_an_author_signs_with_sigstore(server: Server, sigstore: PrivateSigstore, tmp_path: Path) -> None:
    rpc, where, workflow = server.rpc, ("--url", server.url), WORKFLOW.partition("|")[2]

    def bundle_of(version: str, ref: str) -> str:
        digest = rpc("describe_skill", name=NAME, version=version)["skill"]["digest"]
        return sigstore.sign(digest.removeprefix("sha256:"), f"{workflow}@{ref}")

    def explained(version: str, ref: str, *, of: str = "") -> dict[str, Any]:
        """Publish a version with a bundle, which is about the version `of`, and return how it meets its policy."""
        rpc("create_skill", manifest=manifest(NAME, version), skill_md="# x\n", files=skill_files())
        about = {"name": NAME, "version": version}
        rpc.send("add_attestation", {**about, "envelope": bundle_of(of or version, ref)})
        return dict(rpc("explain_policy", **about))

    folder, file = skill_folder(tmp_path / "report", NAME), tmp_path / "report.sigstore.json"
    assert "(in_review)" in skillery("publish", folder, *where).out
    file.write_text(bundle_of("1.0.0", "refs/tags/v1.0.0"))
    published = skillery("publish", folder, "--bundle", str(file), *where)
    author = f"{WORKFLOW}@refs/tags/v1.0.0"
    assert (published.code, f"signed by {author}" in published.err) == (0, True), published.err
    verified = skillery("verify", f"{NAME}@1.0.0", *where)
    assert (verified.code, f"author\t{author}" in verified.out) == (0, True), verified.out + verified.err
    # The same bundle again adds nothing.
    rpc("add_attestation", name=NAME, version="1.0.0", envelope=file.read_text())
    rows = rpc("list_attestations", name=NAME, version="1.0.0", predicate="author")["attestations"]
    assert [(row["by"], row["kind"], row["summary"]) for row in rows] == [(author, "agent", "signed with Sigstore")]

    # The next release is from the same workflow, so its signer is the same.
    passed = explained("1.1.0", "refs/tags/v1.1.0")
    assert (passed["status"], passed["signer"], passed["is_same_signer"]) == ("published", WORKFLOW, True)
    # Another branch is another author, and a bundle of another version is refused.
    branch, other = explained("1.2.0", "refs/heads/main"), explained("1.3.0", "refs/tags/v1.3.0", of="1.0.0")
    assert [(each["status"], each["signer"]) for each in (branch, other)] == [
        ("in_review", WORKFLOW),
        ("in_review", ""),
    ]
    assert "the signature of a permitted author" in branch["needs"][0]["missing"]
