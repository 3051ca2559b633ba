"""Docs that can become outdated: every method, setting, hook and command has its entry, and the README names existing
things.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from skillery import hookspecs
from skillery.backends import Capability
from skillery.errors import SkilleryError
from skillery.formats.import_names import USUAL
from skillery.methods.errors import CODES
from skillery.methods.table import METHODS
from skillery.settings.load import load_settings
from tests.support.attack_map import ATTACKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, "skillery_spec")]


def read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def kinds(kind: type[SkilleryError]) -> set[str]:
    return {kind.type}.union(*(kinds(child) for child in kind.__subclasses__()))


def rows(name: str) -> dict[str, str]:
    """Return the rows of the tables of a page by the code in their first cell."""
    lines = reversed(read(name).splitlines())  # a later table may repeat a name
    return {match[1]: line for line in lines if (match := re.match(r"\| `([^`]+)` \|", line))}


def test_the_paragraph_of_each_method_states_its_scope() -> None:
    paragraphs = re.findall(r"^####? ([a-z_, ]+)\n\nScope: (\w+)\.$", read("reference/methods.md"), re.MULTILINE)
    stated = {name: scope for names, scope in paragraphs for name in names.split(", ")}

    assert stated == {name: method.needs for name, method in METHODS.items()}


def test_every_method_is_called_in_a_test() -> None:
    """`Rpc` of tests/conftest.py compares the results with their types. Calls of `rpc.error` have none."""
    missing = set(METHODS)
    for path in (*(ROOT / "tests").rglob("test_*.py"), *ROOT.glob("plugins/*/tests/test_*.py")):
        text = path.read_text("utf-8")
        if any(f'"{method}"' in text for method in missing):
            missing -= {text for node in ast.walk(ast.parse(text)) for text in first_texts(node)}

    assert missing == set()


def first_texts(node: ast.AST) -> list[object]:
    """Return the first argument of a call, if it is a constant and the function is not `error`."""
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Attribute) and node.func.attr == "error"):
        return []
    return [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]


def test_every_setting_is_in_settings_md_with_its_default() -> None:
    shown, wrong = rows("reference/settings.md"), {}
    for setting in load_settings({"home": "/x"}, environ={}).values():
        name, value, row = setting.name, setting.value, shown.get(setting.name, "")
        default = str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
        has_default = name not in {"home", "database"} and value not in ("", ())
        if not row or (has_default and f"| `{default}` |" not in row):
            wrong[name] = (default, row)

    assert wrong == {}


def test_every_hook_is_in_hooks_md_with_an_example() -> None:
    text = read("reference/hooks.md")

    assert [name for name in HOOKS if f"### `{name}`" not in text or f"def {name}(" not in text] == []


def test_every_capability_is_in_hooks_md() -> None:
    text = read("reference/hooks.md")

    assert [name for name in Capability if f"`{name}`" not in text] == []


def test_every_error_type_is_in_methods_md() -> None:
    text = read("reference/methods.md")
    shown = {type_ for kind in CODES for type_ in kinds(kind)} - {
        "not_found",
        "conflict",
        "too_large",
        "content_missing",
    }

    assert {type_ for type_ in shown if type_ not in text} == set()


def test_links_between_documents_lead_somewhere() -> None:
    for document in [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *ROOT.glob("plugins/**/*.md"),
        *ROOT.glob("packages/**/*.md"),
    ]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_ci_runs_exactly_the_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    script = (ROOT / ".ci" / "run").read_text("utf-8")

    assert "```\nmake test\n```" in readme
    commands = [line for line in script.splitlines() if not line.startswith(("#", "set ", "cd "))]
    assert commands[-1] == "make test"
    assert all("TESTS_BASE" in line for line in commands[:-1]), "the base of the changes, and nothing else"


def test_the_licence_is_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")


def test_every_attack_has_a_test_that_is_there() -> None:
    folders = (ROOT / "tests", ROOT / "src" / "skillery" / "testing", ROOT / "plugins")
    found: set[str] = set()
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        found.update(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    assert [f"{number}. {what}" for number, (what, test) in enumerate(ATTACKS, 1) if test not in found] == []
    assert len({what for what, _ in ATTACKS}) == len(ATTACKS)


def test_limits_are_measured_by_a_clock_that_never_jumps() -> None:
    """A test cannot give a run its own wall clock, so the code that enforces limits must not read the wall clock."""
    folders = ("src/skillery/builtin", "src/skillery/jobs", "packages/cellblock/src")
    holders = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    holders += (ROOT / "plugins").glob("*/src/**/*.py")
    dated = {
        "access_tokens.py",
        "accounts.py",
        "channels.py",
        "credentials.py",
        "database_secrets.py",
        "signing.py",
        "tokens_authenticator.py",
    }
    assert len(holders) > 40
    looks = r"time\.time\(|time_ns\(|CLOCK_REALTIME|datetime\.now|utcnow"
    assert {path.name for path in holders if re.search(looks, path.read_text("utf-8"))} <= dated


def test_the_usual_programs_are_in_operations_md_and_in_the_container_file() -> None:
    """Each program is listed with its Debian package."""
    text, container = read("operate/operations.md"), (ROOT / "packaging" / "Containerfile").read_text("utf-8")
    for package, programs in USUAL.items():
        assert f"| `{package}` | {', '.join(f'`{one}`' for one in programs)} |" in text
        assert f"\n    {package} \\\n" in container
