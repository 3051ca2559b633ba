"""Which distribution provides a module: for example, pyyaml provides `yaml`. The table is import_names.toml.

The module also has the widely used npm packages, and the Debian packages that provide a program.
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
        *all_but_last, last = self.packages[:MOST_NAMED]
        return f"{', '.join(all_but_last)} and {last}" if all_but_last else last


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
    """Return a correction for an import that names a file of the skill with its folder (`code.helpers`), or "".

    `files` are the path of the entrypoint and the paths of all files.
    """
    entrypoint, paths = files
    folder = entrypoint.rpartition("/")[0]
    folder_name, _, inner_module = module.partition(".")
    if not folder or folder != folder_name:
        return ""
    modules = [path.removeprefix(f"{folder}/").partition(".")[0].partition("/")[0] for path in paths]
    name = inner_module.partition(".")[0]
    if name and name not in modules:
        return ""
    return (
        f"write from {inner_module or 'MODULE'} import …, because the folder {folder}/ itself is on the path of imports"
    )


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of import_names.toml. `same` has the distributions with the name of their module, separated by
    spaces.
    """

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
    """Return the distributions of each module whose name differs from its distribution, by module."""
    names = _read()
    usual = {
        module: Providers((packages,) if isinstance(packages, str) else tuple(packages), "known")
        for module, packages in names.modules.items()
    }
    return usual | {module: Providers(tuple(packages), "ambiguous") for module, packages in names.ambiguous.items()}


@cache
def _most_parts() -> int:
    """Return the number of parts of the longest dotted name in the table."""
    return max(name.count(".") + 1 for name in _table())


def is_known_package(name: str) -> bool:
    """Return whether the table contains the distribution, so that its modules are known."""
    return name in _packages()


def usual_packages() -> frozenset[str]:
    """Return the normalised names of all distributions in import_names.toml, which has the most used ones."""
    return _packages()


@cache
def _packages() -> frozenset[str]:
    return _same().union(*(providers.packages for providers in _table().values()))


@cache
def npm_names() -> dict[str, frozenset[str]]:
    """Return the npm names: widely used `packages`, the `scopes` of such packages, and the `modules` of runtimes, which
    no package provides.
    """
    lines = msgspec.json.decode((files(__package__) / "npm_names.json").read_bytes(), type=dict[str, list[str]])
    return {kind: frozenset(" ".join(names).split()) for kind, names in lines.items()}


def is_widely_used(package: str) -> bool:
    """Return whether a package is widely used, or in the scope of such a package, to which only its owner can add."""
    scope, slash, _ = package.partition("/")
    return scope in npm_names()["scopes"] if slash else package in npm_names()["packages"]


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
