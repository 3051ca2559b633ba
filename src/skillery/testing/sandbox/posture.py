"""The view of the code on itself and on the host."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

from pathlib import Path

import pytest

from skillery.testing.sandbox.trial import SandboxCases, Trial

CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
STATUS = "{line.partition(':')[0]: line.partition(':')[2].strip() for line in open('/proc/self/status')}"


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

    async def test_only_the_streams_and_one_channel_are_open(self, trial: Trial) -> None:
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

    async def test_the_environment_is_exactly_what_was_given(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SERVER_TOKEN", "server-secret")
        code = """
        import os, subprocess
        def main(args):
            kept = subprocess.run(['env'], capture_output=True, text=True).stdout
            return [dict(os.environ), 'server-secret' in kept + open('/proc/self/environ').read()]
        """
        expected = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8", "API_KEY": "k"}
        assert await trial.value(code, environment={"API_KEY": "k"}) == [expected, False]

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
            *("/etc/passwd", "/etc/shadow", "/home", "/var", "/sys", "/sys/fs/cgroup"),
            *("/proc/sys", "/proc/sysrq-trigger", "/proc/kcore", "/proc/kallsyms", "/proc/keys"),
            *("/dev/mem", "/dev/kvm", "/dev/ptmx", "/dev/pts", "/dev/tty", "/dev/fuse", "/dev/loop-control"),
        ],
    )
    async def test_nothing_else_of_the_host_is_there(self, trial: Trial, path: str) -> None:
        assert await trial.value(f"import os\ndef main(args): return os.path.exists({path!r})") is False

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
