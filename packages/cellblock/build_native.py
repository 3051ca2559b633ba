"""Compile the helper in the folder native, with one command for the module `_cell` and one for the program `init`.

The compiler is $CC, `cc` or `gcc`. If the machine has none of them, the build requires the package `ziglang`. The
helper has no code of a C library, so it cannot use the stack protector, which calls a function of the C library when it
finds an overwritten stack. Instead, a compiler flag limits each stack frame, and the code has no array of variable
length.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ZIG = "ziglang==0.17.1"
MACHINES = ("x86_64", "aarch64")
SOURCES = ("kernel.h", "cell.c", "init.c", "module.c", "python.h")
MODULE, PROGRAM, RECORD = "_cell.abi3.so", "init", "BUILD.json"
PACKAGE = Path("src", "cellblock", "inside")
NO_COMPILER = "cellblock: no C compiler. Install gcc or clang, or allow pip to fetch ziglang (101 MB)."
COMMON = [
    "-std=gnu11",
    "-O2",
    "-ffreestanding",
    "-nostdlib",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wvla",
    "-s",
    "-Wl,-z,noexecstack",
    "-Wl,--build-id=none",
]
SHARED = ["-fPIC", "-shared", "-Wl,-z,relro", "-Wl,-z,now"]
STATIC = ["-static", "-fno-pie"]
ONE_SEGMENT = "-Wl,-z,noseparate-code"  # else the file has whole pages of zeros; Zig knows no such flag and needs none
CLANG = ["-Wframe-larger-than=8192", "-fno-sanitize=all", "-fno-unwind-tables"]
GCC = ["-Wstack-usage=8192"]


def found_compiler() -> list[str] | None:
    """Return the command of the compiler, or None if this machine has none."""
    if command := os.environ.get("CC"):
        return shlex.split(command)
    for name in ("cc", "gcc"):
        if path := shutil.which(name):
            return [path]
    return zig() if importlib.util.find_spec("ziglang") else None


def zig(machine: str | None = None) -> list[str]:
    """Return the command of Zig, which compiles for each machine in the same way on all machines."""
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine or platform.machine()}-linux-musl"]


def described(compiler: list[str]) -> str:
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition("\n")[0]


def commands(compiler: list[str], native: Path, target: Path, extra: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the two commands. `extra` are additional flags."""
    is_zig = any("zig" in Path(word).name for word in compiler)
    start = [*compiler, *COMMON, *(CLANG if is_zig or "clang" in described(compiler) else GCC), *extra]
    static = STATIC if is_zig else [*STATIC, ONE_SEGMENT]
    return [
        [*start, *SHARED, str(native / "cell.c"), str(native / "module.c"), "-o", str(target / MODULE)],
        [*start, *static, str(native / "init.c"), "-o", str(target / PROGRAM)],
    ]


def build(compiler: list[str], native: Path, target: Path, extra: tuple[str, ...] = ()) -> None:
    """Compile the sources in `native`. Write the two files and their record to `target`."""
    for command in commands(compiler, native, target, extra):
        subprocess.run(command, check=True)
    (target / PROGRAM).chmod(0o644)  # the sandbox copies it, and never executes this file
    record = {
        "compiler": described(compiler),
        "flags": [*COMMON, *extra],
        "sources": {name: sha256(native / name) for name in SOURCES},
        "outputs": {name: sha256(target / name) for name in (MODULE, PROGRAM)},
    }
    (target / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class NativeFiles(BuildHookInterface[Any]):
    """Compile the helper into the package folder, and add it to the wheel. Other systems get a wheel without helper."""

    def dependencies(self) -> list[str]:
        return [ZIG] if self._needs_helper() and found_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._needs_helper():
            return
        compiler = found_compiler()
        if compiler is None:
            self.app.display_warning(NO_COMPILER)
            return
        build(compiler, Path(self.root, "native"), Path(self.root, PACKAGE))
        build_data["artifacts"] += [f"/{PACKAGE / name}" for name in (MODULE, PROGRAM, RECORD)]
        machine = platform.machine()
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-manylinux_2_17_{machine}.musllinux_1_1_{machine}"

    def _needs_helper(self) -> bool:
        is_supported = sys.platform == "linux" and platform.machine() in MACHINES
        # A 32-bit Python may run on a 64-bit kernel, whose machine has another name.
        return self.target_name == "wheel" and is_supported and sys.maxsize > 2**32
