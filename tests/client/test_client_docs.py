"""The Python in docs/guide/client.md runs in the printed order. tests/docs/test_shell_blocks.py runs the tutorial."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from skillery.app.bundled import bundled_folders
from tests.conftest import Server
from tests.support.fake_model import FakeModel, Heard, Wanted

ROOT = Path(__file__).parents[2]


def blocks(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def looks(_: Sequence[Heard]) -> Sequence[Wanted]:
    return [Wanted("list_skills", {"limit": 3})]


def counts(heard: Sequence[Heard]) -> str:
    return f"I see {len(heard[-1].content['skills'])} skills."


def test_the_code_blocks_of_the_client_guide_run(
    sqlite_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = blocks("docs/guide/client.md")
    (csv,) = (path for folder in bundled_folders() for path in folder.rglob("orders.csv") if "profile" in str(path))
    (tmp_path / "orders.csv").write_bytes(csv.read_bytes())
    monkeypatch.chdir(tmp_path)
    with FakeModel(looks, counts) as model:
        monkeypatch.setenv("SKILLERY_URL", sqlite_server.url)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        names: dict[str, object] = {}
        exec(compile(source, "printed", "exec"), names)
        for name in ("client", "skillery", "openai"):
            getattr(names.get(name), "close", lambda: None)()

        assert model.turns == []
    printed = capsys.readouterr().out
    assert "I see 3 skills." in printed
    assert "completed Replaced 1 values" in printed
    assert (tmp_path / "copy.csv").read_bytes() == csv.read_bytes()
    assert "[3, 5]" in printed
    assert "Did you mean" in printed
    assert "skill_not_found" in printed
