"""Paths in a sandbox, which are the same for every backend."""

from __future__ import annotations

from skillery.testing.sandbox.base import SandboxCases
from skillery.testing.sandbox.trial import QUICK, Trial, value_of

INPUT = "blob:3kf9-_aZ"


class LayoutCases(SandboxCases):
    async def test_the_files_of_a_skill_can_be_read(self, trial: Trial) -> None:
        skill = trial.skill("greet", {"resources/text.txt": "from the bundle"}, entrypoint=None)
        code = "def main(args): return open('/skills/greet/resources/text.txt').read()"
        assert await trial.value(code, skills=(skill,)) == "from the bundle"

    async def test_packages_lie_at_one_path_and_cannot_be_changed(self, trial: Trial) -> None:
        mount = trial.packages({"frames.py": "VERSION = 1"})
        code = """
        import errno, frames, os
        def main(args):
            errors = []
            for path in (frames.__file__, f'/packages/{args["lock"]}/new.py', '/packages/new.py'):
                try:
                    open(path, 'w')
                except OSError as error:
                    errors.append(errno.errorcode[error.errno])
            return [os.listdir('/packages'), frames.__file__, errors]
        """
        found, file, errors = await trial.value(code, {"lock": mount.lock}, packages=(mount,))
        assert (found, file) == ([mount.lock], f"/packages/{mount.lock}/frames.py")
        assert set(errors) <= {"EROFS", "EACCES", "EPERM"}
        assert len(errors) == 3

    async def test_an_instruction_skill_mounts_without_being_importable(self, trial: Trial) -> None:
        guide = trial.skill("docs.guide", {"SKILL.md": "read me"}, entrypoint=None)
        code = """
        def main(args):
            try:
                import skills.docs.guide
            except ModuleNotFoundError:
                return open('/skills/docs.guide/SKILL.md').read()
        """
        assert await trial.value(code, skills=(guide,)) == "read me"

    async def test_input_blobs_are_files_named_by_their_id(self, trial: Trial) -> None:
        code = "import os\ndef main(args): return [os.listdir('/blobs'), open('/blobs/' + args['id']).read()]"
        found = await trial.value(code, {"id": INPUT}, blobs=(trial.blob(INPUT, b"content"),))
        assert found == [[INPUT], "content"]

    async def test_the_workspace_is_home_and_empty_and_gone_afterwards(self, trial: Trial) -> None:
        code = """
        import os, tempfile
        def main(args):
            seen = [os.getcwd(), os.environ['HOME'], os.listdir('.'), os.listdir('/tmp'), os.path.expanduser('~')]
            open('left', 'w').write('x'); tempfile.mkstemp()
            return seen
        """
        for _ in range(2):
            assert value_of(await trial.code(code, limits=QUICK)) == ["/workspace", "/workspace", [], [], "/workspace"]
