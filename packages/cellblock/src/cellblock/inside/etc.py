"""The folders `/etc` and `/var` of runs: constants, and a copy of harmless configuration of the host.

A copy, not a mount: it has only files that every user of the host may read, and links. A link shows its text, and
never what it points to on the host. So no file of the host becomes visible through a link or a socket in these folders.
"""

# ruff: noqa: PTH103, PTH112, PTH115, PTH116, PTH120, PTH123, PTH208, PTH211, S108 - importing pathlib costs every zygote milliseconds; the paths are those of the sandbox
from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable

COPIED = (
    *("alternatives", "fonts", "ld.so.cache", "magic", "mime.types", "papersize", "terminfo"),
    *("ImageMagick-*", "R", "ghostscript", "java-*-openjdk", "libreoffice", "perl", "texmf"),
)
"""Names in `/etc` of the host. A `*` stands for any text."""
COPIED_OF_VAR = ("lib/ghostscript",)
BOUND = ("/var/cache/fontconfig",)
"""Folders that are bound, because they may be large: caches for all users."""
SECRET = ("shadow", "gshadow", "ssh", "ssl", "pki", "sudoers", "krb5.keytab", "security")
"""Beginnings of names that are never copied."""
MOST_BYTES, MOST_ENTRIES, DEPTH, PAGE = 6 << 20, 8_000, 8, 4096
"""Most that is copied. A name that does not fit is left out."""
TEXTS = {
    "passwd": """\
root:x:0:0:root:/:/usr/sbin/nologin
user:x:1000:1000:user:/workspace:/bin/bash
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
""",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n127.0.0.1 sandbox\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "".join(
        f"{name}: files\n" for name in ("passwd", "group", "shadow", "hosts", "networks", "protocols", "services")
    ),
    "host.conf": "multi on\n",
    "gai.conf": "precedence ::ffff:0:0/96 100\n",  # 0.0.0.0 before ::, because a run has no IP version 6
    "resolv.conf": "# A run has no name server.\n",
    "services": "".join(
        f"{name} {port}/tcp\n"
        for name, port in (
            *(("ftp", 21), ("ssh", 22), ("telnet", 23), ("smtp", 25), ("domain", 53), ("http", 80), ("pop3", 110)),
            *(("ntp", 123), ("imap2", 143), ("ldap", 389), ("https", 443), ("submission", 587), ("imaps", 993)),
            *(("mysql", 3306), ("postgresql", 5432), ("redis", 6379), ("http-alt", 8080)),
        )
    ),
    "protocols": "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\nipv6-icmp 58 IPv6-ICMP\n",
    "shells": "/bin/sh\n/bin/bash\n",
    "timezone": "Etc/UTC\n",
}
LINKS = {
    "mtab": "/proc/self/mounts",
    "localtime": "/usr/share/zoneinfo/Etc/UTC",
    "os-release": "../usr/lib/os-release",
}
INSTEAD = {
    "mime.types": """\
application/epub+zip epub
application/gzip gz
application/json json
application/msword doc
application/pdf pdf
application/postscript ai eps ps
application/rtf rtf
application/vnd.ms-excel xls
application/vnd.ms-powerpoint ppt
application/vnd.oasis.opendocument.presentation odp
application/vnd.oasis.opendocument.spreadsheet ods
application/vnd.oasis.opendocument.text odt
application/vnd.openxmlformats-officedocument.presentationml.presentation pptx
application/vnd.openxmlformats-officedocument.spreadsheetml.sheet xlsx
application/vnd.openxmlformats-officedocument.wordprocessingml.document docx
application/wasm wasm
application/x-7z-compressed 7z
application/x-sh sh
application/x-tar tar
application/xml xml xsl
application/yaml yaml yml
application/zip zip
audio/mpeg mp3
audio/ogg oga ogg
audio/x-wav wav
font/otf otf
font/ttf ttf
font/woff woff
font/woff2 woff2
image/avif avif
image/bmp bmp
image/gif gif
image/jpeg jpeg jpg
image/png png
image/svg+xml svg
image/tiff tif tiff
image/webp webp
text/css css
text/csv csv
text/html htm html
text/javascript js mjs
text/markdown markdown md
text/plain log txt
text/x-python py
video/mp4 mp4
video/webm webm
""",
    "fonts/fonts.conf": """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>/usr/local/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
""",
}
"""Files for names of COPIED that the host does not have. A program such as fc-list prints an error without them."""
CERTIFICATES = "ssl/certs/ca-certificates.crt"
LINKS_TO_CERTIFICATES = ("ssl/cert.pem", "pki/tls/cert.pem", "pki/tls/certs/ca-bundle.crt")
BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that `build` does not copy from `/etc` of the host."""
    for name in names:
        if name in {"", ".", ".."} or set(name) & {"/", "*", "\0"}:
            raise ValueError(f"{name!r} is not the name of a file or folder in /etc")
        if is_secret(name):
            raise ValueError(f"{name!r} can hold secrets, so runs may not see it")
        if name in TEXTS or name in LINKS:
            raise ValueError(f"{name!r} is a file that the sandbox makes itself")


def is_secret(name: str) -> bool:
    return name.lower().startswith(SECRET)


def build(target: str, host: str, names: Iterable[str], certificates: str | None) -> list[str]:
    """Write both folders below `target`. Return the paths of empty folders there, for mounts of the same host folders.

    `host` is the root folder of the host, and `names` are more names in its `/etc`. `certificates` is the path of a
    file of the host, of which only the certificates are copied.
    """
    copy = Copy(f"{host}/etc", f"{target}/etc")
    for name, text in TEXTS.items():
        write(f"{target}/etc/{name}", text.encode())
    for name, text in LINKS.items():
        os.symlink(text, f"{target}/etc/{name}")
    on_host = os.listdir(f"{host}/etc") if os.path.isdir(f"{host}/etc") else []
    for name in matching(on_host, (*COPIED, *names)):
        copy.add(name)
    for name, text in INSTEAD.items():
        if not os.path.lexists(f"{target}/etc/{name.partition('/')[0]}"):
            write(f"{target}/etc/{name}", text.encode())
    if certificates:
        add_certificates(f"{target}/etc", f"{host}{certificates}")
    var = Copy(f"{host}/var", f"{target}/var")
    for name in ("cache", "lib"):
        os.makedirs(f"{target}/var/{name}", 0o755)
    for name in COPIED_OF_VAR:
        var.add(name)
    os.symlink("/tmp", f"{target}/var/tmp")
    bound = [path for path in BOUND if is_folder(host, path)]
    for path in bound:
        os.makedirs(target + path, 0o755)
    return bound


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    parts = [pattern.partition("*") for pattern in patterns]
    return sorted(
        name
        for name in names
        if not is_secret(name)
        and any(name.startswith(start) and name.endswith(end) if star else name == start for start, star, end in parts)
    )


def is_folder(host: str, path: str) -> bool:
    """Return whether the path is a folder that every user may read, and not reached through a link."""
    is_direct = os.path.realpath(host + path) == os.path.realpath(host or "/").rstrip("/") + path
    return is_direct and os.path.isdir(host + path) and is_readable(os.stat(host + path))


def is_readable(seen: os.stat_result) -> bool:
    """Return whether every user of the host may read the file or folder."""
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(seen.st_mode) else stat.S_IROTH
    return seen.st_mode & needed == needed


def in_memory(size: int) -> int:
    """Return the bytes of memory that a file takes in the root of runs, which is a tmpfs."""
    return -(-size // PAGE) * PAGE


def write(path: str, content: bytes, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(content)


def add_certificates(etc: str, path: str) -> None:
    """Copy the certificates of a file, and not a private key that it may contain."""
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES)
    except OSError:  # a run without certificates is better than none
        return
    blocks = [BEGIN + block.partition(END)[0] + END + b"\n" for block in content.split(BEGIN)[1:] if END in block]
    write(f"{etc}/{CERTIFICATES}", b"".join(block for block in blocks if block.count(b"-----") == 4))
    for name in LINKS_TO_CERTIFICATES:
        os.makedirs(os.path.dirname(f"{etc}/{name}"), 0o755, exist_ok=True)
        os.symlink(f"/etc/{CERTIFICATES}", f"{etc}/{name}")


class Copy:
    """Copies files and folders that every user may read. All that `add` copies together has a limit."""

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._left = [MOST_BYTES, MOST_ENTRIES]

    def add(self, name: str) -> None:
        """Copy the name, if there is room for all of it."""
        entries: list[tuple[str, os.stat_result]] = []
        try:
            self._collect(name, entries, DEPTH)
        except OSError:  # the host does not have it
            return
        used = [sum(in_memory(seen.st_size) for _, seen in entries if stat.S_ISREG(seen.st_mode)), len(entries)]
        if used[0] > self._left[0] or used[1] > self._left[1]:
            return
        self._left = [left - taken for left, taken in zip(self._left, used, strict=True)]
        for path, seen in entries:
            self._copy(path, seen)

    def _collect(self, path: str, entries: list[tuple[str, os.stat_result]], depth: int) -> None:
        seen = os.lstat(f"{self._source}/{path}")
        if stat.S_ISLNK(seen.st_mode):
            entries.append((path, seen))
        elif is_readable(seen) and (stat.S_ISREG(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
            entries.append((path, seen))
            if stat.S_ISDIR(seen.st_mode) and depth and len(entries) <= MOST_ENTRIES:
                for name in sorted(os.listdir(f"{self._source}/{path}")):
                    self._collect(f"{path}/{name}", entries, depth - 1)

    def _copy(self, path: str, seen: os.stat_result) -> None:
        source, target = f"{self._source}/{path}", f"{self._target}/{path}"
        if stat.S_ISDIR(seen.st_mode):
            os.makedirs(target, 0o755)
        elif stat.S_ISLNK(seen.st_mode):
            os.symlink(os.readlink(source), target)
        else:
            try:
                descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:  # an access control list, or the file has gone
                return
            with open(descriptor, "rb", buffering=0) as file:
                opened = os.fstat(descriptor)
                if stat.S_ISREG(opened.st_mode) and is_readable(opened):  # it may be another file by now
                    write(target, file.read(seen.st_size), 0o755 if seen.st_mode & stat.S_IXOTH else 0o644)
