"""Programs of the host that public skills call, by the Debian package that contains them (package names of Debian
12).
"""

from __future__ import annotations

from collections.abc import Mapping

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
