"""Named environments: packages that an admin defines for the code of run_code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.environments.definitions import Named
from skillery.environments.named import not_locked
from skillery.errors import PackageIndexUnavailable, PackagesNotOffered, SkilleryError, UnresolvableDependencies
from tests.api.test_metrics import figures
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, environment
from tests.runs.test_tools import PRINTED
from tests.support.mcp_client import Mcp
from tests.support.needing import create, needing
from tests.support.package_index import PackageIndex
from tests.support.people import Caller, Who
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

VERSIONS = """
import figures, frames
def main(args): return [frames.VERSION, figures.VERSION]
"""
CALLING = """
from skills.{0} import main as call
import frames
def main(args): return [call({{}}), frames.VERSION]
"""


def run(rpc: Rpc, code: str = VERSIONS, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = rpc("run_code", language="python", code=code, **more)
    return result


def described(rpc: Rpc, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rpc("describe_environment", name=name)
    return found


def settled(rpc: Rpc, name: str) -> dict[str, Any]:
    """Return the description of the environment once no build or rebuild is running."""

    def is_settled(found: dict[str, Any]) -> bool:
        return found["state"] in {"ready", "failed"} and (found["rebuild"] or {}).get("state") != "running"

    return eventually(lambda: is_settled(found := described(rpc, name)) and found)


def lock(rpc: Rpc, name: str) -> str:
    sha256: str = settled(rpc, name)["lock"]["sha256"]
    return sha256


# -- run_code ------------------------------------------------------------------------------------------------------


def test_code_finds_the_packages_of_the_environment_that_it_names(named_rpc: Rpc) -> None:
    result = run(named_rpc, environment="old")

    assert result["output"] == ["1.0", "2.0"]
    assert result["environment"] == {"name": "old", "lock": lock(named_rpc, "old")}


def test_code_that_names_none_has_the_default(named_rpc: Rpc) -> None:
    result = run(named_rpc)

    assert result["output"] == ["1.5", "2.0"]
    assert result["environment"]["name"] == "data"
    assert run(named_rpc, environment=None)["environment"]["name"] == "data"


def test_the_empty_name_is_no_environment(named_rpc: Rpc) -> None:
    result = run(named_rpc, environment="")

    assert result["error"]["type"] == "ModuleNotFoundError"
    assert "environment" not in result


def test_the_default_is_for_the_languages_of_its_packages(named_rpc: Rpc) -> None:
    result = named_rpc("run_code", language="bash", code="echo 1")

    assert (result["output"], "environment" in result) == (1, False)


@pytest.mark.parametrize("language", ["javascript", "bash"])
def test_other_languages_are_refused_an_environment(named_rpc: Rpc, language: str) -> None:
    error = named_rpc.error("run_code", language=language, code="1", environment="data")

    assert (error["code"], error["data"]["param"]) == (-32602, "environment")
    assert language in error["message"]
    assert "Omit 'environment'" in error["data"]["hint"]


def test_an_unknown_name_is_refused_with_those_that_there_are(named_rpc: Rpc) -> None:
    error = named_rpc.error("run_code", language="python", code="1", environment="dat")

    assert error["code"] == -32602
    assert "'dat'" in error["message"]
    assert error["data"]["environments"] == ["broken", "data", "growing", "old"]
    assert "Did you mean 'data'?" in error["data"]["hint"]


def test_a_server_without_environments_says_so(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("run_code", language="python", code="1", environment="data")

    assert error["code"] == -32602
    assert "no named environments" in error["data"]["hint"]


@pytest.mark.parametrize(
    ("error", "way_out", "setting"),
    [
        (PackagesNotOffered("this server has no uv", hint="Install it."), "this server has no uv. Install it.", False),
        (PackageIndexUnavailable("the package index cannot be reached"), "the package index cannot be reached", False),
        (UnresolvableDependencies("no package nothere is known here."), "is known here (the setting", True),
    ],
)
def test_locking_errors_name_the_setting_only_if_it_is_wrong(error: SkilleryError, way_out: str, setting: bool) -> None:
    message = not_locked(Named("data", ("nothere",)), error).message
    assert way_out in message
    assert ("environments.data.dependencies" in message) is setting


@pytest.mark.parametrize("name", ["\0", "x" * 100, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "é"])
def test_names_of_all_kinds_are_unknown(named_rpc: Rpc, name: str) -> None:
    assert named_rpc.error("run_code", language="python", code="1", environment=name)["code"] == -32602
    assert named_rpc.error("describe_environment", name=name)["code"] == -32003
    assert named_rpc.error("rebuild_environment", name=name)["code"] == -32003


def test_an_environment_that_cannot_be_locked_fails_the_run_by_its_reason(named_rpc: Rpc) -> None:
    result = run(named_rpc, environment="broken")

    assert result["error"]["type"] == "EnvironmentFailed"
    assert "'broken' could not be locked" in result["error"]["message"]
    assert "nothere" in result["error"]["message"]
    assert "environments.broken.dependencies" in result["error"]["message"]
    assert result["environment"] == {"name": "broken", "lock": None}


def test_a_run_is_on_record_with_its_environment(named_rpc: Rpc) -> None:
    result = run(named_rpc, environment="old")

    assert named_rpc("get_run", run_id=result["run_id"])["environment"] == result["environment"]


def test_a_skill_that_clashes_with_the_environment_is_refused_with_both_named(named_rpc: Rpc, new_name: str) -> None:
    create(named_rpc, needing(new_name, "frames>=2"), VERSIONS)

    error = named_rpc.error("run_code", language="python", code="1", mount_skills=[new_name], environment="data")

    assert error["code"] == -32602
    assert f"the environment 'data' needs frames 1.5 and '{new_name}' needs frames 2.0" in error["message"]
    assert "environment: ''" in error["data"]["hint"]
    assert run(named_rpc, "def main(args): return 1", mount_skills=[new_name], environment="")["output"] == 1


def test_a_skill_with_the_lock_of_the_environment_mounts_with_it(named_rpc: Rpc, new_name: str) -> None:
    create(named_rpc, needing(new_name, "frames<2"), VERSIONS)
    code = CALLING.format(new_name)

    result = run(named_rpc, code, mount_skills=[new_name])

    assert result["output"] == [["1.5", "2.0"], "1.5"]


def test_a_skill_with_permissions_clashes_with_no_environment(named_rpc: Rpc, new_name: str) -> None:
    made = needing(new_name, "frames>=2") | {"permissions": {"network": ["https://example.org"]}}
    create(named_rpc, made, VERSIONS)
    code = CALLING.format(new_name)

    assert run(named_rpc, code, mount_skills=[new_name])["output"] == [["2.0", "2.0"], "1.5"]


@pytest.mark.full
def test_a_run_waits_until_its_environment_is_installed(
    start_server: Callable[..., Server], new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0", {f"{own}/m{number}.py": f"X = {number}\n" for number in range(300)})
    running = start_server(env={"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), **environment("data", own)})
    code = f"from {own} import m7\ndef main(args): return m7.X"

    first = run(running.rpc, code, environment="data", limits={"timeout_ms": 1})
    last = run(running.rpc, code, environment="data")

    assert first["error"]["type"] in {"EnvironmentNotReady", "TimeoutError"}
    assert last["output"] == 7


# -- descriptions for models ---------------------------------------------------------------------------------------


def test_a_model_is_shown_the_environments_that_there_are(named: Server) -> None:
    shown = {tool["name"]: tool for tool in httpx.get(f"{named.url}/tools?format=jsonschema").json()}
    printed = {tool["name"]: tool for tool in PRINTED}
    more = shown["run_code"]["parameters"]["properties"].pop("environment")
    of_skill = shown["execute_skill"]["parameters"]["properties"].pop("environment")

    assert shown == printed
    assert (of_skill["enum"], of_skill["default"]) == (more["enum"], more["default"])
    assert more["enum"] == ["broken", "data", "growing", "old", ""]
    assert (more["type"], more["default"]) == ("string", "data")
    assert "'data' has frames: Tables and their shapes." in more["description"]


@pytest.mark.full
def test_the_tools_of_mcp_show_and_take_them(named_rpc: Rpc) -> None:
    mcp = Mcp(named_rpc)
    tools = {tool["name"]: tool for tool in mcp("tools/list")["tools"]}

    answer = mcp.tool("run_code", language="python", code=VERSIONS, environment="old")

    assert "environment" in tools["run_code"]["inputSchema"]["properties"]
    assert answer["structuredContent"]["output"] == ["1.0", "2.0"]


# -- listed and described ------------------------------------------------------------------------------------------


def test_list_environments_reports_the_state_of_each(named: Server) -> None:
    for name in ("data", "old", "broken"):
        settled(named.rpc, name)
    run(named.rpc, environment="broken")

    environments = named.rpc("list_environments")["environments"]
    found = {one["name"]: one for one in environments}
    assert list(found) == ["broken", "data", "growing", "old"]
    data = found["data"]
    assert (data["state"], data["default"], data["preload"]) == ("ready", True, ["frames", "figures"])
    assert data["lock"] is not None
    assert data["lock"]["packages"] == [{"name": "figures", "version": "2.0"}, {"name": "frames", "version": "1.5"}]
    assert (data["size_bytes"] or 0) > 0
    assert [(one["state"], one["here"]) for one in data["servers"]] == [("ready", True)]
    assert (found["broken"]["state"], found["broken"]["lock"]) == ("failed", None)
    assert "nothere" in found["broken"]["message"]


def test_preloaded_modules_are_reported_and_already_imported_in_runs(named: Server) -> None:
    seen = "import sys\ndef main(args): return sorted({'frames', 'figures'} & set(sys.modules))"
    lock(named.rpc, "data")
    run(named.rpc, environment="data")

    warm = warmed(named.rpc, "data")

    assert (warm["state"], warm["message"]) == ("ready", "")
    assert warm["memory_mb"] > 0
    assert run(named.rpc, seen, environment="data")["output"] == ["figures", "frames"]


def test_a_failed_preload_is_shown_with_its_reason(named: Server) -> None:
    lock(named.rpc, "old")
    assert run(named.rpc, environment="old")["output"] == ["1.0", "2.0"]

    warm = warmed(named.rpc, "old")

    assert (warm["state"], "absent_module" in warm["message"]) == ("failed", True)
    shown = skillery("env", "show", "old", "--url", named.url)
    assert "warm: failed: import absent_module: ModuleNotFoundError" in shown.out


def warmed(rpc: Rpc, name: str) -> dict[str, Any]:
    def warm() -> dict[str, Any] | None:
        found: dict[str, Any] | None = described(rpc, name)["warm"]
        return found if found is not None and found["state"] != "starting" else None

    return eventually(warm)


def test_an_environment_is_described_with_the_skills_that_have_its_lock(named: Server, new_name: str) -> None:
    sha256 = lock(named.rpc, "data")
    create(named.rpc, needing(new_name, "frames<2"), VERSIONS)

    by_name, by_lock = (named.rpc("describe_environment", name=name) for name in ("data", sha256))

    row = {"name": new_name, "version": "1.0.0", "status": "published"}
    assert row in by_name["versions"]
    assert row in by_lock["versions"]
    assert by_name["used_at"]
    assert (by_name["name"], by_lock["name"]) == ("data", None)


def test_admins_list_installed_environments_page_by_page(named: Server, new_name: str) -> None:
    create(named.rpc, needing(new_name, "frames>=2"), VERSIONS)
    named.rpc("execute_skill", name=new_name)
    of_skill = named.rpc("describe_skill", name=new_name)["skill"]["lock"]["sha256"]
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = named.rpc("list_environments", installed=True, limit=1, cursor=cursor)
        found += page["environments"]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    rows = {one["lock"]["sha256"]: one for one in found}
    assert list(rows) == sorted(rows)
    assert (rows[of_skill]["name"], rows[of_skill]["state"]) == (None, "ready")
    assert rows[lock(named.rpc, "data")]["name"] == "data"


def test_describe_environment_hides_locks_of_invisible_skills(org: Server, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    ann = Caller(org.url, Who(f"{new_name}-ann", "read run publish", f"{new_name}.*"))
    bob = Caller(org.url, Who(f"{new_name}-bob", "run", "", "agent"))
    admin = Caller(org.url, Who(f"{new_name}-admin", "admin", "*"))
    create(ann, needing(f"{new_name}.x", own))
    ann("set_visibility", name=f"{new_name}.x", visibility="private")
    sha256 = ann("describe_skill", name=f"{new_name}.x")["skill"]["lock"]["sha256"]

    row = {"name": f"{new_name}.x", "version": "1.0.0", "status": "published"}
    assert described(ann, sha256)["versions"] == described(admin, sha256)["versions"] == [row]
    assert bob.error("describe_environment", name=sha256)["data"]["type"] == "environment_not_found"


def test_agents_use_named_environments_and_only_admins_list_installed(org: Server, new_name: str) -> None:
    bob = Caller(org.url, Who(f"{new_name}-bob", "run", "", "agent"))
    admin = Caller(org.url, Who(f"{new_name}-admin", "admin", "*"))
    code = "import figures\ndef main(args): return figures.VERSION"

    assert [one["name"] for one in bob("list_environments")["environments"]] == ["data"]
    assert run(bob, code, environment="data")["output"] == "1.0"
    assert bob.error("list_environments", installed=True)["code"] == -32002
    assert bob.error("rebuild_environment", name="data")["code"] == -32002
    assert admin("list_environments", installed=True)["environments"] != []


# -- rebuilding ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_rebuild_takes_newer_releases_and_a_failed_rebuild_changes_nothing(
    named: Server, wheelhouse: Path, database_kind: str
) -> None:
    rpc, own = named.rpc, f"growing_{database_kind}"
    code = f"import {own}\ndef main(args): return {own}.VERSION"
    first = lock(rpc, "growing")
    make_wheel(wheelhouse, own, "1.1")

    assert run(rpc, code, environment="growing")["output"] == "1.0"
    rpc("rebuild_environment", name="growing")
    newer = settled(rpc, "growing")
    assert (newer["state"], newer["rebuild"]["state"]) == ("ready", "done")
    assert newer["lock"]["sha256"] != first
    assert run(rpc, code, environment="growing")["output"] == "1.1"
    [entry] = rpc("list_audit", action="rebuild_environment", subject="growing")["entries"]
    assert (entry["before"], entry["after"]) == ({"lock": first}, {"lock": newer["lock"]["sha256"]})

    damaged = make_wheel(wheelhouse, own, "1.2", record={f"{own}.py": "sha256=" + "A" * 43})
    rpc("rebuild_environment", name="growing")
    kept = settled(rpc, "growing")
    damaged.unlink()
    assert (kept["state"], kept["rebuild"]["state"]) == ("ready", "failed")
    assert own in kept["rebuild"]["message"]
    assert kept["lock"] == newer["lock"]
    assert run(rpc, code, environment="growing")["output"] == "1.1"


@pytest.mark.full
def test_the_lock_of_a_skill_is_reinstalled(named_rpc: Rpc, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    create(named_rpc, needing(new_name, own), f"import {own}\ndef main(args): return {own}.VERSION")
    sha256 = named_rpc("describe_skill", name=new_name)["skill"]["lock"]["sha256"]

    named_rpc("rebuild_environment", name=sha256)
    found = settled(named_rpc, sha256)

    assert (found["state"], found["rebuild"]["state"], found["lock"]["sha256"]) == ("ready", "done", sha256)
    assert named_rpc("execute_skill", name=new_name)["output"] == "1.0"


@pytest.mark.full
def test_a_rebuild_that_a_killed_server_began_has_failed_and_changed_nothing(
    start_server: Callable[..., Server], package_index: PackageIndex, new_name: str
) -> None:
    own = f"own{new_name}"
    make_wheel(package_index.folder, own, "1.0")
    env = {"SKILLERY_PACKAGES_INDEX_URLS": package_index.url, **environment("data", own)}
    running = start_server(env=env)
    first = lock(running.rpc, "data")
    wheel = make_wheel(package_index.folder, own, "1.1")
    package_index.held[wheel.name] = threading.Event()
    states = [running.rpc("rebuild_environment", name="data")["rebuild"]["state"] for _ in range(2)]
    running.stop(signal.SIGKILL)

    found = settled(start_server(env=env).rpc, "data")

    assert states == ["running", "running"]
    assert (found["rebuild"]["state"], found["lock"]["sha256"]) == ("failed", first)
    assert "the server was stopped" in found["rebuild"]["message"]


@pytest.mark.full
def test_a_sweep_keeps_named_environments(start_server: Callable[..., Server], wheelhouse: Path, new_name: str) -> None:
    house = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_GC_GRACE_MINUTES": "0"}
    running = start_server(env={**house, **environment("data", "figures")})
    settled(running.rpc, "data")

    swept = running.rpc("collect_garbage", steps=["environments"])
    error = running.rpc.error("collect_garbage", steps=["enviroments"])

    assert swept["removed"] == {"environments": {"count": 0, "bytes": 0}}
    assert described(running.rpc, "data")["state"] == "ready"
    assert (error["code"], "did you mean 'environments'?" in error["message"]) == (-32602, True)


@pytest.mark.full
def test_an_environment_of_nothing_for_this_machine_is_ready(
    start_server: Callable[..., Server], wheelhouse: Path
) -> None:
    env = {
        "SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse),
        **environment("data", "frames; sys_platform == 'win32'", preload=["frames"]),
    }
    rpc = start_server(env=env).rpc

    assert run(rpc, "def main(args): return 1", environment="data")["output"] == 1
    assert described(rpc, "data")["state"] == "ready"


# -- several servers, and settings that change ---------------------------------------------------------------------


@pytest.mark.full
def test_changed_dependencies_are_locked_again_and_a_restart_is_not(
    start_server: Callable[..., Server], wheelhouse: Path, new_name: str
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    house = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse)}
    running = start_server(env={**house, **environment("data", own)})
    first = lock(running.rpc, "data")
    running.stop()
    make_wheel(wheelhouse, own, "1.1")

    again = start_server(env={**house, **environment("data", own, description="Other words.")})
    assert lock(again.rpc, "data") == first
    again.stop()

    changed = start_server(env={**house, **environment("data", own, "figures")})
    assert lock(changed.rpc, "data") != first
    code = f"import {own}, figures\ndef main(args): return {own}.VERSION"
    assert run(changed.rpc, code, environment="data")["output"] == "1.1"


@pytest.mark.full
def test_servers_of_a_database_share_the_lock_of_an_environment(
    start_server: Callable[..., Server],
    new_postgres_database: Callable[[], str],
    tmp_path: Path,
    wheelhouse: Path,
    new_name: str,
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0")
    env = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), **environment("data", own)}
    env["SKILLERY_DATABASE"] = new_postgres_database()
    env["SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH"] = str(tmp_path / "contents")
    env["SKILLERY_PACKAGES_REUSE_HOURS"] = "0"
    one = start_server(home="one", env=env)
    first = lock(one.rpc, "data")
    make_wheel(wheelhouse, own, "1.1")
    other = start_server(home="other", env=env)

    assert lock(other.rpc, "data") == first
    found = settled(other.rpc, "data")
    assert sorted(server["here"] for server in found["servers"]) == [False, True]
    one.rpc("rebuild_environment", name="data")
    newer = settled(one.rpc, "data")["lock"]["sha256"]
    code = f"import {own}\ndef main(args): return {own}.VERSION"

    def result() -> dict[str, Any] | None:
        """Return the first run with the newer lock. A server caches the lock for a second."""
        found = run(other.rpc, code, environment="data")
        return found if found["environment"]["lock"] == newer else None

    assert eventually(result)["output"] == "1.1"


# -- settings ------------------------------------------------------------------------------------------------------


GOOD = '[packages]\nwheelhouse = "."\n[environments.data]\ndependencies = ["numpy>=2,<3"]\n'


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (GOOD.replace("numpy>=2,<3", "num py"), ["environments.data.dependencies", "'num py'", "is not a requirement"]),
        (GOOD.replace('"numpy>=2,<3"', '"a @ https://x.org/a.whl"'), ["environments.data.dependencies", "an address"]),
        (GOOD.replace('"numpy>=2,<3"', ""), ["environments.data.dependencies", "is empty"]),
        (GOOD.replace('["numpy>=2,<3"]', '"numpy"'), ["environments.data.dependencies", "'numpy'", "write a list"]),
        (GOOD.replace('dependencies = ["numpy>=2,<3"]', ""), ["environments.data", "dependencies"]),
        (GOOD + 'preload = ["os; import x"]', ["environments.data.preload", "not a module name"]),
        (GOOD + "prelaod = []", ["unknown setting 'prelaod'", "[environments.data]", "preload"]),
        (GOOD + 'description = "' + "x" * 301 + '"', ["environments.data.description", "300"]),
        (GOOD.replace("data", "Data"), ["'Data'", "lower-case letters"]),
        (
            GOOD + 'default = true\n[environments.b]\ndependencies = ["a"]\ndefault = true',
            ["environments.data.default"],
        ),
        (GOOD.replace('wheelhouse = "."', ""), ["environments.data", "packages.wheelhouse"]),
        ("[packages]\n" + "".join(f'[environments.e{n}]\ndependencies = ["a"]\n' for n in range(51)), ["at most 50"]),
        ("environments = 3", ["'environments' must be a table"]),
    ],
)
@pytest.mark.full(after=8)
def test_invalid_environment_settings_stop_the_start(tmp_path: Path, toml: str, words: list[str]) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(toml)

    ended = skillery("env", "list", "--home", str(tmp_path / "home"))

    assert ended.code == 4
    for word in words:
        assert word in ended.err


def test_a_variable_that_is_no_object_stops_the_start(tmp_path: Path) -> None:
    ended = skillery("env", "list", "--home", str(tmp_path), SKILLERY_ENVIRONMENTS_DATA="numpy")

    assert (ended.code, "SKILLERY_ENVIRONMENTS_DATA is not a JSON object" in ended.err) == (4, True)


def test_config_show_tells_where_an_environment_comes_from(tmp_path: Path) -> None:
    (tmp_path / "skillery.toml").write_text(GOOD)
    variables: Any = environment("text_tools", "figures", preload=["figures"])

    shown = skillery("config", "show", "--json", "--home", str(tmp_path), **variables).json

    assert shown["environments.data.dependencies"] == {"value": ["numpy>=2,<3"], "source": "skillery.toml"}
    assert shown["environments.text-tools.preload"] == {"value": ["figures"], "source": "environment"}


# -- operation -----------------------------------------------------------------------------------------------------


def test_metrics_count_them_by_state(named: Server) -> None:
    def nothing_is_built(found: dict[str, float]) -> bool:
        return not found["skillery_environments{state=building}"] + found["skillery_environments{state=pending}"]

    found = eventually(lambda: nothing_is_built(found := figures(named.rpc.http)) and found)
    assert found["skillery_environments{state=ready}"] == 3
    assert found["skillery_environments{state=failed}"] == 1


@pytest.mark.full
def test_the_doctor_tells_of_packages(tmp_path: Path, wheelhouse: Path) -> None:
    def packages(**variables: Any) -> dict[str, Any]:
        ended = skillery("doctor", "--home", str(tmp_path / "home"), "--json", **variables)
        return next(one for one in ended.json["probes"] if one["name"] == "packages")

    login = {"SKILLERY_PACKAGES_INDEX_URLS": "https://ann:secret@pypi.example.org/simple"}

    without = packages()
    assert (without["off"], "packages.index_urls" in without["fix"]) == (True, True)
    shown = skillery("doctor", "--home", str(tmp_path / "home"))
    assert {line.split("\t")[1] for line in shown.out.splitlines() if line.startswith("off\t")} == {
        *("authenticator", "packages", "tokens", "vulnerabilities", "webhooks")
    }
    of_pip = packages(PIP_INDEX_URL=login["SKILLERY_PACKAGES_INDEX_URLS"])
    assert (of_pip["off"], "from pypi.example.org (the index of pip), by " in of_pip["detail"]) == (False, True)
    own = packages(**login)
    assert "from pypi.example.org, by " in own["detail"]
    assert "; npm: none (the setting packages.npm_url)" in of_pip["detail"]
    assert "secret" not in own["detail"]
    wrong = packages(SKILLERY_PACKAGES_WHEELHOUSE=str(wheelhouse), **environment("data", "num py"))
    assert (wrong["ok"], "environments.data.dependencies" in wrong["detail"]) == (False, True)


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_commands_of_a_running_server(named: Server, new_name: str) -> None:
    def on(*arguments: str) -> Any:
        return skillery("env", *arguments, "--home", str(named.home), SKILLERY_DATABASE=named.database)

    shown = on("show", "data", "--wait")
    assert shown.code == 0
    assert "frames 1.5" in shown.out
    assert on("show", "broken", "--wait").code == 1
    assert on("show", "old", "--wait").code == 0
    assert "old\tready" in on("list").out
    assert on("list", "--installed", "--json").json["environments"] != []
    rebuilt = on("rebuild", "old", "--wait", "--json")
    assert (rebuilt.code, rebuilt.json["rebuild"]["state"]) == (0, "done")
    assert list(on("gc", "--dry-run", "--json").json["removed"]) == ["old_locks", "environments"]
    missing = on("show", "dta")
    assert (missing.code, "Did you mean 'data'?" in missing.err) == (3, True)


def test_code_of_a_shell_takes_an_environment(named: Server, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(VERSIONS)

    ended = skillery(
        "code", str(tmp_path / "a.py"), "--environment", "old", "--home", str(named.home), "--json",
        SKILLERY_DATABASE=named.database,
    )  # fmt: skip

    assert ended.json["output"] == ["1.0", "2.0"]


@pytest.mark.full
def test_a_home_without_a_server_installs_environments_on_request(tmp_path: Path, wheelhouse: Path) -> None:
    env: Any = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), **environment("data", "frames==1.0")}

    def on(*arguments: str) -> Any:
        return skillery("env", *arguments, "--home", str(tmp_path / "home"), "--json", **env)

    assert on("list").json["environments"][0]["state"] == "pending"
    assert on("show", "data", "--wait").json["state"] == "ready"
    assert on("rebuild", "data").json["rebuild"]["state"] == "done"
    assert on("list").json["environments"][0]["state"] == "ready"
