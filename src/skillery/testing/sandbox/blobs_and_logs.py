"""Requests of code to its host: blobs and log lines, in order and within limits."""

from __future__ import annotations

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.trial import SandboxCases, Trial, log_of, value_of

INPUT = "blob:3kf9-_aZ"


class BlobCases(SandboxCases):
    async def test_input_blobs_are_read(self, trial: Trial) -> None:
        code = """
        from runtime import blobs
        def main(args):
            return [blobs.read_text(args['id']), len(blobs.read_bytes(args['id']))]
        """
        contents = await trial.value(code, {"id": INPUT}, blobs=(trial.blob(INPUT, "grüße".encode()),))
        assert contents == ["grüße", 7]

    async def test_blobs_are_written_with_their_kinds(self, trial: Trial) -> None:
        code = """
        from runtime import blobs
        def main(args):
            return [blobs.write_text('ü'), blobs.write_bytes(b'\\0'), blobs.write_json({'a': ['ü']}),
                    blobs.write_text('a,b', kind='text/csv'), blobs.write_bytes(b'')]
        """
        ids = await trial.value(code)
        assert [trial.host.blobs[i] for i in ids] == ["ü".encode(), b"\0", '{"a": ["ü"]}'.encode(), b"a,b", b""]
        kinds = ["text/plain", "application/octet-stream", "application/json", "text/csv", "application/octet-stream"]
        assert [trial.host.kinds[i] for i in ids] == kinds

    async def test_the_functions_take_their_arguments_by_the_names_of_the_protocol(self, trial: Trial) -> None:
        code = """
        from runtime import blobs, log
        def main(args):
            log.info(msg='one'); log.error(msg='two')
            return blobs.read_text(blob_id=blobs.write_json(obj=[1])) + blobs.read_text(blobs.write_text(content='x'))
        """
        outcome = await trial.code(code)
        assert (value_of(outcome), log_of(outcome)) == ("[1]x", "one\ntwo\n")

    async def test_an_invalid_kind_of_a_blob_raises_an_exception_inside(self, trial: Trial) -> None:
        code = """
        from runtime import blobs
        def main(args):
            seen = []
            for kind in ('\\ud800/x', 'x/' + 'y' * 100_000):
                try:
                    blobs.write_text('', kind=kind)
                except ValueError:
                    seen.append('refused')
            return seen
        """
        assert await trial.value(code) == ["refused", "refused"]

    async def test_a_run_reads_the_blobs_that_it_wrote(self, trial: Trial) -> None:
        code = """
        from runtime import blobs
        def main(args): return blobs.read_text(blobs.write_text('x' * (2 << 20))) == 'x' * (2 << 20)
        """
        assert await trial.value(code) is True

    @pytest.mark.parametrize("blob_id", ["blob:someone-elses", "../etc/passwd", "", "..", "blob:\0", "x" * 300])
    async def test_an_unknown_blob_id_raises_an_error(self, trial: Trial, blob_id: str) -> None:
        code = """
        from runtime import blobs
        def main(args):
            try:
                blobs.read_bytes(args['id'])
            except FileNotFoundError:
                return 'not found'
        """
        assert await trial.value(code, {"id": blob_id}) == "not found"

    async def test_threads_and_forked_children_write_at_the_same_time(self, trial: Trial) -> None:
        code = """
        import os, threading
        from runtime import blobs, log
        def write(who):
            for number in range(20):
                assert blobs.read_text(blobs.write_text(f'{who}-{number}')) == f'{who}-{number}'
                log.info(f'{who}-{number}')
        def main(args):
            children = []
            for who in range(3):
                if (pid := os.fork()) == 0:
                    write(who)
                    os._exit(0)
                children.append(pid)
            threads = [threading.Thread(target=write, args=(who,)) for who in (3, 4, 5)]
            [thread.start() for thread in threads], [thread.join() for thread in threads]
            return [os.waitpid(pid, 0)[1] for pid in children]
        """
        outcome = await trial.code(code)
        assert value_of(outcome) == [0, 0, 0]
        assert sorted(trial.host.blobs.values()) == sorted(f"{w}-{n}".encode() for w in range(6) for n in range(20))
        assert len(log_of(outcome).splitlines()) == 120

    async def test_the_number_and_the_size_of_blobs_are_limited(self, trial: Trial) -> None:
        code = """
        from runtime import blobs
        def tried(size):
            try:
                blobs.write_bytes(bytes(size))
            except OSError as error:
                return str(error)
        def main(args): return [tried(size) for size in args['sizes']]
        """
        limits = Limits(timeout_ms=300_000, blobs=3, blobs_mb=1)
        errors = await trial.value(code, {"sizes": [1, 2 << 20, 1, 1]}, limits=limits)
        assert errors[0] is None
        assert "1 MiB" in errors[1]
        assert "3 blobs" in errors[3]
        assert len(trial.host.blobs) <= 2

    async def test_blobs_written_before_a_failure_are_kept(self, trial: Trial) -> None:
        await trial.code("from runtime import blobs\ndef main(args): blobs.write_text('kept'); raise ValueError")
        assert list(trial.host.blobs.values()) == [b"kept"]


class LogCases(SandboxCases):
    async def test_all_streams_are_in_the_order_of_writing(self, trial: Trial) -> None:
        code = """
        import os, sys
        from runtime import log
        def main(args):
            print('one'); print('two', file=sys.stderr); log.info('three'); os.system('echo four')
            print('five', end=''); log.error('six'); print('seven')
        """
        assert log_of(await trial.code(code)) == "one\ntwo\nthree\nfour\nfivesix\nseven\n"

    async def test_strange_characters_do_no_harm(self, trial: Trial) -> None:
        outcome = await trial.code(
            "import os\ndef main(args): print('\\ud800 ü \\x1b[2J'); os.write(1, b'\\xff\\0\\r')"
        )
        assert outcome.failure is None
        assert b"\xff\0\r" in outcome.log.head + outcome.log.tail

    async def test_a_long_log_keeps_head_and_tail_and_counts_dropped_bytes(self, trial: Trial) -> None:
        code = "def main(args):\n    print('begin')\n    for n in range(100_000): print(n)\n    print('end')"
        outcome = await trial.code(code, limits=Limits(timeout_ms=300_000, log_kb=8))
        everything = len("begin\nend\n") + sum(len(f"{n}\n") for n in range(100_000))
        assert outcome.log.head.startswith(b"begin\n0\n")
        assert outcome.log.tail.endswith(b"99999\nend\n")
        assert len(outcome.log.head) + len(outcome.log.tail) <= 8192
        assert len(outcome.log.head) + len(outcome.log.tail) + outcome.log.dropped == everything

    async def test_a_flood_neither_stops_the_code_nor_fills_the_server(self, trial: Trial) -> None:
        code = "import os\ndef main(args):\n    for n in range(2000): os.write(1, b'x' * (1 << 18))\n    return 'done'"
        outcome = await trial.code(code, limits=Limits(timeout_ms=300_000))
        assert value_of(outcome) == "done"
        assert outcome.log.dropped == 2000 * (1 << 18) - (1 << 20)

    async def test_standard_input_is_empty(self, trial: Trial) -> None:
        assert await trial.value("import sys\ndef main(args): return open(0).read()") == ""

    async def test_the_log_of_a_failed_run_is_kept(self, trial: Trial) -> None:
        assert (
            log_of(await trial.code("import os\ndef main(args):\n    print('before')\n    os._exit(3)")) == "before\n"
        )
