"""Pid 1 of a run after its start: a program of a few machine instructions.

A waiting Python process would need a megabyte, this program needs one or two pages. The program has no secrets, and the
code of the run cannot read it. It reaps orphans until pid 2, the process of the code, has ended. Then it sends the four
bytes of the wait status to the server (descriptor 0), and ends. It also ends if the server closes its end of the
socket. Descriptor 1 is a signalfd for the blocked signal SIGCHLD.
"""

from __future__ import annotations

import os
import struct

from . import kernel

PATH = "/run/skillery/init"
MISSING = (
    f"the helper for {os.uname().machine} was not built: reinstall Skillery with a C compiler, or set "
    "CELLBLOCK_HELPER=hex"
)
ADDRESS, PAGE = 0x400000, 0x10000
EM_X86_64, EM_AARCH64 = 62, 183

X86_64 = """
4881eca0000000      sub rsp, 160
48c7042400000000    mov qword ptr [rsp], 0          pollfd 0: descriptor 0, no event but its closing
c744240801000000    mov dword ptr [rsp+8], 1        pollfd 1: descriptor 1
c744240c01000000    mov dword ptr [rsp+12], 1         POLLIN
b83d000000          reap: mov eax, 61               wait4(-1, &status, WNOHANG | __WALL, NULL)
bfffffffff          mov edi, -1
488d742410          lea rsi, [rsp+16]
ba01000040          mov edx, 0x40000001
4531d2              xor r10d, r10d
0f05                syscall
83f802              cmp eax, 2
7439                je tell
85c0                test eax, eax
7fde                jg reap
b80f010000          again: mov eax, 271             ppoll(pollfds, 2, NULL, NULL)
4889e7              mov rdi, rsp
be02000000          mov esi, 2
31d2                xor edx, edx
4531d2              xor r10d, r10d
0f05                syscall
85c0                test eax, eax
7ee8                jle again
66837c240600        cmp word ptr [rsp+6], 0         has the server gone?
7528                jne out
31c0                xor eax, eax                    read(1, rest, 128)
bf01000000          mov edi, 1
488d742420          lea rsi, [rsp+32]
ba80000000          mov edx, 128
0f05                syscall
eba9                jmp reap
b801000000          tell: mov eax, 1                write(0, &status, 4)
31ff                xor edi, edi
488d742410          lea rsi, [rsp+16]
ba04000000          mov edx, 4
0f05                syscall
b8e7000000          out: mov eax, 231               exit_group(0)
31ff                xor edi, edi
0f05                syscall
"""
AARCH64 = """
ff8302d1  sub sp, sp, #160
ff0300f9  str xzr, [sp]
20008052  mov w0, #1
e00b00b9  str w0, [sp, #8]
e00f00b9  str w0, [sp, #12]
882080d2  reap: mov x8, #260
00008092  mov x0, #-1
e1430091  add x1, sp, #16
0200a852  mov w2, #0x40000000
42000032  orr w2, w2, #1
030080d2  mov x3, #0
010000d4  svc #0
1f080071  cmp w0, #2
60020054  b.eq tell
1f000071  cmp w0, #0
ccfeff54  b.gt reap
280980d2  again: mov x8, #73
e0030091  mov x0, sp
410080d2  mov x1, #2
020080d2  mov x2, #0
030080d2  mov x3, #0
010000d4  svc #0
1f000071  cmp w0, #0
2dffff54  b.le again
e00f4079  ldrh w0, [sp, #6]
80010035  cbnz w0, out
e80780d2  mov x8, #63
200080d2  mov x0, #1
e1830091  add x1, sp, #32
021080d2  mov x2, #128
010000d4  svc #0
e6ffff17  b reap
080880d2  tell: mov x8, #64
000080d2  mov x0, #0
e1430091  add x1, sp, #16
820080d2  mov x2, #4
010000d4  svc #0
c80b80d2  out: mov x8, #94
000080d2  mov x0, #0
010000d4  svc #0
"""
PROGRAMS = {"x86_64": (EM_X86_64, X86_64), "aarch64": (EM_AARCH64, AARCH64)}


def program(machine: str) -> bytes:
    """Return the ELF file for a machine: header, two program headers, instructions. Raise KeyError if it is
    unsupported.

    The program headers describe the whole file as readable and executable, and the stack as not executable.
    """
    number, listing = PROGRAMS[machine]
    code = bytes.fromhex("".join(line.split(None, 1)[0] for line in listing.strip().splitlines()))
    start = 64 + 2 * 56
    size = start + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, number, 1, ADDRESS + start, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, ADDRESS, ADDRESS, size, size, PAGE)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return head + load + stack + code


def chosen(helper: str) -> bytes:
    """Return the program that the zygote installs. Raise SetupError if it was not built."""
    if helper == "hex":
        return program(os.uname().machine)
    try:
        # The zygote does not import pathlib.
        with open(f"{os.path.dirname(__file__)}/init", "rb") as file:  # noqa: PTH120, PTH123
            return file.read()
    except FileNotFoundError:
        raise kernel.SetupError(MISSING) from None


def install(content: bytes, path: str = PATH) -> None:
    """Write the program to a file that all users may execute and not read. So the kernel also protects its process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o111)
    os.write(descriptor, content)
    os.close(descriptor)
