"""The contract of signers: the built-in ones, and that of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillery.backends import KINDS, NoSettings, Place, Signer
from skillery.builtin.pem_signers import home, secret
from skillery.proof.dsse import SigningKey
from skillery.testing import SignerContract
from tests.docs.test_hook_snippets import block, run


class TestHomeSigner(SignerContract):
    @pytest.fixture
    def signer(self, tmp_path: Path) -> Signer:
        signer: Signer = home.skillery_signer().open(NoSettings(), Place(tmp_path))
        return signer


class TestSecretSigner(SignerContract):
    @pytest.fixture
    def signer(self, tmp_path: Path) -> Signer:
        pem = SigningKey.new().pem.decode()
        signer: Signer = secret.skillery_signer().open(NoSettings(), Place(tmp_path, key_secret=lambda: pem))
        return signer


class TestSignerOfThePage(SignerContract):
    @pytest.fixture
    def signer(self) -> Signer:
        signer: Signer = KINDS["signer"].completed(run(block("class Volatile:"))["Volatile"]())
        return signer
