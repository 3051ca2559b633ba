"""A skill with the tools that scenarios of the official conformance suite call, by the names that the suite gives."""

from __future__ import annotations

import json

from tests.conftest import Rpc, Server

SKILL = "conformance"
TASK_SECONDS = 3
"""`greet` takes less, also on a loaded machine. The other tools take longer, except `slow_compute` for 0 s."""
WITH_TASKS = {
    "SKILLERY_RUNS_TASK_SECONDS": str(TASK_SECONDS),
    "SKILLERY_CONCURRENT_RUNS": "20",  # the suite leaves tasks of a minute
}
"""Settings of the server `tasks`."""
SCRIPTS = {
    "greet": "def handler(args):\n    return f'Hello, {args[\"name\"]}!'\n",
    "slow_compute": (
        "import time\ndef handler(args):\n    print('computing', flush=True)\n"
        f"    time.sleep(args['seconds'] and args['seconds'] + {TASK_SECONDS})\n    return 'computed'\n"
    ),
    "confirm_delete": f"import time\ndef handler(args):\n    time.sleep({TASK_SECONDS + 1})\n    return 'deleted'\n",
    "failing_job": (
        f"import time\ndef handler(args):\n    time.sleep({TASK_SECONDS + 1})\n    raise ValueError('the job failed')\n"
    ),
    "test_tool_with_progress": (
        "import time\nfrom runtime import progress\ndef handler(args):\n"
        "    for done in (0, 50, 100):\n        progress(done, 100)\n        time.sleep(0.3)\n    return 'done'\n"
    ),
}
PARAMETERS = {
    "confirm_delete": {"filename": {"type": "string", "description": "A file"}},
    "greet": {"name": {"type": "string", "description": "Whom to greet"}},
    "slow_compute": {
        "seconds": {"type": "number", "description": "How long"},
        "label": {"type": "string", "description": "Any text", "optional": True},
    },
}


def with_conformance_tools(server: Server) -> Server:
    """Publish the skill, unless the server has it already."""
    rpc = Rpc(server.url)
    if any(skill["name"] == SKILL for skill in rpc("list_skills")["skills"]):
        return server
    tools = [
        {"name": name, "description": name, "script": f"scripts/{name}.py", "parameters": PARAMETERS.get(name, {})}
        for name in SCRIPTS
    ]
    files = [{"path": "tools.json", "content": json.dumps(tools)}]
    files += [{"path": f"scripts/{name}.py", "content": code} for name, code in SCRIPTS.items()]
    manifest = {"name": SKILL, "version": "1.0.0", "description": "Tools of the conformance suite."}
    rpc("create_skill", manifest=manifest, skill_md="# Conformance\n", files=files)
    return server
