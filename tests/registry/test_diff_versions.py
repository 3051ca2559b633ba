"""diff_versions and `skillery diff`: differences between two versions of a skill."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skillery.formats.texts import MOST_DIFF, unified_diff
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who

fuzzed = settings(max_examples=int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100")), deadline=None)
MAIN = "def main(args):\n    return 1\n"
NETWORK = {"network": ["https://a.example.com"], "secrets": ["API_KEY"]}


def create(rpc: Any, name: str, version: str, code: str = MAIN, skill_md: str = "# A\n", **more: Any) -> None:
    files = more.pop("files", [])
    made = manifest(name, version, **more)
    rpc("create_skill", manifest=made, skill_md=skill_md, files=[*skill_files(code), *files])


@ON_SQLITE
def test_permissions_come_first_then_manifest_instructions_and_files(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a"
    binary = {"path": "resources/a.bin", "content": "AAECAw==", "encoding": "base64"}
    create(rpc, name, "1.0.0", files=[{"path": "code/tool.sh", "content": "x\n"}])
    changed = [{"path": "code/tool.sh", "content": "x\n", "executable": True}, binary]
    create(rpc, name, "1.1.0", MAIN.replace("1", "2"), "# A\nMore.\n", permissions=NETWORK, tags=["new"], files=changed)

    found = rpc("diff_versions", name=name, from_version="1.0.0")

    parts = "same old new permissions manifest instructions files left_out requires"
    assert list(found) == parts.split()
    assert (found["same"], found["old"]["version"], found["new"]["version"]) == (False, "1.0.0", "1.1.0")
    assert found["permissions"]["added"] == NETWORK
    assert found["permissions"]["removed"] == {"network": [], "secrets": []}
    assert found["manifest"] == [
        {"path": "tags", "old": None, "new": '["new"]'},
        {"path": "version", "old": '"1.0.0"', "new": '"1.1.0"'},
    ]
    assert found["instructions"]["diff"] == "@@ -1,1 +1,2 @@\n # A\n+More.\n"
    files = {one["path"]: (one["change"], one["diff"], one["note"]) for one in found["files"]}
    assert files["code/main.py"] == ("changed", "@@ -1,2 +1,2 @@\n def main(args):\n-    return 1\n+    return 2\n", "")
    assert files["code/tool.sh"] == ("mode", "", "")
    assert files["resources/a.bin"] == ("added", "", "not UTF-8 text")
    back = rpc("diff_versions", name=name, from_version="1.1.0", to_version="1.0.0")
    assert back["permissions"]["removed"] == NETWORK
    assert rpc("diff_versions", name=name, from_version="1.1.0")["same"] is True


def test_permissions_that_begin_to_hold_in_workspaces_are_added_permissions(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a"
    create(rpc, name, "1.0.0", permissions=NETWORK)
    runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main", "workspace": True}
    create(rpc, name, "1.1.0", permissions=NETWORK, runtime=runtime)

    found = rpc("diff_versions", name=name, from_version="1.0.0")

    assert found["permissions"]["added"] == {"network": [], "secrets": [], "workspace": True}
    back = rpc("diff_versions", name=name, from_version="1.1.0", to_version="1.0.0")
    assert back["permissions"]["removed"] == {"network": [], "secrets": [], "workspace": True}


def test_versions_that_a_caller_may_not_see_do_not_exist(org: Server, new_name: str) -> None:
    name = f"{new_name}.a"
    author = Caller(org.url, Who("author", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("agent", "read run publish", f"{new_name}.*", "agent"))
    stranger = Caller(org.url, Who("stranger", "read", "elsewhere.*"))
    create(author, name, "1.0.0")
    create(agent, name, "2.0.0", code=MAIN + "# draft\n")
    assert agent("diff_versions", name=name, from_version="1.0.0", to_version="2.0.0")["same"] is False

    def without(error: dict[str, Any]) -> tuple[int, str]:
        return error["code"], error["message"].replace("9.0.0", "2.0.0")

    asked = {"name": name, "from_version": "1.0.0"}
    draft, unknown = (stranger.error("diff_versions", **asked, to_version=one) for one in ("2.0.0", "9.0.0"))
    assert without(draft) == without(unknown)
    assert draft["code"] == -32003


def test_a_diff_is_bounded() -> None:
    assert unified_diff("a\n" * 5_001, "b\n" * 5_001) is None
    lines = [f"line {number}" for number in range(5_000)]
    diff = unified_diff("\n".join(lines), "\n".join(f"{line}!" for line in lines))
    assert diff is not None
    assert len(diff) < MOST_DIFF + 100
    lines[2_500] = "changed"
    small = unified_diff("\n".join(f"line {number}" for number in range(5_000)), "\n".join(lines))
    assert small is not None
    assert small.startswith("@@ -2498,7 +2498,7 @@\n line 2497\n")


@fuzzed
@given(st.lists(st.sampled_from("abcde"), max_size=14), st.lists(st.sampled_from("abcde"), max_size=14))
def test_diff_turns_the_old_text_into_the_new_text(old: list[str], new: list[str]) -> None:
    made: list[str] = []
    at = 0
    for line in (unified_diff("\n".join(old), "\n".join(new)) or "").splitlines():
        if header := re.match(r"@@ -(\d+)", line):
            made += old[at : int(header[1]) - 1]
            at = int(header[1]) - 1
        elif line[0] == "+":
            made.append(line[1:])
        else:
            made += [line[1:]] if line[0] == " " else []
            at += 1
    assert made + old[at:] == new


def test_a_folder_is_compared_with_a_version(
    sqlite_server: Server, sqlite_rpc: Rpc, tmp_path: Path, new_name: str
) -> None:
    name = f"{new_name}.a"
    create(sqlite_rpc, name, "1.0.0")
    folder = tmp_path / "words"
    (folder / "code").mkdir(parents=True)
    (folder / "skill.toml").write_text(
        f'name = "{name}"\nversion = "1.0.1"\ndescription = "What {name} does."\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
        '[permissions]\nnetwork = ["https://a.example.com"]\n'
    )
    (folder / "SKILL.md").write_text("# A\n")
    (folder / "code" / "main.py").write_text(MAIN + "# more\n")

    ended = skillery("diff", f"{name}@1.0.0", str(folder), "--url", sqlite_server.url)
    as_json = skillery("diff", str(folder), f"{name}@1.0.0", "--url", sqlite_server.url, "--json").json
    same = skillery("diff", name, f"{name}@1.0.0", "--url", sqlite_server.url)

    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[:4] == [
        f"{name} 1.0.0 -> {name} 1.0.1",
        "permissions:",
        "  + network https://a.example.com",
        "manifest:",
    ]
    assert lines[4:6] == ['  - version = "1.0.0"', '  + version = "1.0.1"']
    assert "    +# more" in lines
    assert as_json["permissions"]["removed"]["network"] == ["https://a.example.com"]
    assert list(as_json) == list(sqlite_rpc("diff_versions", name=name, from_version="1.0.0"))
    assert same.out.splitlines()[1] == "no difference"
