"""The view of the code on itself and on the host."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from cellblock.host.plan import ENVIRONMENT
from cellblock.inside import etc
from skillery.backends import CodeCall, ScriptCall
from skillery.testing.sandbox.trial import SandboxCases, Trial, value_of

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
STATUS = "{line.partition(':')[0]: line.partition(':')[2].strip() for line in open('/proc/self/status')}"


def private_lines() -> list[str]:
    """Return lines of the host that no file of a run may have."""
    lines = ["PRIVATE KEY-----"]
    for name in ("passwd", "group", "shadow", "gshadow"):
        with contextlib.suppress(OSError):
            lines += Path("/etc", name).read_text().split("\n")
    return [line for line in lines if line not in etc.TEXTS["passwd"] + etc.TEXTS["group"]]


class PostureCases(SandboxCases):
    async def test_the_code_is_unprivileged(self, trial: Trial) -> None:
        code = (
            "import os\ndef main(args): return [os.getresuid(), os.getresgid(), os.getpid() == 1, os.umask(0) & 0o022]"
        )
        uids, gids, is_first, umask = await trial.value(code)
        assert 0 not in {*uids, *gids}
        assert not is_first
        assert umask == 0o022

    async def test_no_group_of_the_server_is_left(self, trial: Trial) -> None:
        code = "import os\ndef main(args): return os.getgroups()"
        assert set(await trial.value(code)) <= {1000, 65534}  # an ordinary user's groups are not mapped

    async def test_no_capability_is_left_and_none_can_be_gained(self, trial: Trial) -> None:
        status = await trial.value(f"def main(args): return {STATUS}")
        assert {name: int(status[name], 16) for name in CAPABILITY_SETS} == dict.fromkeys(CAPABILITY_SETS, 0)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    async def test_only_the_streams_and_the_channel_are_open(self, trial: Trial) -> None:
        code = """
        import os
        def is_open(number):
            try: os.fstat(number)
            except OSError: return False
            return True
        def main(args): return [number for number in range(4096) if is_open(number)]
        """
        descriptors = await trial.value(code)
        assert descriptors[:3] == [0, 1, 2]
        assert len(descriptors) == 4

    async def test_the_environment_has_exactly_the_variables_of_the_job(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SERVER_TOKEN", "server-secret")
        code = """
        import os, subprocess
        def main(args):
            kept = subprocess.run(['env'], capture_output=True, text=True).stdout
            return [dict(os.environ), 'server-secret' in kept + open('/proc/self/environ').read()]
        """
        environment, server_is_seen = await trial.value(code, environment={"API_KEY": "k"})
        assert not server_is_seen
        assert environment.pop("API_KEY") == "k"
        assert set(environment) <= set(ENVIRONMENT)  # `LinuxLook` demands all of them
        assert environment["HOME"] == "/workspace"
        assert environment["LANG"] == "C.UTF-8"
        assert environment["PATH"].endswith("/usr/local/bin:/usr/bin:/bin")

    async def test_there_is_no_terminal(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            try: os.open('/dev/tty', os.O_RDWR)
            except OSError: return [os.isatty(n) for n in (0, 1, 2)]
        """
        assert await trial.value(code) == [False, False, False]

    async def test_other_processes_are_not_seen(self, trial: Trial) -> None:
        code = "import os\ndef main(args): return [p for p in os.listdir('/proc') if p.isdigit()] == [str(os.getpid())]"
        assert await trial.value(code) is True

    @pytest.mark.parametrize(
        "path",
        [
            *("/etc/shadow", "/etc/ssl/private", "/home", "/var/log", "/sys", "/sys/fs/cgroup"),
            *("/proc/sys", "/proc/sysrq-trigger", "/proc/kcore", "/proc/kallsyms", "/proc/keys"),
            *("/dev/mem", "/dev/kvm", "/dev/ptmx", "/dev/pts", "/dev/tty", "/dev/fuse", "/dev/loop-control"),
        ],
    )
    async def test_nothing_else_of_the_host_is_there(self, trial: Trial, path: str) -> None:
        assert await trial.value(f"import os\ndef main(args): return os.path.exists({path!r})") is False

    async def test_no_text_of_private_files_of_the_host_is_there(self, trial: Trial) -> None:
        """Neither the users of the host nor its private keys are in any file below `/etc` and `/var`."""
        code = """
        import os, stat
        def main(args):
            odd, hits = [], []
            for folder in ('/etc', '/var'):
                for parent, folders, names in os.walk(folder):
                    for name in names:
                        path = os.path.join(parent, name)
                        mode = os.lstat(path).st_mode
                        if stat.S_ISLNK(mode): continue
                        if not stat.S_ISREG(mode) or mode & 0o6000 or not mode & 0o4:
                            odd.append(path)
                            continue
                        text = open(path, 'rb').read().decode('latin-1')
                        hits += [[path, line] for line in args['lines'] if line in text]
            return [odd, hits]
        """
        assert await trial.value(code, {"lines": private_lines()}) == [[], []]

    async def test_a_file_of_the_server_cannot_be_read(self, trial: Trial, tmp_path: Path) -> None:
        secret = tmp_path / "registry.db"
        secret.write_text("secret")
        secret.chmod(0o644)
        assert (
            await trial.value("import os\ndef main(args): return os.path.exists(args['p'])", {"p": str(secret)})
            is False
        )

    async def test_nothing_can_be_written_but_the_workspace_and_temporary_folders(self, trial: Trial) -> None:
        code = """
        import os
        def writable(folder):
            try: os.close(os.open(f'{folder}/.x', os.O_CREAT | os.O_WRONLY))
            except OSError: return False
            os.unlink(f'{folder}/.x')
            return True
        def main(args):
            found = []
            for folder, folders, _ in os.walk('/', followlinks=False):
                if folder.startswith('/proc'): folders.clear()
                elif writable(folder): found.append(folder)
                if folder.count('/') > 5: folders.clear()
            return sorted(found)
        """
        assert await trial.value(code) == ["/dev/shm", "/tmp", "/workspace"]

    async def test_skills_and_blobs_are_read_only(self, trial: Trial) -> None:
        skill = trial.skill("mine", {"code/main.py": "def main(args): pass"})
        blob = trial.blob("blob:x", b"content")
        code = """
        import os
        PATHS = ('/skills', '/skills/mine', '/skills/mine/code/main.py', '/blobs', '/blobs/blob:x')
        ACTS = (lambda p: os.chmod(p, 0o777), lambda p: os.utime(p), lambda p: os.rename(p, p + 'x'),
                lambda p: os.truncate(p, 0), lambda p: os.setxattr(p, 'user.x', b'1'),
                lambda p: os.link(p, '/workspace/link'))
        def done(act, path):
            try: act(path)
            except OSError: return False
            return True
        def main(args): return [path for path in PATHS for act in ACTS if done(act, path)]
        """
        assert await trial.value(code, skills=(skill,), blobs=(blob,)) == []

    async def test_the_interpreter_cannot_be_overwritten(self, trial: Trial) -> None:
        code = """
        import os, sys
        def done(path):
            try: os.close(os.open(path, os.O_WRONLY))
            except OSError: return False
            return True
        def main(args): return [done(p) for p in (sys.executable, '/proc/self/exe', os.__file__, '/usr/bin/env')]
        """
        assert await trial.value(code) == [False] * 4

    async def test_core_dumps_are_off(self, trial: Trial) -> None:
        code = "import resource\ndef main(args): return resource.getrlimit(resource.RLIMIT_CORE)"
        assert max(await trial.value(code)) <= 1


# -- The look of an ordinary system ------------------------------------------------------------------------------------


PROGRAMS = {
    "awk": ("awk 'BEGIN { print 42 }'", "42"),
    "which": ("which env", "/usr/bin/env"),
    "whoami": ("whoami", "user"),
    "id": ("id -gn", "user"),
    "hostname": ("hostname -f", "sandbox"),
    "getent": ("getent hosts localhost | tr -s ' '", "127.0.0.1 localhost"),
    "git": ("git init -q r && cd r && git commit -q --allow-empty -m x && git log --format=%an", "user"),
}
"""Lines of bash by the program that they need, and what they print."""
SYSTEM = """
import getpass, grp, mimetypes, os, pwd, socket, ssl, subprocess, sys
def version(name):
    return subprocess.run([name, '-c', 'import sys; print(sys.version)'], capture_output=True, text=True).stdout
def main(args):
    os.makedirs('/var/tmp/a')
    bundle = '/etc/ssl/certs/ca-certificates.crt'
    if os.path.exists(bundle): ssl.create_default_context(cafile=bundle)
    return {
        'environment': dict(os.environ),
        'names': [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir, grp.getgrgid(os.getgid()).gr_name],
        'network': [socket.gethostbyname('localhost'), socket.gethostbyname('sandbox'), socket.getservbyname('https')],
        'types': [mimetypes.guess_type(name)[0].rpartition('.')[2] for name in ('a.docx', 'a.webp')],
        'files': [name for name in ('hosts', 'nsswitch.conf', 'fonts/fonts.conf') if os.path.exists('/etc/' + name)],
        'temporary': os.listdir('/tmp'),
        'mounted': '/proc' in open('/etc/mtab').read(),
        'python': version('python') == version('python3.%d' % sys.version_info[1]) == sys.version + chr(10),
    }
"""


INSTALLERS = """
pip install -q acme-tool 'other[x]>=1' --break-system-packages -i https://packages.test; echo $?
python -m pip install acme_tool; echo $?
pip3 install acme-tool absent==1 2>&1; echo $?
uv pip install absent 2>&1 | head -1
uv run --with acme-tool "$SKILL_DIR/shown.py" a b
uv add acme-tool 2>/dev/null; echo $?
pip freeze
npx -y absent@1 --flag 2>&1; echo $?
npx @scope/own@2 word
"""
PRINTED = """\
already installed: acme-tool, other[x]>=1
0
already installed: acme_tool
0
pip: a run cannot install packages. Declare them in [runtime] dependencies, or import the skill with --packages infer.
pip: not there: absent==1
1
pip: a run cannot install packages. Declare them in [runtime] dependencies, or import the skill with --packages infer.
shown 1 ['a', 'b']
1
acme-tool==1
other==2
npx: 'absent@1' is not installed in this run. Declare it in package.json of the skill.
1
own word
"""


class LinuxLook(SandboxCases):
    """A run looks like an ordinary Linux system to its programs. Backends that claim this add these cases."""

    async def test_usual_programs_work(self, trial: Trial) -> None:
        expected = [printed for name, (_, printed) in PROGRAMS.items() if shutil.which(name)]
        code = "\n".join(line for name, (line, _) in PROGRAMS.items() if shutil.which(name))
        assert value_of(await trial.call(CodeCall(code, "main", "bash"))).split("\n") == expected

    async def test_python_sees_a_usual_system(self, trial: Trial) -> None:
        seen = await trial.value(SYSTEM)
        path, usual = seen["environment"]["PATH"], ENVIRONMENT["PATH"]
        assert path.startswith(usual.partition(":")[0] + ":")  # the folder of a Node.js may follow
        assert seen == {
            "environment": {**ENVIRONMENT, "PATH": path},
            "names": ["user", "/workspace", "user"],
            "network": ["127.0.0.1", "127.0.0.1", 443],
            "types": ["document", "image/webp"],
            "files": ["hosts", "nsswitch.conf", "fonts/fonts.conf"],
            "temporary": ["a"],
            "mounted": True,
            "python": True,
        }

    async def test_installers_accept_installed_packages_and_explain_missing_packages(self, trial: Trial) -> None:
        described = {"acme_tool-1": "acme-tool", "other-2": "other"}
        packages = {
            f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {name[-1]}\n"
            for name, package in described.items()
        }
        files = {
            "s.sh": f"mkdir -p node_modules/.bin\nprintf '#!/bin/sh\\necho own $1' > node_modules/.bin/own\n"
            f"chmod +x node_modules/.bin/own\n{INSTALLERS}",
            "shown.py": "import sys, acme\nprint('shown', acme.VERSION, sys.argv[1:])",
        }
        mount = trial.packages({**packages, "acme.py": "VERSION = 1"})
        skill = trial.skill("acme.script", files, entrypoint=None)
        output = value_of(await trial.call(ScriptCall("acme.script", "s.sh"), skills=(skill,), packages=(mount,)))
        assert (output["stdout"], output["stderr"]) == (PRINTED, "already installed: acme-tool\n")
