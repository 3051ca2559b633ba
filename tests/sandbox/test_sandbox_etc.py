"""What runs see of `/etc` and `/var` of a host on which an attacker, or a careless admin, has planted files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock import Sandbox, Template
from cellblock.inside import etc

only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can cover /etc of the host")
SECRET = "a-secret-of-the-host"
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
BROKEN = f"-----BEGIN CERTIFICATE-----\n{KEY}-----END CERTIFICATE-----\n"
COVER = 'mount --bind "$1/etc" /etc && mount --bind "$1/var" /var && exec "$2" -c "$3" "$4"'
SHOW = """
import json, sys
from cellblock import Sandbox, Template
CODE = '''
import os
def main(args):
    shown = {}
    for folder in ("/etc", "/var"):
        for parent, folders, names in os.walk(folder):
            for path in (os.path.join(parent, name) for name in (*folders, *names)):
                if os.path.islink(path): shown[path] = "-> " + os.readlink(path)
                elif os.path.isfile(path): shown[path] = [open(path, "rb").read(100).decode(), os.stat(path).st_mode]
                else: shown[path] = ""
    return [shown, sorted(path for path in shown if not os.access(path, os.F_OK)), os.listdir("/var/cache")]
'''
with Sandbox(Template(etc=tuple(json.loads(sys.argv[1]))), prepared=0) as box:
    print(json.dumps(box.run(CODE).value))
"""


def seen(host: Path, *names: str) -> Any:
    """Return the paths below `/etc` and `/var` in a run, its dead links, and its caches. `host` replaces the host's."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", COVER, "sh", str(host), sys.executable, SHOW, json.dumps(names)],
        env={"SSL_CERT_FILE": str(host / "bundle.pem"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "etc/fonts").mkdir(parents=True)
    (tmp_path / "var/cache").mkdir(parents=True)
    (tmp_path / "bundle.pem").write_text(KEY + CERTIFICATE + BROKEN)
    return tmp_path


@only_as_root
def test_secrets_of_the_host_stay_hidden_behind_links_and_modes(host: Path) -> None:
    etc, fonts = host / "etc", host / "etc/fonts"
    for name in ("shadow", "gshadow", "sudoers", "krb5.keytab", "passwd", "odbc.ini", "closed.ini"):
        (etc / name).write_text(f"{SECRET} of {name}")
    for folder in ("ssh", "ssl/private", "fonts/closed", "R"):
        (etc / folder).mkdir(parents=True)
        (etc / folder / "key").write_text(SECRET)
    (fonts / "closed").chmod(0o700)
    (etc / "closed.ini").chmod(0o640)
    (fonts / "private").write_text(SECRET)
    (fonts / "private").chmod(0o600)
    (etc / "R/key").unlink()
    for name, target in {"passwd": "/etc/passwd", "shadow": "../shadow", "up": "../..", "old": "/.old/etc"}.items():
        (fonts / f"link-{name}").symlink_to(target)
    (etc / "libreoffice").symlink_to("ssh")
    (etc / "ImageMagick-6").symlink_to("/etc/ssl/private")
    (host / "var/cache/fontconfig").symlink_to("/etc/ssh")
    os.mkfifo(fonts / "pipe")
    (fonts / "tool").write_text("setuid")
    (fonts / "tool").chmod(0o4755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(etc / "R/socket"))

    shown, dead, caches = seen(host, "odbc.ini", "closed.ini", "absent.ini")

    assert {path: text for path, text in shown.items() if SECRET in str(text)} == {
        "/etc/odbc.ini": [f"{SECRET} of odbc.ini", 0o100644]
    }
    assert sorted(path for path in shown if path.startswith(("/etc/fonts/", "/etc/R/"))) == [
        *("/etc/fonts/link-old", "/etc/fonts/link-passwd", "/etc/fonts/link-shadow", "/etc/fonts/link-up"),
        "/etc/fonts/tool",
    ]
    assert shown["/etc/fonts/tool"] == ["setuid", 0o100755]
    assert {"/etc/fonts/link-shadow", "/etc/fonts/link-old", "/etc/libreoffice"} <= set(dead)
    assert shown["/etc/ssl/certs/ca-certificates.crt"] == [CERTIFICATE, 0o100644]
    assert not {"/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/etc/closed.ini"} & set(shown)
    assert caches == []


@only_as_root
def test_name_that_is_too_large_is_left_out(host: Path) -> None:
    (host / "etc/texmf").mkdir()
    for number in range(3):
        (host / f"etc/texmf/{number}").write_bytes(bytes(3 << 20))
    (host / "etc/libreoffice").mkdir()
    for number in range(1_600):  # each takes 4 KiB of memory, of 6 MiB
        (host / f"etc/libreoffice/{number}").write_text("1")
    (host / "etc/fonts/fonts.conf").write_text("small")

    shown, _, _ = seen(host)

    assert not {"/etc/texmf", "/etc/libreoffice"} & set(shown)
    assert shown["/etc/fonts/fonts.conf"] == ["small", 0o100644]


def test_folders_of_the_host_are_bound_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert etc.is_folder("", "/usr/share")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "can hold secrets") for name in ("shadow", "shadow-", "gshadow", "ssh", "ssl", "sudoers.d", "SSH")),
        *((name, "can hold secrets") for name in ("krb5.keytab", "pki", "security")),
        *((name, "is not the name") for name in ("", ".", "..", "ssl/private", "../shadow", "*", "s*", "a\0")),
        *((name, "makes itself") for name in ("passwd", "group", "hosts", "resolv.conf", "mtab")),
    ],
)
def test_template_refuses_names_that_runs_may_not_see(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Sandbox(Template(etc=(name,)))
