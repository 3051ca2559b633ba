"""Findings `dead_reference`: SKILL.md refers to files that the skill does not have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.publishing.file_findings import MOST_DEAD, dead_references
from tests.conftest import Rpc
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped

PATHS = ("SKILL.md", "scripts/run.py", "docs/a b.md", "references/api.md")


def dead(text: str) -> list[str]:
    return [reference.message.split("'")[1] for reference in dead_references(text, PATHS)]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("See [the API](references/absent.md#part).", "references/absent.md"),
        ("See [the API](ABSENT.md).", "ABSENT.md"),
        ("![a](assets/a%20b.png)", "assets/a b.png"),
        ("Run `python scripts/absent.py --x`.", "scripts/absent.py"),
        ("```sh\npython ./scripts/absent.py; ls\n```", "scripts/absent.py"),
        ("Run `$SKILL_DIR/scripts/absent.py` or `${CLAUDE_SKILL_DIR}/scripts/absent.py`", "scripts/absent.py"),
        ("Run `{baseDir}/docs/absent.md`", "docs/absent.md"),
        ("Run `../shared/run.py`", "../shared/run.py"),
        ("[x](../other/SKILL.md)", "../other/SKILL.md"),
        ("`${CLAUDE_PLUGIN_ROOT}/scripts/run.py`", "${CLAUDE_PLUGIN_ROOT}/scripts/run.py"),
    ],
)
def test_references_to_absent_files_are_dead(text: str, path: str) -> None:
    assert dead(text) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "[a](references/api.md#x) [b](./docs/a%20b.md) [c](scripts/) `python scripts/run.py`",
        "[a](https://example.org/x.md) [b](#part) [c](/root.md) [d](mailto:a@b.c) [e](example.org/x.md) [f](url)",
        "`src/index.ts` `out/report.pdf` `a/b` `scripts/*.py` `scripts/{name}.py` `scripts/<name>.py` `and/or.`",
        "scripts/absent.py in prose",
        "---\nname: x\nsee: '[x](absent.md)'\n---\n# Title",
        "```\n[x](absent.md)\n```",
        "`$HOME/scripts/x.py` `~/scripts/x.py` `https://x.org/scripts/x.py`",
    ],
)
def test_other_text_is_no_dead_reference(text: str) -> None:
    assert dead(text) == []


def test_inline_code_of_three_backticks_opens_no_fence() -> None:
    assert dead("```npm test```\n\n[x](references/gone.md)\n") == ["references/gone.md"]


def test_dead_references_have_lines_and_occur_once() -> None:
    text = "---\nname: x\n---\n[a](absent.md)\n\n`scripts/x.py` [a](absent.md)\n"

    found = dead_references(text, PATHS)
    assert [(reference.line, reference.is_certain) for reference in found] == [(4, True), (6, False)]
    many = "".join(f"[a](absent{number}.md)\n" for number in range(1000))
    assert len(dead_references(many, PATHS)) == MOST_DEAD


@given(st.text(alphabet="](`)./~- \n'\"a${}", max_size=300))
def test_dead_references_of_any_text_raise_no_error(text: str) -> None:
    assert len(dead_references(text, PATHS)) <= MOST_DEAD


def test_findings_of_imports_name_files_that_were_left_out(sqlite_rpc: Rpc, new_name: str) -> None:
    body = "Run `scripts/run.sh`, read [a](.config/a.md), [b](absent.md).\n"
    data = zipped({"a/SKILL.md": skill_md("a", body=body), "a/scripts/run.sh": "x", "a/.config/a.md": "x"})

    [skill] = sent(sqlite_rpc, data, namespace=new_name)["skills"]

    findings = {finding["line"]: finding["message"] for finding in skill["findings"]}
    assert {finding["rule"] for finding in skill["findings"]} == {"dead_reference"}
    messages = [finding["message"] for finding in skill["findings"]]
    assert len(findings) == 1
    assert "the import left it out: begins with a dot" in messages[0]
    assert messages[1] == "'absent.md' is not a file of the skill"
