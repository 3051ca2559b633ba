"""The distributions that provide a module: for example, pyyaml provides `yaml`. import_names.toml contains the
table. The module also names the Debian packages that provide a program.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import msgspec
from packaging.utils import canonicalize_name

MOST_NAMED = 4
"""The maximum number of distributions that one message names."""


class Providers(NamedTuple):
    """The distributions that may provide a module, by normalised name, the most likely one first.

    `how` is `known` if the table has a usual distribution for the module, `ambiguous` if the table has several and none
    is usual, and `guessed` if the distribution is only assumed to have the name of the module.
    """

    packages: tuple[str, ...]
    how: Literal["known", "ambiguous", "guessed"]

    def __str__(self) -> str:
        """Return the names for a message: `pyyaml`, or `a, b and c`."""
        *first, last = self.packages[:MOST_NAMED]
        return f"{', '.join(first)} and {last}" if first else last


def providers_of(module: str) -> Providers:
    """Return the providers of `module`, a dotted name. The longest prefix in the table decides."""
    table = _table()
    parts = module.split(".", _most_parts())[: _most_parts()]
    for length in range(len(parts), 0, -1):
        providers = table.get(".".join(parts[:length]))
        if providers is not None:
            return providers
    name = canonicalize_name(parts[0])
    return Providers((name,), "known" if name in _same() else "guessed")


def own_module(module: str, files: tuple[str, Iterable[str]]) -> str:
    """Return how to import a module that names a file of the skill with its folder (`code.helpers`), or "".

    `files` are the entrypoint and the paths of the skill.
    """
    entrypoint, paths = files
    folder = entrypoint.rpartition("/")[0]
    first, _, rest = module.partition(".")
    if not folder or folder != first:
        return ""
    modules = [path.removeprefix(f"{folder}/").partition(".")[0].partition("/")[0] for path in paths]
    name = rest.partition(".")[0]
    if name and name not in modules:
        return ""
    return f"write from {rest or 'MODULE'} import …, because the folder {folder}/ itself is on the path of imports"


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    same: str
    modules: dict[str, str | list[str]]
    ambiguous: dict[str, list[str]]


@cache
def _read() -> _Names:
    text = (files(__package__) / "import_names.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Names)


@cache
def _same() -> frozenset[str]:
    return frozenset(_read().same.split())


@cache
def _table() -> dict[str, Providers]:
    names = _read()
    known = {
        module: Providers((packages,) if isinstance(packages, str) else tuple(packages), "known")
        for module, packages in names.modules.items()
    }
    return known | {module: Providers(tuple(several), "ambiguous") for module, several in names.ambiguous.items()}


@cache
def _most_parts() -> int:
    """Return the number of parts of the longest dotted name in the table."""
    return max(name.count(".") + 1 for name in _table())


def is_known_package(name: str) -> bool:
    """Return whether the table contains the distribution, so that its modules are known."""
    return name in _packages()


def usual_packages() -> frozenset[str]:
    """Return the distributions of the table, by normalised name: the most used ones."""
    return _packages()


@cache
def _packages() -> frozenset[str]:
    return _same().union(*(providers.packages for providers in _table().values()))


# Programs of the host that public skills call, by the Debian package that contains them (package names of Debian
# 12).


USUAL: Mapping[str, tuple[str, ...]] = {
    "bash": ("bash",),
    "curl": ("curl",),
    "fd-find": ("fdfind",),
    "ffmpeg": ("ffmpeg", "ffprobe"),
    "file": ("file",),
    "gawk": ("awk", "gawk"),
    "ghostscript": ("gs", "ps2pdf"),
    "git": ("git",),
    "graphviz": ("dot", "neato"),
    "imagemagick": ("convert", "identify", "magick", "mogrify", "montage", "composite"),
    "jq": ("jq",),
    "libimage-exiftool-perl": ("exiftool",),
    "libreoffice": ("soffice", "libreoffice"),
    "librsvg2-bin": ("rsvg-convert",),
    "nodejs": ("node",),
    "npm": ("npm", "npx"),
    "p7zip-full": ("7z",),
    "pandoc": ("pandoc",),
    "poppler-utils": ("pdftotext", "pdftoppm", "pdfinfo", "pdfimages", "pdftocairo", "pdfunite", "pdfseparate"),
    "python3": ("python3",),
    "qpdf": ("qpdf",),
    "ripgrep": ("rg",),
    "sqlite3": ("sqlite3",),
    "tesseract-ocr": ("tesseract",),
    "unzip": ("unzip",),
    "wget": ("wget",),
    "zip": ("zip",),
}
"""Usual programs: `skillery doctor` and docs/operate/operations.md list them, and the container file installs them."""
RARE: Mapping[str, tuple[str, ...]] = {
    "antiword": ("antiword",),
    "bc": ("bc",),
    "calibre": ("ebook-convert",),
    "cargo": ("cargo",),
    "catdoc": ("catdoc",),
    "chromium": ("chromium",),
    "default-jre-headless": ("java",),
    "docker.io": ("docker",),
    "g++": ("g++",),
    "gcc": ("gcc", "cc"),
    "gh": ("gh",),
    "gnuplot-nox": ("gnuplot",),
    "golang-go": ("go",),
    "img2pdf": ("img2pdf",),
    "inkscape": ("inkscape",),
    "jpegoptim": ("jpegoptim",),
    "latexmk": ("latexmk",),
    "libxml2-utils": ("xmllint",),
    "make": ("make",),
    "mediainfo": ("mediainfo",),
    "mupdf-tools": ("mutool",),
    "ocrmypdf": ("ocrmypdf",),
    "openssh-client": ("ssh", "scp"),
    "openssl": ("openssl",),
    "optipng": ("optipng",),
    "patch": ("patch",),
    "pdftk-java": ("pdftk",),
    "perl": ("perl",),
    "php-cli": ("php",),
    "plantuml": ("plantuml",),
    "postgresql-client": ("psql",),
    "rsync": ("rsync",),
    "ruby": ("ruby",),
    "shellcheck": ("shellcheck",),
    "sox": ("sox",),
    "texlive-latex-base": ("pdflatex", "latex"),
    "texlive-luatex": ("lualatex",),
    "texlive-xetex": ("xelatex",),
    "tree": ("tree",),
    "webp": ("cwebp", "dwebp"),
    "wkhtmltopdf": ("wkhtmltopdf",),
    "xsltproc": ("xsltproc",),
    "xxd": ("xxd",),
    "yt-dlp": ("yt-dlp",),
}
"""Rare programs: only error messages of runs name their packages."""

_PACKAGES = {program: package for table in (RARE, USUAL) for package, programs in table.items() for program in programs}


def package_of(program: str) -> str | None:
    """Return the Debian package of a program, or None if no table has the program."""
    return _PACKAGES.get(program)
