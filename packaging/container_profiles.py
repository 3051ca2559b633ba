"""`python packaging/container_profiles.py`: write seccomp.json, the system calls that a container of Skillery needs.

The sources of the sandbox decide: the calls that its own filter leaves to runs, and the calls that set up a run. All
other calls are refused. The engine of the container loads the profile; no run can load a weaker filter afterwards.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cellblock.filter import calls, rules
from cellblock.inside import kernel

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "packaging/seccomp.json"
NATIVE = ROOT / "packages/cellblock/native/kernel.h"
MACHINE = "x86_64" if kernel.X86 else "aarch64"
OF_RUNS = calls.ALLOWED + calls.BY_ARGUMENT + calls.ONLY_WITH_CGROUPS + calls.IGNORED + calls.UNSUPPORTED
FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
"""The families of sockets that server and runs use. netlink: the C library asks for the addresses of the machine."""
EPERM, ENOSYS = 1, 38


def of_the_sandbox() -> set[str]:
    """Return the names of the calls that set up runs: of the helper in C, and of cellblock.inside.kernel."""
    in_python = {value for name, value in vars(kernel).items() if name.startswith("SYS_")}
    known = calls.numbers(OF_RUNS + calls.ABSENT + calls.FORBIDDEN, MACHINE)
    names = {name for name, number in known.items() if number in in_python}
    assert len(names) == len(in_python), "cellblock.filter.calls does not have all calls of cellblock.inside.kernel"
    return names | set(re.findall(r"\bCALL\((\w+), \d", NATIVE.read_text("utf-8")))


def allowed() -> set[str]:
    """Return the names of all calls of the profile."""
    return {entry.partition(":")[0] for entry in OF_RUNS.split()} | of_the_sandbox()


def profile() -> dict[str, Any]:
    """Return the profile in the format of the OCI runtime specification, which Docker, Podman and Kubernetes read."""
    forbidden = {entry.partition(":")[0] for entry in calls.FORBIDDEN.split()}
    by_argument = {"socket": tuple(FAMILIES.values()), "personality": rules.HARMLESS_PERSONALITIES}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": sorted(allowed() - set(by_argument)), "action": "SCMP_ACT_ALLOW"},
            *(
                {
                    "names": [name],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}],
                }
                for name, values in by_argument.items()
                for value in values
            ),
            {"names": sorted(forbidden - allowed()), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
        ],
    }


def main() -> None:
    PROFILE.write_text(json.dumps(profile(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
