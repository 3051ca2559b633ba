"""The helper in C: it compiles without warnings and to equal bytes, and its files keep the rules for their contents."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import elf

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
CHECKOUT = ROOT.parents[1]
NATIVE = ROOT / "native"
TOOLS = CHECKOUT / ".tools"
QEMU = TOOLS / "qemu" / "qemu-aarch64"
PYTHON_NAMES = {
    "PyBuffer_Release",
    "PyBytes_AsStringAndSize",
    "PyErr_Occurred",
    "PyLong_AsUnsignedLongMask",
    "PyLong_FromLong",
    "PyModule_Create2",
    "PyOS_AfterFork_Child",
    "PyOS_AfterFork_Parent",
    "PyOS_BeforeFork",
    "PyObject_CheckBuffer",
    "PyObject_GetBuffer",
}
COMPILERS = ("gcc", "zig-x86_64", "zig-aarch64")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "build_native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_native = loaded()


def command(name: str) -> list[str]:
    """Return the command of a compiler. Skip the test if this machine does not have it."""
    if name == "gcc":
        if shutil.which("gcc") is None:
            pytest.skip("this machine has no gcc")
        return ["gcc"]
    if not (TOOLS / "ziglang").exists():
        pytest.skip("Zig is not there: `make test` installs it")
    return ["env", f"PYTHONPATH={TOOLS / 'ziglang'}", *build_native.zig(name.removeprefix("zig-"))]


def built(name: str, folder: Path, *, native: Path = NATIVE) -> Path:
    folder.mkdir(parents=True)
    build_native.build(command(name), native, folder, ("-Werror",))
    return folder


@pytest.mark.parametrize("compiler", COMPILERS)
def test_helper_compiles_without_warnings_and_keeps_rules_of_its_files(compiler: str, tmp_path: Path) -> None:
    folder = built(compiler, tmp_path / "built")
    for name in ("_cell.abi3.so", "init"):
        file = elf.Elf(folder / name)
        assert file.machine == (compiler.removeprefix("zig-") if compiler != "gcc" else platform.machine())
        flags = [part.flags for part in file.segments if part.kind == elf.LOAD]
        assert not any(flag & elf.WRITE and flag & elf.EXECUTE for flag in flags)
        assert [part.flags & elf.EXECUTE for part in file.segments if part.kind == elf.STACK] == [0]
        assert elf.TEXT_RELOCATIONS not in file.dynamic
        assert not any(part.flags & elf.EXECUTE for part in file.relocated())
    assert elf.Elf(folder / "_cell.abi3.so").undefined() == PYTHON_NAMES
    program = elf.Elf(folder / "init")
    assert not any(part.flags & elf.WRITE for part in program.segments if part.kind == elf.LOAD)
    assert not program.dynamic
    assert (folder / "init").stat().st_size < 4096


def test_analyzer_of_gcc_finds_nothing(tmp_path: Path) -> None:
    for step in build_native.commands(command("gcc"), NATIVE, tmp_path, ("-Werror", "-fanalyzer")):
        subprocess.run(step, check=True)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_two_builds_in_different_folders_have_equal_bytes(compiler: str, tmp_path: Path) -> None:
    shutil.copytree(NATIVE, tmp_path / "copy" / "native")
    first = built(compiler, tmp_path / "first")
    second = built(compiler, tmp_path / "another" / "folder", native=tmp_path / "copy" / "native")
    for name in ("_cell.abi3.so", "init", "BUILD.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert set(json.loads((first / "BUILD.json").read_text())) == {"compiler", "flags", "sources", "outputs"}


def test_each_result_of_a_system_call_is_checked() -> None:
    call = r"^\s*(?:SYS|CLOSE)\((\w+)"
    unchecked = {name: re.findall(call, (NATIVE / name).read_text(), re.MULTILINE) for name in ("cell.c", "init.c")}
    calls = {name for name in unchecked["cell.c"] if name.startswith("SYS_")}
    assert calls == {"SYS_writev", "SYS_write"}  # the last words of a process
    assert set(unchecked["init.c"]) == {"SYS_write", "SYS_read"}


def test_helper_is_small_and_uses_no_header_of_the_system() -> None:
    sources = {path.name: path.read_text() for path in NATIVE.iterdir()}
    assert sum(bool(line) for text in sources.values() for line in text.splitlines()) <= 650
    assert set(re.findall(r"#include (.*)", "".join(sources.values()))) == {'"kernel.h"', '"python.h"'}


def test_repository_has_no_compiled_file() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is not a checkout")
    paths = [CHECKOUT / name for name in listed.stdout.split("\0") if name]
    binaries = [path for path in paths if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    assert binaries == []


def machines() -> list[tuple[str, list[str]]]:
    return [(platform.machine(), []), ("aarch64", [str(QEMU)])]


@pytest.mark.parametrize(("machine", "emulator"), machines(), ids=["native", "aarch64 emulated"])
def test_child_of_a_child_returns_on_the_first_stack(machine: str, emulator: list[str], tmp_path: Path) -> None:
    compiler = compiler_for(machine, emulator)
    trial = tmp_path / "trial"
    source = ROOT / "tests" / "clone_trial.c"
    flags = [flag for flag in build_native.COMMON if not flag.startswith("-W")]
    subprocess.run([*compiler, *flags, *build_native.STATIC, f"-I{NATIVE}", str(source), "-o", str(trial)], check=True)
    assert subprocess.run([*emulator, str(trial)], check=False).returncode == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pid namespace without others")
@pytest.mark.parametrize(("machine", "emulator"), machines(), ids=["native", "aarch64 emulated"])
def test_init_reports_status_of_pid_2(machine: str, emulator: list[str], tmp_path: Path) -> None:
    build_native.build(compiler_for(machine, emulator), NATIVE, tmp_path)
    program = [*emulator, str(tmp_path / "init")]
    (tmp_path / "init").chmod(0o755)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        subprocess.run([sys.executable, "-c", AS_PID_1, *program], stdin=theirs.fileno(), check=True, timeout=300)
        assert int.from_bytes(ours.recv(16), sys.byteorder) == 7 << 8


AS_PID_1 = f"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
assert libc.unshare({0x20000000}) == 0
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
if os.fork() == 0:
    os._exit(7)
signals = ctypes.c_uint64(1 << {signal.SIGCHLD - 1})
os.dup2(libc.signalfd(-1, ctypes.byref(signals), 0), 1)
os.execv(sys.argv[1], sys.argv[1:])
"""


def compiler_for(machine: str, emulator: list[str]) -> list[str]:
    if emulator and not Path(emulator[0]).exists():
        pytest.skip("the emulator is not there: `make test` installs it")
    return command(f"zig-{machine}") if emulator or shutil.which("gcc") is None else command("gcc")
