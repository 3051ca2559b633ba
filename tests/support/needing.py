"""Skills with dependencies."""

from __future__ import annotations

from typing import Any

from skillery.formats.requirements import read_lock
from tests.conftest import Rpc, manifest, skill_files

CODE = "def main(args):\n    return 1\n"


def needing(name: str, *dependencies: str, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    runtime = {"entrypoint": "code/main.py", "dependencies": list(dependencies), **more}
    return manifest(name, version, runtime=runtime)


def create(rpc: Rpc, made: dict[str, Any], code: str = CODE, **files: str) -> dict[str, Any]:
    result: dict[str, Any] = rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files(code, **files))
    return result


def refused(rpc: Rpc, made: dict[str, Any], **files: str) -> dict[str, Any]:
    return rpc.error("create_skill", manifest=made, skill_md="# A\n", files=skill_files(CODE, **files))


def lock_of(rpc: Rpc, name: str, version: str = "latest") -> str:
    content: str = rpc("read_skill_file", name=name, version=version, path="requirements.lock")["content"]
    return content


def pins(lock: str) -> dict[str, str]:
    return {pin.name: pin.version for pin in read_lock(lock.encode())}
