"""The usual mistakes of authors: each is written into a folder, and `skillery test` says what to change and where."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillery.authoring.lint import lint
from skillery.authoring.scaffold import DESCRIPTIONS, KINDS, Kind, make_skill
from skillery.publishing.folders import read_skill_folder
from tests.cli.test_cli import Ended, skillery
from tests.support.processes import eventually

TOML = """\
name = "counts"
version = "0.1.0"
description = "Counts the words of a text."

[runtime]
entrypoint = "code/main.py"

[inputs]
text = { type = "string", required = true }
top = { type = "integer", default = 3 }

[[examples]]
name = "count two words"
args = { text = "a b" }
expect = 2
"""
SKILL_MD = "---\nname: counts\ndescription: Counts the words of a text.\n---\n\n# Counts\n"
MAIN = "def main(args):\n    return len(args['text'].split())\n"
TOOL = '{"name": "%s", "description": "Counts words.", "script": "%s", "parameters": {}}'
HANDLER = "export default async () => ({ count: 1 });\n"


class Mistake(NamedTuple):
    """A mistake: what is written where, and a pattern of the report. `new` replaces `old`, or the whole file."""

    name: str
    file: str
    old: str
    new: str
    says: str
    more: tuple[tuple[str, str], ...] = ()


def code(name: str, text: str, says: str, *more: tuple[str, str]) -> Mistake:
    return Mistake(name, "code/main.py", "", text, says, more)


MISTAKES = (
    Mistake(
        "entrypoint",
        "skill.toml",
        "code/main.py",
        "code/mian.py",
        r"skill\.toml:6: .*'code/mian\.py' is not in the bundle \(did you mean 'code/main\.py'\?\)",
    ),
    code("export", "def run(args): return 1\n", r"code/main\.py:1: .*does not define 'main'; .* it defines 'run'"),
    Mistake("toml", "skill.toml", '"0.1.0"', "0.1.0", r'skill\.toml:2: .*put the value in quotes: version = "0\.1\.0"'),
    Mistake(
        "yaml",
        "SKILL.md",
        "Counts the words of a text.",
        "Counts: words",
        r'SKILL\.md:3: .*the value needs quotes: description: "Counts: words"',
    ),
    Mistake("semver", "skill.toml", '"0.1.0"', '"1.0"', r"skill\.toml:2: .*'1\.0' is not a version.*'1\.0\.0'"),
    Mistake(
        "misspelt table",
        "skill.toml",
        "[inputs]",
        '[permision]\nsecrets = ["A"]\n\n[inputs]',
        r"skill\.toml:8: .*unknown key permision \(did you mean 'permissions'\?\)\n.*--allow-unknown",
    ),
    code("syntax", "def main(args:\n    return 1\n", r"code/main\.py:1: .*does not compile: .* at "),
    code(
        "missing package",
        "import pandas\n" + MAIN,
        r"code/main\.py:1: .*imports pandas, but no package for it is declared: add 'pandas' to runtime\.\w+\n",
    ),
    code(
        "relative import",
        "from .helpers import X\n" + MAIN,
        r"code/main\.py:1: .*leads nowhere: the bundle has no code/helpers\.py",
    ),
    code(
        "missing package and relative import",
        "import pandas\nfrom .helpers import X\n" + MAIN,
        r"code/main\.py:1: .*add 'pandas' to runtime\.\w+\n.*code/main\.py:2: .*bundle has no code/helpers\.py",
    ),
    code(
        "missing package and no parameter",
        "import pandas\n\n\ndef main(): return 1\n",
        r"code/main\.py:1: .*add 'pandas' to runtime\.\w+\n.*code/main\.py:4: .*main\(\) takes no argument",
    ),
    code(
        "relative import and parameters",
        "from .helpers import X\n\n\ndef main(text, top=3): return 1\n",
        r"code/main\.py:1: .*no code/helpers\.py\n.*code/main\.py:4: .*main\(text, top\) .*read args\['text'\]",
    ),
    code(
        "failing import and parameters",
        "raise ValueError('no')\n\n\ndef main(text, top): return 1\n",
        r"code/main\.py:1: .*ValueError: no\n.*code/main\.py:4: .*main\(text, top\) missing a required argument: 'top'",
    ),
    code(
        "output",
        "def main(args):\n    return iter(args)\n",
        r"skill\.toml:12: .*InvalidOutput: .*type dict_keyiterator is not JSON serializable",
    ),
    code(
        "loop",
        "def main(args):\n    while True:\n        pass\n",
        r"TimeoutError: the run took longer than 1000 ms; the code was at code/main\.py:[23], in main \(pass a larger",
    ),
    code(
        "read-only path",
        "def main(args):\n    open('/out.txt', 'w')\n",
        r"/out\.txt' \(a run can write only below /workspace, its working directory, and /tmp",
    ),
    code(
        "no parameter",
        "def main(): return 1\n",
        r"code/main\.py:1: .*main\(\) takes no argument, but a run passes one argument: write def main\(args\):",
    ),
    code(
        "import with the folder",
        "from code.helpers import X\n" + MAIN,
        r"code/main\.py:1: .*imports 'code\.helpers': write from helpers import …",
        ("code/helpers.py", "X = 1\n"),
    ),
    code(
        "file of the skill",
        "def main(args):\n    return open('resources/t.txt').read()\n",
        r"FileNotFoundError: .*Path\(__file__\)\.parents\[1\] / 'resources/t\.txt'",
        ("resources/t.txt", "hi\n"),
    ),
    code(
        "variable",
        "import os\n\n\ndef main(args):\n    return os.environ['API_KEY']\n",
        r"KeyError: 'API_KEY' \(.*write secrets = \['API_KEY'\] below \[permissions\] in skill\.toml",
    ),
    Mistake(
        "trailing comma",
        "tools.json",
        "",
        "[" + TOOL % ("a", "tools/a.mjs") + ",\n]\n",
        r"tools\.json:1: .*is not JSON \(line 1\): remove the comma before the closing bracket",
        (("tools/a.mjs", HANDLER),),
    ),
    Mistake(
        "JavaScript syntax",
        "tools.json",
        "",
        "[" + TOOL % ("a", "tools/a.mjs") + "]\n",
        r"tools/a\.mjs:2: .*SyntaxError: Unexpected token",
        (("tools/a.mjs", "const a = 1;\nexport default async () => { const x = ; };\n"),),
    ),
    Mistake(
        "JavaScript export",
        "tools.json",
        "",
        "[" + TOOL % ("a", "tools/a.mjs") + "]\n",
        r"tools/a\.mjs:1: .*has no default export that is a function; write: export default async",
        (("tools/a.mjs", "export const run = 1;\n"),),
    ),
    Mistake(
        "JavaScript package",
        "tools.json",
        "",
        "[" + TOOL % ("a", "tools/a.mjs") + "]\n",
        r"tools/a\.mjs:2: .*imports 'lodash', which runs do not have: bundle it into the handler",
        (("tools/a.mjs", "\nimport _ from 'lodash';\n" + HANDLER),),
    ),
    Mistake("shell syntax", "scripts/a.sh", "", "if true; then\n", r"scripts/a\.sh:2: .*syntax error"),
    Mistake(
        "dependencies at the top",
        "skill.toml",
        'name = "counts"',
        'name = "counts"\ndependencies = ["pandas"]',
        r"skill\.toml:2: .*unknown key dependencies \(write it below \[runtime\]\)",
    ),
    code(
        "a parameter for each input",
        "def main(text, top=3):\n    return len(text.split())\n",
        r"code/main\.py:1: .*main\(text, top\) .*write def main\(args\): and read args\['text'\]",
    ),
    code(
        "forgotten return",
        "def main(args):\n    len(args['text'])\n",
        r"-2\n.*\+null\n.*the function returned nothing: end it with return",
    ),
    code(
        "network",
        "import urllib.request\n\n\ndef main(args):\n    urllib.request.urlopen('https://example.com')\n",
        r'permissions\.network = \["https://example\.com"\] in its skill\.toml would allow example\.com',
    ),
    Mistake(
        "host without a scheme",
        "skill.toml",
        "[inputs]",
        "[permissions]\nnetwork = true\n\n[inputs]",
        r"skill\.toml:9: .*permissions\.network is a boolean, expected an array of strings",
    ),
    Mistake(
        "type",
        "skill.toml",
        '"string"',
        '"str"',
        r"skill\.toml:9: inputs\.text has the type 'str' \(did you mean 'string'\?\)",
    ),
    Mistake(
        "network without a scheme",
        "skill.toml",
        "[inputs]",
        '[permissions]\nnetwork = ["api.example.com"]\n\n[inputs]',
        r"skill\.toml:9: permissions\.network\[0\] is 'api\.example\.com', which means 'https://api",
    ),
    Mistake(
        "expected",
        "skill.toml",
        "expect = 2",
        "expected = 2",
        r"skill\.toml:12: .*expected is not a key of an example \(did you mean 'expect'\?\)",
    ),
    Mistake(
        "args",
        "skill.toml",
        'text = "a b" }',
        'txt = "a b", top = "3" }',
        r"Missing argument 'text': .*'top' is a string .*'txt' is not declared \(did you mean 'text'\?\).* Inputs: "
        r'text: string, top\?: integer = 3 A correct call: \{"name":"counts"',
    ),
    Mistake("name", "SKILL.md", "name: counts", "name: counter", r"SKILL\.md:2: the name is 'counter'"),
    Mistake(
        "template",
        "SKILL.md",
        "# Counts\n",
        "Use this skill for … Do not use it for …\n",
        r"SKILL\.md:6: the line is still that of the template",
    ),
    code(
        "pip",
        "import subprocess\n\n\ndef main(args):\n    subprocess.run(['pip', 'install', 'x'], check=True)\n",
        r'a run cannot install packages: declare them, dependencies = \["PACKAGE"\] below \[runtime\] in skill\.toml',
    ),
    code(
        "input",
        "def main(args):\n    return input()\n",
        r"EOFError: .*a run has no keyboard: declare",
    ),
    code(
        "memory",
        "def main(args):\n    return len(bytearray(3 << 30))\n",
        r"raise memory_mb in \[runtime\.limits\] of skill\.toml; the setting max_limits\.memory_mb is the maximum",
    ),
    code(
        "disk",
        "def main(args):\n    with open('big', 'wb') as file:\n        file.write(bytes(300 << 20))\n",
        r"raise disk_mb in \[runtime\.limits\] of skill\.toml",
    ),
    Mistake(
        "language",
        "skill.toml",
        "[runtime]",
        '[runtime]\nlanguage = "javascript"',
        r"skill\.toml:6: .*an entrypoint is Python; other languages run as tools \(the key 'script' in tools\.json"
        r".*\n(?!.*main\.mjs)",
        (("code/main.py", "export default async () => 1;\n"),),
    ),
    code(
        "exit",
        "import sys\nsys.exit(1)\n" + MAIN,
        r"code/main\.py:2: .*calls sys\.exit when it is imported; put",
    ),
    code(
        "exit in main",
        "import sys\n\n\ndef main(args):\n    sys.exit(2)\n",
        r"the code called sys\.exit\(2\) \(code/main\.py:5: return a value, or raise an error, instead of sys\.exit",
    ),
)


def write(folder: Path, mistake: Mistake | None = None) -> Path:
    files = {"skill.toml": TOML, "SKILL.md": SKILL_MD, "code/main.py": MAIN}
    if mistake is not None:
        before = files.get(mistake.file, "")
        assert mistake.old in before
        files[mistake.file] = before.replace(mistake.old, mistake.new, 1) if mistake.old else mistake.new
        files |= dict(mistake.more)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("mistakes") / "home")


@pytest.fixture
def run(home: str) -> Callable[..., Ended]:
    return lambda *arguments: skillery(*map(str, arguments), SKILLERY_HOME=home)


@pytest.mark.full(after=2)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name.replace(" ", "-"))
def test_each_mistake_is_named_with_its_place_and_remedy(
    run: Callable[..., Ended], tmp_path: Path, mistake: Mistake
) -> None:
    folder = write(tmp_path, mistake)

    def report() -> str:
        """Return the report. On a loaded machine, the time of a loop may be over before it writes its stack."""
        text = run("test", folder, "--timeout-ms", 1000 if mistake.name == "loop" else 60_000).out
        return text if mistake.name != "loop" or "the code was at" in text else ""

    said = eventually(report)
    if table := os.environ.get("MISTAKES_TABLE"):
        with Path(table).open("a") as file:
            file.write(f"## {mistake.name}\n{said}\n")
    assert re.search(mistake.says, said), said
    assert "publish again" not in said
    assert "nothing was stored" not in said
    assert "this server" not in said
    hints = re.findall(r"would allow example", said)
    assert len(hints) == (1 if mistake.name == "network" else 0)


@pytest.mark.full
def test_a_folder_without_its_parts_is_not_read(run: Callable[..., Ended], tmp_path: Path) -> None:
    (write(tmp_path / "a") / "SKILL.md").rename(tmp_path / "a" / "skill.md")
    assert "Rename skill.md to SKILL.md: capitals count." in run("test", tmp_path / "a").out
    (tmp_path / "b").mkdir()
    ended = run("publish", tmp_path / "b")
    assert f"there is no skill.toml in the folder '{tmp_path / 'b'}'" in ended.err
    assert "skillery new DIR" in ended.err


@pytest.mark.full
def test_unknown_keys_are_kept_on_request(run: Callable[..., Ended], tmp_path: Path) -> None:
    mistake = next(one for one in MISTAKES if one.name == "misspelt table")
    folder = write(tmp_path, mistake)
    assert run("publish", folder).code == 3
    assert run("test", folder, "--allow-unknown").code == 0
    published = run("publish", folder, "--allow-unknown")
    assert published.code == 0
    assert "unknown key permision (did you mean 'permissions'?): it is kept but has no effect" in published.err


def test_the_lint_names_line_ends_missing_files_and_odd_names(run: Callable[..., Ended], tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "scripts").mkdir()
    (folder / "scripts/a.sh").write_bytes(b"#!/bin/sh\r\necho a\r\n")
    (folder / "con.txt").touch()
    (folder / "a b?.txt").touch()
    with (folder / "SKILL.md").open("a") as file:
        file.write("\nRead [the rules](docs/no.md).\n")

    printed = run("test", folder).out

    assert "scripts/a.sh:1: the lines end with CR LF" in printed
    assert "con.txt: Windows reserves the name 'con.txt': take another name" in printed
    assert "a b?.txt: the name 'a b?.txt' is not portable: use letters, digits" in printed
    assert "SKILL.md:8: 'docs/no.md' is not a file of the skill" in printed


def test_the_report_counts_the_words_that_a_search_finds(run: Callable[..., Ended], tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert "search   finds 2 of the 3 words of its examples; no text has two; publishing" in run("test", folder).out
    toml = folder / "skill.toml"
    toml.write_text(TOML.replace("count two words", "words per paragraph in a long novel and poem"))
    printed = run("test", folder).out
    assert "search   finds 1 of the 5 words of its examples; no text has paragraph, long, novel, poem" in printed
    assert (
        "skill.toml:3: a search for the words of the skill's own examples does not find it: no text has paragraph"
        in printed
    )
    toml.write_text(TOML.replace("count two words", "invoices of March"))
    assert (
        "skill.toml:3: the description has no word of the skill's own examples (invoices, march)"
        in run("test", folder).out
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_lint_finds_each_sentence_of_a_template_in_another_skill(tmp_path: Path, kind: Kind) -> None:
    make_skill(tmp_path, kind, "dates.days")
    text, toml = (tmp_path / "SKILL.md").read_text(), (tmp_path / "skill.toml").read_text()
    placeholders = [number for number, line in enumerate(text.splitlines(), 1) if "…" in line or "- State" in line]
    assert left_over(tmp_path) == placeholders

    (tmp_path / "skill.toml").write_text(toml.replace(DESCRIPTIONS[kind], "Counts the days between two dates."))

    forms = ("# Days", "## ", "|", "```", "name:", "description:", "`execute_skill` with", "answers in", "from skills.")
    sentences = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line and len(line) > 20 and not line.startswith(forms)
    }
    assert len(sentences) > 2
    assert sentences <= set(left_over(tmp_path))


def left_over(folder: Path) -> list[int]:
    """Return the lines of SKILL.md that are those of the template."""
    warnings = lint(read_skill_folder(folder))
    return [int(one.split(":")[1]) for one in warnings if "is still that of the template" in one]


NUMBERS = itertools.count(1)
REFUSED = frozenset({one.name for one in MISTAKES} - {"type", "network without a scheme", "name", "template"})
"""The mistakes for which nothing is published. The others are warnings."""


@pytest.mark.full
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mistakes=st.lists(st.sampled_from([one for one in MISTAKES if one.name != "loop"]), max_size=2, unique=True),
    tags=st.lists(st.sampled_from(["words", "text"]), max_size=2, unique=True),
    note=st.text("abc äö\n", max_size=20),
)
def test_publish_accepts_exactly_the_folders_that_test_passes(
    run: Callable[..., Ended],
    tmp_path_factory: pytest.TempPathFactory,
    mistakes: list[Mistake],
    tags: list[str],
    note: str,
) -> None:
    folder = write(tmp_path_factory.mktemp("skill"))
    stated = f"tags = {json.dumps(tags)}\n\n[runtime]"
    toml = TOML.replace("0.1.0", f"0.1.{next(NUMBERS)}").replace("[runtime]", stated)
    changes = [("skill.toml", "", toml), ("notes.txt", "", note)]
    for mistake in mistakes:
        changes += [(mistake.file, mistake.old, mistake.new), *((path, "", text) for path, text in mistake.more)]
    for path, old, new in changes:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text((folder / path).read_text().replace(old, new, 1) if old else new)

    tested, published = run("test", folder, "--json"), run("publish", folder, "--json")
    assert (tested.code == 0) is (published.code == 0), (mistakes, tested.out, published.out)
    if len(mistakes) < 2 and not (mistakes and mistakes[0].old == '"0.1.0"'):
        assert (tested.code != 0) is bool(REFUSED & {one.name for one in mistakes})
    error = published.json[0].get("error", {"data": {}})
    said = "\n".join(one.get("message", "") for one in tested.json[0]["results"])
    for one in (*error["data"].get("problems", ()), *error["data"].get("findings", ())):
        # A failed example has the id of its run, and the test shows a difference as a diff.
        message = re.sub(r" \(run_\w+\)$", "", one["message"]).removeprefix("count two words: ")
        assert message in said or "+++ actual" in said or one.get("severity") == "warning", (message, said)
