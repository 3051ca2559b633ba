"""Failures of runs: the code, the docs and the runtime in the sandbox agree."""

from __future__ import annotations

import re
from pathlib import Path

import skillery
from cellblock.host.plan import RUNTIME
from skillery.backends import FailureType
from skillery.jobs import GUEST

SOURCE = Path(skillery.__file__).parent


def test_every_failure_type_has_a_distinct_cause_and_remedy() -> None:
    assert len({one.cause for one in FailureType}) == len({one.remedy for one in FailureType}) == len(FailureType)


def test_failures_that_the_runtime_reports_are_members() -> None:
    """The runtime cannot import the enumeration of the server, so it writes the types as strings."""
    paths = [*RUNTIME.glob("*.py"), *GUEST.folder.glob("*.py")]
    text = "".join(path.read_text("utf-8") for path in paths)
    written = set(re.findall(r'\{"type": "(\w+)", "message"', text)) - {"HostError"}

    assert written
    assert written <= set(FailureType)


def test_failures_of_the_host_are_made_from_the_enumeration() -> None:
    made_of_text = [
        f"{path.relative_to(SOURCE)}: {found}"
        for path in SOURCE.rglob("*.py")
        for found in re.findall(r'\bFailure\(\s*(?:type=)?"\w*"', path.read_text("utf-8"))
    ]

    assert made_of_text == []
