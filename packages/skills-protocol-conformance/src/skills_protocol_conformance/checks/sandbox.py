"""Checks of the sandbox: what the code of a run finds, and what is left for the next run."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlsplit

from skills_protocol_conformance.samples import SECRET
from skills_protocol_conformance.session import Session, completed, result_of
from skills_protocol_conformance.statement import Failed, at, expect

LOOK = f"""\
import os


def main(args):
    words = ("SECRET", "TOKEN", "API_KEY", "APIKEY", "PASSWORD", "PRIVATE_KEY", "CREDENTIAL")
    places = ("/", "/etc", "/usr", "/bin", "/var", "/home", "/root", "/opt", "/boot")
    return {{
        "root": os.getuid() == 0,
        "secrets": sorted(name for name in os.environ if name == "{SECRET}" or any(w in name.upper() for w in words)),
        "writable": [place for place in places if os.access(place, os.W_OK)],
        "shadow": os.access("/etc/shadow", os.R_OK),
    }}
"""
MARK = """\
import builtins
import os


def main(args):
    before = [getattr(builtins, "conformance_mark", None), os.path.exists("/workspace/" + args["mark"])]
    builtins.conformance_mark = args["mark"]
    try:
        with open("/workspace/" + args["mark"], "w") as file:
            file.write("left")
        problem = None
    except OSError as error:
        problem = str(error)
    return {"before": before, "problem": problem}
"""


def look(session: Session) -> Any:
    """What code in a sandbox sees."""
    return at(session.code(LOOK), "output")


def is_not_root(session: Session) -> None:
    """Code in a sandbox has not the user id of root."""
    expect(at(look(session), "root") is False, "`os.getuid()` is 0")


def has_no_secrets(session: Session) -> None:
    """The environment of code without permissions has no secrets."""
    names = at(look(session), "secrets")
    expect(not names, "variables look like secrets", names)


def writes_only_in_workspace(session: Session) -> None:
    """Code in a sandbox cannot write to system folders, nor read /etc/shadow."""
    answer = look(session)
    expect(not answer["writable"], "system folders are writable", answer["writable"])
    expect(not answer["shadow"], "/etc/shadow is readable")


def workspace_is_writable(session: Session) -> None:
    """Code can write to /workspace/."""
    mark = secrets.token_hex(6)
    problem = at(session.code(MARK, {"mark": mark}), "output.problem")
    expect(problem is None, "the code cannot write a file there", problem)


def _two_runs(session: Session) -> list[Any]:
    """Return what the second of two runs in a row finds: [mark in the process, file in /workspace]."""
    mark = secrets.token_hex(6)
    params = {"language": "python", "code": MARK, "args": {"mark": mark}}
    first, second = (result_of(session.send("run_code", params)) for _ in range(2))
    expect(at(first, "status") == "completed", "the first run did not complete", first)
    return list(at(second, "output.before"))


def is_fresh(session: Session) -> None:
    """A second run finds no state of the first one in its process."""
    expect(_two_runs(session)[0] is None, "the second run is in the process of an earlier one")


def workspace_is_destroyed(session: Session) -> None:
    """A second run does not find the files of the first one in /workspace."""
    expect(_two_runs(session)[1] is False, "the file of the first run is in /workspace of the second one")


def skill_runs_are_fresh(session: Session) -> None:
    """A second run of `execute_skill` finds neither state of the first one in its process, nor its files."""
    args = {"do": "mark", "mark": secrets.token_hex(6)}
    params = {"name": session.skill("probe"), "args": args}
    first, second = (completed(result_of(session.send("execute_skill", params))) for _ in range(2))
    expect(at(second, "output.before") == [None, False], "the second run finds what the first one left", second)
    expect(at(first, "run_id") != at(second, "run_id"), "two runs have the same `run_id`", second)


def own_folder_is_mounted(session: Session) -> None:
    """In `execute_skill`, the executed skill is at /skills/<name>/ with its files."""
    name = session.skill("probe")
    run = completed(session.result("execute_skill", name=name, args={"do": "folder", "name": name}))
    expect("object" in at(run, "output.text"), "the file of the skill has another content", run)


def skills_are_in_their_folder(session: Session) -> None:
    """A mounted skill is at /skills/<name>/ with its files."""
    name = session.skill("probe")
    code = f"def main(args):\n    return {{'text': open('/skills/{name}/resources/schema.json').read()}}\n"
    run = session.code(code, mount_skills=[name])
    expect("object" in at(run, "output.text"), "the file of the skill has another content", run)


def skills_are_read_only(session: Session) -> None:
    """Code cannot write to the files of a mounted skill."""
    name = session.skill("probe")
    code = (
        "import os\n\n\ndef main(args):\n"
        f"    file = '/skills/{name}/SKILL.md'\n"
        "    there = os.path.exists(file)\n"
        "    try:\n        open(file, 'a').close()\n"
        "    except OSError:\n        return {'there': there, 'wrote': False}\n"
        "    return {'there': there, 'wrote': True}\n"
    )
    run = session.code(code, mount_skills=[name])
    expect(at(run, "output") == {"there": True, "wrote": False}, "the files of a mounted skill can be written", run)


def blobs_are_available(session: Session) -> None:
    """A blob of `input_blobs` is a file in /blobs, or `runtime.blobs` reads it."""
    blob = session.blob("available\n")
    code = (
        "import os\n\nfrom runtime import blobs\n\n\ndef main(args):\n"
        "    names = (args['blob'], args['blob'].partition(':')[2])\n"
        "    files = [name for name in names if os.path.exists('/blobs/' + name)]\n"
        "    try:\n        text = blobs.read_text(args['blob'])\n"
        "    except Exception as error:\n        text = repr(error)\n"
        "    return {'files': files, 'text': text}\n"
    )
    output = at(session.code(code, {"blob": blob}, input_blobs=[blob]), "output")
    expect(output.get("files") or output.get("text") == "available\n", "the blob is not available", output)


def has_no_network(session: Session) -> None:
    """Code without permissions cannot connect to the address of this server."""
    parts = urlsplit(session.connection.url)
    code = (
        "import socket\n\n\ndef main(args):\n    try:\n"
        "        socket.create_connection((args['host'], args['port']), timeout=2).close()\n"
        "    except OSError as error:\n        return {'connected': False, 'error': str(error)}\n"
        "    return {'connected': True}\n"
    )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    output = at(session.code(code, {"host": parts.hostname, "port": port}), "output")
    expect(output.get("connected") is False, f"the code connected to {parts.hostname}:{port}")


def runtime_package_is_complete(session: Session) -> None:
    """The package `runtime` has read_text, write_text and write_json of blobs, and info and error of log."""
    code = (
        "from runtime import blobs, log\n\n\ndef main(args):\n"
        "    wanted = [(blobs, name) for name in ('read_text', 'write_text', 'write_json')]\n"
        "    wanted += [(log, 'info'), (log, 'error')]\n"
        "    return {'missing': [name for module, name in wanted if not callable(getattr(module, name, None))]}\n"
    )
    missing = at(session.code(code), "output.missing")
    expect(not missing, f"the package does not have {', '.join(missing)}")


def own_process(session: Session) -> None:
    """A run that ends its process does not end the server."""
    code = "import os\nimport signal\n\n\ndef main(args):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    run = session.result("run_code", language="python", code=code)
    expect(at(run, "status") == "failed", "the run completed", run)
    if session.send("load_skills_protocol_guide", {}).error:
        raise Failed("the server does not work after the run")
