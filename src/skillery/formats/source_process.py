"""A process of its own for a look at one source: the compiler holds up every thread of its process, and some sources
make it slow beyond all measure (thousands of equal functions, constants of one hash)."""

from __future__ import annotations

import resource
import sys

import msgspec

from skillery.formats.python_source import source_problem

CPU_SECONDS = 10
MEMORY_BYTES = 1024 * 1024 * 1024


def main() -> None:
    """Arguments: a path, then the name to be defined or nothing. The source is stdin, stdout the Problem as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    path, export = sys.argv[1], sys.argv[2] or None
    problem = source_problem(path, sys.stdin.buffer.read(), export)
    sys.stdout.buffer.write(msgspec.json.encode(problem))


if __name__ == "__main__":
    main()
