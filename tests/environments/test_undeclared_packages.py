"""Packages that the Python files of a skill import but its manifest does not declare: found, reported, and locked on
request.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from skillery.environments.sources import PackageSources, choose
from skillery.formats.foreign_requirements import inferred_requirement, installed_packages, stated_requirements
from skillery.formats.import_names import is_known_package, providers_of
from skillery.formats.imports import MOST, NEVER_FOREIGN, OwnModules, find_imports
from skillery.formats.requirements import (
    LONGEST,
    LeftOut,
    Tiers,
    inferred_in,
    left_out_in,
    mark_inferred,
    mark_left_out,
    mark_sizes,
    mark_tiers,
    read_lock,
    requirement_problem,
    without,
)
from skillery.publishing.undeclared import shared_sizes, too_large_in
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.importing.test_importing import by_path, sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import CODE, create, lock_of, needing, pins
from tests.support.package_index import PackageIndex
from tests.support.wheels import make_wheel

RULE = "undeclared_package"


@pytest.fixture(scope="session")
def house(wheelhouse: Path) -> Path:
    """Return the wheelhouse with packages whose modules have other names than the packages."""
    make_wheel(wheelhouse, "pyyaml", "6.0", {"yaml/__init__.py": "def dump(x): return f'{x}!'\n"})
    make_wheel(wheelhouse, "pillow", "11.0", {"PIL/__init__.py": "", "PIL/Image.py": "MODE = 'RGB'\n"})
    make_wheel(wheelhouse, "opencv_python", "4.9", {"cv2/__init__.py": "A = 1\n"})
    make_wheel(wheelhouse, "google_genai", "1.0", {"google/genai/__init__.py": "KEY = 'g'\n"})
    return wheelhouse


@pytest.fixture
def packages_rpc(packages: Server, house: Path) -> Rpc:
    return packages.rpc


def imported(rpc: Rpc, name: str, files: dict[str, str], **params: str) -> dict[str, Any]:
    content = {f"{name}/SKILL.md": skill_md(name)} | {f"{name}/{path}": text for path, text in files.items()}
    [skill] = sent(rpc, zipped(content), **params)["skills"]
    found: dict[str, Any] = skill
    return found


def undeclared(told: dict[str, Any]) -> list[tuple[str, int, str]]:
    found = (one for one in told.get("findings", ()) if one["rule"] == RULE)
    return [(one["file"], one["line"], one["severity"]) for one in found]


def script(rpc: Rpc, name: str, path: str, **more: Any) -> dict[str, Any]:
    ran: dict[str, Any] = rpc("execute_skill", name=name, script=path, **more)
    return ran


# -- what a file imports -----------------------------------------------------------------------------------------------


def test_imports_are_required_or_optional() -> None:
    source = b"""
import os, numpy as np, skills.other
from google.cloud import storage
from . import beside
import sys; import zipp
try:
    import rich
except ImportError:
    import plain
def f():
    import pandas
if sys.version_info < (3, 11):
    import tomli
if __name__ == "__main__":
    import click
if TYPE_CHECKING:
    import only_for_types
class A:
    import inside
try:
    import strict
finally:
    import last
with suppress(ModuleNotFoundError):
    import maybe
async def g():
    for x in y:
        match x:
            case 1:
                from deep.er import thing
import rich.console
"""
    found = {one.module: (one.line, one.optional) for one in find_imports(source)}

    assert {module for module, (_, optional) in found.items() if not optional} == {
        *("numpy", "google.cloud.storage", "zipp", "inside", "strict", "last", "rich"),
    }
    assert {module for module, (_, optional) in found.items() if optional} == {
        *("plain", "pandas", "tomli", "click", "maybe", "deep"),
    }
    assert found["rich"] == (31, False)
    assert found["google.cloud.storage"][0] == 3


@pytest.mark.parametrize(
    "source",
    [
        b"import (",
        b"\xff\xfe",
        b"import a\x00",
        b"print 'two'",
        b"(" * 5000,
        b"import " + b"a." * 300 + b"b",
        b"\n" * 600_000,
    ],
)
def test_a_file_that_does_not_parse_imports_nothing(source: bytes) -> None:
    assert find_imports(source) == ()


@pytest.mark.parametrize(
    "line",
    [
        *(
            "import zz",
            "import  zz.a",
            "import os, zz",
            "import os as o , zz as z",
            "import os, \\\n  zz",
            "x = 1; import zz",
        ),
        *("from zz import a", "from zz.b import (a,\n  c)", "from zz import*", "from \\\n zz import a", "import\tzz"),
        *(
            "if x: import zz",
            "if x:\n\timport zz",
            "\ufeffimport zz",
            "x = 1\rimport zz",
            "\fimport zz",
            "class A: import zz",
        ),
    ],
)
def test_find_imports_reads_every_import_syntax(line: str) -> None:
    assert [one.module for one in find_imports(f"{line}\n".encode())] == ["zz"]


@pytest.mark.parametrize(
    "text", ["\n", " ", "import ", "from ", "from\n", ";", ":\t", "import os,", "\\\n", "import os\n"]
)
def test_long_sources_are_looked_at_in_linear_time(text: str) -> None:
    """With an algorithm of quadratic time, these texts would take minutes."""
    assert find_imports((text * (500_000 // len(text))).encode()) == ()


@pytest.mark.full
@given(st.lists(st.from_regex(r"\A[a-z][a-z_0-9]{0,8}\Z"), max_size=300))
def test_find_imports_lists_each_module_once_up_to_the_limit(names: list[str]) -> None:
    source = "".join(f"import {name}x1\n" for name in names).encode()

    found = find_imports(source)

    assert [one.module for one in found] == list(dict.fromkeys(f"{name}x1" for name in names))[:MOST]
    assert not NEVER_FOREIGN & {one.module for one in found}


@pytest.mark.full
@given(st.lists(st.from_regex(r"\A[a-z]{1,6}(/[a-z]{1,6}){0,3}(\.py|\.txt)\Z"), max_size=20))
def test_modules_of_the_bundle_are_its_own(paths: list[str]) -> None:
    own = OwnModules(paths)

    for path in paths:
        *folders, file = path.split("/")
        names = [*folders, file[:-3]] if path.endswith(".py") else []
        assert all(own.have(name, "run.py", is_known=False) for name in names)


@pytest.mark.parametrize(
    ("path", "importer", "is_own"),
    [
        ("docx.py", "scripts/run.py", True),
        ("lib/docx.py", "scripts/run.py", True),
        ("docx/tools.py", "scripts/run.py", True),
        ("checks/docx.py", "scripts/run.py", False),
        ("checks/docx.py", "checks/run.py", True),
        ("docx/scripts/tools.py", "scripts/run.py", False),
    ],
)
def test_a_file_inside_a_package_does_not_hide_a_known_module(path: str, importer: str, is_own: bool) -> None:
    own = OwnModules(["checks/__init__.py", "scripts/run.py", path])

    assert own.have("docx", importer, is_known=True) == is_own
    assert own.have("docx", importer, is_known=False)


# -- packages of modules -----------------------------------------------------------------------------------------------


def test_provider_table_matches_the_installed_packages() -> None:
    wrong = [
        (module, names)
        for module, names in packages_distributions().items()
        if providers_of(module).how == "known"
        and not {canonicalize_name(name) for name in names} & set(providers_of(module).packages)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("module", "packages", "how"),
    [
        ("yaml", ("pyyaml",), "known"),
        ("sklearn", ("scikit-learn",), "known"),
        ("prompt_toolkit", ("prompt-toolkit",), "known"),
        ("google.genai", ("google-genai",), "known"),
        ("ruamel.yaml", ("ruamel-yaml",), "known"),
        ("utils", ("utils",), "guessed"),
    ],
)
def test_a_module_has_a_provider(module: str, packages: tuple[str, ...], how: str) -> None:
    assert providers_of(module) == (packages, how)
    assert is_known_package(packages[0]) == (how == "known")


@pytest.mark.parametrize(
    ("module", "allowed", "package", "words"),
    [
        ("yaml", (), "pyyaml", ""),
        ("utils", (), "", "no package is known to provide it"),
        ("acme_tools", ("acme-*",), "acme-tools", ""),
        ("utils", ("acme-*",), "", "packages.allowed"),
        ("whisper", (), "", "it is ambiguous: openai-whisper and whisper"),
        ("whisper", ("openai-*",), "openai-whisper", ""),
        ("bs4", (), "", "packages.denied"),
        ("cv2", (), "opencv-python", ""),
    ],
)
def test_from_an_index_no_package_is_inferred_by_its_name_alone(
    module: str, allowed: tuple[str, ...], package: str, words: str
) -> None:
    denied = ("beautifulsoup4", "opencv-python-headless")
    sources = PackageSources(("https://pypi.org/simple",), allowed=allowed, denied=denied)

    choice = choose(sources, None, providers_of(module))

    assert choice.package == package
    assert words in choice.reason


def test_the_mark_of_a_lock_is_read_back() -> None:
    lock = f"six==1.0 --hash=sha256:{'0' * 64}\n".encode()

    marked = mark_inferred(lock, ["six", "pyyaml"])

    assert (inferred_in(marked), inferred_in(lock)) == (("six", "pyyaml"), ())
    assert read_lock(marked) == read_lock(lock)


# -- findings ----------------------------------------------------------------------------------------------------------


def test_an_entrypoint_that_cannot_be_imported_is_refused(packages_rpc: Rpc, new_name: str) -> None:
    made = manifest(new_name, runtime={"entrypoint": "code/main.py"})
    files = skill_files(f"import os\nimport yaml, helper\n{CODE}", **{"code/helper.py": "import PIL.Image\n"})

    checked = packages_rpc("check_skill", manifest=made, skill_md="# A\n", files=files)
    error = packages_rpc.error("create_skill", manifest=made, skill_md="# A\n", files=files)

    assert not checked["ok"]
    assert undeclared(checked) == [("code/main.py", 2, "error"), ("code/helper.py", 1, "warning")]
    assert "add 'pyyaml' to runtime.dependencies" in checked["findings"][0]["message"]
    assert (error["code"], error["data"]["findings"][0]["rule"]) == (-32007, RULE)


def test_an_import_that_code_can_do_without_refuses_nothing(packages_rpc: Rpc, new_name: str) -> None:
    code = f"try:\n    import yaml\nexcept ImportError:\n    yaml = None\n{CODE}"
    made = manifest(new_name, runtime={"entrypoint": "code/main.py"})

    checked = packages_rpc("check_skill", manifest=made, skill_md="# A\n", files=skill_files(code))

    assert (checked["ok"], undeclared(checked)) == (True, [("code/main.py", 2, "warning")])
    assert "yaml (optional)" in checked["findings"][0]["message"]


def test_declared_packages_and_their_modules_are_not_reported(packages_rpc: Rpc, new_name: str) -> None:
    code = f"import frames\nimport figures\nimport strange_fork\nimport yaml\n{CODE}"

    checked = packages_rpc(
        "check_skill", manifest=needing(new_name, "frames"), skill_md="# A\n", files=skill_files(code)
    )

    # The modules of frames are unknown: frames may provide strange_fork.
    assert [one["message"].partition(",")[0] for one in checked["findings"]] == ["imports yaml"]
    assert checked["ok"]


def test_an_imported_script_is_reported_with_file_and_line(packages_rpc: Rpc, new_name: str) -> None:
    files = {"scripts/a.py": "import scripts.b\nimport cv2\n", "scripts/b.py": "import cv2\nimport magic\nimport zzz\n"}

    skill = imported(packages_rpc, new_name, files)

    assert skill["outcome"] == "published"
    assert undeclared(skill) == [
        ("scripts/a.py", 2, "warning"),
        ("scripts/b.py", 2, "warning"),
        ("scripts/b.py", 3, "warning"),
    ]
    assert "cv2 (and 1 more file)" in skill["findings"][0]["message"]
    assert "no known package provides" in skill["findings"][2]["message"]
    assert undeclared(imported(packages_rpc, f"{new_name}.off", files, packages="declared")) == []


def test_a_source_that_kills_the_worker_costs_its_own_findings_alone(packages_rpc: Rpc, new_name: str) -> None:
    hostile = "x = " + "-" * 400_000 + "1\n"

    skill = imported(packages_rpc, new_name, {"a.py": "import yaml\n", "b.py": hostile})

    assert skill["outcome"] == "published"
    assert [one["message"].partition(",")[0] for one in skill["findings"] if one["rule"] == RULE]


# -- locked ------------------------------------------------------------------------------------------------------------


def test_inferred_packages_are_locked_and_marked(packages_rpc: Rpc, new_name: str) -> None:
    files = {
        "scripts/show.py": "import yaml\nfrom PIL import Image\nfrom lib import out\nout(yaml.dump(Image.MODE))\n",
        "scripts/lib.py": "import frames\ndef out(x): print(x, frames.VERSION)\n",
    }

    before = imported(packages_rpc, new_name, files)
    skill = imported(packages_rpc, new_name, files, packages="infer")
    again = imported(packages_rpc, new_name, files, packages="infer")

    assert (before["version"], skill["version"], undeclared(skill)) == ("1.0.0", "1.0.1", [])
    assert {one["rule"] for one in skill["findings"]} == {"inferred_package"}
    assert (again["outcome"], again["digest"]) == ("unchanged", skill["digest"])
    described = packages_rpc("describe_skill", name=new_name)["skill"]
    assert described["manifest"]["runtime"]["inferred"] == ["frames", "pillow", "pyyaml"]
    assert [(one["name"], one.get("inferred", False)) for one in described["lock"]["packages"]] == [
        *(("figures", False), ("frames", True), ("pillow", True), ("pyyaml", True)),
    ]
    assert script(packages_rpc, new_name, "scripts/show.py")["output"]["stdout"] == "RGB! 2.0\n"
    assert imported(packages_rpc, new_name, files)["outcome"] == "unchanged"


def test_packages_that_cannot_be_inferred_are_reported_and_the_others_are_locked(
    packages_rpc: Rpc, new_name: str
) -> None:
    content = {
        f"{new_name}-a/SKILL.md": skill_md(f"{new_name}-a"),
        f"{new_name}-a/x.py": "import yaml\nimport forbidden\nimport elsewhere\nimport zzz\nimport whisper\n",
        f"{new_name}-b/SKILL.md": skill_md(f"{new_name}-b"),
        f"{new_name}-b/x.py": "import torn\ndef f():\n    import frames\n",
    }

    report = by_path(sent(packages_rpc, zipped(content), packages="infer"))

    one, other = report[f"{new_name}-a"], report[f"{new_name}-b"]
    assert (one["outcome"], other["outcome"]) == ("published", "published")
    lock = lock_of(packages_rpc, f"{new_name}-a")
    assert (pins(lock), inferred_in(lock.encode())) == ({"pyyaml": "6.0"}, ("pyyaml",))
    told = {one["message"].split()[1].rstrip(","): one["message"] for one in one["findings"] if one["rule"] == RULE}
    assert "forbidden is denied here" in told["forbidden"]
    [left_out] = [one for one in one["findings"] if one["rule"] == "package_left_out"]
    assert left_out["severity"] == "info"
    assert "has no wheel" in left_out["message"]
    lock = packages_rpc("describe_skill", name=f"{new_name}-a")["skill"]["lock"]
    assert [(entry["name"], entry["tier"], entry["reason"]) for entry in lock["left_out"]] == [
        ("elsewhere", "inferred", "no_wheel")
    ]
    assert "has no wheel" in lock["left_out"][0]["detail"]
    assert "the wheelhouse of this server has no wheel of zzz" in told["zzz"]
    assert "openai-whisper and whisper" in told["whisper"]
    assert pins(lock_of(packages_rpc, f"{new_name}-b")).keys() == {"torn", "frames", "figures"}


@pytest.mark.parametrize(
    "code",
    [
        "import yaml\nimport elsewhere\n",
        "import yaml, sys\ntry:\n    import elsewhere\nexcept ImportError:\n"
        "    sys.exit('elsewhere is not installed. Run: pip install elsewhere')\n",
    ],
    ids=["raises", "catches"],
)
def test_the_hint_names_the_reason_of_a_left_out_package(packages_rpc: Rpc, new_name: str, code: str) -> None:
    imported(packages_rpc, new_name, {"x.py": code}, packages="infer")

    output = script(packages_rpc, new_name, "x.py")["output"]

    assert output["exit_code"] == 1
    assert "elsewhere is left out of the packages of this skill: " in output["hint"]
    assert "has no wheel" in output["hint"]


@pytest.mark.parametrize("needing_bad", [False, True], ids=["itself", "below"])
def test_an_inferred_package_that_cannot_be_installed_is_left_out(
    packages_rpc: Rpc, new_name: str, house: Path, needing_bad: bool
) -> None:
    bad, top = f"bad{new_name}", f"top{new_name}"
    make_wheel(house, bad, "1.0", {f"{bad}.py": "X = 1"}, record={f"{bad}.py": "sha256=" + "A" * 43})
    make_wheel(house, top, "1.0", requires=[bad, "figures"])
    module = top if needing_bad else bad
    files = {
        "works.py": f"import yaml\ntry:\n    import {module}\nexcept ImportError:\n    print(yaml.dump('ok'))\n",
        "fails.py": f"import {module}\n",
    }
    imported(packages_rpc, new_name, files, packages="infer")

    works, fails = (script(packages_rpc, new_name, path)["output"] for path in files)
    lock = packages_rpc("describe_skill", name=new_name)["skill"]["lock"]

    assert (works["exit_code"], works["stdout"]) == (0, "ok!\n")
    assert f"{module} is left out of the packages of this skill: {bad} 1.0" in fails["hint"]
    [state] = lock["environments"]
    assert state["state"] == "ready"
    assert state["message"].startswith(f"left out: {module} ({bad} 1.0")


def test_a_declared_package_that_cannot_be_installed_fails_the_run(
    packages_rpc: Rpc, new_name: str, house: Path
) -> None:
    bad = f"bad{new_name}"
    make_wheel(house, bad, "1.0", {f"{bad}.py": "X = 1"}, record={f"{bad}.py": "sha256=" + "A" * 43})
    files = {"x.py": "import yaml\n", "requirements.txt": f"{bad}\n"}
    imported(packages_rpc, new_name, files, packages="infer")

    assert script(packages_rpc, new_name, "x.py")["error"]["type"] == "EnvironmentFailed"


@pytest.mark.parametrize(
    ("package", "left_out", "kept"),
    [
        ("one", ["one"], ["base", "main", "part", "two", "twopart"]),
        ("twopart", ["two"], ["base", "main", "one", "part"]),
        ("part", ["one", "two"], ["base", "main"]),
        ("", ["two"], ["base", "main", "one", "part"]),
        ("base", None, []),
        ("main", None, []),
    ],
)
def test_a_lock_without_a_package_keeps_the_needs_of_others(
    package: str, left_out: list[str] | None, kept: list[str]
) -> None:
    via = {"base": ["main", "one"], "part": ["one", "two"], "twopart": ["two"], "main": [], "one": [], "two": []}
    lock = "".join(
        f"{name}==1.0 \\\n    --hash=sha256:{'0' * 64}\n" + _via(parents) for name, parents in via.items()
    ).encode()
    marked = mark_inferred(mark_tiers(lock, Tiers(("main",), ("two",))), ["one", "two"])

    rest = without(marked, read_lock(marked), package)

    assert (rest and list(rest.left_out)) == left_out
    assert [pin.name for pin in rest.pins] == kept if rest else not kept
    assert without(lock, read_lock(lock), package) is None


def _via(parents: list[str]) -> str:
    if len(parents) == 1:
        return f"    # via {parents[0]}\n"
    return "    # via\n" + "".join(f"    #   {parent}\n" for parent in parents) if parents else ""


def test_left_out_packages_are_read_from_a_lock() -> None:
    lock = f"six==1.0 --hash=sha256:{'0' * 64}\n".encode()
    entry = LeftOut("torch", "optional", "too_large", "900 MB or more; the limit is 256 MB")

    marked = mark_inferred(mark_left_out(lock, [entry]), ["six"])

    assert left_out_in(marked) == (entry,)
    assert (inferred_in(marked), read_lock(marked)) == (("six",), read_lock(lock))
    assert left_out_in(b"# Left out: {\n# Left out: []\n" + lock) == ()


def test_a_locked_skill_goes_out_and_comes_in_as_it_was(packages_rpc: Rpc, new_name: str) -> None:
    skill = imported(packages_rpc, f"{new_name}.a", {"run.py": "import yaml\n"}, packages="infer")
    name = skill["name"]
    stored = packages_rpc("describe_skill", name=name, detail="full")["skill"]
    content = [
        {"path": one["path"], "content": packages_rpc("read_skill_file", name=name, path=one["path"])["content"]}
        for one in stored["files"]
    ]

    archive = {f"x/{one['path']}": one["content"] for one in content}
    [again] = sent(packages_rpc, zipped(archive))["skills"]

    assert (again["version"], again["digest"]) == (skill["version"], skill["digest"])
    assert stored["manifest"]["runtime"]["inferred"] == ["pyyaml"]


@pytest.mark.full
def test_a_skill_of_its_author_is_locked_where_the_server_says_so(
    start_server: Callable[..., Server], house: Path, new_name: str
) -> None:
    more = {"SKILLERY_PACKAGES_WHEELHOUSE": str(house), "SKILLERY_PACKAGES_INFER": "lock"}
    rpc = start_server(env={**more, "SKILLERY_PACKAGES_ALLOWED": "pyyaml"}).rpc
    code = "import yaml\ndef main(args): return yaml.dump(1)\n"
    made = manifest(new_name, runtime={"entrypoint": "code/main.py"})

    first = create(rpc, made, code)
    again = create(rpc, made, code)
    error = rpc.error(
        "create_skill",
        manifest=manifest(f"{new_name}.b", runtime={"entrypoint": "code/main.py"}),
        skill_md="# A\n",
        files=skill_files(f"import frames\n{CODE}"),
    )

    assert first == again
    assert rpc("execute_skill", name=new_name)["output"] == "1!"
    assert "packages.allowed" in error["data"]["findings"][0]["message"]


# -- published sets of scripts -----------------------------------------------------------------------------------------

SCRIPTS = {
    "plain import": "import yaml\nprint(yaml.dump(1))",
    "other name": "from PIL import Image\nprint(Image.MODE)",
    "several at once": "import os, yaml, frames\nprint(frames.VERSION)",
    "submodule": "import PIL.Image\nprint(PIL.Image.MODE)",
    "namespace": "from google import genai\nprint(genai.KEY)",
    "any of several": "import cv2\nprint(cv2.A)",
    "in a function": "def main():\n    import yaml\n    print(yaml.dump(2))\nmain()",
    "guarded by an exit": "try:\n    import yaml\nexcept ImportError:\n    raise SystemExit('install it')\nprint(1)",
    "when started": "if __name__ == '__main__':\n    import frames\n    print(frames.VERSION)",
    "through a neighbour": "import sys\nsys.path.insert(0, '.')\nimport lib_of_it\nprint(lib_of_it.V)",
    "fallback": "try:\n    import ujson as json\nexcept ImportError:\n    import json\nimport yaml\nprint(json)",
    "continued": "from frames import \\\n    VERSION\nprint(VERSION)",
}


@pytest.mark.full
def test_all_of_a_set_of_scripts_run_with_inferred_packages(packages_rpc: Rpc, new_name: str) -> None:
    content: dict[str, str] = {}
    for number, text in enumerate(SCRIPTS.values()):
        root = f"{new_name}-{number}"
        content |= {f"{root}/SKILL.md": skill_md(root), f"{root}/scripts/run.py": text}
        content[f"{root}/scripts/lib_of_it.py"] = "from figures import VERSION as V\n"

    sent(packages_rpc, zipped(content), packages="infer")

    runs = {
        what: script(packages_rpc, f"{new_name}-{number}", "scripts/run.py")["output"]
        for number, what in enumerate(SCRIPTS)
    }
    assert {what: ran["stderr"] for what, ran in runs.items() if ran["exit_code"]} == {}


def test_the_command_asks_for_it(packages_sqlite: Server, house: Path, new_name: str, tmp_path: Path) -> None:
    folder = tmp_path / new_name
    folder.mkdir()
    (folder / "SKILL.md").write_text(skill_md(new_name))
    (folder / "run.py").write_text("import yaml\nimport forbidden\n")
    where = ["--url", packages_sqlite.url]

    told = skillery("import", str(folder), *where)
    locked = skillery("import", str(folder), "--packages", "infer", "--json", *where)

    assert "imports yaml" not in told.err
    assert "warning: ./run.py:2: imports forbidden" in told.err
    assert "1 skill would get packages with --packages infer" in told.err.splitlines()
    [skill] = json.loads(locked.out)[0]["skills"]
    assert [(one["rule"], one["severity"]) for one in skill["findings"]] == [
        ("inferred_package", "info"),
        (RULE, "warning"),
    ]


# -- extras and bounds in SKILL.md -------------------------------------------------------------------------------------


def test_install_lines_of_a_skill_md_give_extras_and_bounds() -> None:
    text = (
        "Run `pip install 'markitdown[all]' numpy` first, or\n\n```sh\nuv add \"pandas>=2,<3\" -r x && echo rich[x]\n"
        "cd x && sudo ~/.venv/bin/python3 -m pip install -U markitdown[pdf]==1.0; uv pip install Pillow~=11.0 # a[b]\n"
        "pip install [no] >=1 a==\n```\n"
    )

    assert stated_requirements(text) == {
        "markitdown": "markitdown[all,pdf]==1.0",
        "pandas": "pandas<3,>=2",
        "pillow": "pillow~=11.0",
    }
    assert inferred_requirement("markitdown", stated_requirements(text)) == "markitdown[all,pdf]==1.0"
    assert inferred_requirement("markitdown", {}) == "markitdown[docx,pdf,pptx,xlsx]"
    assert inferred_requirement("markitdown", {"markitdown": "markitdown<2"}) == "markitdown[docx,pdf,pptx,xlsx]<2"
    assert inferred_requirement("numpy", {}) == "numpy"


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("Run pip install pandas to use the helpers and utils of this skill.", set()),
        ("Never pip install evilpkg, it is malware", set()),
        ("    pip install indented", set()),
        ("A ` and pip install one ` are no code, `pip install unclosed", set()),
        ("`pip install one two` and ``uv add three`` use utils", {"one", "two", "three"}),
        (
            "1. ```sh\n   $ pip install one\n   ```\npip install prose\n> ~~~\n> pip install two\n> ~~~\n",
            {"one", "two"},
        ),
        ("````\n```\n!pip install one\n```\n````\npip install prose", {"one"}),
        ("```pip install one```\npip install prose", {"one"}),
        ("```\n# pip install comment\nprint('pip install text')\nx = 1  # pip install comment\n```", set()),
        ("`pip install one ./local two`", {"one"}),
        ("`pip install one, then two`", set()),
        ("`pip install one 'two; os_name == \"nt\"' && rm three`", {"one", "two"}),
        ("```\npip install one \\\n  two\n```", {"one", "two"}),
        ("`pip install -r requirements.txt one`", {"one"}),
        ("`pip install -rrequirements.txt -c limits -e folder -t target --target=libs --prefix lib one`", {"one"}),
        ("`uv add --group docs -qU --no-cache-dir one --python-version 3.11`", {"one"}),
    ],
)
def test_only_commands_in_code_name_installed_packages(text: str, packages: set[str]) -> None:
    assert installed_packages(text) == packages


@pytest.mark.parametrize(
    "option",
    [
        *("-i {}", "-i{}", "-qUi {}", "--index-url {}", "--index-url={}", "--ind {}", "--index corp={}"),
        *("--extra-index-url {}", "--extra {}", "--default-index {}", "-f {}", "--find-links {}", "--no-index"),
        *("./local --index-url {}", "'two; os_name == \"nt\"' --index-url {}", "\\\n  --index-url {}"),
        *("--trusted-host {}", "--config-file {}", "; export PIP_INDEX_URL={}", "; UV_DEFAULT_INDEX={} uv sync"),
        *("; pip config set global.index-url {}", "; cp x ~/.config/uv/uv.toml"),
    ],
)
def test_an_install_line_with_another_index_names_no_package(option: str) -> None:
    option = option.format("https://pypi.corp.example/simple")

    assert installed_packages(f"```\npip install acme_internal {option}\n```") == set()
    assert installed_packages(f"```\npip install {option} acme_internal\n```") == set()


@given(st.lists(st.integers(0, 10**6), max_size=200), st.integers(1, 250))
def test_combined_extras_stay_a_valid_short_requirement(numbers: list[int], length: int) -> None:
    text = "\n".join(f"`pip install a[{'x' * length}{number}]>=1`" for number in numbers)

    stated = stated_requirements(text)

    assert len(stated) == bool(numbers)
    assert all(len(value) <= LONGEST and not requirement_problem(value) for value in stated.values())


@given(
    st.lists(st.sampled_from([*"`~\n\\;&#'\"-=[]> ", "```", "\n~~~", "pip install ", "uv add ", "-r", "-i", "utils"]))
)
def test_no_text_outside_of_code_names_installed_packages(parts: list[str]) -> None:
    text = "".join(parts)

    assert stated_requirements(text).keys() <= installed_packages(text)
    assert not installed_packages(text.replace("`", "").replace("~", ""))


@pytest.mark.parametrize(
    ("line", "locked"),
    [
        ("pip install 'frames<2' 'pillow[more]'", {"frames": "1.5", "figures": "2.0", "pillow": "11.0"}),
        ("pip install 'frames>=7'", {"frames": "2.0", "figures": "2.0", "pillow": "11.0"}),
    ],
    ids=["fits", "conflicts"],
)
def test_an_inferred_package_has_the_bounds_of_skill_md_if_they_fit(
    packages_rpc: Rpc, new_name: str, line: str, locked: dict[str, str]
) -> None:
    content = {
        f"{new_name}/SKILL.md": f"{skill_md(new_name)}\n```\n{line}\n```\n",
        f"{new_name}/x.py": "import frames, PIL\n",
    }

    [skill] = sent(packages_rpc, zipped(content), packages="infer")["skills"]

    assert pins(lock_of(packages_rpc, new_name)) == locked
    assert skill["outcome"] == "published"
    described = packages_rpc("describe_skill", name=new_name)["skill"]
    assert described["manifest"]["runtime"]["inferred"] == ["frames", "pillow"]
    assert "left_out" not in described["lock"]


@pytest.mark.parametrize(
    ("line", "is_installed"),
    [("pip install odd-frames", True), ("pip install -i https://pypi.corp.example/simple odd-frames", False)],
)
def test_an_install_line_names_the_package_of_an_unknown_module(
    indexed: Server, house: Path, new_name: str, line: str, is_installed: bool
) -> None:
    make_wheel(house, "odd_frames", "1.0", {"odd_frames.py": "SIZE = 3\n"})
    content = {
        f"{new_name}/SKILL.md": f"{skill_md(new_name)}\n```\n{line}\n```\n",
        f"{new_name}/run.py": "import odd_frames, yaml\nprint(yaml.dump(odd_frames.SIZE))\n",
        f"{new_name}/checks/__init__.py": "",
        f"{new_name}/checks/yaml.py": "",
    }

    sent(indexed.rpc, zipped(content), packages="infer")

    output = script(indexed.rpc, new_name, "run.py")["output"]
    assert output["stdout"] == ("3!\n" if is_installed else "")
    assert is_installed or "No module named 'odd_frames'" in output["stderr"]


# -- sizes -------------------------------------------------------------------------------------------------------------

LARGE = 900 * 1024 * 1024


@pytest.fixture
def large(indexed: Server, package_index: PackageIndex, house: Path) -> str:
    """Return a wheel that the index lists with 900 MiB."""
    wheel = make_wheel(house, "torch", "2.0", requires=["figures"]).name
    package_index.sizes[wheel] = LARGE
    package_index.unstated.discard(wheel)
    return wheel


@pytest.mark.parametrize("module", ["yaml", "PIL"])
def test_a_large_optional_package_is_left_out_before_its_download(
    indexed: Server, package_index: PackageIndex, large: str, new_name: str, module: str
) -> None:
    if module == "PIL":
        package_index.unstated.add(large)
    code = f"import {module}\ntry:\n    import torch\nexcept ImportError:\n    print('ok')\n"
    skill = imported(indexed.rpc, new_name, {"x.py": code}, packages="infer")
    lock = indexed.rpc("describe_skill", name=new_name)["skill"]["lock"]

    assert "package_left_out" in {one["rule"] for one in skill["findings"]}
    assert [pin["name"] for pin in lock["packages"]] == [{"yaml": "pyyaml", "PIL": "pillow"}[module]]
    assert lock["left_out"] == [
        {
            "name": "torch",
            "tier": "optional",
            "reason": "too_large",
            "detail": "900 MiB or more; the limit is 256 MiB (the setting packages.optional_mb)",
        }
    ]
    assert script(indexed.rpc, new_name, "x.py")["output"]["stdout"] == "ok\n"


def test_a_required_package_over_the_limit_of_all_packages_is_left_out(
    indexed: Server, large: str, new_name: str
) -> None:
    imported(indexed.rpc, new_name, {"x.py": "import yaml\nimport torch\n"}, packages="infer")

    [left_out] = indexed.rpc("describe_skill", name=new_name)["skill"]["lock"]["left_out"]

    assert (left_out["name"], left_out["tier"], left_out["reason"]) == ("torch", "inferred", "too_large")
    assert "packages.max_mb" in left_out["detail"]


@pytest.mark.parametrize(
    ("most", "left_out"),
    [(1000, {}), (70, {"two": 80}), (10, {"one": 30, "two": 50}), (29, {"one": 30, "two": 50})],
)
def test_the_smallest_optional_packages_stay_within_the_limit(most: int, left_out: dict[str, int]) -> None:
    via = {"base": ["main", "one"], "part": ["two"], "main": [], "one": [], "two": []}
    lock = "".join(f"{name}==1.0 \\\n    --hash=sha256:{'0' * 64}\n" + _via(parents) for name, parents in via.items())
    sizes = {"base": 500, "main": 100, "one": 30, "two": 20, "part": 30}

    assert too_large_in(shared_sizes(mark_sizes(lock.encode(), sizes)), {"main"}, {"one", "two"}, most) == left_out


# -- dates of commits --------------------------------------------------------------------------------------------------


@pytest.fixture
def dated(indexed: Server, package_index: PackageIndex, new_name: str) -> str:
    """Return a package with the version 1.0 of January 2024 and the version 2.0 of January 2025."""
    package = f"dated{new_name}"
    for version in ("1.0", "2.0"):
        make_wheel(package_index.folder, package, version)
    package_index.uploaded[f"{package}-1.0-py3-none-any.whl"] = "2024-01-01T00:00:00Z"
    return package


def committed(folder: Path, date: str, *words: str) -> None:
    """Commit all files of a folder at a date."""
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    about = {**clean_environment(), "GIT_COMMITTER_DATE": f"{date}T00:00:00Z"}
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "x"]):
        subprocess.run([*git, *command], env=about, check=True)


def locked_by_import(server: Server, folder: Path, package: str, *words: str) -> dict[str, str]:
    """Import a folder on the command line. Return the version of the package in the lock of each skill."""
    done = skillery("import", str(folder), "--json", *words, "--url", server.url)
    [report] = json.loads(done.out)
    return {one["path"]: pins(lock_of(server.rpc, one["name"]))[package] for one in report["skills"]}


@pytest.mark.full
def test_a_skill_in_git_gets_packages_of_its_time(indexed: Server, dated: str, new_name: str, tmp_path: Path) -> None:
    for name in ("old", "edited", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(skill_md(f"{new_name}-{name}"))
        (tmp_path / name / "requirements.txt").write_text(f"{dated}>=1\n")
        committed(tmp_path, "2025-03-01" if name == "new" else "2024-03-01")
    (tmp_path / "edited" / "SKILL.md").write_text(skill_md(f"{new_name}-edited", body="# More\n"))

    at_commits = locked_by_import(indexed, tmp_path, dated)
    newest = locked_by_import(indexed, tmp_path, dated, "--packages", "newest")
    again = locked_by_import(indexed, tmp_path, dated, "--packages", "infer")

    assert at_commits == {"edited": "2.0", "new": "2.0", "old": "1.0"}
    assert newest == {"edited": "2.0", "new": "2.0", "old": "2.0"}
    assert again == at_commits


def test_an_uploaded_package_is_used_if_none_is_old_enough(
    indexed: Server, house: Path, new_name: str, tmp_path: Path
) -> None:
    (tmp_path / "SKILL.md").write_text(skill_md(new_name))
    (tmp_path / "x.py").write_text("import yaml\n")
    committed(tmp_path, "2024-03-01")

    assert locked_by_import(indexed, tmp_path, "pyyaml", "--packages", "infer") == {"": "6.0"}
