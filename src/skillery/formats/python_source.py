"""Check the Python files of a bundle without running them: do they compile, and do they define the exported function?

Call these functions in a worker process (`CompilePool`), never in the server: the compiler holds the interpreter lock,
and a few kilobytes of source can need seconds and gigabytes.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import encodings
import io
import pkgutil
import re
import tokenize
import warnings
from collections.abc import Iterator
from importlib import import_module

import msgspec

from skillery.errors import InvalidBundle
from skillery.formats.wording import AGAIN, Problem, printable, quoted, raise_problems

MAX_BYTES = 512 * 1024
"""The maximum number of bytes of one checked file: the compiler needs a few hundred bytes of memory for each byte of
source.
"""

MOST_PARAMETERS, MOST_SIGNATURE = 100, 1000
"""Limits of the parameters and of the text of a Signature."""
_SOURCE_NAME = "<skill source>"
# The compiler reports odd but valid source (`"a" is x`) as warnings of the process. They do not concern the server.
warnings.filterwarnings("ignore", module=re.escape(_SOURCE_NAME))

# Codecs that turn text into other text, in quadratic time or with escapes; no source file needs them.
_REFUSED_ENCODINGS = {"punycode", "idna", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"}
# The parser joins a dotted name part by part: a name of 200,000 parts takes gigabytes.
_LONG_DOTTED_NAME = re.compile(r"(?<![\w.])(?:\w++[\s\\]*+\.[\s\\]*+){256}")
_HINT = f"Fix the file{AGAIN}"


class SourceFault(msgspec.Struct, frozen=True):
    """A fault of a source file. The message is a clause that follows the path of the file."""

    message: str
    line: int = 1


def check_entrypoint(path: str, source: bytes, export: str) -> None:
    """Raise InvalidBundle, with file and line, if `source` is too large, does not decode, does not compile, or does not
    define `export`.

    The name `export` must be defined at the top level. In a module with a star import or `__getattr__`, every name
    counts as defined.
    """
    _raise(source_problem(path, source, export))


def source_problem(path: str, source: bytes, export: str | None) -> Problem | None:
    """Return the problem of a file that is too large, or does not decode, compile or define `export`, else None.

    If `export` is None, the defined names are not checked.
    """
    fault = find_fault(source, export)
    return located(path, fault) if fault else None


def located(path: str, fault: SourceFault) -> Problem:
    """Return the fault as a problem of the file at `path`."""
    return Problem(f"{path} {fault.message}", path=path, file=path, line=fault.line)


def find_fault(source: bytes, export: str | None) -> SourceFault | None:
    """Return the fault that `source_problem` would report, without its path, or None."""
    too_large = size_fault(source)
    if too_large:
        return too_large
    tree = _compiled(source)
    if isinstance(tree, SourceFault):
        return tree
    return None if export is None else _export_fault(tree, export)


class Signature(msgspec.Struct, frozen=True, array_like=True):
    """The parameters of a function. `problem` says why a call with one argument is impossible, or is ""."""

    line: int
    parameters: tuple[str, ...]
    problem: str = ""


def find_signature(source: bytes, export: str) -> Signature | None:
    """Return the parameters of the function `export`. Return None if only a run could determine them: the function is
    decorated, or the name has several definitions.
    """
    tree = parsed_source(source)
    statements = list(_top_level(tree)) if tree else []
    defined = [statement for statement in statements if export in _names(statement)]
    function = defined[0] if len(defined) == 1 else None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return None
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    required = names[1 : max(1, len(names) - len(args.defaults))]
    required += [arg.arg for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is None]
    problem = ""
    if not names and args.vararg is None:
        problem = f"{export}() takes no argument"
    elif required:
        problem = f"{export}({', '.join(names)}) missing a required argument: {quoted(required[0])}"
    return Signature(function.lineno, tuple(names[:MOST_PARAMETERS]), problem[:MOST_SIGNATURE])


def load_codecs() -> None:
    """Import all codecs and the names of characters: a worker process cannot open files while it compiles."""
    import_module("unicodedata")
    for name in (module.name for module in pkgutil.iter_modules(encodings.__path__)):
        with contextlib.suppress(LookupError, ImportError):
            codecs.lookup(name)


def size_fault(source: bytes) -> SourceFault | None:
    """Return a fault if the source is larger than MAX_BYTES, else None."""
    if len(source) <= MAX_BYTES:
        return None
    return fault_at(1, f"has {len(source)} bytes; Python files are checked up to {MAX_BYTES}")


def fault_at(line: int, message: str) -> SourceFault:
    """Return a fault with the line in its message."""
    return SourceFault(f"{message} (line {line})", line)


def _raise(problem: Problem | None) -> None:
    if problem:
        raise_problems(InvalidBundle, [problem], hint=_HINT)


def parsed_source(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a source, or None if the source is too large or does not parse."""
    if size_fault(source):
        return None
    try:
        return _parse(source)
    except (_Undecodable, SyntaxError, RecursionError, MemoryError, ValueError, OverflowError):
        return None


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module may define at its top level. A star import adds the name `*`."""
    return {name for statement in _top_level(tree) for name in _names(statement)}


def _compiled(source: bytes) -> ast.Module | SourceFault:
    """Return the syntax tree of a source, with each `finally` body moved after its `try`. If the source does not
    compile, return the fault.
    """
    try:
        tree = _parse(source)
        _inline_finally(tree)
        compile(tree, _SOURCE_NAME, "exec", dont_inherit=True)
    except _Undecodable as error:
        return fault_at(error.line, error.message)
    except SyntaxError as error:
        return fault_at(error.lineno or 1, f"does not compile: {printable(error.msg)}{_at(error)}")
    except RecursionError:
        return fault_at(1, "does not compile: it is nested too deep")
    except MemoryError:  # the parser also raises it for deep nesting
        return fault_at(1, "does not compile: it is nested too deep or needs too much memory")
    except (ValueError, OverflowError) as error:
        return fault_at(1, f"does not compile: {printable(str(error))}")
    return tree


def _at(error: SyntaxError) -> str:
    """Return the text at which the compiler stopped, or ""."""
    line = (error.text or "").rstrip()
    column = max(0, (error.offset or 1) - 1)
    source_text = line[column:].strip() or line.strip()
    return f" at {quoted(source_text, 60)}" if source_text else ""


# -- text --------------------------------------------------------------------------------------------------------


class _Undecodable(Exception):
    """Raised for a source that cannot be decoded. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def _parse(source: bytes) -> ast.Module:
    text = _decoded(source)
    long_name = _LONG_DOTTED_NAME.search(text)
    if long_name:
        raise _Undecodable("has a dotted name of too many parts", text.count("\n", 0, long_name.start()) + 1)
    return ast.parse(text, _SOURCE_NAME)


def _decoded(source: bytes) -> str:
    """Return the text of a source file, decoded as PEP 263 requires.

    Raise _Undecodable if the source has a NUL byte, an encoding that is refused, or invalid bytes.
    """
    if b"\x00" in source:
        raise _Undecodable("contains a NUL byte", source.count(b"\n", 0, source.index(b"\x00")) + 1)
    encoding = _encoding(source)
    try:
        return source.decode(encoding)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise _Undecodable(f"is not {encoding} text", line) from None
    except (LookupError, ValueError):  # `coding: zlib` and the like are not text encodings
        raise _Undecodable(f"declares the encoding {quoted(encoding)}, which is not a source encoding", 1) from None


def _encoding(source: bytes) -> str:
    """Return the encoding that a source declares (PEP 263). Raise _Undecodable if it is unknown or refused."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    except SyntaxError as error:
        raise _Undecodable(f"cannot be decoded: {printable(str(error.msg))}", 1) from None
    if codecs.lookup(encoding).name in _REFUSED_ENCODINGS:
        raise _Undecodable(f"declares the encoding {quoted(encoding)}; save it as UTF-8", 1)
    return encoding


# -- syntax tree -------------------------------------------------------------------------------------------------


def _inline_finally(tree: ast.Module) -> None:
    """Move every `finally` body after its `try`.

    The compiler copies a `finally` body to each exit of its `try`, so 20 nested ones would give a million copies. The
    move does not change whether the source compiles.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        for block in _blocks(node):
            block[:] = [flat for statement in block for flat in _without_finally(statement)]
            pending.extend(block)
        pending.extend(getattr(node, "handlers", []))
        pending.extend(getattr(node, "cases", []))


def _without_finally(statement: ast.stmt) -> list[ast.stmt]:
    """Return a `try` without its `finally` body, then the statements of this body. Return other
    statements unchanged.
    """
    if not isinstance(statement, ast.Try | ast.TryStar) or not statement.finalbody:
        return [statement]
    final, statement.finalbody = statement.finalbody, []
    return [statement, *final] if statement.handlers else [_as_block(statement), *final]


def _as_block(statement: ast.Try | ast.TryStar) -> ast.stmt:
    always = ast.copy_location(ast.Constant(True), statement)
    return ast.copy_location(ast.If(test=always, body=statement.body, orelse=[]), statement)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that a node contains."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):  # the body of a lambda or a conditional expression is not a list
            yield block


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, also those in `if`, `try`, `with`, loops and
    `match`.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        for block in _blocks(node := pending.pop()):
            yield from block
            pending.extend(inner for inner in block if not isinstance(inner, _SCOPES))
        pending.extend(getattr(node, "handlers", []))
        pending.extend(getattr(node, "cases", []))


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top level defines."""
    if isinstance(statement, _SCOPES):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif not isinstance(statement, ast.AnnAssign) or statement.value is not None:
        yield from _stored(statement)


def _stored(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that the statement itself assigns, as targets of `=`, `for`, `with`, `:=` or `match`.

    Names that are assigned in its inner statements, in a lambda or in a comprehension are omitted.
    """
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        # `type X = …` stores its name as a Name node, a pattern stores it as a string.
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, _CLOSED))


_CLOSED = (ast.stmt, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.ExceptHandler)


def _export_fault(tree: ast.Module, export: str) -> SourceFault | None:
    """Return the fault if a module does not define `export` at its top level, else None."""
    names = defined_names(tree)
    if names & {export, "*", "__getattr__"}:
        return None
    defined = ", ".join(quoted(name) for name in sorted(names) if not name.startswith("_"))
    return SourceFault(
        f"does not define {quoted(export)}; at its top level it defines {printable(defined) or 'nothing'}"
    )
