"""The contracts of storages, authenticators and secrets pass for an ordinary user too, each with its real server.

The other tests run them as the user of the test run, who is root on many machines. The tests of the sandboxes run
their own contracts as an ordinary user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
CONTRACTS = {
    "built-in": ["tests/sandbox/test_backends.py"],
    "tokens": ["tests/identity/test_tokens.py::TestTokensAuthenticator"],
    "s3": ["plugins/skillery-s3/tests/test_s3_contract.py"],
    "oidc": [
        "plugins/skillery-oidc/tests/test_oidc_tokens.py::TestOidc",
        "plugins/skillery-oidc/tests/test_oidc_browser.py::TestLogin",
    ],
    "openbao": ["plugins/skillery-openbao/tests/test_openbao_contract.py"],
}


@pytest.mark.full
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests of each backend run as an ordinary user already")
def test_an_ordinary_user_passes_the_contracts() -> None:
    as_user = (sys.executable, str(CHECKOUT / "tests/support/ordinary_user.py"), sys.executable)
    # The database is not part of these backends, and Postgres refuses a user without a name.
    cases = [case for contract in CONTRACTS.values() for case in contract]
    command = (*as_user, "-m", "pytest", "-rA", "-p", "no:xdist", "-k", "not postgres", *cases)
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.findall(r"^PASSED (\S+)", done.stdout, re.MULTILINE)
    few = {case for case in cases if sum(name.startswith(case) for name in passed) < 5}
    assert few == set()
    assert not re.search(r"\d+ skipped", done.stdout), "a case of a contract was skipped"


def test_every_contract_of_a_backend_is_run_by_an_ordinary_user() -> None:
    """A new backend belongs into CONTRACTS. The sandboxes have their own test."""
    listed = " ".join(case.partition("::")[0] for cases in CONTRACTS.values() for case in cases)
    pattern = re.compile(r"^class Test\w+\((Storage|Secrets|Authenticator|BrowserLogin|Events)Contract\)", re.MULTILINE)
    tests = [*CHECKOUT.glob("tests/*/test_*.py"), *CHECKOUT.glob("plugins/*/tests/test_*.py")]
    found = {str(path.relative_to(CHECKOUT)) for path in tests if pattern.search(path.read_text())}

    assert found - {"tests/plugins/test_contract_explains.py"} == set(listed.split())
