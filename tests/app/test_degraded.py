"""A host without one barrier: the server names it and refuses to start, or a setting allows it and every result reports
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, ctypes, json, struct, sys
from pathlib import Path
from skillery.backends import CodeCall, Job, Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from cellblock.inside import kernel, lockdown
from skillery.errors import SandboxUnavailable
from skillery.testing.sandbox import MemoryHost

# A kernel without Landlock: landlock_create_ruleset (444) answers ENOSYS, everything else goes through.
kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
lockdown.load_filter(b"".join(struct.pack("=HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000))))
offer = skillery_sandbox()

async def tried(allow_degraded):
    sandbox = offer.open(offer.settings(), Place(Path(sys.argv[1]), allow_degraded))
    try:
        await sandbox.start()
        outcome = await sandbox.run(Job("run_1", CodeCall("def main(args): return 1", "main"), b"{}"), MemoryHost())
        return [outcome.result.decode(), *outcome.degraded]
    except SandboxUnavailable as error:
        return str(error)
    finally:
        await sandbox.close()

print(json.dumps([asyncio.run(tried(allowed)) for allowed in (False, True)]))
"""


def test_without_landlock_runs_are_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, allowed = json.loads(done.stdout)
    assert "needs Landlock" in refused
    assert "allow_degraded" in refused
    assert allowed[0] == "1"
    assert "landlock" in allowed[1:]
