"""Workspaces that are filled before a run and saved after it."""

from __future__ import annotations

import hashlib

import pytest

from skillery.backends import CodeCall, Limits, ScriptCall, Workspace
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, value_of

FILLS = r"""
import os, pathlib, time
def main(args):
    os.makedirs("data/empty"); os.makedirs("closed")
    pathlib.Path("data/a.txt").write_text("one"); os.utime("data/a.txt", (5, 5))
    pathlib.Path("data/ü.txt").write_text("two")
    pathlib.Path("run.sh").write_text("#!/bin/sh\n"); os.chmod("run.sh", 0o755)
    pathlib.Path("closed/secret").write_text("three"); os.chmod("closed/secret", 0); os.chmod("closed", 0)
    os.symlink("/etc/passwd", "link")
    os.mkfifo("pipe")
    for name in (b"\xff\xfe", b"new\nline"): open(name, "w").close()
    with open("sparse", "wb") as sparse: sparse.truncate(1 << 40 if args.get("sparse") else 0)
    {end}
"""
LOOKS = r"""
import os, pathlib
def main(args):
    found = {}
    for path in sorted(pathlib.Path().rglob("*")):
        found[str(path)] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "folder"
    home = os.environ["HOME"]
    return {"found": found, "mtime": os.stat("data/a.txt").st_mtime, "home": home, "folder": os.getcwd(),
            "home_files": os.listdir(home), "executable": os.access("run.sh", os.X_OK)}
"""
FOUND = {
    "closed": "folder",
    "closed/secret": "three",
    "data": "folder",
    "data/a.txt": "one",
    "data/empty": "folder",
    "data/ü.txt": "two",
    "link": "/etc/passwd",
    "run.sh": "#!/bin/sh\n",
    "sparse": "",
}


class WorkspaceCases(SandboxCases):
    @pytest.mark.parametrize("end", ["return 1", "os._exit(3)", "time.sleep(1e6)", "raise KeyError"])
    async def test_a_workspace_is_the_same_in_the_next_run(self, trial: Trial, end: str) -> None:
        for timeout_ms in (2_000, 20_000, 200_000):  # on a loaded machine, the code needs time until it has written
            trial.host.listed = []
            limits = Limits(timeout_ms=timeout_ms, memory_mb=256)
            await trial.code(FILLS.replace("{end}", end), limits=limits, workspace=trial.host.workspace())
            if "sparse" in {file.path for file in trial.host.listed}:
                break

        assert trial.host.left_out == ["new\\nline", "pipe", "\\udcff\\udcfe"]
        shown = await trial.value(LOOKS, workspace=trial.host.workspace(saves=False))
        assert shown["found"] == FOUND
        assert (shown["mtime"], shown["home_files"], shown["executable"]) == (5, [], True)
        assert shown["home"] != shown["folder"]

    async def test_a_changed_workspace_is_saved_and_unchanged_contents_are_not_sent_again(self, trial: Trial) -> None:
        await trial.code(FILLS.replace("{end}", "return 1"), workspace=trial.host.workspace())
        before = dict(trial.host.contents)
        code = "import os\ndef main(args):\n    os.rename('data/a.txt', 'b.txt'); open('c', 'w').write('four')"

        await trial.code(code, workspace=trial.host.workspace())

        assert trial.host.contents.keys() - before.keys() == {hashlib.sha256(b"four").hexdigest()}
        paths = {file.path: file.mode for file in trial.host.listed}
        assert paths.keys() >= {"b.txt", "c"}
        assert "data/a.txt" not in paths

    async def test_swapped_folders_are_saved_swapped(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            for name in "ab":
                os.makedirs(name, exist_ok=True)
                open(name + "/x", "w").write(name)
        """
        await trial.code(code, workspace=trial.host.workspace())
        swaps = "import os\ndef main(args): os.rename('a', 'c'); os.rename('b', 'a'); os.rename('c', 'b')"
        await trial.code(swaps, workspace=trial.host.workspace())

        saved = {file.path: trial.host.contents[file.sha256] for file in trial.host.listed}
        assert saved == {"a/x": b"b", "b/x": b"a"}

    async def test_sparse_files_larger_than_the_disk_are_refused_or_left_out(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            refused = []
            for name, size in {"a": 12 << 20, "b": 12 << 20, "c": 1 << 40}.items():
                try:
                    with open(name, "wb") as file: file.truncate(size)
                except OSError:
                    refused.append(name); os.unlink(name)
            return refused
        """
        limits = Limits(timeout_ms=300_000, memory_mb=256, disk_mb=16)
        refused = value_of(await trial.code(code, limits=limits, workspace=trial.host.workspace()))

        assert refused in ([], ["c"])
        assert sorted([*refused, *trial.host.left_out]) == ["b", "c"]
        assert [(file.path, file.size_bytes) for file in trial.host.listed] == [("a", 12 << 20)]

    async def test_a_change_through_a_mapping_is_saved(self, trial: Trial) -> None:
        """On tmpfs, a write through a mapping changes no timestamp if the page was read through the mapping before."""
        await trial.code("def main(args): open('a', 'w').write('old ' * 4096)", workspace=trial.host.workspace())
        code = """
        import mmap, os
        def main(args):
            with mmap.mmap(os.open("a", os.O_RDWR), 0) as shared:
                first = shared[0]
                shared[:3] = b"new"
                return first
        """
        await trial.code(code, workspace=trial.host.workspace())

        [file] = trial.host.listed
        assert trial.host.contents[file.sha256][:8] == b"new old "

    async def test_as_many_empty_files_as_a_workspace_has_room_for(self, trial: Trial) -> None:
        code = "def main(args):\n    for number in range(16_384): open(str(number), 'w').close()\n    return 1"
        limits = Limits(timeout_ms=300_000, memory_mb=256)
        assert value_of(await trial.code(code, limits=limits, workspace=trial.host.workspace())) == 1
        assert (len(trial.host.listed), trial.host.left_out) == (16_384, [])

        count = "import os\ndef main(args): return len(os.listdir())"
        assert await trial.value(count, limits=limits, workspace=trial.host.workspace(saves=False)) == 16_384

    async def test_a_workspace_that_does_not_fit_runs_nothing(self, trial: Trial) -> None:
        code = "def main(args): open('large', 'wb').write(bytes(3 << 20))"
        await trial.code(code, workspace=trial.host.workspace())
        if "disk" not in trial.sandbox.capabilities:
            return
        limits = Limits(timeout_ms=300_000, memory_mb=256, disk_mb=1)
        outcome = await trial.code("def main(args): pass", limits=limits, workspace=trial.host.workspace())
        assert outcome.failure is not None
        assert (failure_type(outcome), "'large'" in outcome.failure.message) == ("SandboxError", True)

    async def test_no_interpreter_imports_files_of_a_workspace(self, trial: Trial) -> None:
        plants = """
        import os
        def main(args):
            os.mkdir("encodings")
            for name in ("json.py", "util.py", "sitecustomize.py", "usercustomize.py", "encodings/__init__.py"):
                open(name, "w").write("raise SystemExit('planted')")
            open(".bashrc", "w").write("echo planted; exit 9")
        """
        await trial.code(plants, workspace=trial.host.workspace())
        kept: Workspace = trial.host.workspace(saves=False)

        assert (
            await trial.value("import sys\ndef main(args): import json; return '' in sys.path", workspace=kept) is False
        )
        skill = trial.skill("acme.s", {"scripts/s.py": "import json, fractions\nprint(json.dumps(1))"}, None)
        script = await trial.call(ScriptCall("acme.s", "scripts/s.py"), skills=(skill,), workspace=kept)
        assert value_of(script)["stdout"] == "1\n"
        assert value_of(await trial.call(CodeCall("echo 1", "main", "bash"), workspace=kept)) == 1

    async def test_input_files_replace_kept_files(self, trial: Trial) -> None:
        await trial.code("def main(args): open('a', 'w').write('old')", workspace=trial.host.workspace())
        files = (trial.file("a", b"new"),)
        assert (
            await trial.value("def main(args): return open('a').read()", files=files, workspace=trial.host.workspace())
            == "new"
        )

    async def test_code_cannot_pass_a_workspace_itself(self, trial: Trial) -> None:
        code = """
        from runtime import _host
        def main(args):
            open("true", "w").close()
            _host.ask("workspace", {}, b'{"files": [], "left_out": []}')
        """
        outcome = await trial.code(code, workspace=trial.host.workspace())
        assert failure_type(outcome) == "InvalidOutput"
        assert [file.path for file in trial.host.listed] == ["true"]
