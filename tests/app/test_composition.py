"""Code that calls skills with permissions: each call runs in a separate sandbox, and permissions never combine."""

from __future__ import annotations

import json
import secrets
import signal
import sqlite3
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from skillery.testing.upstreams import Upstream, upstream
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.runs.test_runs import in_background
from tests.support.processes import eventually

ONE, TWO = "first-value-4711", "second/value+0815"
PORT_OF_NOBODY = "https://nobody.example.com"
FETCH = """
import urllib.request
def fetch(url): return urllib.request.urlopen(url, timeout=300).read().decode()
"""
OPEN_CHANNEL = """
import json, os, struct
def exactly(size):
    got = b''
    while len(got) < size:
        got += os.read(3, size - len(got))
    return got
def ask(header, body=b''):
    head = json.dumps(header).encode()
    os.write(3, struct.pack('>IQ', len(head), len(body)) + head + body)
    head, body = struct.unpack('>IQ', exactly(12))
    return json.loads(exactly(head)), exactly(body).decode()
def call(skill, function='f', body=b'{"args":[],"kwargs":{}}'):
    return ask({'op': 'call', 'skill': skill, 'function': function}, body)
"""
NOTHING = b'{"args":[],"kwargs":{}}'
MAIN = "\ndef main(args): pass\n"


class Composed:
    """A server and the namespace of one test, with helpers that publish skills and run code."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.rpc = server.rpc
        self.ns = namespace

    def publish(
        self,
        name: str,
        code: str,
        *,
        secrets: Sequence[str] = (),
        network: Sequence[str] = (),
        version: str = "1.0.0",
        limits: dict[str, Any] | None = None,
        more: dict[str, str] | None = None,
    ) -> str:
        name = f"{self.ns}.{name}"
        made = manifest(name, version, permissions={"secrets": list(secrets), "network": list(network)})
        if limits:
            made["runtime"]["limits"] = limits
        files = skill_files(textwrap.dedent(code), **(more or {}))
        self.rpc("create_skill", manifest=made, skill_md=f"# {name}\n", files=files)
        return name

    def impure(self, name: str, code: str, **options: Any) -> str:
        """Publish a skill that declares a permission, so that calls of it run in a separate sandbox."""
        main = "" if "def main" in code else "\ndef main(args): pass\n"
        return self.publish(name, textwrap.dedent(code) + main, network=[PORT_OF_NOBODY], **options)

    def grant(self, secret: str, skill: str) -> None:
        home = str(self.server.home)
        ended = skillery("secret", "grant", secret, skill, "--home", home, SKILLERY_SECRETS="environment")
        assert ended.code == 0, ended.err

    def run(self, code: str, *mounts: str, rpc: Rpc | None = None, **params: Any) -> dict[str, Any]:
        code = textwrap.dedent(code).replace("NS", self.ns)
        answer: dict[str, Any] = (rpc or self.rpc)(
            "run_code", language="python", code=code, mount_skills=list(mounts), **params
        )
        return answer

    def output(self, code: str, *mounts: str, **params: Any) -> Any:
        answer = self.run(code, *mounts, **params)
        assert answer["status"] == "completed", answer
        return answer["output"]

    def error(self, code: str, *mounts: str, **params: Any) -> dict[str, Any]:
        answer = self.run(code, *mounts, **params)
        assert answer["status"] == "failed", answer
        error: dict[str, Any] = answer["error"]
        return error

    def called(self, run_id: str) -> list[dict[str, Any]]:
        """Return the recorded runs that the run `run_id` called."""
        return called_in_sqlite(self.server.home, run_id)


def called_in_sqlite(home: Path, run_id: str) -> list[dict[str, Any]]:
    with sqlite3.connect(home / "skillery.db") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM runs WHERE parent_run_id = ? ORDER BY started_at", (run_id,))
        return [dict(row) for row in rows]


@pytest.fixture(scope="module")
def plain() -> Iterator[Upstream]:
    with upstream() as running:
        yield running


@pytest.fixture(scope="module")
def composing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("composing")
    config = folder / "skillery.toml"
    config.write_text('[backends.sandbox.linux]\nallow_private = ["127.0.0.1"]\nhosts = {"api.test" = ["127.0.0.1"]}\n')
    env = {"SKILLERY_SECRETS": "environment", "SKILLERY_SECRET_KEY_ONE": ONE, "SKILLERY_SECRET_KEY_TWO": TWO}
    running = Server(folder / "home", "--config", str(config), env=env)
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def composed(composing: Server, new_name: str) -> Composed:
    return Composed(composing, new_name)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, 1.5, True, "ä😀\u2028", [1, [2]], {"a": {"b": None}}, 2**60, "x" * 300_000])
def test_any_json_value_goes_there_and_back(composed: Composed, value: Any) -> None:
    skill = composed.impure("echo", "def f(value, *, key): return [value, key]")
    code = "from skills.NS.echo import f\ndef main(args): return f(args['v'], key=args['v']) == [args['v']] * 2"

    assert composed.output(code, skill, args={"v": value}) is True


def test_arguments_arrive_by_place_and_by_name(composed: Composed) -> None:
    skill = composed.impure("echo", "def f(a, b=2, *more, c=3, **rest): return [a, b, list(more), c, rest]")
    code = """
    import skills.NS.echo as echo
    from skills.NS.echo import f
    def main(args):
        return [f(1), f(b=5, a=(1, 2)), echo.f(1, 2, 3, 4, c=5, d=6)]
    """

    assert composed.output(code, skill) == [
        [1, 2, [], 3, {}],
        [[1, 2], 5, [], 3, {}],
        [1, 2, [3, 4], 5, {"d": 6}],
    ]


def test_an_async_function_is_awaited_and_the_loop_goes_on_meanwhile(composed: Composed) -> None:
    skill = composed.impure("slow", "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.2)\n    return n + 1\n")
    code = """
    import asyncio, inspect
    from skills.NS.slow import f
    async def main(args):
        task = asyncio.ensure_future(f(1))
        for _ in range(4):
            await asyncio.sleep(0)
        waits = not task.done()
        return [inspect.iscoroutinefunction(f), waits, await task, sorted(await asyncio.gather(f(1), f(2)))]
    """

    assert composed.output(code, skill) == [True, True, 2, [2, 3]]


def test_a_proxy_looks_like_the_function(composed: Composed) -> None:
    skill = composed.impure("doc", 'def f(a):\n    """Does it."""\n')
    code = """
    import skills.NS.doc as doc
    from skills.NS.doc import *
    def main(args):
        return [f.__name__, f.__doc__, f.__module__, doc.f is f, [name for name in dir(doc) if name[0] != '_']]
    """

    assert composed.output(code, skill) == ["f", "Does it.", f"skills.{composed.ns}.doc", True, ["f", "main"]]


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("{1}", "the argument a of f()"),
        ("1, object()", "the argument 2 of f()"),
        ("1, k=b'x'", "the argument k of f()"),
    ],
)
def test_an_argument_that_is_not_json_is_named_before_anything_is_called(
    composed: Composed, argument: str, named: str
) -> None:
    skill = composed.impure("echo", "def f(a, *more, **rest): pass")
    code = f"from skills.NS.echo import f\ndef main(args): f({argument})"

    answer = composed.run(code, skill)

    assert answer["error"]["type"] == "TypeError"
    assert named in answer["error"]["message"]
    assert skill in answer["error"]["message"]
    assert composed.called(answer["run_id"]) == []


def test_each_call_is_a_run_of_its_own(server: Server, database_url: str, new_name: str) -> None:
    composed = Composed(server, new_name)
    skill = composed.impure("echo", "def f(a):\n    print('inside')\n    return {'summary': f'got {a}'}\n")

    answer = composed.run("from skills.NS.echo import f\ndef main(args): return [f(1), f(2)]", skill)

    assert answer["output"] == [{"summary": "got 1"}, {"summary": "got 2"}]
    assert answer["logs_preview"] == f"[{skill}] inside\n" * 2
    columns = "method, status, summary, logs_preview, output_json"
    query = f"SELECT {columns} FROM runs WHERE parent_run_id = '{answer['run_id']}' ORDER BY started_at"
    if database_url:
        with psycopg.connect(database_url) as postgres:
            rows = postgres.execute(query).fetchall()
    else:
        with sqlite3.connect(server.home / "skillery.db") as sqlite:
            rows = sqlite.execute(query).fetchall()
    assert [tuple(row) for row in rows] == [
        ("execute_skill", "completed", f"got {n}", "inside\n", f'{{"summary":"got {n}"}}') for n in (1, 2)
    ]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        ("ValueError('no such sheet')", ["ValueError", None, "no such sheet"]),
        ("KeyError('name')", ["KeyError", None, "name"]),
        ("FileNotFoundError(2, 'gone')", ["FileNotFoundError", None, "gone"]),
        ("TimeoutError('late')", ["TimeoutError", None, "late"]),
        ("Mine('own')", ["SkillError", "Mine", "own"]),
        ("UnicodeDecodeError('utf-8', b'x', 0, 1, 'odd')", ["SkillError", "UnicodeDecodeError", "odd"]),
        ("SystemExit('bye')", ["SkillError", "SystemExit", "bye"]),
        ("KeyboardInterrupt", ["SkillError", "KeyboardInterrupt", ""]),
        ("ExceptionGroup('many', [ValueError()])", ["SkillError", "ExceptionGroup", "many"]),
    ],
)
def test_an_exception_of_a_called_skill_reaches_the_caller(
    composed: Composed, raised: str, seen: list[str | None]
) -> None:
    skill = composed.impure("bad", f"class Mine(Exception): pass\ndef f(): raise {raised}\n")
    code = """
    from runtime import SkillError
    from skills.NS.bad import f
    def main(args):
        try:
            f()
        except Exception as error:
            return [type(error).__name__, getattr(error, 'type', None), str(error), error.__context__ is None]
    """

    kind, type_, message, alone = composed.output(code, skill)

    assert [kind, type_] == seen[:2]
    assert seen[2] is not None
    assert seen[2] in message
    assert f"f() in {skill} failed" in message
    assert "Traceback" not in message
    assert alone


@pytest.mark.parametrize(
    ("code", "type_"),
    [
        ("import os\ndef f(): os._exit(3)", "ProcessExited"),
        ("def f(): return {1}", "InvalidOutput"),
        ("def f(): return [0] * 10**10", "MemoryError"),
        ("def f(): import nothing_like_this", "ModuleNotFoundError"),
        ("def f(a): pass", "TypeError"),
    ],
)
def test_other_ends_are_failures_too(composed: Composed, code: str, type_: str) -> None:
    skill = composed.impure("bad", code)
    outer = """
    from skills.NS.bad import f
    def main(args):
        try:
            f()
        except Exception as error:
            return getattr(error, 'type', type(error).__name__)
    """

    assert composed.output(outer, skill) == type_


def test_the_log_of_a_caller_contains_the_logs_of_called_skills(composed: Composed) -> None:
    code = "import os\ndef send(to): print('to', to, os.environ['KEY_ONE'], flush=True)\ndef main(args): pass\n"
    name = composed.publish("loud", code, secrets=["KEY_ONE"])
    composed.grant("KEY_ONE", name)

    ran = composed.run(
        """
        from skills.NS.loud import send
        def main(args):
            print('before', flush=True)
            send('ann')
            print('after')
        """,
        name,
    )

    assert ran["logs_preview"] == f"before\n[{name}] to ann [KEY_ONE]\nafter\n"
    called = composed.rpc("get_run", run_id=ran["run_id"])["called_runs"]
    assert [composed.rpc("get_run", run_id=run_id)["parent_run_id"] for run_id in called] == [ran["run_id"]]


def test_an_uncaught_exception_fails_the_run_and_names_the_skill(composed: Composed) -> None:
    skill = composed.impure("bad", "class Mine(Exception): pass\ndef f(): raise Mine('inside')\n")

    answer = composed.run("from skills.NS.bad import f\ndef main(args):\n    f()\n", skill)

    assert answer["error"]["type"] == "SkillError"
    assert answer["error"]["message"] == f"f() in {skill} failed with Mine: inside"
    assert "raise Mine" not in answer["error"]["traceback"]
    [called] = composed.called(answer["run_id"])
    assert called["status"] == "failed"
    assert "raise Mine" in json.loads(called["error_json"])["traceback"]


def test_the_limits_of_a_call_are_the_called_skills(composed: Composed) -> None:
    skill = composed.impure("slow", "import time\ndef f(): time.sleep(60)\n", limits={"timeout_ms": 300})
    code = """
    from skills.NS.slow import f
    def main(args):
        try:
            f()
        except TimeoutError as error:
            return str(error)
    """

    assert "300 ms" in composed.output(code, skill)


def test_more_calls_than_allowed_are_refused(start_server: Callable[..., Server], new_name: str) -> None:
    composed = Composed(start_server(env={"SKILLERY_LIMITS_CALLS": "3"}), new_name)
    skill = composed.impure("one", "def f(n): return n\n")
    code = """
    from runtime import HostError
    from skills.NS.one import f
    def main(args):
        seen = []
        for n in range(5):
            try:
                seen.append(f(n))
            except HostError as error:
                seen.append('3 times' in str(error))
        return seen
    """

    answer = composed.run(code, skill)

    assert answer["output"] == [0, 1, 2, True, True]
    assert len(composed.called(answer["run_id"])) == 3


def test_arguments_of_a_call_have_a_limit(composed: Composed) -> None:
    skill = composed.impure("one", "def f(text): return len(text)\n")
    code = """
    from runtime import HostError
    from skills.NS.one import f
    def main(args):
        try:
            f('x' * (17 << 20))
        except HostError as error:
            return ['16 MiB' in str(error), f('x' * (5 << 20))]
    """

    assert composed.output(code, skill) == [True, 5 << 20]


def test_a_call_that_a_signal_interrupts_does_not_pass_for_another(composed: Composed) -> None:
    skill = composed.impure("slow", "import time\ndef f():\n    time.sleep(60)\n    return 'of the call'\n")
    code = """
    import signal
    from runtime import HostError, blobs
    from skills.NS.slow import f
    class Late(Exception): pass
    def late(*_): raise Late
    def main(args):
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, args['seconds'])
        try:
            f()
        except Late:
            pass
        try:
            return f()
        except HostError as error:
            return 'interrupted' in str(error)
    """
    answer: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []

    for seconds in (0.3, 3, 30):  # on a loaded machine, the call needs time until it begins
        answer = composed.run(code, skill, args={"seconds": seconds})
        rows = composed.called(answer["run_id"])
        if rows and answer["output"] is True:
            break

    assert answer["output"] is True
    [called] = rows
    assert json.loads(called["error_json"])["message"] == "the run that called this has ended"


# -- permissions -----------------------------------------------------------------------------------------------------

SHOW = (
    "import os\ndef f(): return {name: value[::-1] for name, value in os.environ.items() if name.startswith('KEY_')}\n"
)
SEARCH = """
import os
UP = bytes((byte + 1) % 256 for byte in range(256))
def found_here(wanted):
    '''Whether it lies in what this process may write. `wanted` has each byte one up, not to be found itself.'''
    memory = os.open('/proc/self/mem', os.O_RDONLY)
    with open('/proc/self/maps') as maps:
        places = [line.split() for line in maps if '[v' not in line]
    for place, access, *_ in places:
        start, end = (int(number, 16) for number in place.split('-'))
        try:
            if access.startswith('rw') and wanted in os.pread(memory, end - start, start).translate(UP):
                return True
        except OSError:
            pass  # what was read before lay there
    return False
"""


def test_a_secret_is_in_the_memory_of_its_skill_alone(composed: Composed) -> None:
    code = SEARCH + "def f(wanted): return [os.environ['KEY_ONE'] != '', found_here(bytes(wanted))]\nmain = f\n"
    skill = composed.publish("mail", code, secrets=["KEY_ONE"])
    composed.grant("KEY_ONE", skill)
    outer = (
        SEARCH
        + """
from skills.NS.mail import f
def main(args):
    inside = f(args['wanted'])
    mine = os.urandom(20)
    searching = found_here(bytes((byte + 1) % 256 for byte in mine))
    return [inside, found_here(bytes(args['wanted'])), searching, 'KEY_ONE' in os.environ]
"""
    )
    wanted = [byte + 1 for byte in ONE.encode()]

    assert composed.output(outer, skill, args={"wanted": wanted}) == [[True, True], False, True, False]


def test_two_skills_do_not_see_each_others_secrets(composed: Composed) -> None:
    one = composed.publish("one", SHOW + "def main(args): return f()\n", secrets=["KEY_ONE"])
    two = composed.publish("two", SHOW + "def main(args): return f()\n", secrets=["KEY_TWO"])
    composed.grant("KEY_ONE", one)
    composed.grant("KEY_TWO", two)
    code = "import skills.NS.one as one, skills.NS.two as two\ndef main(args): return [one.f(), two.f()]"

    assert composed.output(code, one, two) == [{"KEY_ONE": ONE[::-1]}, {"KEY_TWO": TWO[::-1]}]


def test_a_missing_grant_is_a_failed_run_that_names_the_command(composed: Composed) -> None:
    skill = composed.publish("mail", "print('ran')\n" + SHOW + "def main(args): return f()\n", secrets=["KEY_ONE"])

    answer = composed.run("from skills.NS.mail import f\ndef main(args): return f()", skill)

    assert answer["status"] == "failed"
    assert answer["error"]["type"] == "SkillError"
    assert f"skillery secret grant KEY_ONE {skill}" in answer["error"]["message"]
    [called] = composed.called(answer["run_id"])
    assert json.loads(called["error_json"])["type"] == "SecretNotGranted"
    assert called["logs_preview"] == ""


def test_a_value_is_redacted_before_the_caller_sees_it(composed: Composed) -> None:
    leaky = """
    import os
    def f(): return {"key": os.environ["KEY_ONE"]}
    def g():
        print(os.environ["KEY_ONE"])
        raise ValueError(f"401 for {os.environ['KEY_ONE']}")
    def main(args): return f()
    """
    skill = composed.publish("leaky", leaky, secrets=["KEY_ONE"])
    composed.grant("KEY_ONE", skill)
    code = """
    from skills.NS.leaky import f, g
    def main(args):
        try:
            g()
        except ValueError as error:
            return [f(), str(error)[::-1]]
    """

    answer = composed.run(code, skill)

    result, message = answer["output"]
    assert result == {"key": "[KEY_ONE]"}
    assert message[::-1] == f"g() in {skill} failed: 401 for [KEY_ONE]"
    assert ONE not in json.dumps(composed.called(answer["run_id"]))


def test_the_network_is_the_called_skills_alone(composed: Composed, plain: Upstream) -> None:
    url = f"http://api.test:{plain.port}"
    skill = composed.publish("net", FETCH + "def main(args): pass\n", network=[url])
    code = (
        FETCH
        + f"""
from skills.NS.net import fetch as allowed
def main(args):
    import os
    try:
        own = fetch('{url}/outer')
    except OSError as error:
        own = 'refused'
    return [allowed('{url}/inner'), own, [name for name in os.environ if 'proxy' in name.lower()]]
"""
    )

    answer = composed.run(code, skill)

    assert answer["output"] == ["GET /inner HTTP/1.1", "refused", []]
    assert "network" not in answer
    [called] = composed.called(answer["run_id"])
    [use] = json.loads(called["network_json"])
    assert (use["host"], use["allowed"]) == ("api.test", True)
    assert b"/outer" not in plain.received


def test_a_pure_skill_calls_an_impure_skill_through_the_same_stub(composed: Composed) -> None:
    skill = composed.publish("mail", SHOW + "def main(args): return f()\n", secrets=["KEY_ONE"])
    composed.grant("KEY_ONE", skill)
    inside = f"""
    import os
    from skills.{composed.ns}.mail import f
    def both(): return [f(), 'KEY_ONE' in os.environ]
    def main(args): return both()
    """
    pure = composed.publish("pure", inside)
    code = "from skills.NS.pure import both\ndef main(args): return both()"

    assert composed.output(code, pure, skill) == [{"KEY_ONE": ONE[::-1]}, False]


def test_running_the_source_oneself_gains_nothing(composed: Composed) -> None:
    skill = composed.publish("mail", SHOW + "def main(args): return f()\n", secrets=["KEY_ONE"])
    composed.grant("KEY_ONE", skill)
    code = """
    def main(args):
        names = {}
        exec(open('/skills/NS.mail/code/main.py').read(), names)
        return names['f']()
    """

    assert composed.output(code, skill) == {}


def test_code_of_the_caller_is_not_there_in_the_call(composed: Composed) -> None:
    """The called skill cannot see the caller's code, its workspace, or other mounted skills and their modules."""
    inside = """
    import os, sys
    def f():
        try:
            import helper
        except ImportError:
            helper = None
        return [os.listdir('/skills'), os.listdir('/workspace'), helper is None, 'run_code' in sys.modules]
    """
    skill = composed.impure("alone", inside)
    other = composed.publish("other", "import helper\ndef main(args): pass\n", more={"code/helper.py": "STOLEN = 1"})
    code = """
    import skills.NS.other
    from skills.NS.alone import f
    def main(args):
        open('helper.py', 'w').write('STOLEN = 2')
        return f()
    """

    assert composed.output(code, other, skill) == [[skill], [], True, False]


def test_nothing_can_be_called_from_within_a_call(composed: Composed) -> None:
    one = composed.impure("one", OPEN_CHANNEL + "\ndef f(skill): return call(skill)\n")
    two = composed.impure("two", "def f(): return 'reached'\n")
    code = "from skills.NS.one import f\ndef main(args): return f(args['two'])"

    answer = composed.run(code, one, two, args={"two": two})

    header, body = answer["output"]
    assert "cannot call" in header["error"]["message"]
    assert body == ""
    assert len(composed.called(answer["run_id"])) == 1


# -- code that bypasses the stub ---------------------------------------------------------------------------------------


def test_forged_calls_reach_nothing_but_mounted_stubs(composed: Composed) -> None:
    mounted = composed.impure("mounted", "def f(): return 'mounted'\n")
    composed.impure("mounted", "def f(): return 'another version'\n", version="2.0.0")
    unmounted = composed.impure("unmounted", "def f(): return 'unmounted'\n")
    pure = composed.publish("pure", "def f(): return 'pure'\ndef main(args): return f()\n")
    names = [mounted, unmounted, pure, f"{mounted}@2.0.0", f"{mounted}@1.0.0", "", "../x", "x" * 5000]
    code = OPEN_CHANNEL + "\ndef main(args): return [call(name) for name in args['names']]"

    answer = composed.run(code, f"{mounted}@1.0.0", pure, args={"names": names})

    (header, body), *others = answer["output"]
    assert (header, body) == ({}, '"mounted"')
    assert [header["error"]["type"] for header, _ in others] == ["NotAllowed"] * len(others)
    assert [body for _, body in others] == [""] * len(others)
    assert len(composed.called(answer["run_id"])) == 1


def test_a_run_that_mounts_no_stub_can_call_nothing_not_even_itself(composed: Composed) -> None:
    forging = OPEN_CHANNEL + "\ndef f(): return 1\ndef main(args): return call(args['skill'])[0]['error']['type']\n"
    skill = composed.impure("one", forging)

    executed = composed.rpc("execute_skill", name=skill, args={"skill": skill})

    assert executed["output"] == "NotAllowed"
    assert composed.output(forging, args={"skill": skill}) == "NotAllowed"


def test_a_forged_call_cannot_use_imported_or_hidden_names(composed: Composed) -> None:
    """Otherwise, any caller could use `check_output` of the skill as a shell with the secret of the skill."""
    inside = """
    import os
    from os import getenv
    from subprocess import check_output
    from .beside import offered, check_output as again
    VALUE = 5
    class Thing: pass
    def f(): return 'f'
    def _hidden(): return os.environ['KEY_ONE']
    def main(args=None): return f()
    """
    beside = "from subprocess import check_output\ndef offered(): return 'offered'\n"
    skill = composed.publish("mail", inside, secrets=["KEY_ONE"], more={"code/beside.py": beside})
    composed.grant("KEY_ONE", skill)
    names = ["f", "offered", "main", "check_output", "again", "getenv", "_hidden", "Thing", "os", "VALUE", "__import__"]
    code = OPEN_CHANNEL + "\ndef main(args): return [call(args['skill'], name) for name in args['names']]"

    answers = composed.output(code, skill, args={"skill": skill, "names": names})

    assert [body for _, body in answers[:2]] == ['"f"', '"offered"']
    assert answers[2][1] == '"f"'
    assert {header["error"]["failed_as"] for header, _ in answers[3:]} == {"AttributeError"}
    assert "it has: f, main, offered" in answers[3][0]["error"]["message"]
    stub = """
    import skills.NS.mail as mail
    def main(args): return [name for name in args['names'] if hasattr(mail, name)]
    """
    assert composed.output(stub, skill, args={"names": names}) == ["f", "offered", "main"]


OTHERWISE = {
    "a fallback": "try:\n    from subprocess import getoutput as taken\nexcept ImportError:\n    DEF",
    "an earlier fallback": "try:\n    import lacking\nexcept ImportError:\n"
    "    from subprocess import getoutput as taken\n"
    "else:\n    DEF",
    "a star after it": "def getoutput(x): return x\nfrom subprocess import *\ntaken = getoutput",
    "a star before a condition": "from beside import *\nif not taken:\n    DEF",
    "a star beside that took one": "DEF\nfrom .beside import *",
    "a function of a module": "import subprocess as p\nDEF\ntaken = p.getoutput",
    "one of several targets": "from subprocess import getoutput\nDEF\n[taken, *other] = [getoutput]",
    "an alias of a fallback": "try:\n    from subprocess import getoutput\nexcept ImportError:\n"
    "    def getoutput(x): return x\ntaken = getoutput",
    "for": "import subprocess as p\nDEF\nfor taken in [p.getoutput]: pass",
    "with": "import contextlib, subprocess as p\nDEF\nwith contextlib.nullcontext(p.getoutput) as taken: pass",
    "walrus": "import subprocess as p\nDEF\nprint((taken := p.getoutput))",
    "walrus in a list": "import subprocess as p\nDEF\n[(taken := one) for one in [p.getoutput]]",
    "walrus in a default": "import subprocess as p\nDEF\ndef other(x=(taken := p.getoutput)): pass",
    "match": "import subprocess as p\nDEF\nmatch p.getoutput:\n    case taken: pass",
    "within a match": "DEF\nmatch 1:\n    case 1:\n        from subprocess import getoutput as taken",
    "except": "DEF\ntry:\n    1 / 0\nexcept ZeroDivisionError as taken: pass",
    "class": "DEF\nclass taken:\n    def __init__(self, x): pass",
    "del": "DEF\ndel taken",
    "global": "import subprocess as p\nDEF\ndef set():\n    global taken\n    taken = p.getoutput\nset()",
    "an annotated value": "import subprocess as p\nDEF\ntaken: object = p.getoutput",
}
UNSEEN = {
    "globals": "import subprocess as p\nDEF\nglobals()['taken'] = p.getoutput",
    "a decorator": "import subprocess as p\ndef swap(function): return p.getoutput\n@swap\nDEF",
    "a partial": "import functools, subprocess as p\n@lambda f: functools.partial(p.getoutput)\nDEF",
    "a builtin": "@lambda f: print\nDEF",
    "a class": "import subprocess as p\n@lambda f: p.Popen\nDEF",
    "wrapped without end": "class Endless:\n    def __init__(self): self.__wrapped__ = self\n"
    "    def __call__(self, x): return x\n@lambda f: Endless()\nDEF",
}


@pytest.mark.parametrize("source", [pytest.param(code, id=name) for name, code in (OTHERWISE | UNSEEN).items()])
@pytest.mark.full(after=4)
def test_a_name_that_may_be_something_else_cannot_be_called(composed: Composed, source: str) -> None:
    beside = "try:\n    from subprocess import getoutput as taken\nexcept ImportError:\n    def taken(x): return x\n"
    inside = f"{source}\ndef kept(x): return x\n".replace("DEF", "def taken(x): return x")
    skill = composed.publish("mail", inside + MAIN, secrets=["KEY_ONE"], more={"code/beside.py": beside})
    composed.grant("KEY_ONE", skill)
    code = (
        OPEN_CHANNEL
        + """
def main(args):
    import importlib
    mail = importlib.import_module('skills.' + args['skill'])
    body = b'{"args":["echo $KEY_ONE"],"kwargs":{}}'
    names = ['kept', 'taken']
    return [*(hasattr(mail, name) for name in names), *(call(args['skill'], name, body) for name in names)]
"""
    )

    kept, taken, called, refused = composed.output(code, skill, args={"skill": skill})

    assert kept
    assert taken == (source in UNSEEN.values())
    assert called[1] == '"echo $KEY_ONE"'
    assert refused[0]["error"]["failed_as"] == "AttributeError"
    assert f"{skill} offers no function 'taken'; it has: " in refused[0]["error"]["message"]
    assert "taken" not in refused[0]["error"]["message"].partition("it has: ")[2]


@pytest.mark.parametrize(
    "source",
    [
        "from os.path import *\ndef f(x): return x",
        "try:\n    import lacking\n    def f(x): return 0\nexcept ImportError:\n    def f(x): return x",
        "try:\n    import lacking\nexcept ImportError:\n    from .beside import f\nelse:\n    def f(x): return 0",
        "from .beside import *\nf_of_mine = f",
        "from . import beside\ndef f(x): return [f for f in [x]][0]\ng = [f for f in [1]]",
        "import functools\n@functools.cache\ndef f(x): return x",
        "import functools\ndef same(function):\n    @functools.wraps(function)\n"
        "    def inner(*a): return function(*a)\n    return inner\n@same\ndef f(x): return x",
        "@staticmethod\ndef f(x): return x",
        "import functools\n@lambda f: functools.partial(f)\ndef f(x): return x",
        "class Own:\n    def __init__(self, f): self.f = f\n    def __call__(self, x): return self.f(x)\n"
        "@Own\ndef f(x): return x",
    ],
)
def test_conditional_imported_and_decorated_functions_are_callable(composed: Composed, source: str) -> None:
    skill = composed.impure("kept", source + MAIN, more={"code/beside.py": "def f(x): return x\n"})

    assert composed.output("from skills.NS.kept import f\ndef main(args): return f(7)", skill) == 7


@pytest.mark.parametrize(
    ("function", "body"),
    [
        ("a b", NOTHING),
        ("", NOTHING),
        ("import", NOTHING),
        ("f.__globals__", NOTHING),
        ("f", b""),
        ("f", b"{}"),
        ("f", b"[]"),
        ("f", b'{"args":{},"kwargs":{}}'),
        ("f", b'{"args":[],"kwargs":{},"more":1}'),
        ("f", b'{"args":["\xff"],"kwargs":{}}'),
        ("f", b"[" * 100_000),
        ("f", b'{"args":[NaN],"kwargs":{}}'),
    ],
)
def test_a_malformed_call_is_refused_and_the_run_continues(composed: Composed, function: str, body: bytes) -> None:
    skill = composed.impure("one", "def f(): return 'ok'\n")
    code = (
        OPEN_CHANNEL
        + "\ndef main(args):\n    return [call(*args['call'], bytes.fromhex(args['body'])), call(args['call'][0])]"
    )

    answer = composed.run(code, skill, args={"call": [skill, function], "body": body.hex()})

    (refused, _), (header, result) = answer["output"]
    assert refused["error"]["type"] == "InvalidParams"
    assert (header, result) == ({}, '"ok"')
    assert len(composed.called(answer["run_id"])) == 1


# -- what importing shows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("from skills.NS.one import VALUE", "ImportError"),
        ("from skills.NS.one import Thing", "ImportError"),
        ("from skills.NS.one import beside", "ImportError"),
        ("import skills.NS.one.beside", "ImportError"),
        ("from skills.NS.one.beside import g", "ImportError"),
        ("import skills.NS.one as one; one.VALUE", "AttributeError"),
    ],
)
def test_names_missing_from_a_stub_are_explained(composed: Composed, line: str, kind: str) -> None:
    code = "VALUE = 1\nclass Thing: pass\ndef f(): pass\nasync def g(): pass\ndef main(args): return f()\n"
    skill = composed.publish("one", code, network=[PORT_OF_NOBODY], more={"code/beside.py": "def g(): pass"})

    error = composed.error(f"{line}\ndef main(args): pass", skill)

    assert error["type"] == kind
    assert f"skills.{composed.ns}.one declares network or secrets and runs in its own sandbox" in error["message"]
    assert "it has: f, g, main" in error["message"]


def test_the_entrypoint_does_not_run_where_it_is_imported(composed: Composed) -> None:
    skill = composed.impure("loud", "print('ran')\nraised = 1 / 0\ndef f(): pass\n")
    code = """
    import sys, skills.NS.loud
    from skills.NS.loud import f
    def main(args): return [entry for entry in sys.path if 'loud' in entry]
    """

    answer = composed.run(code, skill)

    assert answer["output"] == []
    assert answer["logs_preview"] == ""


def test_stubs_and_other_skills_mount_above_and_below_each_other(composed: Composed) -> None:
    stub, pure = "import os\ndef f(): return os.getpid() != 0\n", "def f(): return 'pure'\ndef main(args): return f()\n"
    mounts = [
        composed.impure("a", stub),
        composed.publish("a.pure", pure),
        composed.publish("b", "print('b ran')\n" + pure),
        composed.impure("b.stub", stub),
        composed.impure("b.stub.deep.er", stub),
    ]
    code = """
    from skills.NS.a.pure import f as a_pure
    from skills.NS.a import f as a, pure
    from skills.NS.b import stub
    import skills.NS.b.stub.deep.er as er
    def main(args):
        print('not yet')
        from skills.NS.b import f as b
        return [a_pure(), a(), pure.f(), stub.f(), er.f(), b()]
    """

    answer = composed.run(code, *mounts)

    assert answer["output"] == ["pure", True, "pure", True, True, "pure"]
    assert answer["logs_preview"] == "not yet\nb ran\n"


# -- blobs -----------------------------------------------------------------------------------------------------------


def test_blobs_go_both_ways(composed: Composed) -> None:
    inside = """
    from runtime import blobs
    def f(given, written): return blobs.write_text(blobs.read_text(given) + blobs.read_text(written))
    """
    skill = composed.impure("joins", inside)
    given = composed.rpc("create_blob", content="given ", kind="text/plain")["blob_id"]
    code = """
    from runtime import blobs
    from skills.NS.joins import f
    def main(args):
        written = blobs.write_text('written')
        joined = f(args['given'], written)
        return [written, joined, blobs.read_text(joined)]
    """

    answer = composed.run(code, skill, args={"given": given}, input_blobs=[given])

    written, joined, text = answer["output"]
    assert text == "given written"
    assert answer["output_blobs"] == [written, joined]
    assert composed.rpc("read_blob", blob_id=joined)["content"] == "given written"


def test_a_call_sees_only_the_blobs_in_its_arguments(composed: Composed) -> None:
    """A skill with network access cannot list the other blobs of its caller."""
    skill = composed.impure("lists", "import os\ndef f(told): return os.listdir('/blobs')\n")
    told, other = (composed.rpc("create_blob", content=text, kind="text/plain")["blob_id"] for text in "ab")
    code = """
    import os
    from skills.NS.lists import f
    def main(args): return [len(os.listdir('/blobs')), f({'deep': [args['told']]}), f('nothing')]
    """

    answer = composed.run(code, skill, args={"told": told}, input_blobs=[told, other])

    assert answer["output"] == [2, [told], []]


def test_a_call_has_no_blobs_but_its_callers(composed: Composed) -> None:
    skill = composed.impure("reads", "from runtime import blobs\ndef f(blob_id): return blobs.read_text(blob_id)\n")
    other = composed.rpc("create_blob", content="somebody's", kind="text/plain")["blob_id"]

    error = composed.error("from skills.NS.reads import f\ndef main(args): f(args['b'])", skill, args={"b": other})

    assert error["type"] == "FileNotFoundError"


def test_a_large_result_is_no_blob_of_the_caller(composed: Composed) -> None:
    skill = composed.impure("large", "def f(): return 'x' * 100_000\n")

    answer = composed.run("from skills.NS.large import f\ndef main(args): return len(f())", skill)

    assert (answer["output"], answer["output_blobs"]) == (100_000, [])
    [called] = composed.called(answer["run_id"])
    output = json.loads(called["output_json"])
    assert (output["blob_id"], output["size_bytes"]) == (None, 100_002)


# -- ends ------------------------------------------------------------------------------------------------------------

SLEEP = "import time\ndef f(): time.sleep(300)\n"
CALL_SLEEP = "from skills.NS.sleeps import f\ndef main(args): f()"


def wait_for_called(home: Path, status: str = "started") -> dict[str, Any]:
    def called() -> sqlite3.Row | None:
        with sqlite3.connect(home / "skillery.db") as database:
            database.row_factory = sqlite3.Row
            row: sqlite3.Row | None = database.execute(
                "SELECT * FROM runs WHERE parent_run_id IS NOT NULL AND status = ?", (status,)
            ).fetchone()
            return row

    return dict(eventually(called))


def processes_with(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue  # the process has ended
    return found


def test_the_timeout_of_the_caller_ends_the_call_with_all_its_processes(composed: Composed) -> None:
    mark = f"300.{secrets.randbelow(10**9)}"
    skill = composed.impure("sleeps", f"import subprocess\ndef f(): subprocess.run(['sleep', '{mark}'])\n")

    def call(timeout_ms: int) -> tuple[Any, list[Any]]:
        """Return whether the called code began before the time was over, and the answer."""
        limits = {"timeout_ms": timeout_ms}
        thread, answers = in_background(
            lambda: composed.run(CALL_SLEEP, skill, rpc=Rpc(composed.server.url), limits=limits)
        )
        seen = eventually(lambda: processes_with(mark) or not thread.is_alive())
        thread.join()
        return seen is not True, answers

    has_begun, answers = call(8_000)
    if not has_begun:  # on a loaded machine, the call needs time until it begins
        has_begun, answers = call(60_000)

    assert has_begun
    assert answers[0]["error"]["type"] == "TimeoutError"
    [called] = composed.called(answers[0]["run_id"])
    assert called["status"] == "failed"
    assert json.loads(called["error_json"])["type"] in {"TimeoutError", "CallerEnded"}
    assert processes_with(mark) == []


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)", "hold()"])
def test_a_caller_that_is_gone_ends_the_call(composed: Composed, end: str) -> None:
    skill = composed.impure("sleeps", SLEEP)
    code = f"""
    import os, threading, time
    from skills.NS.sleeps import f
    def hold():
        while True:
            if os.fork() == 0:
                held = [bytearray(1 << 20) for _ in range(100)]
                time.sleep(300)
    def main(args):
        threading.Thread(target=f).start()
        time.sleep(args["seconds"])
        {end}
    """
    limits = {"memory_mb": 256, "timeout_ms": 200_000}
    called: list[dict[str, Any]] = []
    for seconds in (1, 10, 60):  # on a loaded machine, the call needs time until it begins
        answer = composed.run(code, skill, args={"seconds": seconds}, limits=limits)
        assert answer["error"]["type"] in {"MemoryLimitExceeded", "ProcessKilled", "ProcessExited"}
        if called := composed.called(answer["run_id"]):
            break

    [row] = called
    assert json.loads(row["error_json"])["message"] == "the run that called this has ended"


@pytest.mark.full
def test_a_server_that_stops_ends_both_and_records_both(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server(env={"SKILLERY_GRACE_SECONDS": "0.5"})
    composed = Composed(server, new_name)
    skill = composed.impure("sleeps", SLEEP)
    thread, _ = in_background(lambda: composed.run(CALL_SLEEP, skill, rpc=Rpc(server.url)))
    wait_for_called(server.home)

    assert server.stop(signal.SIGTERM) == 0
    thread.join()

    with sqlite3.connect(server.home / "skillery.db") as database:
        rows = database.execute("SELECT status, error_json FROM runs").fetchall()
    assert [status for status, _ in rows] == ["failed", "failed"]
    assert all("the server was stopped" in error for _, error in rows)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.full
def test_calls_that_a_killed_server_left_are_closed_by_the_next(
    start_server: Callable[..., Server], new_name: str
) -> None:
    server = start_server()
    composed = Composed(server, new_name)
    skill = composed.impure("sleeps", SLEEP)
    thread, _ = in_background(lambda: composed.run(CALL_SLEEP, skill, rpc=Rpc(server.url)))
    wait_for_called(server.home)
    server.stop(signal.SIGKILL)
    thread.join()

    again = start_server()

    with sqlite3.connect(again.home / "skillery.db") as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("failed",), ("failed",)]


@pytest.mark.full
def test_a_call_takes_no_place_in_the_queue(configured_server: Callable[..., Server], new_name: str) -> None:
    """With one slot for runs, several runs that call other skills would otherwise wait for each other forever."""
    composed = Composed(configured_server(SKILLERY_CONCURRENT_RUNS="1"), new_name)
    skill = composed.impure("one", "def f(): return 1\n")
    code = "from skills.NS.one import f\ndef main(args): return f() + f()"
    running = [in_background(lambda: composed.output(code, skill, rpc=Rpc(composed.server.url))) for _ in range(4)]

    for thread, _ in running:
        thread.join()

    assert [results for _, results in running] == [[2]] * 4


def test_a_hook_hears_of_calls(start_server: Callable[..., Server], tmp_path: Path, new_name: str) -> None:
    plugins, heard = tmp_path / "plugins", tmp_path / "heard"
    plugins.mkdir()
    (plugins / "listens.py").write_text(
        "from skillery import hookimpl\n@hookimpl\ndef run_finished(run):\n"
        f"    with open({str(heard)!r}, 'a') as file:\n"
        "        print(run.method, run.skill, run.run_id, run.parent_run_id, file=file)\n"
    )
    composed = Composed(start_server(env={"SKILLERY_PLUGINS_FOLDER": str(plugins)}), new_name)
    skill = composed.impure("one", "def f(): return 1\n")

    answer = composed.run("from skills.NS.one import f\ndef main(args): return f()", skill)

    called, caller = (line.split() for line in heard.read_text().splitlines())
    assert caller == ["run_code", "None", answer["run_id"], "None"]
    assert (called[:2], called[3]) == (["execute_skill", skill], answer["run_id"])


def test_concurrent_calls_from_threads_get_their_results(composed: Composed) -> None:
    skill = composed.impure("one", "def f(n): return n\n")
    code = """
    import threading
    from skills.NS.one import f
    def main(args):
        seen = []
        threads = [threading.Thread(target=lambda n=n: seen.append(f(n) == n)) for n in range(5)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        return seen
    """

    assert composed.output(code, skill) == [True] * 5
