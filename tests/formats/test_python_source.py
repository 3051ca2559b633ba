"""Checks that a Python file compiles and defines its entrypoint, without running it and without harm to the server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import InvalidBundle
from skillery.formats.python_source import MAX_BYTES, check_entrypoint, source_problem

PATH = "code/main.py"


def refusal(source: str | bytes, export: str = "main") -> InvalidBundle:
    content = source.encode() if isinstance(source, str) else source
    with pytest.raises(InvalidBundle) as caught:
        check_entrypoint(PATH, content, export)
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        "def main(args): pass",
        "async def main(args): pass",
        "class main: pass",
        "main = print",
        "a, (main, *b) = 1, (2, 3)",
        "[main, *rest] = 1, 2",
        "x = main = 1",
        "main: int = 1",
        "import main.x",
        "import x as main",
        "from x import main",
        "from x import y as main",
        "from x import *",
        "if 1:\n from x import main\nelse:\n main = 2",
        "try:\n import x\nexcept ImportError:\n main = 1",
        "try:\n a\nexcept* E:\n b\nelse:\n main = 1",
        "try:\n a\nfinally:\n def main(): pass",
        "with x as main: pass",
        "with x:\n with y:\n  main = 1",
        "for main in x: pass",
        "while (main := 1): break",
        "match x:\n case main: pass",
        "match x:\n case [1, *main]:\n  pass",
        "match x:\n case 1:\n  main = 2",
        "def __getattr__(name): return print",
    ],
)
def test_a_name_bound_at_the_top_level_is_an_entrypoint(source: str) -> None:
    check_entrypoint(PATH, source.encode(), "main")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def run(args): pass",
        "main: int",
        "def run():\n main = 1",
        "class A:\n def main(self): pass",
        "[main for main in x]",
        "f = lambda main: 1",
        "print(main)",
        "'main'",
        "match x:\n case 1:\n  def f():\n   main = 1",
        "import x.main",
        "from main import x",
    ],
)
def test_a_name_bound_elsewhere_is_none(source: str) -> None:
    error = refusal(source)
    assert "does not define 'main'" in error.message
    assert (error.data["file"], error.data["line"]) == (PATH, 1)


def test_missing_entrypoint_error_lists_the_defined_functions() -> None:
    assert "'run'" in refusal("def run(args): pass\ndef _hidden(): pass").message


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\ndef main(:\n  pass", 2),
        ("x = 1\n\nreturn 1", 3),
        ("def main():\n  break", 2),
        ("def f(a, a): pass", 1),
        ("def main():\n\tx = 1\n        y = 2", 3),
        ("def main():\n  x = (1,\n", 2),
        ("x = 'a\n", 1),
        ("print 1", 1),
        ("if 1:\nmain = 1", 2),
        ("try:\n a\nfinally:\n return 1", 4),
        ("x = " + "9" * 5000, 1),
        ("def main():\n  nonlocal x", 2),
    ],
)
def test_uncompilable_source_is_refused_with_its_line(source: str, line: int) -> None:
    error = refusal(source)
    assert (error.data["file"], error.data["line"]) == (PATH, line)
    assert error.data["problems"][0]["line"] == line
    assert "does not compile" in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"main = 1\x00", 1),
        (b"x = 1\n\nmain = '\xe9'", 3),
        (b"# coding: nope\nmain = 1", 1),
        (b"# coding: zlib\nmain = 1", 1),
        (b"# coding: punycode\nmain = 1", 1),
        (b"# coding: ascii\n\nmain = '\xe9'", 3),
        (b"#" * (MAX_BYTES + 1), 1),
        (b"\xef\xbb\xbf# coding: latin-1\nmain = 1", 1),
    ],
)
def test_invalid_source_text_is_refused_with_its_line(source: bytes, line: int) -> None:
    assert refusal(source).data["line"] == line


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfmain = 1",
        b"# coding: latin-1\nmain = '\xe9'",
        b"x = 1\r\nmain = 2\r",
        b"#!/usr/bin/python\n# -*- coding: cp1251 -*-\nmain = '\xe9'",
        b"main = 'a' is '\\d'",
    ],
)
def test_encodings_line_ends_and_odd_code_are_accepted(source: bytes) -> None:
    check_entrypoint(PATH, source, "main")


def test_other_files_need_no_entrypoint() -> None:
    assert source_problem("code/util.py", b"x = 1", None) is None
    problem = source_problem("code/util.py", b"x =", None)
    assert problem is not None
    assert (problem.path, problem.line) == ("code/util.py", 1)


HOSTILE = {
    "sum": "x = " + "1+" * 170_000 + "1",
    "attributes": "x = a" + ".a" * 200_000,
    "calls": "f" + "()" * 250_000,
    "minus": "x = " + "-" * 500_000 + "1",
    "brackets": "x = " + "[" * 250_000,
    "lambdas": "x = " + "lambda:" * 70_000 + "1",
    "elifs": "if a: pass\n" + "elif a: pass\n" * 35_000,
    "long import": "import " + "a." * 200_000 + "a",
    "long import over lines": "import " + "a.\\\n" * 100_000 + "a",
    "long from": "from " + "a ." * 100_000 + "a import b",
    "nested finally": "".join(" " * i + "try: a\n" + " " * i + "finally:\n" for i in range(19)) + " " * 19 + "b",
    "finally in handlers": "".join(
        " " * i + "try: a\n" + " " * i + "except a: b\n" + " " * i + "finally:\n" for i in range(19)
    )
    + " " * 19
    + "b",
    "many ways out": "def f():\n try:\n" + "  if a: return\n" * 20_000 + " finally:\n" + "  a\n" * 30_000,
    "word": "a" * 500_000,
    "dots": "x = '" + "a." * 200_000 + "'",
}
MEASURE = """
import resource, sys
from skillery.formats.python_source import source_problem
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
source_problem("code/main.py", sys.stdin.buffer.read(), None)
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))
"""


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.full(after=5)
def test_hostile_source_neither_crashes_nor_starves_the_process(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE], input=HOSTILE[name].encode(), capture_output=True, timeout=300, check=True
    )
    assert int(ended.stdout) < 512 * 1024
    assert ended.stderr == b""


@given(
    st.one_of(st.binary(max_size=80), st.text(alphabet="def main():\n =[]{}'\"#\\\t.,@*", max_size=60).map(str.encode))
)
def test_any_bytes_compile_or_give_a_located_error(source: bytes) -> None:
    try:
        check_entrypoint(PATH, source, "main")
    except InvalidBundle as error:
        place = (error.data["file"], error.data["line"] >= 1, error.message.isprintable())
        assert place == (PATH, True, True)
