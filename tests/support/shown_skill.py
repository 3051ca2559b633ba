"""A skill for tests of its pages: releases, pre-releases, a yanked version, a label, examples, many kinds of files."""

from __future__ import annotations

import base64
from typing import Any

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
CODE = f"""# Count.
{chr(10) * 40}
def main(args):
    if args.get("fail"):
        raise ValueError(args["fail"])
    return {{"count": args["count"], "note": args["note"]}}
"""
SKILL_MD = """# Count

See [the code](code/main.py#L10-L20).

```python
print(1)
```

| a | b |
|---|---|
| 1 | 2 |
"""
LARGE = "a line of a large text\n" * 60_000
FILES = {
    "code/main.py": CODE.encode(),
    "code/lib/parts.py": b"HALF = 0.5\n",
    "resources/large.txt": LARGE.encode(),
    "resources/medium.py": b"x = 1  # 24 bytes each\r\n" * 10_000,
    "resources/dot.png": PNG,
    "resources/data.bin": bytes(range(256)),
    "resources/empty.txt": b"",
}


HTML = {"accept": "text/html"}


class ShownSkill:
    """A skill with releases, pre-releases, a yanked version, labels and runs; a reader sees it too."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.name = f"{namespace}.count"
        grants = [f"{namespace}.*"]
        self.ann = token_of(server, f"{namespace}-ann", "read", "run", "publish", namespaces=grants)
        self.rpc = Rpc(server.url, self.ann)
        for version in ("0.9.0", "1.0.0-rc.1", "1.0.0-rc.2", "1.2.0", "1.9.0"):
            self.publish_text(version)
        files = [
            {"path": path, "content": base64.b64encode(body).decode(), "encoding": "base64"}
            for path, body in FILES.items()
        ]
        self.rpc("create_skill", manifest=self.manifest("1.10.0"), skill_md=SKILL_MD, files=files)
        self.publish_text("2.0.0-rc.1")
        self.rpc("yank_version", name=self.name, version="0.9.0", reason="It counts twice.")
        self.rpc("set_label", name=self.name, label="stable", version="1.10.0")
        self.rpc("execute_skill", name=self.name, args={"count": 1, "note": "n", "fail": "no"})

    def manifest(self, version: str) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": version,
            "kind": "action",
            "description": "Count what is there.",
            "tags": ["count"],
            "inputs": {
                "count": {"type": "integer", "required": True, "description": "How many"},
                "note": {"type": "string", "enum": ["it's", "n"], "default": "n"},
                **{f"more_{n}": {"type": "string"} for n in range(9)},
            },
            "runtime": {
                "language": "python",
                "entrypoint": "code/main.py",
                "limits": {"memory_mb": 256, "cpus": 1, "timeout_ms": 20_000},
            },
            "examples": [
                {"name": "two", "args": {"count": 2, "note": "it's"}, "expect_subset": {"count": 2}},
                {"name": "fails", "args": {"count": 1, "fail": "x"}, "expect_error": "ValueError"},
            ],
        }

    def publish_text(self, version: str) -> None:
        manifest = {"name": self.name, "version": version, "kind": "instruction", "description": "Count."}
        self.rpc("create_skill", manifest=manifest, skill_md=f"# Count\n\nBy hand, in {version}.\n")

    def browser(self, token: str = "") -> Browser:
        browser = Browser(self.server.url, **HTML)
        assert browser.sign_in(token or self.ann).status_code == 303
        return browser

    def path(self, *below: str, version: str = "") -> str:
        return "/".join([f"/s/{self.name}{f'@{version}' if version else ''}", *below])
