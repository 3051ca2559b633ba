"""The rule of each case: a sentence that pytest shows if the case fails."""

from __future__ import annotations

import inspect

import pytest

PACKAGE = __name__.rpartition(".")[0]


class Contract:
    """Base class of the contract suites. Each case has a rule: its docstring, or the sentence that its name forms."""

    @pytest.fixture(autouse=True)
    def _rule(self, request: pytest.FixtureRequest) -> None:
        """Add the rule of the case to the report. Pytest shows the rule below the values of a failed case."""
        rule = rule_of(request.function)
        if rule:
            request.node.add_report_section("call", "rule", rule)


def rule_of(case: object) -> str:
    """Return the rule of a case of this package. Return "" for a test that a subclass has added."""
    module, name = getattr(case, "__module__", ""), getattr(case, "__name__", "")
    if not module.startswith(PACKAGE):
        return ""
    rule = inspect.getdoc(case) or f"{name.removeprefix('test_').replace('_', ' ').capitalize()}."
    return f"The contract of skillery.testing says: {' '.join(rule.split())}"
