"""Scripts of system calls, which a forked process executes without the Python interpreter.

A forked interpreter copies each memory page that it changes, and it changes hundreds: even reading an object changes
its reference count. So the zygote prepares the system calls of pid 1 as a `Script`. The functions of `kernel` call the
kernel at once, but inside a `with script:` block they append the call to the script (`kernel.call`). A few dozen
machine instructions execute the script. At its end, pid 1 becomes the program of `init`, and pid 2 returns to the
interpreter, as after a fork. The zygote itself can go on with other calls of the script, for example to receive the
next order. So it changes few pages of its own memory, which the kernel would copy after each fork.

If a call has an unexpected result, the process writes the step and the result to CONTROL, and ends.
"""

from __future__ import annotations

import ctypes
import os
import struct

from . import kernel

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/run/skillery/calls"
CONTROL = 204
"""The descriptor to which a process writes the name of its failed step and the result of the call (FAILURE)."""
FAILURE = struct.Struct("=q")
ENTRY = struct.Struct("=Q6QqqQQ")
"""One call: its number, six arguments, its kind, its required result, and the address and length of the step's name."""
ARGUMENTS_AT, ANSWER_AT = 8, 64
ANY = -1
"""Accepts any result that is not an error."""
CALL, TRY, FIRST, SECOND, END, RECEIVE = range(6)
"""The kinds of calls.

TRY: if the call succeeds, the next call is skipped. FIRST and SECOND are clone calls. After FIRST, the child makes the
next call. The parent makes the call at the address in the place of the required result; if that is 0, the parent
returns the pid of the child. If FIRST fails, the parent returns minus the errno. After SECOND, the child returns 0.
RECEIVE: if the result is not the required one, the process returns the result plus RECEIVED.
"""
RECEIVED = 1 << 20

X86_64 = """
53                run: push rbx
4889fb            mov rbx, rdi
837b3804          next: cmp dword ptr [rbx+56], 4
0f84b3000000      je none
488b03            mov rax, [rbx]
488b7b08          mov rdi, [rbx+8]
488b7310          mov rsi, [rbx+16]
488b5318          mov rdx, [rbx+24]
4c8b5320          mov r10, [rbx+32]
4c8b4328          mov r8, [rbx+40]
4c8b4b30          mov r9, [rbx+48]
0f05              syscall
8b4b38            mov ecx, [rbx+56]
83f901            cmp ecx, 1
7456              je try
83f902            cmp ecx, 2
745c              je first
83f903            cmp ecx, 3
746e              je second
488b5340          mov rdx, [rbx+64]
83f905            cmp ecx, 5
746e              je wanted
4883faff          cmp rdx, -1
740b              je any
4839d0            cmp rax, rdx
750b              jne fail
4883c358          step: add rbx, 88
ebad              jmp next
4885c0            any: test rax, rax
79f5              jns step
50                fail: push rax
4889e0            mov rax, rsp
6a08              push 8
50                push rax
ff7350            push qword ptr [rbx+80]
ff7348            push qword ptr [rbx+72]
b814000000        mov eax, 20
bfcc000000        mov edi, 204
4889e6            mov rsi, rsp
ba02000000        mov edx, 2
0f05              syscall
b8e7000000        mov eax, 231
bf01000000        mov edi, 1
0f05              syscall
4885c0            try: test rax, rax
78c3              js step
4883c358          add rbx, 88
ebbd              jmp step
4885c0            first: test rax, rax
74b8              je step
7828              js out
48837b4000        cmp qword ptr [rbx+64], 0
7421              je out
488b5b40          mov rbx, [rbx+64]
e959ffffff        jmp next
4885c0            second: test rax, rax
78ac              js fail
759f              jne step
eb0f              jmp out
4839d0            wanted: cmp rax, rdx
7498              je step
480500001000      add rax, 0x100000
eb02              jmp out
31c0              none: xor eax, eax
5b                out: pop rbx
c3                ret
"""
AARCH64 = """
f30f1ff8          run: str x19, [sp, #-16]!
f30300aa          mov x19, x0
693a40b9          next: ldr w9, [x19, #56]
3f110071          cmp w9, #4
a0060054          b.eq none
680240f9          ldr x8, [x19]
608640a9          ldp x0, x1, [x19, #8]
628e41a9          ldp x2, x3, [x19, #24]
649642a9          ldp x4, x5, [x19, #40]
010000d4          svc #0
693a40b9          ldr w9, [x19, #56]
3f050071          cmp w9, #1
a0030054          b.eq try
3f090071          cmp w9, #2
c0030054          b.eq first
3f0d0071          cmp w9, #3
40040054          b.eq second
6a2240f9          ldr x10, [x19, #64]
3f150071          cmp w9, #5
40040054          b.eq wanted
5f0500b1          cmn x10, #1
a0000054          b.eq any
1f000aeb          cmp x0, x10
81000054          b.ne fail
73620191          step: add x19, x19, #88
e9ffff17          b next
c0ffffb6          any: tbz x0, #63, step
090180d2          fail: mov x9, #8
e00f1ff8          str x0, [sp, #-16]!
ea030091          mov x10, sp
ea27bfa9          stp x10, x9, [sp, #-16]!
6bb244a9          ldp x11, x12, [x19, #72]
eb33bfa9          stp x11, x12, [sp, #-16]!
480880d2          mov x8, #66
801980d2          mov x0, #204
e1030091          mov x1, sp
420080d2          mov x2, #2
010000d4          svc #0
c80b80d2          mov x8, #94
200080d2          mov x0, #1
010000d4          svc #0
e0fdffb7          try: tbnz x0, #63, step
73620191          add x19, x19, #88
edffff17          b step
80fdffb4          first: cbz x0, step
a001f8b7          tbnz x0, #63, out
6a2240f9          ldr x10, [x19, #64]
6a0100b4          cbz x10, out
f3030aaa          mov x19, x10
d1ffff17          b next
20fdffb7          second: tbnz x0, #63, fail
a0fcffb5          cbnz x0, step
06000014          b out
1f000aeb          wanted: cmp x0, x10
40fcff54          b.eq step
00004491          add x0, x0, #256, lsl #12
02000014          b out
000080d2          none: mov x0, #0
f30741f8          out: ldr x19, [sp], #16
c0035fd6          ret
"""
PROGRAMS = {"x86_64": X86_64, "aarch64": AARCH64}


def instructions(machine: str) -> bytes:
    """Return the machine instructions. Raise KeyError for an unsupported machine."""
    return bytes.fromhex("".join(line.split(None, 1)[0] for line in PROGRAMS[machine].strip().splitlines()))


def install(path: str = PATH) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(descriptor, instructions(os.uname().machine))
    os.close(descriptor)


def load(path: str = PATH) -> Callable[[int], int]:
    """Return the instructions as a function. Its argument is the address of a script.

    The instructions are mapped from a file, because some hosts refuse memory that is both writable and executable.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(kernel.map_program(descriptor))
    finally:
        os.close(descriptor)


class Script:
    """System calls in their order. Inside `with script:`, each `kernel.call` appends its call to the script.

    The script must know which descriptor a call will open. So at the first such call, `descriptors` must be the lowest
    free number, and the numbers after it must be free.
    """

    def __init__(self, descriptors: int) -> None:
        self._entries: list[tuple[int, ...]] = []
        self._kept: list[object] = []
        self._next_descriptor = descriptors
        self._closed: list[int] = []
        self._jumps: dict[int, int] = {}

    def __enter__(self) -> Script:
        kernel.script = self
        return self

    def __exit__(self, *_: object) -> None:
        kernel.script = None

    def add(self, step: str, number: int, *arguments: kernel.Argument, kind: int = CALL, answer: int = ANY) -> int:
        """Append a call. Return the result that the call must have; 0 if any result is accepted."""
        six = [self._word(argument) for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
        name = step.encode()
        self._entries.append((number, *six, kind, answer, self._address(name), len(name)))
        return max(answer, 0)

    def opens(self) -> int:
        """Return the number of the descriptor that the next call opens: the lowest free number, as the kernel
        chooses.
        """
        if self._closed:
            self._closed.sort()
            return self._closed.pop(0)
        self._next_descriptor += 1
        return self._next_descriptor - 1

    def closes(self, descriptor: int) -> None:
        self._closed.append(descriptor)

    def unless(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """Make the `second` call only if the `first` fails."""
        first()
        self._entries[-1] = (*self._entries[-1][:7], TRY, *self._entries[-1][8:])
        second()

    @property
    def position(self) -> int:
        """The position of the next call."""
        return len(self._entries)

    def jump(self, call: int, target: int) -> None:
        """After the FIRST at the position `call`, the parent continues at the position `target`."""
        self._jumps[call] = target

    def continue_at(self, target: int) -> None:
        """Append a jump: a call that always succeeds, as FIRST."""
        self.jump(self.position, target)
        self.add("jump", kernel.SYS_GETPID, kind=FIRST, answer=0)

    def end(self) -> Written:
        self._entries.append((0,) * 7 + (END, 0, 0, 0))
        return Written(self._entries, self._jumps, self._kept)

    def _word(self, argument: kernel.Argument) -> int:
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument & 0xFFFF_FFFF_FFFF_FFFF
        return self._address(argument)

    def _address(self, content: kernel.Pointed) -> int:
        """Return the address of the content. The address stays valid as long as the script exists."""
        kept = ctypes.create_string_buffer(content) if isinstance(content, bytes) else content
        self._kept.append(kept)
        return ctypes.addressof(kept)


class Written:
    """A script in memory, which processes can execute any number of times."""

    def __init__(self, entries: list[tuple[int, ...]], jumps: dict[int, int], kept: list[object]) -> None:
        self._kept = kept
        self._memory = ctypes.create_string_buffer(b"".join(ENTRY.pack(*entry) for entry in entries))
        for position, target in jumps.items():
            ctypes.c_int64.from_address(self.address_of(position) + ANSWER_AT).value = self.address_of(target)

    def address_of(self, position: int) -> int:
        return ctypes.addressof(self._memory) + position * ENTRY.size

    def argument_address(self, position: int, argument: int) -> int:
        """Return the address of an argument (0 is the first) of a call. It holds eight bytes."""
        return self.address_of(position) + ARGUMENTS_AT + 8 * argument
