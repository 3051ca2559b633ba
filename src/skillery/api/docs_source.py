"""Write the tables of docs/ that repeat what the code says. `make client` runs this module."""

from __future__ import annotations

import re
from pathlib import Path

from skillery.backends import FailureType

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = "(<!-- made by `make client`: {name} -->\n).*?(<!-- end -->)"


def sources() -> dict[Path, str]:
    """Return the text of each page that has generated blocks."""
    blocks = {
        DOCS / "reference" / "errors.md": {"failure types": _failure_types()},
        DOCS / "operate" / "troubleshooting.md": {"failure remedies": _failure_remedies()},
    }
    return {path: _filled(path.read_text("utf-8"), made) for path, made in blocks.items()}


def main() -> None:
    for path, text in sources().items():
        path.write_text(text, "utf-8")


def _filled(text: str, blocks: dict[str, str]) -> str:
    """Replace the content of each named block. Raise LookupError for a missing block."""
    for name, made in blocks.items():
        text, count = re.subn(_BLOCK.format(name=name), rf"\1\n{made}\n\2", text, flags=re.DOTALL)
        if count != 1:
            raise LookupError(f"the block '{name}' stands {count} times in the page")
    return text


def _failure_types() -> str:
    rows = "".join(f"| `{one}` | {one.cause} |\n" for one in FailureType)
    return f"| type | cause |\n|---|---|\n{rows}"


def _failure_remedies() -> str:
    return "\n".join(f"### `{one}`\n\n{one.cause}\n{one.remedy}\n" for one in FailureType)


if __name__ == "__main__":
    main()
