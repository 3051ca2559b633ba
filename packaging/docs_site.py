"""A hook of MkDocs: the README is the first page, pages get their tables, and links to files outside docs/ become
plain text.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
TABLE = "<!-- table: "
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as index.md, with addresses inside of docs/."""
    text = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Add the tables. Replace links to files that the site does not have, such as ../../packaging/nginx.conf, by their
    text.
    """
    if TABLE in markdown:
        command = [ROOT / ".venv" / "bin" / "python", "-m", "skillery.client_source.openrpc"]
        # MkDocs has its own environment.
        markdown = subprocess.run(command, input=markdown, stdout=subprocess.PIPE, text=True, check=True).stdout
    folder = Path(page.file.src_uri).parent
    known = {file.src_uri for file in files}

    def kept(link: re.Match[str]) -> str:
        target = link[2]
        if re.match(r"\w+:", target):
            return link[0]
        inside = _joined(folder, target)
        if inside in known:
            return link[0]
        return link[1]

    return LINK.sub(kept, _with_blank_lines(markdown))


def _joined(folder: Path, target: str) -> str | None:
    """Return the path below docs/, None if the target is outside."""
    parts: list[str] = []
    for part in (folder / target).parts:
        if part != "..":
            parts.append(part)
        elif not parts:
            return None
        else:
            parts.pop()
    return "/".join(parts)


def _with_blank_lines(markdown: str) -> str:
    """Put a blank line before a list that follows a paragraph: Python-Markdown needs it, other readers do not."""
    lines: list[str] = []
    in_code = False
    for line in markdown.split("\n"):
        begins = re.match(r"([-*]|\d+\.) ", line) is not None
        before = lines[-1] if lines else ""
        if begins and not in_code and before and not re.match(r"([-*]|\d+\.) | ", before):
            lines.append("")
        in_code ^= line.lstrip().startswith("```")
        lines.append(line)
    return "\n".join(lines)
