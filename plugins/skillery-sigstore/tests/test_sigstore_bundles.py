"""Bundles of sigstore-python, verified offline, and changed in each part."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from skillery.backends import KINDS, Place, SigstoreIdentity, SigstoreVerifier
from skillery.errors import InvalidParams, StartupError
from skillery_sigstore import SigstoreSettings, open_verifier

BUNDLES = Path(__file__).parent / "bundles"
GITHUB = (BUNDLES / "github.sigstore.json").read_text("utf-8")
OF_GITHUB = "c4e92e9ecc828bef2aa7dba1de8ac983511f7532a0df11c770d39099a25cf201"
WORKFLOW = "https://github.com/trailofbits/rfc8785.py/.github/workflows/release.yml@refs/tags/v0.1.2"
OF_STAGING = "5e6ae9de58c1177bea615b4fcbfb2fd688e8c4b51c2e56b6a38e817833ec24a2"
STAGING_ROOT = files("sigstore") / "_store" / "https%3A%2F%2Ftuf-repo-cdn.sigstage.dev" / "trusted_root.json"


def opened(trusted_root: str = "") -> SigstoreVerifier:
    backend = open_verifier(SigstoreSettings(trusted_root), Place(Path("/nowhere")))
    verifier: SigstoreVerifier = KINDS["sigstore"].completed(backend)
    return verifier


def test_a_bundle_names_its_workflow() -> None:
    identity = opened().verify(GITHUB, OF_GITHUB)

    assert identity == SigstoreIdentity("https://token.actions.githubusercontent.com", WORKFLOW)


def test_a_trusted_root_accepts_only_bundles_of_its_instance() -> None:
    bundle = (BUNDLES / "staging.sigstore.json").read_text("utf-8")

    identity = opened(str(STAGING_ROOT)).verify(bundle, OF_STAGING)
    assert identity == SigstoreIdentity("https://github.com/login/oauth", "william@yossarian.net")
    with pytest.raises(InvalidParams):
        opened().verify(bundle, OF_STAGING)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    bundle = json.loads(GITHUB)
    change(bundle)
    return json.dumps(bundle)


def flipped(text: str) -> str:
    """Return base64 with another character in its middle."""
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]


def entry(bundle: dict[str, Any]) -> Any:
    return bundle["verificationMaterial"]["tlogEntries"][0]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "signature": lambda bundle: bundle["messageSignature"].update(
        signature=flipped(bundle["messageSignature"]["signature"])
    ),
    "certificate": lambda bundle: bundle["verificationMaterial"]["x509CertificateChain"]["certificates"][0].update(
        rawBytes=flipped(bundle["verificationMaterial"]["x509CertificateChain"]["certificates"][0]["rawBytes"])
    ),
    "time": lambda bundle: entry(bundle).update(integratedTime="1710888075"),
    "root": lambda bundle: entry(bundle)["inclusionProof"].update(
        rootHash=flipped(entry(bundle)["inclusionProof"]["rootHash"])
    ),
    "no log": lambda bundle: bundle["verificationMaterial"].update(tlogEntries=[]),
    "no material": lambda bundle: bundle.update(verificationMaterial=None),
    "no signature": lambda bundle: bundle.pop("messageSignature"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_bundle_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(InvalidParams) as refused:
        opened().verify(changed(change), OF_GITHUB)
    assert refused.value.message.startswith("the Sigstore bundle is not valid: ")


def test_a_bundle_of_another_file_or_without_json_is_refused() -> None:
    for bundle, sha256 in ((GITHUB, OF_STAGING), ("{}", OF_GITHUB), ("[" * 5000, OF_GITHUB), ("\x00", OF_GITHUB)):
        with pytest.raises(InvalidParams):
            opened().verify(bundle, sha256)


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_a_trusted_root_that_cannot_be_read_stops_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "trusted_root.json"
    if content:
        file.write_text(content)

    with pytest.raises(StartupError, match=r"^\[backends.sigstore.offline\] trusted_root: "):
        opened(str(file))


def test_every_setting_has_its_row() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")

    assert [name for name in SigstoreSettings.__struct_fields__ if f"| `{name}` |" not in readme] == []
